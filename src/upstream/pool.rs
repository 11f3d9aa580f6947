//! Connections to one upstream over HTTP/1.1, kept between requests.
//!
//! No task of its own moves a connection on: whoever has a request on it does, and reads the response from it. So what
//! passes through wakes nobody on its way, and goes when the one who wants it goes. A connection at rest is looked after
//! once in a while.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::UPGRADE;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use tokio::time::{Instant, sleep};
use tower_service::Service as _;

use super::connector::{BoxError, Connector};
use super::{CallError, check};
use crate::body::Body;
use crate::body::flow::{Flow, Home, Line};

/// What rests is looked at so often: nobody else sees that an upstream has closed its side, until a request needs one.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Connections of one worker to one upstream.
pub(super) struct Pool {
    connector: Connector,
    /// Where to, for the connector.
    target: Uri,
    idle: Duration,
    resting: Mutex<Resting>,
}

/// The one that was used last is at the end, and is used next.
#[derive(Default)]
struct Resting {
    lines: Vec<(Box<Line>, Instant)>,
    tended: bool,
}

impl Pool {
    /// None yet. What has rested for as long as `idle` is not used again.
    pub(super) fn new(connector: Connector, target: Uri, idle: Duration) -> Arc<Self> {
        Arc::new(Self { connector, target, idle, resting: Mutex::default() })
    }

    /// Sends a request in origin form, of which nothing is left then, and waits for the response's head.
    pub(super) async fn call(self: &Arc<Self>, request: &mut Request<Body>) -> Result<Response<Flow>, CallError> {
        let asks_to_switch = request.headers().contains_key(UPGRADE);
        let upload = request.body_mut().tied();
        loop {
            let rested = poll_fn(|cx| Poll::Ready(self.take(cx))).await;
            let (mut line, has_rested) = match rested {
                Some(line) => (line, true),
                // Seldom: no request should have room for it in its future.
                None => (Box::pin(self.connect()).await.map_err(CallError::NeverSent)?, false),
            };
            let mut failed = match line.send(request).await {
                Ok(response) => {
                    // One that is not sound takes its connection with it.
                    check(&response, asks_to_switch).map_err(CallError::Garbage)?;
                    return Ok(self.flow(line, response, upload.is_some_and(|upload| upload.any())));
                }
                Err(failed) => failed,
            };
            // hyper gives the request back if none of it was written. On a connection that has rested that means no more
            // than that its upstream was tired of waiting: this is no second sending.
            match failed.take_message() {
                Some(unsent) if has_rested => *request = unsent,
                Some(_) => return Err(CallError::NeverSent(failed.into_error().into())),
                None => return Err(CallError::Broken(failed.into_error().into())),
            }
        }
    }

    async fn connect(&self) -> Result<Box<Line>, BoxError> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(self.target.clone()).await?;
        let (sender, connection) = handshake(stream).await?;
        Ok(Box::new(Line::new(sender, connection.with_upgrades())))
    }

    /// A connection that rests and is fit for use as far as anybody knows.
    fn take(&self, cx: &mut Context<'_>) -> Option<Box<Line>> {
        loop {
            let (mut line, since) = self.lock().lines.pop()?;
            if since.elapsed() >= self.idle {
                // And so have all below it.
                self.lock().lines.clear();
                return None;
            }
            if line.is_free(cx) {
                return Some(line);
            }
        }
    }

    /// The response, with its connection as long as there is something to read from it.
    fn flow(self: &Arc<Self>, line: Box<Line>, response: Response<Incoming>, uploads: bool) -> Response<Flow> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // It becomes the stream that both sides have agreed on, once it has come to its end as a connection.
            tokio::spawn(line.end());
            return response.map(Flow::from);
        }
        let home: Arc<dyn Home> = Arc::<Self>::clone(self);
        if uploads {
            // The answer has come early. Whether the rest goes must not hang on whether the client reads the answer.
            tokio::spawn(line.clear(home));
            return response.map(Flow::from);
        }
        response.map(|incoming| Flow::of(incoming, line, home))
    }

    fn lock(&self) -> MutexGuard<'_, Resting> {
        // Whole between any two statements.
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home for Pool {
    fn keep(self: Arc<Self>, line: Box<Line>) {
        let mut resting = self.lock();
        resting.lines.push((line, Instant::now()));
        if !std::mem::replace(&mut resting.tended, true) {
            tokio::spawn(tend(Arc::downgrade(&self)));
        }
    }
}

/// Closes what has rested long enough and what its upstream has closed, until nothing is left.
async fn tend(pool: Weak<Pool>) {
    loop {
        sleep(TEND_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut resting = pool.lock();
        // Nobody is to be woken: whoever takes one looks at it again.
        let mut nobody = Context::from_waker(Waker::noop());
        resting.lines.retain_mut(|(line, since)| since.elapsed() < pool.idle && line.is_free(&mut nobody));
        if resting.lines.is_empty() {
            resting.tended = false;
            return;
        }
    }
}
