//! Whether a connection leads to the server itself, or to a pooler.
//!
//! At connecting, each side that may be asked to cancel statements gives its client a key: PostgreSQL, section
//! "Canceling Requests in Progress". The server's has the number of the process that serves the connection. A pooler
//! that shares sessions does not know yet which process will serve a statement, and most give out keys of their own:
//! PgBouncer, Odyssey and pgcat random ones. Some pass on the server's (pgagroal) or number their sessions (PgDog,
//! Supavisor), and can look direct. So this is no proof, and `client` treats it as none.
//!
//! The driver shows the key to nobody. It is read from the request to cancel, which is written into memory and never
//! sent.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::types::Type;

use super::tls::BoxError;

/// The length of a request to cancel: its length, its code, the process and the secret, of four bytes each.
const CANCEL_REQUEST_LENGTH: usize = 16;

const FIX_SEARCH_PATH: &str = include_str!("sql/fix_search_path.sql");

/// Whether the process that serves the connection is the one that its key names; if so, the session has a fixed search
/// path from now on. Also false where that cannot be told.
// See docs/decisions/0012-keep-no-session-state.md.
pub(super) async fn is_direct(client: &Client) -> bool {
    let Some(named) = process_in_key(client).await else { return false };
    // Unprepared, as it may go through a pooler.
    let rows = client.query_typed(FIX_SEARCH_PATH, &[(/* process */ &named, Type::INT4)]).await;
    rows.is_ok_and(|rows| !rows.is_empty())
}

async fn process_in_key(client: &Client) -> Option<i32> {
    let request = WrittenRequest::default();
    client.cancel_token().cancel_query_raw(request.clone(), request.clone()).await.ok()?;
    let written = request.0.lock();
    let message = written.len().checked_sub(CANCEL_REQUEST_LENGTH).map(|start| &written[start..])?;
    message[8..12].try_into().map(i32::from_be_bytes).ok()
}

/// A stream that keeps what is written, and a TLS client without TLS. To a client that asks for TLS it says yes.
#[derive(Clone, Default)]
struct WrittenRequest(Arc<Mutex<Vec<u8>>>);

impl AsyncRead for WrittenRequest {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WrittenRequest {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for WrittenRequest {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl TlsConnect<Self> for WrittenRequest {
    type Stream = Self;
    type Error = BoxError;
    type Future = Ready<Result<Self, BoxError>>;

    fn connect(self, stream: Self) -> Self::Future {
        ready(Ok(stream))
    }
}
