//! The body of a client's request, and its rest if nobody reads it to its end.
//!
//! hyper closes the connection of a body that is dropped before its end, and says so in no field. So the rest goes back
//! to the connection's owner, who knows the response and can read the rest or announce the close.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use super::arrival_rate::ArrivalRate;
use super::checked_body::CheckedBody;
use super::{BodyError, ConnectionGuard};

/// A request's body as it comes from the client.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once the rest has gone back.
    incoming: Option<CheckedBody>,
    /// The way back for the rest; `None` once the body has ended, and for a body whose rest nobody wants.
    way_back: Option<oneshot::Sender<UnreadBody>>,
    /// Whether the client waits for `100 Continue` before it sends the body. hyper sends it at the first poll.
    awaits_continue: bool,
    guard: Option<ConnectionGuard>,
    trailers: Option<TrailerFilter>,
    /// The slowest rate in bytes a second; `None` for a body that may be silent.
    rate_min: Option<u64>,
    /// `None` until the body is waited for: most bodies come with their heads.
    wait: Option<Box<BodyWait>>,
}

/// Removes the trailers that must not reach the body's reader.
#[derive(derive_more::Debug)]
#[debug("TrailerFilter")]
struct TrailerFilter(Box<dyn Fn(&mut HeaderMap) + Send + Sync>);

#[derive(Debug)]
struct BodyWait {
    rate: ArrivalRate,
    /// The time of all waits that have ended.
    waited: Duration,
    /// The beginning of the current wait.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

/// The reason why a request's body has no more bytes.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// It broke off or is not framed as it says.
    #[error("{0}")]
    Broken(#[source] BodyError),
    #[error("the request's body arrives more slowly than `limits.body_rate`")]
    TooSlow,
}

impl BodyWait {
    fn new(rate_min: u64) -> Self {
        let rate = ArrivalRate::new(rate_min);
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + rate.deadline()));
        Self { rate, waited: Duration::ZERO, since: Some(now), timer }
    }

    fn note(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.rate.note(self.waited, bytes);
    }

    /// Ready when the bytes have been waited for too long.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let deadline = since + self.rate.deadline().saturating_sub(self.waited);
        // A timer that is too early costs one poll; moving it for each frame would cost more.
        while self.timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// A request's body that was not read to its end.
#[derive(Debug)]
pub enum UnreadBody {
    /// The client waits for `100 Continue`, and may send no body at all.
    AwaitsContinue,
    /// The body has broken off or is not framed as it says. Nothing after it can be read.
    Failed,
    /// The rest of a body that has arrived too slowly.
    Late(CheckedBody),
    Rest(CheckedBody),
}

impl RequestBody {
    /// A body whose rest is dropped.
    pub fn new(incoming: CheckedBody) -> Self {
        Self {
            incoming: Some(incoming),
            way_back: None,
            awaits_continue: false,
            guard: None,
            trailers: None,
            rate_min: None,
            wait: None,
        }
    }

    /// A body whose rest goes to the receiver once the body is dropped. The receiver gets an error when the body has
    /// been read to its end.
    pub fn with_way_back(incoming: CheckedBody, awaits_continue: bool) -> (Self, oneshot::Receiver<UnreadBody>) {
        let (way_back, rest) = oneshot::channel();
        let mut body = Self::new(incoming);
        (body.way_back, body.awaits_continue) = (Some(way_back), awaits_continue);
        (body, rest)
    }

    /// Sets the slowest rate in bytes a second; `None` for a body that may be silent.
    pub fn limit_rate(&mut self, rate_min: Option<u64>) {
        self.rate_min = rate_min;
    }

    /// Lets those trailers pass that `filter` leaves. Without a filter all are dropped.
    pub fn pass_trailers(&mut self, filter: impl Fn(&mut HeaderMap) + Send + Sync + 'static) {
        self.trailers = Some(TrailerFilter(Box::new(filter)));
    }

    /// Attaches a guard that is dropped with the body.
    pub(super) fn attach(&mut self, guard: ConnectionGuard) {
        self.guard = Some(guard);
    }

    fn send_back(&mut self, unread: UnreadBody) {
        if let Some(way_back) = self.way_back.take() {
            // The connection may have ended meanwhile.
            let _ = way_back.send(unread);
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        this.awaits_continue = false;
        let mut frame = Pin::new(&mut *incoming).poll_frame(cx).map_err(RequestBodyError::Broken);
        match (&frame, this.rate_min) {
            (Poll::Pending, Some(rate_min)) => {
                let wait = this.wait.get_or_insert_with(|| Box::new(BodyWait::new(rate_min)));
                std::task::ready!(wait.poll_late(cx));
                if let Some(rest) = this.incoming.take() {
                    this.send_back(UnreadBody::Late(rest));
                }
                return Poll::Ready(Some(Err(RequestBodyError::TooSlow)));
            }
            (Poll::Ready(Some(Ok(frame))), Some(_)) => {
                if let (Some(wait), Some(data)) = (&mut this.wait, frame.data_ref()) {
                    wait.note(data.len());
                }
            }
            _ => {}
        }
        match &frame {
            Poll::Ready(None) => this.way_back = None,
            Poll::Ready(Some(Err(_))) => this.send_back(UnreadBody::Failed),
            // Not every reader polls again after the last frame.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() || incoming.is_end_stream() => this.way_back = None,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        if let Poll::Ready(Some(Ok(last))) = &mut frame
            && let Some(trailers) = last.trailers_mut()
        {
            match &this.trailers {
                Some(TrailerFilter(filter)) => filter(trailers),
                None => trailers.clear(),
            }
            if trailers.is_empty() {
                return Poll::Ready(None);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let unread = match (self.awaits_continue, self.incoming.take()) {
            (true, _) => UnreadBody::AwaitsContinue,
            (false, Some(incoming)) => UnreadBody::Rest(incoming),
            (false, None) => return,
        };
        self.send_back(unread);
    }
}
