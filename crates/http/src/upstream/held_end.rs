//! The end of an HTTP/2 connection, held back until the answers before it have been read.
//!
//! h2 reads all that has arrived, up to the end of the connection, before it wakes a reader of a response. For a stream
//! whose request was not sent to its end, it then forgets that the response had ended: the end of the connection counts
//! for both directions. So an answer that came whole would look cut off.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connector::UpstreamStream;
use super::open_streams::OpenStreams;
use crate::lingering_stream::WriteState;

/// The time for the readers of the responses. The requests without an answer learn the end so much later.
const HELD_FOR: Duration = Duration::from_secs(1);

/// A connection whose end is held back while it has streams.
pub(super) struct HeldEndStream {
    stream: UpstreamStream,
    writing: WriteState,
    streams: Arc<OpenStreams>,
    end: Option<HeldEnd>,
}

/// The end of the bytes, in order or by an error.
struct HeldEnd {
    result: Option<io::Result<()>>,
    timer: Pin<Box<Sleep>>,
}

impl HeldEndStream {
    pub(super) fn new(stream: UpstreamStream, streams: Arc<OpenStreams>) -> Self {
        Self { writing: stream.write_state(), stream, streams, end: None }
    }

    /// Writes, unless nobody is there who could read it.
    fn write<T>(
        &mut self,
        as_if: impl FnOnce() -> T,
        write: impl FnOnce(Pin<&mut UpstreamStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.end.is_some() {
            return Poll::Ready(Ok(as_if()));
        }
        let written = write(Pin::new(&mut self.stream));
        if self.writing.has_failed() {
            self.streams.lose();
        }
        written
    }
}

impl AsyncRead for HeldEndStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let end = match &mut this.end {
            Some(end) => end,
            None => {
                let free = buffer.remaining();
                let result = ready!(Pin::new(&mut this.stream).poll_read(cx, buffer));
                if result.is_ok() && buffer.remaining() < free {
                    return Poll::Ready(result);
                }
                this.streams.lose();
                if this.streams.is_empty() {
                    return Poll::Ready(result);
                }
                this.end.insert(HeldEnd { result: Some(result), timer: Box::pin(sleep(HELD_FOR)) })
            }
        };
        ready!(end.timer.as_mut().poll(cx));
        Poll::Ready(end.result.take().unwrap_or(Ok(())))
    }
}

impl AsyncWrite for HeldEndStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().write(|| bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write(|| (), |stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write(|| (), |stream| stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = || slices.iter().map(|slice| slice.len()).sum();
        self.get_mut().write(length, |stream| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
