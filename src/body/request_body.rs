//! The body of a client's request, and its rest if nobody reads it to its end.
//!
//! hyper closes the connection of a body that is dropped before its end, and says so in no field. So the rest goes back to
//! the connection's owner, who knows the response and can read the rest or announce the close.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use super::ConnectionGuard;

/// A request's body as it comes from the client.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` once the rest has gone back.
    incoming: Option<Incoming>,
    /// The way back for the rest; `None` once the body has ended, and for a body whose rest nobody wants.
    way_back: Option<oneshot::Sender<UnreadBody>>,
    /// Whether the client waits for `100 Continue` before it sends the body. hyper sends it at the first poll.
    awaits_continue: bool,
    tie: Option<ConnectionGuard>,
}

/// A request's body that was not read to its end.
#[derive(Debug)]
pub enum UnreadBody {
    /// The client waits for `100 Continue`, and may send no body at all.
    AwaitsContinue,
    /// The body has broken off or is not framed as it says. Nothing after it can be read.
    Failed,
    /// The rest.
    Rest(Incoming),
}

impl RequestBody {
    /// A body whose rest is dropped.
    pub fn new(incoming: Incoming) -> Self {
        Self { incoming: Some(incoming), way_back: None, awaits_continue: false, tie: None }
    }

    /// A body whose rest goes to the receiver once the body is dropped. The receiver gets an error when the body has been
    /// read to its end.
    pub fn with_way_back(incoming: Incoming, awaits_continue: bool) -> (Self, oneshot::Receiver<UnreadBody>) {
        let (way_back, rest) = oneshot::channel();
        (Self { incoming: Some(incoming), way_back: Some(way_back), awaits_continue, tie: None }, rest)
    }

    /// Attaches a tie that is dropped with the body.
    pub(super) fn attach(&mut self, tie: ConnectionGuard) {
        self.tie = Some(tie);
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
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        this.awaits_continue = false;
        let frame = Pin::new(&mut *incoming).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => this.way_back = None,
            Poll::Ready(Some(Err(_))) => this.send_back(UnreadBody::Failed),
            // Not every reader polls again after the last frame.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() || incoming.is_end_stream() => this.way_back = None,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
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
