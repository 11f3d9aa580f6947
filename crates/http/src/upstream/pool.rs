//! The connection pool for one upstream. Over HTTP/1.1, the request on a connection drives it (`body/pooled.rs`). Over
//! HTTP/2, all requests share one connection. A task looks at the idle connections once a second.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::UPGRADE;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::connection_slots::ConnectionSlots;
use super::connector::{AlpnOffer, ConnectionFailure, Connector, UpstreamStream};
use super::http2::{self, SharedConnection};
use super::{CallError, SendCheck, check_response, shape_for_http1, take_request};
use crate::body::Body;
use crate::body::pooled::{PooledBody, PooledConnection, ReturnToPool};
use crate::transport::Transport;
use oncegate_trust::tls::HTTP2;

/// The read buffer of a connection, which it keeps while it is idle. hyper's own bound, some 400 KiB, is 160 MB for 400
/// connections that have brought large responses. A head of 64 KiB must fit.
const READ_BUFFER_MAX: usize = 72 * 1024;
/// The interval of looks at the idle connections: without them, only the next request would find that an upstream has
/// closed its side.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The protocol of an upstream's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolProtocol {
    /// HTTP/1.1: one request at a time on each connection.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// HTTP/2 or HTTP/1.1, by the service's choice (ALPN).
    Negotiated,
}

/// The connections of one worker to one upstream.
pub(super) struct UpstreamPool {
    pub(super) connector: Connector,
    protocol: PoolProtocol,
    /// The upstream's scheme and authority.
    pub(super) target: Uri,
    idle_max: Duration,
    /// The slots that all pools for this upstream share. Connections over HTTP/2 take none.
    pub(super) slots: Arc<ConnectionSlots>,
    /// Whether the service picked HTTP/1.1 when it could pick HTTP/2.
    picks_http1: AtomicBool,
    /// Held while a connection is made that others may share.
    connecting: tokio::sync::Mutex<()>,
    /// Wakes a request that waits for a connection: one is idle.
    returned: Notify,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// Each with the time since when it is idle. The one that was used last is at the end, and is used next.
    connections: Vec<(Box<PooledConnection>, Instant)>,
    /// The connection over HTTP/2, with the time of its last request. It may have requests.
    shared: Option<(SharedConnection, Instant)>,
    /// Whether the task that looks at them is running.
    is_checked: bool,
}

enum ChosenConnection {
    Http1(Box<PooledConnection>),
    Http2(SharedConnection),
}

impl UpstreamPool {
    /// Creates an empty pool. A connection that was unused for `idle_max` is not used again. The connector's time limit
    /// also limits the wait for a connection where all of `slots` are taken.
    pub(super) fn new(
        connector: Connector,
        protocol: PoolProtocol,
        target: Uri,
        idle_max: Duration,
        slots: Arc<ConnectionSlots>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            protocol,
            target,
            idle_max,
            slots,
            picks_http1: AtomicBool::new(false),
            connecting: tokio::sync::Mutex::default(),
            returned: Notify::new(),
            idle: Mutex::default(),
        })
    }

    /// Whether requests share a connection. A service that may pick HTTP/2 counts until it picks otherwise.
    pub(super) fn shares_connections(&self) -> bool {
        match self.protocol {
            PoolProtocol::Http1 => false,
            PoolProtocol::Http2 => true,
            PoolProtocol::Negotiated => !self.picks_http1.load(Ordering::Relaxed),
        }
    }

    /// Sends a request, leaving an empty one in its place, and waits for the response's head. The connection keeps
    /// `place` until it is free again.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: &mut Request<Body>,
        may_send: SendCheck<'_>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Response<PooledBody>, CallError> {
        let requests_upgrade = request.headers().contains_key(UPGRADE);
        let offer = if requests_upgrade { AlpnOffer::Http1 } else { AlpnOffer::Both };
        let upload = request.body_mut().track_end();
        let deadline = Instant::now() + self.connector.limit;
        loop {
            let open = poll_fn(|cx| Poll::Ready(self.take_open(offer, cx))).await;
            let (connection, was_open) = match open {
                Some(connection) => (connection, true),
                // Boxed because it is rare: the futures of all requests would have to hold room for it.
                None => Box::pin(self.open(deadline, offer, may_send)).await?,
            };
            let mut failed = match connection {
                ChosenConnection::Http1(mut connection) => {
                    if !may_send() {
                        let pool: Arc<dyn ReturnToPool> = Arc::<Self>::clone(self);
                        connection.return_to(pool);
                        return Err(CallError::TooLate);
                    }
                    shape_for_http1(request);
                    match connection.send(request).await {
                        Ok(response) => {
                            // An invalid response closes its connection too.
                            check_response(&response, requests_upgrade).map_err(CallError::Garbage)?;
                            connection.keep(place);
                            let uploads = upload.is_some_and(|upload| upload.is_any_attached());
                            return Ok(self.attach_body(connection, response, uploads));
                        }
                        Err(failed) => failed,
                    }
                }
                ChosenConnection::Http2(mut connection) => {
                    let slot = match timeout_at(deadline, connection.streams.reserve()).await {
                        Err(_) => return Err(CallError::Overloaded),
                        Ok(Some(slot)) => slot,
                        Ok(None) if was_open => continue,
                        Ok(None) => return Err(CallError::NeverSent("the connection broke".into())),
                    };
                    if !may_send() {
                        return Err(CallError::TooLate);
                    }
                    http2::shape_request(request, &self.target);
                    match Box::pin(connection.sender.try_send_request(take_request(request))).await {
                        Ok(response) => {
                            check_response(&response, false).map_err(CallError::Garbage)?;
                            return Ok(response.map(|incoming| PooledBody::of_stream(incoming, Box::new(slot))));
                        }
                        Err(failed) => failed,
                    }
                }
            };
            // hyper returns the request if none of it was written. On a connection that was open before, this only
            // means that the upstream has closed it: trying another one is not a second sending.
            match failed.take_message() {
                Some(unsent) if was_open => *request = unsent,
                Some(_) => return Err(CallError::NeverSent(failed.into_error().into())),
                None => return Err(http2::classify_failure(failed.into_error())),
            }
        }
    }

    /// Makes a connection, or waits for one that another request makes or returns. Returns whether it was open before.
    async fn open(
        self: &Arc<Self>,
        deadline: Instant,
        offer: AlpnOffer,
        may_send: SendCheck<'_>,
    ) -> Result<(ChosenConnection, bool), CallError> {
        if offer == AlpnOffer::Http1 && self.protocol != PoolProtocol::Http2 || !self.shares_connections() {
            return self.wait_or_connect(deadline, offer).await;
        }
        // The first request connects for all: each of many requests would make a connection, and only one be used.
        let turn = timeout_at(deadline, self.connecting.lock()).await;
        let Ok(turn) = turn else {
            return Err(CallError::NeverSent("another request's connection took too long".into()));
        };
        if let Some(connection) = poll_fn(|cx| Poll::Ready(self.take_open(offer, cx))).await {
            return Ok((connection, true));
        }
        if self.protocol == PoolProtocol::Http2 {
            let stream = self.connector.connect(self.target.clone(), offer).await.map_err(CallError::NeverSent)?;
            // Not even the bytes that begin HTTP/2 leave for a request that may not be sent any more.
            if !may_send() {
                return Err(CallError::TooLate);
            }
            let connection = self.share(stream).await.map_err(CallError::NeverSent)?;
            return Ok((ChosenConnection::Http2(connection), false));
        }
        if !self.shares_connections() {
            drop(turn);
        }
        self.wait_or_connect(deadline, offer).await
    }

    /// Makes a connection. Where all slots are taken, it waits until `deadline` for one, or for a connection that
    /// becomes idle here. Returns the connection, and whether it was open before.
    // See docs/decisions/0023-drive-service-connections.md.
    async fn wait_or_connect(
        self: &Arc<Self>,
        deadline: Instant,
        offer: AlpnOffer,
    ) -> Result<(ChosenConnection, bool), CallError> {
        if let Some(slot) = self.slots.try_take() {
            return Ok((self.connect(slot, offer).await.map_err(CallError::NeverSent)?, false));
        }
        // One place in the queue for the whole wait.
        let mut taken = pin!(self.slots.take());
        let slot = loop {
            tokio::select! {
                biased;
                slot = &mut taken => break slot,
                () = self.returned.notified() => {
                    if let Some(connection) = poll_fn(|cx| Poll::Ready(self.take_open(offer, cx))).await {
                        return Ok((connection, true));
                    }
                }
                () = sleep_until(deadline) => return Err(CallError::Overloaded),
            }
        };
        // The wait and the connection have one time limit together: it is shorter than the whole attempt's.
        match timeout_at(deadline, self.connect(slot, offer)).await {
            Ok(connected) => Ok((connected.map_err(CallError::NeverSent)?, false)),
            Err(_) => Err(CallError::Overloaded),
        }
    }

    /// Makes a connection and begins the protocol that the service picks.
    async fn connect(
        self: &Arc<Self>,
        slot: OwnedSemaphorePermit,
        offer: AlpnOffer,
    ) -> Result<ChosenConnection, ConnectionFailure> {
        let stream = self.connector.connect(self.target.clone(), offer).await?;
        let picks_http2 =
            matches!(stream.get_ref(), Transport::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(HTTP2));
        if picks_http2 {
            return Ok(ChosenConnection::Http2(self.share(stream).await?));
        }
        if offer == AlpnOffer::Both {
            self.picks_http1.store(true, Ordering::Relaxed);
        }
        let writing = stream.write_state();
        let (sender, connection) =
            http1::Builder::new().max_buf_size(READ_BUFFER_MAX).handshake(TokioIo::new(stream)).await?;
        let driver = async move {
            let _slot = slot;
            connection.with_upgrades().await
        };
        Ok(ChosenConnection::Http1(Box::new(PooledConnection::new(sender, driver, writing))))
    }

    /// Begins HTTP/2 on a stream, for all requests from here on.
    async fn share(self: &Arc<Self>, stream: UpstreamStream) -> Result<SharedConnection, ConnectionFailure> {
        let connection = SharedConnection::new(stream).await?;
        self.picks_http1.store(false, Ordering::Relaxed);
        let mut idle = self.idle.lock();
        idle.shared = Some((connection.clone(), Instant::now()));
        self.check_later(&mut idle);
        Ok(connection)
    }

    /// Takes an open connection that looks usable and has one of the offered protocols.
    fn take_open(&self, offer: AlpnOffer, cx: &mut Context<'_>) -> Option<ChosenConnection> {
        if offer == AlpnOffer::Both || self.protocol == PoolProtocol::Http2 {
            let mut idle = self.idle.lock();
            if let Some((connection, since)) = &mut idle.shared
                && connection.is_usable()
                && since.elapsed() < self.idle_max
            {
                *since = Instant::now();
                return Some(ChosenConnection::Http2(connection.clone()));
            }
            // The requests on it end as they would.
            idle.shared = None;
        }
        loop {
            let (mut connection, since) = self.idle.lock().connections.pop()?;
            if since.elapsed() >= self.idle_max {
                // All below it have been idle for longer.
                self.idle.lock().connections.clear();
                return None;
            }
            if connection.is_free(cx) {
                return Some(ChosenConnection::Http1(connection));
            }
        }
    }

    /// Returns the response with a body that drives `connection` until it is read.
    fn attach_body(
        self: &Arc<Self>,
        connection: Box<PooledConnection>,
        response: Response<Incoming>,
        uploads: bool,
    ) -> Response<PooledBody> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // hyper hands the stream over to the new protocol once the connection has been polled to its end.
            tokio::spawn(connection.drive_to_end());
            return response.map(PooledBody::from);
        }
        let pool: Arc<dyn ReturnToPool> = Arc::<Self>::clone(self);
        if uploads {
            // The response came before the request's end. Sending the rest must not depend on whether the client reads
            // the response.
            tokio::spawn(connection.return_when_free(pool));
            return response.map(PooledBody::from);
        }
        response.map(|incoming| PooledBody::new(incoming, connection, pool))
    }

    /// Starts the task that looks at the idle connections, if it is not running.
    fn check_later(self: &Arc<Self>, idle: &mut IdleConnections) {
        if !std::mem::replace(&mut idle.is_checked, true) {
            tokio::spawn(check_idle(Arc::downgrade(self)));
        }
    }
}

impl ReturnToPool for UpstreamPool {
    fn return_connection(self: Arc<Self>, connection: Box<PooledConnection>) {
        let mut idle = self.idle.lock();
        idle.connections.push((connection, Instant::now()));
        self.returned.notify_one();
        self.check_later(&mut idle);
    }
}

/// Closes connections that were unused for too long or that the upstream has closed. Ends when none is left.
async fn check_idle(pool: Weak<UpstreamPool>) {
    loop {
        sleep(CHECK_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle.lock();
        // No wake-up is needed: a connection is polled again when it is taken.
        let mut no_wake = Context::from_waker(Waker::noop());
        // Requests of another worker may wait for a slot. Those of this one would have taken an idle connection.
        let is_needed = pool.slots.has_waiting();
        idle.connections.retain_mut(|(connection, since)| {
            !is_needed && since.elapsed() < pool.idle_max && connection.is_free(&mut no_wake)
        });
        idle.shared.take_if(|(connection, since)| !connection.is_usable() || since.elapsed() >= pool.idle_max);
        if idle.connections.is_empty() && idle.shared.is_none() {
            idle.is_checked = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    use tokio::net::TcpStream;

    use super::super::connector::ConnectorKind;
    use super::super::{UpstreamSlots, tcp};
    use super::*;
    use oncegate_settings::UpstreamTarget;

    #[tokio::test]
    async fn an_answer_that_came_before_the_first_request_is_not_its_answer() {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let authority = service.local_addr().unwrap().to_string();
        let connector = Connector { kind: ConnectorKind::Tcp(tcp()), limit: Duration::from_secs(5), is_public: false };
        let slots = UpstreamSlots::new(8).of(&Arc::new(UpstreamTarget::Http(authority.parse().unwrap())));
        let idle_max = Duration::from_secs(60);
        let target = format!("http://{authority}/").parse().unwrap();
        let pool = UpstreamPool::new(connector, PoolProtocol::Http1, target, idle_max, slots);
        let mut request = Request::new(Body::empty());
        // The second one finds that the service has sent nothing yet.
        for _ in 0..2 {
            assert!(matches!(pool.call(&mut request, &|| false, None).await, Err(CallError::TooLate)));
        }
        let (mut peer, _) = service.accept().unwrap();
        peer.write_all(b"HTTP/1.1 408 Slow\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        peer.set_nonblocking(true).unwrap();
        TcpStream::from_std(peer).unwrap().set_zero_linger().unwrap();
        // The runtime has not waited since, so it does not know of the answer when the request is written.
        let result = pool.call(&mut request, &|| true, None).await;
        assert!(matches!(result, Err(CallError::Broken(_))), "{result:?}");
    }
}
