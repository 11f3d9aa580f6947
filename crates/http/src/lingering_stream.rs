//! A stream that is read to its end after a write on it has failed.
//!
//! A peer that wants no more of a message answers and resets the connection. The next write fails then, and the answer
//! is in the receive buffer: Linux keeps what arrived before the reset. HTTP implementations end a connection at the
//! first failed write, and would lose the answer. Under this stream they go on reading, because the failed write and
//! all later ones seem to succeed.
//!
//! Nothing passes for more than it is. The end of the bytes after a failed write is an error, unless the peer had
//! closed its side in order before it reset the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The longest silence after a failed write. A TCP connection that was reset has all its bytes already. A peer of a
/// Unix socket that has closed its receiving side alone may still be writing its answer.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A stream whose failed write does not end its reading.
#[derive(Debug)]
pub struct LingeringStream<S> {
    stream: S,
    writing: WriteState,
    is_read: bool,
    /// `None` until a write has failed. Boxed because it is rare.
    failure: Option<Box<WriteFailure>>,
}

/// The state of a stream's sending side, as its owner sees it from outside.
#[derive(Clone, Debug, Default)]
pub struct WriteState(Arc<AtomicU8>);

const OPEN: u8 = 0;
/// The stream has taken no byte since its owner has called it unused.
const UNUSED: u8 = 1;
const FAILED: u8 = 2;

#[derive(Debug)]
struct WriteFailure {
    error: io::Error,
    silence: Pin<Box<Sleep>>,
}

impl WriteState {
    /// Whether a write has failed. Nothing that is written any more arrives.
    pub fn has_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == FAILED
    }

    /// Notes that all messages on the stream have ended. If the next message's first write fails, the stream ends:
    /// bytes that arrived before the peer got any of a request do not answer it.
    pub fn note_unused(&self) {
        let _ = self.0.compare_exchange(OPEN, UNUSED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl WriteFailure {
    fn copy_error(&self) -> io::Error {
        match self.error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => self.error.kind().into(),
        }
    }
}

impl<S> LingeringStream<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, writing: WriteState::default(), is_read: false, failure: None }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The state of the sending side, which stays visible when the stream has been given away.
    pub fn write_state(&self) -> WriteState {
        self.writing.clone()
    }

    /// Lets a failed write, and all writes after it, seem to succeed with the result `as_if`.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        as_if: impl FnOnce() -> T,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>>
    where
        S: Unpin,
    {
        match &self.failure {
            None => {}
            // Nothing can answer any more.
            Some(failure) if self.is_read => return Poll::Ready(Err(failure.copy_error())),
            Some(_) => return Poll::Ready(Ok(as_if())),
        }
        match write(Pin::new(&mut self.stream), context) {
            Poll::Ready(Err(error)) if !self.is_read && self.writing.0.load(Ordering::Relaxed) == OPEN => {
                tracing::debug!(%error, "a write failed; what the peer has sent is read");
                self.writing.0.store(FAILED, Ordering::Relaxed);
                let silence = Box::pin(sleep(SILENCE_MAX));
                self.failure = Some(Box::new(WriteFailure { error, silence }));
                // The reader may be waiting already, and has to wait for the silence too.
                context.waker().wake_by_ref();
                Poll::Ready(Ok(as_if()))
            }
            result => result,
        }
    }

    fn note_taken(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(_))) && self.writing.0.load(Ordering::Relaxed) == UNUSED {
            self.writing.0.store(OPEN, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let free = buffer.remaining();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && (free == 0 || buffer.remaining() < free) {
            if let Some(failure) = &mut this.failure {
                failure.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
            }
            return read;
        }
        let result = match (read, &mut this.failure) {
            (Poll::Pending, None) => return Poll::Pending,
            (Poll::Pending, Some(failure)) => {
                ready!(failure.silence.as_mut().poll(context));
                Err(failure.copy_error())
            }
            // The kernel says EPIPE for the reset of a connection whose peer has closed its side in order before, and
            // ECONNRESET for any other (`tcp_reset` in Linux). A body that ends with its connection is whole only after
            // the former.
            (Poll::Ready(Ok(())), Some(failure)) if failure.error.kind() != io::ErrorKind::BrokenPipe => {
                Err(failure.copy_error())
            }
            (Poll::Ready(result), _) => result,
        };
        this.is_read = true;
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.write(context, || bytes.len(), |stream, context| stream.poll_write(context, bytes));
        this.note_taken(&written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write(context, || (), |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.failure {
            None => Pin::new(&mut this.stream).poll_shutdown(context),
            Some(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = || slices.iter().map(|slice| slice.len()).sum();
        let written = this.write(context, length, |stream, context| stream.poll_write_vectored(context, slices));
        this.note_taken(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    /// A stream, and its peer, which takes no bytes any more.
    fn half_closed() -> (LingeringStream<UnixStream>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let far = far.into_std().unwrap();
        far.shutdown(Shutdown::Read).unwrap();
        (LingeringStream::new(near), UnixStream::from_std(far).unwrap())
    }

    #[tokio::test]
    async fn after_a_failed_write_all_is_read_and_nothing_is_written() {
        let (mut near, mut far) = half_closed();
        let state = near.write_state();
        assert!(!state.has_failed());
        near.write_all(b"a request").await.unwrap();
        assert!(state.has_failed());
        far.write_all(b"an answer").await.unwrap();
        drop(far);
        near.write_all(b"more").await.unwrap();
        near.flush().await.unwrap();
        let mut read = Vec::new();
        near.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"an answer");
        assert_eq!(near.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe, "nobody answers");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_waited_for_after_each_of_its_bytes() {
        let (mut near, mut far) = half_closed();
        near.write_all(b"a request").await.unwrap();
        let began = Instant::now();
        tokio::spawn(async move {
            sleep(SILENCE_MAX * 3 / 4).await;
            far.write_all(b"half").await.unwrap();
            std::future::pending::<()>().await;
        });
        let mut read = Vec::new();
        let error = near.read_to_end(&mut read).await.unwrap_err();
        assert_eq!((error.kind(), &*read), (io::ErrorKind::BrokenPipe, &b"half"[..]));
        assert!(began.elapsed() >= SILENCE_MAX * 7 / 4 && began.elapsed() < SILENCE_MAX * 2, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_before_the_write_fails_waits_no_longer_than_any_other() {
        let (mut near, _far) = half_closed();
        let mut buffer = [0; 8];
        let mut is_written = false;
        let read = std::future::poll_fn(|context| {
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = Pin::new(&mut near).poll_read(context, &mut buffer);
            if !std::mem::replace(&mut is_written, true) {
                assert!(Pin::new(&mut near).poll_write(context, b"a request").is_ready());
            }
            read
        });
        assert_eq!(read.await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_write_that_fails_after_the_end_of_the_bytes_fails() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut near = LingeringStream::new(near);
        drop(far);
        assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(near.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn the_first_failed_write_on_an_unused_stream_ends_it() {
        let (mut near, _far) = half_closed();
        let state = near.write_state();
        state.note_unused();
        assert_eq!(near.write_all(b"a request").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(!state.has_failed());
    }

    #[tokio::test]
    async fn a_stream_is_used_again_once_it_has_taken_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut near = LingeringStream::new(near);
        let state = near.write_state();
        state.note_unused();
        near.write_all(b"a").await.unwrap();
        let far = far.into_std().unwrap();
        far.shutdown(Shutdown::Read).unwrap();
        near.write_all(b"b").await.unwrap();
        assert!(state.has_failed());
        state.note_unused();
        assert!(state.has_failed(), "it stays so");
    }
}
