//! Response bodies on pooled connections to a service. Reading a body polls its connection.
//!
//! A connection has no task of its own. So bytes that pass through wake no other task, and the connection ends with the
//! request that uses it.

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
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop::unconstrained;

use super::checked_body::CheckedBody;
use super::{Body, BodyError};
use crate::lingering_stream::WriteState;

/// An HTTP/1.1 connection to a service, with hyper's handle for sending requests on it.
pub struct PooledConnection {
    sender: SendRequest<Body>,
    /// hyper's future that does the reading and writing; `None` once the connection has ended. hyper then reports the
    /// end to the request that is on it.
    driver: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
    /// Whether the connection still takes bytes: hyper does not see a failed write.
    writing: WriteState,
    /// The place among unguarded requests of the request on it, as long as it is on it.
    place: Option<OwnedSemaphorePermit>,
}

/// A pool that takes free connections back.
pub trait ReturnToPool: Send + Sync {
    /// Takes back a connection that can take a request.
    fn return_connection(self: Arc<Self>, connection: Box<PooledConnection>);
}

impl PooledConnection {
    /// Wraps a connection that nothing else polls. `writing` is the state of its stream.
    pub fn new(
        sender: SendRequest<Body>,
        driver: impl Future<Output = hyper::Result<()>> + Send + 'static,
        writing: WriteState,
    ) -> Self {
        Self { sender, driver: Some(Box::pin(driver)), writing, place: None }
    }

    /// Keeps a place until the connection is free for another request.
    pub fn keep(&mut self, place: Option<OwnedSemaphorePermit>) {
        self.place = place;
    }

    /// Returns it to its pool, with no request on it. A broken one is dropped.
    pub fn return_to(mut self: Box<Self>, pool: Arc<dyn ReturnToPool>) {
        if self.writing.has_failed() {
            return;
        }
        self.writing.note_unused();
        self.place = None;
        pool.return_connection(self);
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        // Its result is dropped: the request on it gets the error from hyper.
        if self.driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
            self.driver = None;
        }
    }

    /// Whether it can take a request.
    pub fn is_free(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Sends a request in origin form and waits for the response's head. Takes the request out of the reference: passed
    /// by value, it would have its room in the caller's future and in this one.
    /// The error has the request if nothing of it was written.
    pub async fn send(
        &mut self,
        request: &mut Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let request = std::mem::replace(request, Request::new(Body::empty()));
        let mut answer = pin!(unconstrained(self.sender.try_send_request(request)));
        poll_fn(|cx| {
            self.drive(cx);
            // The answer only comes while the driver is polled, right above, so it needs no wake-up of its own.
            answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// Drives the connection until it is free, and returns it to the pool. After an early response, the rest of the
    /// request may still have to be sent.
    pub async fn return_when_free(mut self: Box<Self>, pool: Arc<dyn ReturnToPool>) {
        let free = poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        });
        if free.await.is_ok() {
            self.return_to(pool);
        }
    }

    pub async fn drive_to_end(mut self: Box<Self>) {
        poll_fn(|cx| {
            self.drive(cx);
            if self.driver.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A response's body. Reading it polls its connection; dropping it before its end closes the connection.
#[derive(derive_more::Debug)]
#[debug("PooledBody({incoming:?})")]
pub struct PooledBody {
    incoming: CheckedBody,
    connection: Option<(Box<PooledConnection>, Arc<dyn ReturnToPool>)>,
    /// The stream of a shared connection. Dropped after the body, whose drop ends the stream.
    _stream: Option<Box<dyn Send + Sync>>,
}

impl From<Incoming> for PooledBody {
    /// A body of an HTTP/1 connection that something else drives.
    fn from(incoming: Incoming) -> Self {
        Self { incoming: CheckedBody::of_message(incoming), connection: None, _stream: None }
    }
}

impl PooledBody {
    /// A body that drives `connection`, and returns it to `pool` at its end.
    pub fn new(incoming: Incoming, connection: Box<PooledConnection>, pool: Arc<dyn ReturnToPool>) -> Self {
        let incoming = CheckedBody::of_message(incoming);
        let mut body = Self { incoming, connection: Some((connection, pool)), _stream: None };
        body.release_at_end();
        body
    }

    /// A body of a connection that other responses share. `stream` is dropped after it.
    pub fn of_stream(incoming: Incoming, stream: Box<dyn Send + Sync>) -> Self {
        Self { incoming: CheckedBody::of_stream(incoming), connection: None, _stream: Some(stream) }
    }

    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }

    /// Returns the connection to its pool, at once or as soon as it is free.
    fn release(&mut self) {
        let Some((mut connection, pool)) = self.connection.take() else { return };
        if connection.sender.is_ready() || connection.is_free(&mut Context::from_waker(Waker::noop())) {
            connection.return_to(pool);
        } else if connection.driver.is_some() {
            tokio::spawn(connection.return_when_free(pool));
        }
    }
}

impl http_body::Body for PooledBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some((connection, _)) = &mut this.connection else { return Pin::new(&mut this.incoming).poll_frame(cx) };
        let mut no_wake = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut this.incoming).poll_frame(&mut no_wake);
        if frame.is_pending() {
            connection.drive(cx);
            frame = Pin::new(&mut this.incoming).poll_frame(&mut no_wake);
        }
        match &frame {
            Poll::Ready(None) => this.release(),
            // Nothing comes after trailers, and not every reader polls again.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => this.release(),
            Poll::Ready(Some(Ok(_))) => this.release_at_end(),
            Poll::Ready(Some(Err(_))) => this.connection = None,
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
