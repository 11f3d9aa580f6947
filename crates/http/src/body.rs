//! Request and response bodies: whole in memory, or streaming.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::oneshot;

use body_budget::{Arrived, BudgetShare};
use pooled::PooledBody;
use request_body::{RequestBody, RequestBodyError};
use stream::StreamReader;

pub mod arrival_rate;
pub mod body_budget;
pub mod checked_body;
pub mod client_body;
pub mod early_response;
pub mod pooled;
pub mod request_body;
pub mod stream;

/// An error in the middle of a body. The connection is closed, so that nobody takes a part for the whole.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request's or a response's body. The common variants need no allocation.
#[derive(Debug)]
pub enum Body {
    Whole {
        /// The bytes not yet read.
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    Streaming(RequestBody),
    /// A body that streams from a service, the preparation of its trailers for the client, and a [`ConnectionGuard`]
    /// that is kept until the body is dropped.
    Tied(PooledBody, fn(&mut HeaderMap), ConnectionGuard),
    /// A body that streams while a copy is kept for an observer.
    Teed(TeedBody),
    /// A body that one of our tasks passes on, perhaps to several clients: see `gate::hand_on`. It may keep a
    /// [`ConnectionGuard`] until it is dropped.
    Shared(StreamReader, Option<ConnectionGuard>),
}

/// Counts live [`ConnectionGuard`]s: requests that end with their client's connection, or a body that is being sent.
#[derive(Debug, Default)]
pub struct ConnectionGuards(Arc<()>);

/// Keeps its [`ConnectionGuards`] from being free until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard(#[expect(dead_code, reason = "only its existence counts")] Arc<()>);

impl ConnectionGuards {
    pub fn attach(&self) -> ConnectionGuard {
        ConnectionGuard(Arc::clone(&self.0))
    }

    pub fn is_any_attached(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A body that is copied while it streams.
#[derive(Debug)]
pub struct TeedBody {
    incoming: RequestBody,
    /// The copy so far; `None` once it is sent, or when the body is too long or finds no room.
    copy: Option<BodyCopy>,
    bytes_max: usize,
}

#[derive(Debug)]
struct BodyCopy {
    bytes: BytesMut,
    share: BudgetShare,
    receiver: oneshot::Sender<CopyResult>,
}

/// A copied body with the memory that it counts in.
pub type CopyResult = Result<(Bytes, BudgetShare), CopyFailure>;

/// The reason why there is no copy of a body that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFailure {
    /// Other bodies fill the memory for bodies.
    NoRoom,
    /// The body is longer than the copy may be.
    TooLong,
}

impl TeedBody {
    fn copy_data(&mut self, data: &Bytes) {
        let Some(copy) = &mut self.copy else { return };
        let failure = if copy.bytes.len() + data.len() > self.bytes_max {
            CopyFailure::TooLong
        } else if copy.share.try_add(data.len(), Arrived::Much).is_err() {
            CopyFailure::NoRoom
        } else {
            return copy.bytes.extend_from_slice(data);
        };
        if let Some(BodyCopy { receiver, .. }) = self.copy.take() {
            let _ = receiver.send(Err(failure));
        }
    }

    /// Copies a frame as it passes; `None` is the end. Not every reader polls again after trailers or after the
    /// announced length, and hyper knows the end of a chunked body only by polling.
    fn copy_frame(&mut self, frame: Option<&Result<Frame<Bytes>, RequestBodyError>>) {
        let is_last = match frame {
            None => true,
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.copy_data(data);
                }
                frame.is_trailers() || self.incoming.is_end_stream()
            }
            // A part is no copy.
            Some(Err(_)) => return self.copy = None,
        };
        if is_last {
            self.send_copy();
        }
    }

    fn send_copy(&mut self) {
        if let Some(BodyCopy { bytes, share, receiver }) = self.copy.take() {
            let _ = receiver.send(Ok((bytes.freeze(), share)));
        }
    }
}

impl Body {
    /// Lets a streaming body be copied as it is read, and returns the receiver of the copy, which counts in `share`.
    /// The channel closes without a copy if the body breaks off, is not read to its end, or does not stream.
    pub fn tee(&mut self, bytes_max: usize, share: BudgetShare) -> oneshot::Receiver<CopyResult> {
        let (receiver, copy) = oneshot::channel();
        *self = match std::mem::replace(self, Self::empty()) {
            Self::Streaming(incoming) => {
                let begun = BodyCopy { bytes: BytesMut::new(), share, receiver };
                let mut tee = TeedBody { incoming, copy: Some(begun), bytes_max };
                if tee.incoming.is_end_stream() {
                    tee.send_copy();
                }
                Self::Teed(tee)
            }
            other => other,
        };
        copy
    }

    /// Attaches a guard to a streaming body, so that its end can be seen. `None` for a body that is in memory already.
    pub fn track_end(&mut self) -> Option<ConnectionGuards> {
        let (Self::Streaming(incoming) | Self::Teed(TeedBody { incoming, .. })) = self else { return None };
        if incoming.is_end_stream() {
            return None;
        }
        let guards = ConnectionGuards::default();
        incoming.attach(guards.attach());
        Some(guards)
    }

    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    pub fn whole(data: impl Into<Bytes>) -> Self {
        Self::Whole { data: data.into(), trailers: None }
    }

    pub fn with_trailers(data: Bytes, trailers: HeaderMap) -> Self {
        Self::Whole { data, trailers: (!trailers.is_empty()).then_some(trailers) }
    }

    /// Lets a body that is in memory count in `share` until its reader has dropped the last of its bytes. The bytes of
    /// a streaming body are not held.
    pub fn counted_in(self, share: BudgetShare) -> Self {
        match self {
            Self::Whole { data, trailers } => Self::Whole { data: share.attach_to(data), trailers },
            Self::Shared(..) | Self::Streaming(_) | Self::Tied(..) | Self::Teed(_) => self,
        }
    }

    /// The bytes of a body that is in memory; none of a streaming one.
    pub fn into_held_bytes(self) -> Bytes {
        match self {
            Self::Whole { data, .. } => data,
            Self::Shared(..) | Self::Streaming(_) | Self::Tied(..) | Self::Teed(_) => Bytes::new(),
        }
    }

    /// Whether Oncegate holds bytes of this body for its reader.
    fn is_held(&self) -> bool {
        matches!(self, Self::Whole { .. } | Self::Shared(..))
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
            Self::Tied(body, prepare, _) => {
                let mut frame = ready!(Pin::new(body).poll_frame(cx));
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    prepare(trailers);
                }
                Poll::Ready(frame)
            }
            Self::Teed(tee) => {
                let frame = ready!(Pin::new(&mut tee.incoming).poll_frame(cx));
                tee.copy_frame(frame.as_ref());
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Shared(reader, _) => reader.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Self::Streaming(incoming) | Self::Teed(TeedBody { incoming, .. }) => incoming.is_end_stream(),
            Self::Tied(body, ..) => body.is_end_stream(),
            Self::Shared(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // With trailers there is no exact length: only a chunked message can carry them.
            Self::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            Self::Whole { .. } | Self::Shared(..) => SizeHint::default(),
            Self::Streaming(incoming) | Self::Teed(TeedBody { incoming, .. }) => incoming.size_hint(),
            Self::Tied(body, ..) => body.size_hint(),
        }
    }
}
