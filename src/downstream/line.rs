//! A client's socket, in cleartext or with TLS on it, shared by who speaks on it and who watches whether the client is still there.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::gather;

/// What a client speaks through.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP, after its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether nobody between can read along.
    pub fn is_secure(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

/// A socket of which there can be several. All of them are for one task: the last to wait is the one that is woken.
///
/// A lock rather than `try_read` on a shared reference: tokio's own `poll_read` knows without another system call that it
/// has read everything.
#[derive(Clone, Debug)]
pub struct Line(Arc<Mutex<Socket>>);

impl Line {
    /// Shares a socket.
    pub fn new(socket: Socket) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    /// Ready once the client has closed its side, or reset the connection. Nothing is taken from who reads here: of TLS,
    /// the records that have come are opened and what was said in them is kept.
    ///
    /// Where bytes wait to be read nobody can tell, and nobody is woken: to be asked again whenever the task runs.
    pub fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self.lock() {
            Socket::Plain(stream) => {
                let mut byte = [0];
                match stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
                    Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
                    Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
                }
            }
            Socket::Tls(stream) => poll_closed(stream, context),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client says with a record of its own that it has said all; a look at the socket would only find that there is
/// something. Stops at the first byte of another request, as the next look in cleartext would: no more is opened than one
/// read of the socket brought.
fn poll_closed(stream: &mut TlsStream<TcpStream>, context: &mut Context<'_>) -> Poll<()> {
    let (socket, session) = stream.get_mut();
    loop {
        match session.process_new_packets() {
            Err(_) => return Poll::Ready(()),
            Ok(state) if state.peer_has_closed() => return Poll::Ready(()),
            Ok(state) if state.plaintext_bytes_to_read() > 0 => return Poll::Pending,
            Ok(_) => {}
        }
        match session.read_tls(&mut Records { socket, context }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Ok(0) | Err(_) => return Poll::Ready(()),
            Ok(_) => {}
        }
    }
}

/// A socket as rustls reads from one.
struct Records<'a, 'b> {
    socket: &'a mut TcpStream,
    context: &'a mut Context<'b>,
}

impl io::Read for Records<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        match Pin::new(&mut *self.socket).poll_read(self.context, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Passes a call on to whichever stream it is.
macro_rules! on_socket {
    ($line:expr, $stream:ident => $call:expr) => {
        match &mut *$line.lock() {
            Socket::Plain($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_socket!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self, stream => gather::poll_write(Pin::new(stream), context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        on_socket!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
