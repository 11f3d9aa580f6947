//! The bodies that flow through: whole, or streaming as they come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot};

use flow::Flow;

pub mod flow;

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
    /// As it arrives from a client.
    Streaming(Incoming),
    /// As it arrives from either side, tied to it.
    Tied(Flow, Tie),
    /// As it arrives, with a copy kept for somebody who looks on.
    Teed(Tee),
    /// As a task of ours hands it on: see `gate::oversize`.
    Piped(mpsc::Receiver<Piece>),
}

/// What somebody wants to know the end of: of a client's connection what ends with its client, or a body on its way.
#[derive(Debug, Default)]
pub struct Ties(Arc<()>);

/// One of those, for as long as this lives.
#[derive(Debug)]
pub struct Tie(#[expect(dead_code, reason = "that it is there is all it says")] Arc<()>);

impl Ties {
    /// One more.
    pub fn tie(&self) -> Tie {
        Tie(Arc::clone(&self.0))
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A piece of a piped body.
#[derive(Debug)]
pub enum Piece {
    /// The next frame.
    Frame(Frame<Bytes>),
    /// There are no more. A pipe that closes without it has broken, whoever was at the other end.
    End,
}

/// A body that is copied while it streams.
#[derive(Debug)]
pub struct Tee {
    incoming: Incoming,
    copy: BytesMut,
    bytes_max: usize,
    /// Where the copy goes once it is whole; gone when it has, or when there is none.
    whole: Option<oneshot::Sender<Bytes>>,
    #[expect(dead_code, reason = "that it is there is all it says")]
    tie: Option<Tie>,
}

impl Tee {
    fn take(&mut self, data: &Bytes) {
        if self.copy.len() + data.len() > self.bytes_max {
            self.whole = None;
        } else if self.whole.is_some() {
            self.copy.extend_from_slice(data);
        }
    }

    fn hand_over_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(whole) = self.whole.take()
        {
            let _ = whole.send(std::mem::take(&mut self.copy).freeze());
        }
    }
}

impl Body {
    /// A body that streams, and its copy: an error instead if it breaks off or is longer than `bytes_max`.
    pub fn teed(incoming: Incoming, bytes_max: usize) -> (Self, oneshot::Receiver<Bytes>) {
        let (whole, copy) = oneshot::channel();
        let mut tee = Tee { incoming, copy: BytesMut::new(), bytes_max, whole: Some(whole), tie: None };
        tee.hand_over_at_end();
        (Self::Teed(tee), copy)
    }

    /// A body that streams is tied, for as long as it is on its way; `None` for one that is there.
    pub fn tied(&mut self) -> Option<Ties> {
        let streams = matches!(self, Self::Streaming(_) | Self::Teed(_)) && !self.is_end_stream();
        let ties = streams.then(Ties::default)?;
        *self = match std::mem::replace(self, Self::empty()) {
            Self::Streaming(incoming) => Self::Tied(Flow::from(incoming), ties.tie()),
            Self::Teed(tee) => Self::Teed(Tee { tie: Some(ties.tie()), ..tee }),
            there => there,
        };
        Some(ties)
    }

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
            Self::Tied(flow, _) => Pin::new(flow).poll_frame(cx).map_err(Into::into),
            Self::Teed(tee) => {
                let frame = ready!(Pin::new(&mut tee.incoming).poll_frame(cx));
                if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                    tee.take(data);
                }
                tee.hand_over_at_end();
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
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
            Self::Streaming(incoming) | Self::Teed(Tee { incoming, .. }) => incoming.is_end_stream(),
            Self::Tied(flow, _) => flow.is_end_stream(),
            Self::Piped(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // With trailers the length stays open: only a chunked message can carry them.
            Self::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            Self::Whole { .. } | Self::Piped(_) => SizeHint::default(),
            Self::Streaming(incoming) | Self::Teed(Tee { incoming, .. }) => incoming.size_hint(),
            Self::Tied(flow, _) => flow.size_hint(),
        }
    }
}
