//! Connections: making, pooling and discarding them.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Manager, Metrics, Object, PoolError, RecycleError, RecycleResult};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::Client;

use super::client::PgClient;
use super::direct_connection;
use super::failure::{PgFailure, PgResult, connect_error};
use super::server::PgServer;
use super::tls::BoxError;
use crate::OpenError;

const START_MAX: Duration = Duration::from_secs(30);

/// The longest wait for a statement whose caller has given up. The operating system detects dead peers much sooner.
const GIVEN_UP_MAX: Duration = Duration::from_secs(30);

/// Makes a connection outside of the pools, for work that is done once at start. Looks at all servers first: a start
/// after a failover must not choose the former primary.
pub(super) async fn connect_once(server: &PgServer) -> Result<Client, OpenError> {
    server.check_primaries().await;
    let connected = timeout(START_MAX, server.connect(START_MAX)).await;
    let (client, ..) = connected.map_err(|late| OpenError::Away(Box::new(late)))?.map_err(connect_error)?;
    // Not for what it returns: the session has a fixed search path then.
    direct_connection::is_direct(&client).await;
    Ok(client)
}

/// Makes a pool's connections. In place of the driver's own manager, which knows no time limit for a host.
struct PgManager(PgServer);

impl Manager for PgManager {
    type Type = PgClient;
    type Error = BoxError;

    async fn create(&self) -> Result<PgClient, BoxError> {
        let Self(server) = self;
        // Boxed, because each future of a call would have room for it otherwise: most of the room that it has.
        let connected = Box::pin(async {
            let (client, driver, place) = server.connect(server.timeout()).await?;
            Ok(PgClient::new(server.clone(), client, driver, place).await)
        });
        connected.await
    }

    /// A connection that died unnoticed costs one statement, which is tried again; asking each connection whether it
    /// lives would cost every statement a round trip.
    async fn recycle(&self, client: &mut PgClient, _: &Metrics) -> RecycleResult<BoxError> {
        match self.find_end(client) {
            Some(end) => Err(RecycleError::message(end)),
            None => Ok(()),
        }
    }
}

impl PgManager {
    /// The reason why a connection cannot be used any more.
    fn find_end(&self, client: &PgClient) -> Option<&'static str> {
        match client.is_closed() {
            true => Some("the connection is closed"),
            false => (client.place != self.0.place()).then_some("the store has moved"),
        }
    }
}

/// A pool of connections with a fixed maximum.
#[derive(Clone)]
pub(super) struct PgPool {
    connections: managed::Pool<PgManager>,
    /// The longest wait for a statement whose caller has given up; for that time the pool has one connection less.
    given_up_max: Duration,
}

impl PgPool {
    /// A pool of at most `size` connections; they are made when they are needed.
    pub fn new(server: &PgServer, size: usize) -> Result<Self, OpenError> {
        let pool = managed::Pool::builder(PgManager(server.clone())).max_size(size).build();
        let connections = pool.map_err(|source| OpenError::Missing(Box::new(source)))?;
        Ok(Self { connections, given_up_max: GIVEN_UP_MAX })
    }

    pub fn max_size(&self) -> usize {
        self.connections.status().max_size
    }

    pub fn server(&self) -> &PgServer {
        &self.connections.manager().0
    }

    pub fn is_distributed(&self) -> bool {
        self.server().is_distributed()
    }

    /// Takes a connection that is there, can be used, and was used within this time; makes none, and waits for none.
    pub async fn get_idle(&self, unused_max: Duration, deadline: Instant) -> Option<PgConnection> {
        let manager = self.connections.manager();
        self.connections
            .retain(|client, metrics| metrics.last_used() < unused_max && manager.find_end(client).is_none());
        match self.connections.status().available {
            0 => None,
            _ => PgConnection::get(self, deadline).await.ok(),
        }
    }

    /// Makes a connection for later, unless one is there.
    pub async fn prepare(&self, deadline: Instant) {
        drop(timeout_at(deadline, self.connections.get()).await);
    }

    pub fn with_given_up_max(self, max: Duration) -> Self {
        Self { given_up_max: max.min(GIVEN_UP_MAX), ..self }
    }
}

/// A connection while a statement runs on it. It returns to its pool only after the statement's answer has come. In all
/// other cases, dropping this included, the connection is discarded, because its state is unknown: but only once the
/// server is done with the statement. Until then it counts against the pool's maximum; otherwise a table that is locked
/// for a minute would collect a server process for each statement whose caller gave up.
///
/// Statements are never cancelled. Cancel requests have crashed PgBouncer, with everybody's sessions, in several
/// versions (its issues 801, 822, 904), and late execution does no harm: a reservation without a caller stays in flight
/// under its instance's name and is found there, and everything else is fenced.
pub(super) struct PgConnection {
    object: Option<Object<PgManager>>,
    given_up_max: Duration,
}

impl PgConnection {
    /// Takes a connection from the pool, or makes a new one.
    pub async fn get(pool: &PgPool, deadline: Instant) -> PgResult<Self> {
        match timeout_at(deadline, pool.connections.get()).await {
            Ok(Ok(object)) => Ok(Self { object: Some(object), given_up_max: pool.given_up_max }),
            Ok(Err(PoolError::Backend(source))) => Err(PgFailure::Unsent(Arc::from(source))),
            Ok(Err(source)) => Err(PgFailure::unsent(&source.to_string())),
            Err(_) => Err(too_late()),
        }
    }

    /// Waits for the statement's answer, and returns or discards the connection. Past the deadline no statement is
    /// begun: connecting may have taken all the time, and a timeout alone would let the first bytes out.
    pub async fn finish<T>(
        mut self,
        deadline: Instant,
        statement: impl AsyncFnOnce(&PgClient) -> Result<T, tokio_postgres::Error>,
    ) -> PgResult<T> {
        if Instant::now() >= deadline {
            drop(self.object.take());
            return Err(too_late());
        }
        let client: &PgClient = self.object.as_ref().expect("the object is taken out only when the guard is dropped");
        let answer = match timeout_at(deadline, statement(client)).await {
            Ok(answer) => answer.map_err(PgFailure::from),
            Err(_) => Err(PgFailure::TimedOut),
        };
        // A former primary has become read-only: the next connection finds the new primary.
        let is_unusable = |failure: &PgFailure| failure.in_doubt() || failure.wants_another_connection();
        if !answer.as_ref().is_err_and(is_unusable) {
            drop(self.object.take());
        }
        answer
    }
}

fn too_late() -> PgFailure {
    PgFailure::unsent("no connection to the store became free in time")
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            drop(Object::take(object));
            return;
        };
        let given_up_max = self.given_up_max;
        runtime.spawn(async move {
            // Answered after the running statement, or not at all where the connection is gone.
            drop(timeout(given_up_max, object.check_connection()).await);
            drop(Object::take(object));
        });
    }
}
