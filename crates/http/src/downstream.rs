//! The listener for clients: accepts connections, does the TLS handshake, serves requests, and drains on shutdown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::CONNECTION;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::protocol::refusal::{ReachedLimit, Refusal};
use crate::transport::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, Transport};
use balancer::{ConnectionCount, WorkerInbox};
use client::RequestHandler;
use connection_limits::{ConnectionLimits, ConnectionPermit};
use framing_guard::FramingTimeouts;
use oncegate_domain::response::write_field;

pub mod balancer;
pub mod client;
pub mod connection;
pub mod connection_limits;
mod shared_socket;

/// The pause after an error of `accept` (mostly: no file descriptors left). Long enough not to spin, short enough not
/// to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The time from accepting a connection to the end of its TLS handshake. A handshake takes two round trips at most; a
/// client on a bad network loses a packet in each and sends it again after one second, and after three. A client that
/// takes longer only holds a socket.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The steps of a drain, as the connections see them.
#[derive(Clone, Default)]
pub struct DrainSignals {
    /// Answers of HTTP/1.1 close their connections: clients open the next one elsewhere. New ones are still served.
    pub leaving: CancellationToken,
    /// No new connection is accepted. Those that were accepted last still get their first request answered.
    pub accepted_last: CancellationToken,
    /// Each open connection ends with its running request.
    pub closing: CancellationToken,
}

impl DrainSignals {
    /// Returns child tokens for one worker: each look at a token takes its lock, and workers do not wait for others.
    pub fn for_worker(&self) -> Self {
        let Self { leaving, accepted_last, closing } = self;
        Self {
            leaving: leaving.child_token(),
            accepted_last: accepted_last.child_token(),
            closing: closing.child_token(),
        }
    }
}

/// Accepts connections until `accepted_last`, assigns each to a worker and serves those of this worker. Returns once
/// the last of them has had its answer.
pub async fn serve(
    listener: TcpListener,
    mut inbox: WorkerInbox,
    handler: Arc<impl RequestHandler>,
    limits: Arc<ConnectionLimits>,
    timeouts: FramingTimeouts,
    drain: DrainSignals,
) {
    let connections = TaskTracker::new();
    let start = |stream, peer, counts| {
        connections.spawn(serve_connection(stream, peer, counts, Arc::clone(&handler), timeouts, drain.clone()));
    };
    let start_assigned = |stream, peer, counts| match TcpStream::from_std(stream) {
        Ok(stream) => start(stream, peer, counts),
        Err(error) => tracing::warn!(%error, "a worker could not take over an accepted connection; it is closed"),
    };
    loop {
        let accepted = tokio::select! {
            () = drain.accepted_last.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some((stream, peer, permit)) = inbox.assigned.recv() => {
                start_assigned(stream, peer, (inbox.adopt_count(), permit));
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => match limits.admit(peer.ip()) {
                Ok(permit) => {
                    if let Some((stream, permit)) = inbox.assign(stream, peer, permit) {
                        start(stream, peer, (inbox.count_one(), permit));
                    }
                }
                Err(limit) => refuse_connection(&*handler, &stream, limit),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Connections that were assigned to this worker before that are served like its own.
    inbox.assigned.close();
    while let Ok((stream, peer, permit)) = inbox.assigned.try_recv() {
        start_assigned(stream, peer, (inbox.adopt_count(), permit));
    }
    connections.close();
    connections.wait().await;
}

/// Refuses a connection beyond a limit. In cleartext it gets an answer, if that fits the socket's empty buffer; the
/// request may not even have come. With TLS, the handshake would cost more than the connection.
fn refuse_connection(handler: &impl RequestHandler, stream: &TcpStream, limit: ReachedLimit) {
    handler.count_overload(limit);
    if handler.tls().is_none() {
        // A client that does not get it sees a closed connection, which it may retry as well: nothing was forwarded.
        let _ = stream.try_write(&encode_refusal(handler.refuse(Refusal::Overloaded(limit))));
    }
}

/// A refusal as HTTP/1.1, for a connection that hyper does not serve.
fn encode_refusal(refusal: Response<Body>) -> Vec<u8> {
    let (head, body) = refusal.into_parts();
    let body = body.into_held_bytes();
    let mut bytes =
        format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", head.status, body.len()).into_bytes();
    for (name, value) in head.headers.iter().filter(|(name, _)| **name != CONNECTION) {
        write_field(&mut bytes, name, value);
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    _counts: (ConnectionCount, ConnectionPermit),
    handler: Arc<impl RequestHandler>,
    timeouts: FramingTimeouts,
    drain: DrainSignals,
) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| enable_keepalive(&stream)) {
        tracing::debug!(%error, "a client disconnected before its first request");
        return;
    }
    let socket = match handler.tls() {
        None => Transport::Tcp(stream),
        // No request has been sent yet, so nothing is lost if the drain closes the listener meanwhile.
        Some(tls) => tokio::select! {
            () = drain.closing.cancelled() => return,
            handshake = timeout(HANDSHAKE_MAX, TlsAcceptor::from(tls).accept(stream)) => {
                match handshake.map_err(io::Error::from).flatten() {
                    Ok(stream) => Transport::Tls(Box::new(stream.into())),
                    Err(error) => {
                        tracing::debug!(%error, %peer, "a client's TLS handshake failed");
                        return;
                    }
                }
            }
        },
    };
    connection::serve(socket, peer.ip(), handler, timeouts, drain).await;
}

fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
