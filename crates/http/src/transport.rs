//! The transport of a connection to a client or to a service. Several small slices are written as one.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// TCP keep-alive finds a peer whose machine or network is gone while nothing is sent: streams and tunnels have no time
/// limit. The kernel sends the first probe after 60 s of silence and the next ones every 15 s. Four unanswered probes
/// end the connection.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The interval of the probes after the first.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// The number of unanswered probes that end a connection.
pub const KEEPALIVE_PROBES: u32 = 4;

/// Up to 4 KiB are copied into one buffer: a head and a small body. A plain write costs the system less than a list of
/// slices.
const COPIED_BYTES_MAX: usize = 4 * 1024;

#[derive(Debug)]
pub enum Transport {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    /// A connection of a simulated network.
    Memory(DuplexStream),
}

/// Forwards a call to the stream of any variant.
macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            Transport::Tcp($stream) => $call,
            Transport::Tls($stream) => $call,
            Transport::Unix($stream) => $call,
            Transport::Memory($stream) => $call,
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        on_stream!(self, stream => stream.is_write_vectored())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        match slices {
            [one] => self.poll_write(context, one),
            some if some.iter().map(|slice| slice.len()).sum::<usize>() <= COPIED_BYTES_MAX => {
                BUFFER.with_borrow_mut(|buffer| {
                    buffer.clear();
                    some.iter().for_each(|slice| buffer.extend_from_slice(slice));
                    self.poll_write(context, buffer)
                })
            }
            many => on_stream!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(context, many)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn slices_arrive_in_their_order_whether_few_or_many() {
        for length in [1, 100, COPIED_BYTES_MAX / 2, COPIED_BYTES_MAX / 2 + 1] {
            let (near, mut far) = tokio::io::duplex(4 * COPIED_BYTES_MAX);
            let mut near = Transport::Memory(near);
            let (first, second) = (vec![1; length], vec![2; length]);
            let slices = [IoSlice::new(&first), IoSlice::new(&second)];
            let written = poll_fn(|context| Pin::new(&mut near).poll_write_vectored(context, &slices)).await.unwrap();
            drop(near);
            let mut arrived = Vec::new();
            far.read_to_end(&mut arrived).await.unwrap();
            assert_eq!(arrived, [first, second].concat()[..written], "{length}");
            assert!(written >= length);
        }
    }
}
