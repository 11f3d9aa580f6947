//! The bodies that flow through: whole, or streaming as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;

/// What goes wrong in the middle of a body; the connection is cut, so that nobody takes a part for the whole.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's or a response's body, without an allocation for the usual ones.
#[derive(Debug)]
pub enum Body {
    /// All of it, in memory, with its trailers.
    Whole {
        /// The bytes not yet handed on.
        data: Bytes,
        /// What follows them.
        trailers: Option<HeaderMap>,
    },
    /// As it arrives from the other side.
    Streaming(Incoming),
    /// As a task of ours hands it on: see `gate::oversize`.
    Piped(mpsc::Receiver<Piece>),
}

/// A piece of a piped body.
#[derive(Debug)]
pub enum Piece {
    /// The next frame.
    Frame(Frame<Bytes>),
    /// There are no more. A pipe that closes without it has broken, whoever was at the other end.
    End,
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// A body of these bytes.
    pub fn whole(data: impl Into<Bytes>) -> Self {
        Self::Whole { data: data.into(), trailers: None }
    }

    /// A body of these bytes with trailers behind it.
    pub fn with_trailers(data: Bytes, trailers: HeaderMap) -> Self {
        Self::Whole { data, trailers: (!trailers.is_empty()).then_some(trailers) }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole { data, .. } if !data.is_empty() => Poll::Ready(Some(Ok(Frame::data(std::mem::take(data))))),
            Self::Whole { trailers, .. } => Poll::Ready(trailers.take().map(|map| Ok(Frame::trailers(map)))),
            Self::Streaming(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Into::into),
            Self::Piped(pieces) => pieces.poll_recv(cx).map(|piece| match piece {
                Some(Piece::Frame(frame)) => Some(Ok(frame)),
                Some(Piece::End) => None,
                None => Some(Err("the body broke off".into())),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Self::Streaming(incoming) => incoming.is_end_stream(),
            Self::Piped(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // With trailers the length stays open: only a chunked message can carry them.
            Self::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            Self::Whole { .. } | Self::Piped(_) => SizeHint::default(),
            Self::Streaming(incoming) => incoming.size_hint(),
        }
    }
}
