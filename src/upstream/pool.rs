//! The connection pool for one upstream over HTTP/1.1.
//!
//! A connection has no task of its own: the request that uses it polls it, and so does the reader of its response body. So
//! bytes that pass through wake no other task, and a connection ends with the request that used it. A task looks at the
//! idle connections once a second.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::UPGRADE;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tower_service::Service as _;

use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::connector::{ConnectionFailure, Connector};
use super::{CallError, SendCheck, check_response};
use crate::body::Body;
use crate::body::pooled::{PooledBody, PooledConnection, ReturnToPool};

/// The interval of looks at the idle connections: without them, only the next request would find that an upstream has
/// closed its side.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The connections of one worker to one upstream.
pub(super) struct UpstreamPool {
    connector: Connector,
    /// The upstream's URI, for the connector.
    target: Uri,
    idle_max: Duration,
    /// The slots that all pools for this upstream share.
    slots: Arc<ConnectionSlots>,
    /// The longest wait for a connection where all slots are taken.
    wait_max: Duration,
    /// Wakes a request that waits for a connection: one is idle.
    returned: Notify,
    idle: Mutex<IdleConnections>,
}

/// The idle connections, each with the time since when it is idle. The one that was used last is at the end, and is used
/// next.
#[derive(Default)]
struct IdleConnections {
    connections: Vec<(Box<PooledConnection>, Instant)>,
    /// Whether the task that looks at them is running.
    is_checked: bool,
}

impl UpstreamPool {
    /// Creates an empty pool. A connection that was idle for `idle_max` is not used again. `wait_max` limits the wait for a
    /// connection where all of `slots` are taken.
    pub(super) fn new(
        connector: Connector,
        target: Uri,
        idle_max: Duration,
        slots: Arc<ConnectionSlots>,
        wait_max: Duration,
    ) -> Arc<Self> {
        let (returned, idle) = (Notify::new(), Mutex::default());
        Arc::new(Self { connector, target, idle_max, slots, wait_max, returned, idle })
    }

    /// Sends a request in origin form, leaving an empty one in its place, and waits for the response's head.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: &mut Request<Body>,
        may_send: SendCheck<'_>,
    ) -> Result<Response<PooledBody>, CallError> {
        let requests_upgrade = request.headers().contains_key(UPGRADE);
        let upload = request.body_mut().track_end();
        let deadline = Instant::now() + self.wait_max;
        loop {
            let idle = poll_fn(|cx| Poll::Ready(self.take_idle(cx))).await;
            let (mut connection, was_idle) = match idle {
                Some(connection) => (connection, true),
                // Boxed because it is rare: the futures of all requests would have to hold room for it.
                None => Box::pin(self.wait_or_connect(deadline)).await?,
            };
            if !may_send() {
                self.return_unused(connection);
                return Err(CallError::TooLate);
            }
            let mut failed = match connection.send(request).await {
                Ok(response) => {
                    // An invalid response closes its connection too.
                    check_response(&response, requests_upgrade).map_err(CallError::Garbage)?;
                    return Ok(self.attach_body(
                        connection,
                        response,
                        upload.is_some_and(|upload| upload.is_any_attached()),
                    ));
                }
                Err(failed) => failed,
            };
            // hyper returns the request if none of it was written. On an idle connection this only means that the upstream
            // has closed it: trying another one is not a second sending.
            match failed.take_message() {
                Some(unsent) if was_idle => *request = unsent,
                Some(_) => return Err(CallError::NeverSent(failed.into_error().into())),
                None => return Err(CallError::Broken(failed.into_error().into())),
            }
        }
    }

    fn return_unused(self: &Arc<Self>, connection: Box<PooledConnection>) {
        let pool: Arc<dyn ReturnToPool> = Arc::<Self>::clone(self);
        pool.return_connection(connection);
    }

    /// Makes a connection. Where all slots are taken, it waits until `deadline` for one, or for a connection that becomes idle
    /// here. Returns the connection, and whether it was idle.
    async fn wait_or_connect(&self, deadline: Instant) -> Result<(Box<PooledConnection>, bool), CallError> {
        if let Some(slot) = self.slots.try_take() {
            return Ok((self.connect(slot).await.map_err(CallError::NeverSent)?, false));
        }
        // One place in the queue for the whole wait.
        let mut taken = pin!(self.slots.take());
        let slot = loop {
            tokio::select! {
                slot = &mut taken => break slot,
                () = self.returned.notified() => {
                    if let Some(connection) = poll_fn(|cx| Poll::Ready(self.take_idle(cx))).await {
                        return Ok((connection, true));
                    }
                }
                () = sleep_until(deadline) => return Err(CallError::Overloaded),
            }
        };
        // The wait and the connection have one time limit together: it is shorter than the whole attempt's.
        match timeout_at(deadline, self.connect(slot)).await {
            Ok(connected) => Ok((connected.map_err(CallError::NeverSent)?, false)),
            Err(_) => Err(CallError::Overloaded),
        }
    }

    async fn connect(&self, slot: ConnectionSlot) -> Result<Box<PooledConnection>, ConnectionFailure> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(self.target.clone()).await?;
        let (sender, connection) = handshake(stream).await?;
        let driver = async move {
            let _slot = slot;
            connection.with_upgrades().await
        };
        Ok(Box::new(PooledConnection::new(sender, driver)))
    }

    /// Takes an idle connection that looks usable.
    fn take_idle(&self, cx: &mut Context<'_>) -> Option<Box<PooledConnection>> {
        loop {
            let (mut connection, since) = self.lock().connections.pop()?;
            if since.elapsed() >= self.idle_max {
                // All below it have been idle for longer.
                self.lock().connections.clear();
                return None;
            }
            if connection.is_free(cx) {
                return Some(connection);
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
            // The response came before the request's end. Sending the rest must not depend on whether the client reads the
            // response.
            tokio::spawn(connection.return_when_free(pool));
            return response.map(PooledBody::from);
        }
        response.map(|incoming| PooledBody::new(incoming, connection, pool))
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        // Consistent between any two statements, so a poisoned lock is usable.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReturnToPool for UpstreamPool {
    fn return_connection(self: Arc<Self>, connection: Box<PooledConnection>) {
        let mut idle = self.lock();
        idle.connections.push((connection, Instant::now()));
        self.returned.notify_one();
        if !std::mem::replace(&mut idle.is_checked, true) {
            tokio::spawn(check_idle(Arc::downgrade(&self)));
        }
    }
}

/// Closes connections that were idle for too long or that the upstream has closed. Ends when none is left.
async fn check_idle(pool: Weak<UpstreamPool>) {
    loop {
        sleep(CHECK_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.lock();
        // No wake-up is needed: a connection is polled again when it is taken.
        let mut no_wake = Context::from_waker(Waker::noop());
        // Requests of another worker may wait for a slot. Those of this one would have taken an idle connection.
        let is_needed = pool.slots.has_waiting();
        idle.connections.retain_mut(|(connection, since)| {
            !is_needed && since.elapsed() < pool.idle_max && connection.is_free(&mut no_wake)
        });
        if idle.connections.is_empty() {
            idle.is_checked = false;
            return;
        }
    }
}
