//! hyper's body, with an end that its sender has set.
//!
//! hyper reports an HTTP/2 stream that its peer has reset with NO_ERROR as a body that has ended. That reset says that
//! the peer wants no more of the other direction (RFC 9113 section 8.1); about its own body it says nothing. A body
//! that was broken off so would be a shorter one: another amount for the service, another answer for the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::BodyError;

/// The body of a request or of a response, as hyper reads it.
#[derive(Debug)]
pub struct CheckedBody {
    incoming: Incoming,
    /// Whether hyper may report an end where the sender has set none.
    is_stream: bool,
}

impl CheckedBody {
    /// The body of an HTTP/1 message, whose end hyper checks.
    pub fn of_message(incoming: Incoming) -> Self {
        Self { incoming, is_stream: false }
    }

    pub fn of_stream(incoming: Incoming) -> Self {
        Self { incoming, is_stream: true }
    }
}

impl Body for CheckedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.incoming).poll_frame(cx));
        // h2 keeps that it has seen END_STREAM, whatever reset follows.
        // See docs/decisions/0021-find-where-messages-end.md.
        if frame.is_none() && this.is_stream && !this.incoming.is_end_stream() {
            return Poll::Ready(Some(Err("the stream was reset before the end of the body".into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
