//! A client's socket, in cleartext or with TLS. hyper reads and writes it; the connection also watches it for the client's
//! disconnect.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::tls::CertificateName;
use crate::write_coalesced;

/// The transport of a client's connection.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP, after its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// The name in the client's certificate, which the handshake has verified.
    pub fn certificate_name(&self) -> Option<CertificateName> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => CertificateName::read(stream.get_ref().1.peer_certificates()?.first()?),
        }
    }
}

/// A socket with several handles, all for one task: only the last one to wait is woken.
///
/// A lock rather than `try_read` on a shared reference: tokio's own `poll_read` knows without another system call that it
/// has read everything.
#[derive(Clone, Debug)]
pub struct SharedSocket(Arc<Mutex<Socket>>);

impl SharedSocket {
    /// Shares a socket.
    pub fn new(socket: Socket) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    /// Ready once the client has closed its side or reset the connection. Takes no bytes from the reader: TLS records that
    /// have arrived are decrypted, and their plaintext is kept.
    ///
    /// While unread bytes wait, the answer is not known and no wake-up is registered: call it again whenever the task
    /// runs.
    pub fn poll_client_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self.lock() {
            Socket::Plain(stream) => {
                let mut byte = [0];
                match stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
                    Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
                    Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
                }
            }
            Socket::Tls(stream) => poll_tls_closed(stream, context),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A TLS client announces its end with a record (`close_notify`), so peeking at the socket would only show that there are
/// bytes. Stops at the first byte of another request, as a peek in cleartext does: it decrypts no more than one read of the
/// socket brought.
fn poll_tls_closed(stream: &mut TlsStream<TcpStream>, context: &mut Context<'_>) -> Poll<()> {
    let (socket, session) = stream.get_mut();
    loop {
        match session.process_new_packets() {
            Err(_) => return Poll::Ready(()),
            Ok(state) if state.peer_has_closed() => return Poll::Ready(()),
            Ok(state) if state.plaintext_bytes_to_read() > 0 => return Poll::Pending,
            Ok(_) => {}
        }
        match session.read_tls(&mut TlsRecordReader { socket, context }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Ok(0) | Err(_) => return Poll::Ready(()),
            Ok(_) => {}
        }
    }
}

/// A non-blocking socket behind [`io::Read`], as rustls reads from it.
struct TlsRecordReader<'a, 'b> {
    socket: &'a mut TcpStream,
    context: &'a mut Context<'b>,
}

impl io::Read for TlsRecordReader<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        match Pin::new(&mut *self.socket).poll_read(self.context, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Forwards a call to the stream of either variant.
macro_rules! on_socket {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &mut *$socket.lock() {
            Socket::Plain($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for SharedSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_socket!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self, stream => write_coalesced::poll_write(Pin::new(stream), context, slices))
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
