//! Clients come in: accept, guard the framing, serve, close the door.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gate::Gate;
use deal::{Counted, Hand};
use framing::Limits;
use line::Socket;

pub mod connection;
pub mod deal;
pub mod framing;
mod line;

/// After an error of `accept` (no file descriptors left, mostly): long enough not to spin, short enough not to be felt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client whose machine or network is gone says nothing about it. Where nothing is sent either (a silent stream, a tunnel)
/// the kernel asks after it: first after this long, then so often, and after so many questions it is gone.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;
/// From accepting a connection to the end of its TLS handshake. That is two round trips at most; a client on a bad network
/// loses a packet in each and sends it again after one second, and after three. Whoever takes longer only holds a socket.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How clients are shown out.
#[derive(Clone, Default)]
pub struct Door {
    /// Whoever keeps a connection is told to open the next one elsewhere. New ones are still served.
    pub leaving: CancellationToken,
    /// No new connections, and each open one ends with its running request.
    pub closing: CancellationToken,
}

impl Door {
    /// The same door, for one worker: each look at a token takes its lock, and workers are not to wait for one another.
    pub fn of_worker(&self) -> Self {
        Self { leaving: self.leaving.child_token(), closing: self.closing.child_token() }
    }
}

/// Accepts connections until the door is `closing`, for this worker and others, and serves its own; then waits until the
/// last of them has had its answer.
pub async fn serve(listener: TcpListener, mut hand: Hand, gate: Arc<Gate>, limits: Limits, door: Door) {
    let connections = TaskTracker::new();
    let start = |stream, peer, counted| {
        connections.spawn(connect(stream, peer, counted, Arc::clone(&gate), limits, door.clone()));
    };
    let start_taken = |stream, peer, counted| match TcpStream::from_std(stream) {
        Ok(stream) => start(stream, peer, counted),
        Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
    };
    loop {
        let accepted = tokio::select! {
            () = door.closing.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some((stream, peer)) = hand.dealt.recv() => {
                start_taken(stream, peer, hand.taken());
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                if let Some(stream) = hand.deal(stream, peer) {
                    start(stream, peer, hand.counted());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // What was accepted for this worker before the door closed is served as if it had accepted it itself.
    hand.dealt.close();
    while let Ok((stream, peer)) = hand.dealt.try_recv() {
        start_taken(stream, peer, hand.taken());
    }
    connections.close();
    connections.wait().await;
}

async fn connect(stream: TcpStream, peer: SocketAddr, _counted: Counted, gate: Arc<Gate>, limits: Limits, door: Door) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| probe(&stream)) {
        tracing::debug!(%error, "the client was gone before its first request");
        return;
    }
    let socket = match gate.tls() {
        None => Socket::Plain(stream),
        // Nothing was asked for yet, and so nothing is lost where the door closes meanwhile.
        Some(tls) => tokio::select! {
            () = door.closing.cancelled() => return,
            shaken = shake_hands(stream, tls) => match shaken {
                Ok(socket) => socket,
                Err(error) => {
                    tracing::debug!(%error, %peer, "a client's TLS handshake failed");
                    return;
                }
            },
        },
    };
    connection::serve(socket, peer.ip(), gate, limits, door).await;
}

async fn shake_hands(stream: TcpStream, tls: Arc<ServerConfig>) -> io::Result<Socket> {
    let stream = timeout(HANDSHAKE_MAX, TlsAcceptor::from(tls).accept(stream)).await??;
    Ok(Socket::Tls(Box::new(stream)))
}

fn probe(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
