//! Responses as they come from a service: who reads one moves its connection on.
//!
//! No task of its own does. So what passes through wakes nobody on its way, and ends with whoever wants it.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;
use tokio::task::coop::unconstrained;

use super::Body;

/// A connection to a service, and the way to put requests on it.
pub struct Line {
    sender: SendRequest<Body>,
    /// Gone when it has ended: whoever still waits for something of it then hears so.
    connection: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
}

/// Where connections go that are free again.
pub trait Home: Send + Sync {
    /// Takes one that can take a request.
    fn keep(self: Arc<Self>, line: Box<Line>);
}

impl Line {
    /// A connection that nobody else moves on.
    pub fn new(
        sender: SendRequest<Body>,
        connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
    ) -> Self {
        Self { sender, connection: Some(Box::pin(connection)) }
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        // How it ends is told to whoever has a request on it.
        if self.connection.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
            self.connection = None;
        }
    }

    /// Whether it can take a request.
    pub fn is_free(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Sends a request in origin form and waits for the response's head. It is taken out of its place: a future that has
    /// it, and calls one that has it, has room for two.
    ///
    /// # Errors
    /// As hyper has them: with the request where nothing of it was written.
    pub async fn send(
        &mut self,
        request: &mut Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let request = std::mem::replace(request, Request::new(Body::empty()));
        let mut answer = pin!(unconstrained(self.sender.try_send_request(request)));
        poll_fn(|cx| {
            self.drive(cx);
            // What comes has come by driving: it need not wake anybody, least of all who is awake.
            answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// A request whose response came early may still be on its way out. When all is through, the connection goes home.
    pub async fn clear(mut self: Box<Self>, home: Arc<dyn Home>) {
        let free = poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        });
        if free.await.is_ok() {
            home.keep(self);
        }
    }

    /// Moves it on to its end.
    pub async fn end(mut self: Box<Self>) {
        poll_fn(|cx| {
            self.drive(cx);
            if self.connection.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A response's body. Reading it moves its connection on; dropping it before its end closes that.
pub struct Flow {
    incoming: Incoming,
    way: Option<(Box<Line>, Arc<dyn Home>)>,
}

impl From<Incoming> for Flow {
    /// Of a connection that moves by itself.
    fn from(incoming: Incoming) -> Self {
        Self { incoming, way: None }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flow").field(&self.incoming).finish()
    }
}

impl Flow {
    /// Of this connection, which goes home from it.
    pub fn of(incoming: Incoming, line: Box<Line>, home: Arc<dyn Home>) -> Self {
        let mut flow = Self { incoming, way: Some((line, home)) };
        flow.let_go_at_end();
        flow
    }

    fn let_go_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.let_go();
        }
    }

    /// The connection is free for the next request, or will be.
    fn let_go(&mut self) {
        let Some((mut line, home)) = self.way.take() else { return };
        if line.sender.is_ready() || line.is_free(&mut Context::from_waker(Waker::noop())) {
            home.keep(line);
        } else if line.connection.is_some() {
            tokio::spawn(line.clear(home));
        }
    }
}

impl http_body::Body for Flow {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some((line, _)) = &mut this.way else { return Pin::new(&mut this.incoming).poll_frame(cx) };
        let mut nobody = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut this.incoming).poll_frame(&mut nobody);
        if frame.is_pending() {
            line.drive(cx);
            frame = Pin::new(&mut this.incoming).poll_frame(&mut nobody);
        }
        match &frame {
            Poll::Ready(None) => this.let_go(),
            // Nothing comes after trailers, and not everybody asks.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => this.let_go(),
            Poll::Ready(Some(Ok(_))) => this.let_go_at_end(),
            Poll::Ready(Some(Err(_))) => this.way = None,
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
