//! A client's socket, in cleartext or with TLS. hyper reads and writes it; the connection also watches it for the
//! client's disconnect.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsStream, server};

use crate::transport::Transport;
use oncegate_trust::tls::CertificateName;

/// The name in the client's certificate, which the handshake has verified.
pub fn certificate_name(transport: &Transport) -> Option<CertificateName> {
    let Transport::Tls(stream) = transport else { return None };
    CertificateName::read(stream.get_ref().1.peer_certificates()?.first()?)
}

/// A socket with several handles, all for one task: only the last one to wait is woken.
///
/// A lock rather than `try_read` on a shared reference: tokio's own `poll_read` knows without another system call that
/// it has read everything.
#[derive(Clone, Debug)]
pub struct SharedSocket(Arc<Mutex<SocketState>>);

#[derive(Debug)]
struct SocketState {
    socket: Transport,
    /// Whether hyper has flushed since the current request began, and has written nothing since.
    flushed: bool,
    /// The bytes to write before any more of hyper's.
    inserted: Vec<u8>,
}

impl SharedSocket {
    pub fn new(socket: Transport) -> Self {
        Self(Arc::new(Mutex::new(SocketState { socket, flushed: false, inserted: Vec::new() })))
    }

    /// Begins a request over HTTP/1: hyper has encoded all responses before it, and may still hold bytes of them.
    pub fn begin_request(&self) {
        self.0.lock().flushed = false;
    }

    /// Whether the client has been sent whole messages. hyper flushes its socket only when it has no bytes left to
    /// write, and encodes nothing of the current request's response while its service runs, but for `100 Continue`.
    pub fn is_between_messages(&self) -> bool {
        self.0.lock().flushed
    }

    /// Writes interim responses to the current request before anything else, when hyper next writes or flushes.
    /// Discards them where they could come into the middle of another response. Call it while the request's service
    /// runs.
    // See docs/decisions/0022-watch-the-client-below-hyper.md.
    pub fn write_between_messages(&self, responses: &[u8]) {
        let mut state = self.0.lock();
        if state.flushed {
            state.inserted.extend_from_slice(responses);
        }
    }

    /// Ready once the client has closed its side or reset the connection. Takes no bytes from the reader: TLS records
    /// that have arrived are decrypted, and their plaintext is kept.
    ///
    /// While unread bytes wait, the answer is not known and no wake-up is registered: call it again whenever the task
    /// runs.
    // See docs/decisions/0022-watch-the-client-below-hyper.md.
    pub fn poll_client_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0.lock().socket {
            Transport::Tcp(stream) => match stream.poll_peek(context, &mut ReadBuf::new(&mut [0])) {
                Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
                Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
            },
            Transport::Tls(stream) => match &mut **stream {
                TlsStream::Server(stream) => poll_tls_closed(stream, context),
                TlsStream::Client(_) => Poll::Pending,
            },
            // No client comes over these.
            Transport::Unix(_) | Transport::Memory(_) => Poll::Pending,
        }
    }

    /// Lets the end of the connection be a reset. A response over HTTP/1.0 without a length ends with its connection,
    /// so that a client would take the beginning of one that broke off for the whole.
    pub fn reset_at_end(&self) {
        let state = self.0.lock();
        let stream = match &state.socket {
            Transport::Tcp(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
            Transport::Unix(_) | Transport::Memory(_) => return,
        };
        // Without it the client sees an ordinary end, which is all that can be done.
        let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    }
}

/// A TLS client announces its end with a record (`close_notify`), so peeking at the socket would only show that there
/// are bytes. Stops at the first byte of another request, as a peek in cleartext does: it decrypts no more than one
/// read of the socket brought.
fn poll_tls_closed(stream: &mut server::TlsStream<TcpStream>, context: &mut Context<'_>) -> Poll<()> {
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

impl SocketState {
    fn poll_inserted(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.inserted.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(context, &self.inserted);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                all if all == self.inserted.len() => self.inserted = Vec::new(),
                some => drop(self.inserted.drain(..some)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Called before bytes of hyper's are written.
    fn poll_before_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushed = false;
        self.poll_inserted(context)
    }
}

impl AsyncRead for SharedSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        ready!(state.poll_before_write(context))?;
        Pin::new(&mut state.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        ready!(state.poll_before_write(context))?;
        Pin::new(&mut state.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.flushed = true;
        ready!(state.poll_inserted(context))?;
        Pin::new(&mut state.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// More than the buffers of a connection hold.
    const LARGE: usize = 16 * 1024 * 1024;

    async fn connected() -> (SharedSocket, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let client = TcpSocket::new_v4().expect("a socket").connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("the client has connected");
        (SharedSocket::new(Transport::Tcp(stream)), client)
    }

    /// Writes until the socket takes no more, as hyper does, and returns the bytes that it took.
    async fn write_until_full(socket: &mut SharedSocket, bytes: &[u8]) -> usize {
        let mut taken = 0;
        poll_fn(|context| {
            while let Poll::Ready(written) = Pin::new(&mut *socket).poll_write(context, &bytes[taken..]) {
                taken += written.expect("the client is there");
            }
            Poll::Ready(())
        })
        .await;
        taken
    }

    async fn read(client: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        client.read_exact(&mut bytes).await.expect("all bytes come");
        bytes
    }

    #[tokio::test]
    async fn an_interim_response_goes_out_between_two_messages_without_another_write() {
        let (mut socket, mut client) = connected().await;
        socket.write_all(b"first").await.expect("the client is there");
        socket.flush().await.expect("the client is there");
        assert!(socket.is_between_messages());
        socket.write_between_messages(b"103");
        socket.flush().await.expect("the client is there");
        assert_eq!(read(&mut client, 8).await, b"first103");
    }

    #[tokio::test]
    async fn an_interim_response_goes_before_a_response_that_is_written_at_once() {
        let (mut socket, mut client) = connected().await;
        socket.flush().await.expect("the client is there");
        socket.write_between_messages(b"103");
        let slices = [IoSlice::new(b"he"), IoSlice::new(b"ad")];
        let written = poll_fn(|context| Pin::new(&mut socket).poll_write_vectored(context, &slices)).await;
        assert_eq!(written.expect("the client is there"), 4);
        assert_eq!(read(&mut client, 7).await, b"103head");
    }

    #[tokio::test]
    async fn an_interim_response_is_discarded_while_an_earlier_response_may_be_half_written() {
        let (mut socket, mut client) = connected().await;
        let response = vec![b'x'; LARGE];
        let taken = write_until_full(&mut socket, &response).await;
        assert!(taken < LARGE && !socket.is_between_messages());
        socket.write_between_messages(b"103");
        let rest = tokio::spawn(async move {
            socket.write_all(&response[taken..]).await?;
            socket.flush().await?;
            assert!(socket.is_between_messages());
            // The next request has been read, and hyper has not flushed since.
            socket.begin_request();
            assert!(!socket.is_between_messages());
            socket.write_between_messages(b"103");
            socket.write_all(b"next").await
        });
        assert!(read(&mut client, LARGE).await.iter().all(|byte| *byte == b'x'), "a response is broken");
        assert_eq!(read(&mut client, 4).await, b"next");
        rest.await.expect("no panic").expect("the client is there");
    }

    #[tokio::test]
    async fn a_response_waits_until_the_interim_one_before_it_is_written_whole() {
        let (mut socket, mut client) = connected().await;
        socket.flush().await.expect("the client is there");
        socket.write_between_messages(&vec![b'i'; LARGE]);
        assert_eq!(write_until_full(&mut socket, b"response").await, 0);
        let rest = tokio::spawn(async move { socket.write_all(b"response").await });
        assert!(read(&mut client, LARGE).await.iter().all(|byte| *byte == b'i'), "the interim response is broken");
        assert_eq!(read(&mut client, 8).await, b"response");
        rest.await.expect("no panic").expect("the client is there");
    }
}
