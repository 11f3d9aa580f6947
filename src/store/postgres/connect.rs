//! Connections: how they are made, shared out, and thrown away.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, RecyclingMethod};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config};

use super::failure::{Failure, without_detail};
use super::tls::Tls;
use crate::config::PostgresTls;
use crate::store::OpenError;

/// One for the lease and all upkeep, two to settle, one to begin: with fewer, one kind of work could starve another.
const CONNECTIONS_MIN: usize = 4;

/// How long a server may take to let us in at start: the driver's own limit ends with the TCP handshake.
const START_MAX: Duration = Duration::from_secs(30);

/// How long a statement that was given up is waited for. Dead peers are found out long before, by the system.
const GIVEN_UP_MAX: Duration = Duration::from_secs(30);

/// A server, or several of which one is the primary, and how to speak to it.
pub(super) struct Server {
    config: Config,
    tls: Tls,
}

/// How to connect, from the URL. What the URL does not say is filled in.
pub(super) fn config(url: &str, timeout: Duration) -> Result<Server, OpenError> {
    let (url, tls) = PostgresTls::take_out(url).map_err(|why| OpenError::Missing(format!("store.url {why}").into()))?;
    let mut config: Config = url.parse().map_err(|source| OpenError::Missing(Box::new(source)))?;
    let tls = Tls::new(tls, config.get_ssl_negotiation())?;
    config.ssl_mode(tls.mode());
    // A standby would show records as they were.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    if config.get_application_name().is_none() {
        config.application_name("oncegate");
    }
    if config.get_connect_timeout().is_none() {
        // For each host of a list: a dead first one must leave time for the second.
        config.connect_timeout(timeout / u32::try_from(config.get_hosts().len().max(1)).unwrap_or(u32::MAX));
    }
    if config.get_tcp_user_timeout().is_none() {
        // The system's own idea of a lost peer is a quarter of an hour.
        config.tcp_user_timeout(timeout.max(Duration::from_secs(1)));
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        // For a peer that dies after it has taken the statement in: nothing of ours is unacknowledged then.
        config.keepalives_idle(Duration::from_secs(2));
        config.keepalives_interval(Duration::from_secs(1));
        config.keepalives_retries(3);
    }
    Ok(Server { config, tls })
}

/// A connection outside the pools, for what is done once at start.
pub(super) async fn alone(server: &Server) -> Result<Client, OpenError> {
    let (client, connection) = timeout(START_MAX, server.config.connect(server.tls.clone()))
        .await
        .map_err(|late| OpenError::Missing(Box::new(late)))?
        .map_err(|source| OpenError::Missing(server.tls.explain(source)))?;
    tokio::spawn(async move {
        // What goes wrong here is told to whoever uses the client.
        drop(connection.await);
    });
    Ok(client)
}

/// Connections of which no more than so many are open at once.
#[derive(Clone)]
pub(super) struct Pool {
    connections: deadpool_postgres::Pool,
    /// How long a statement that was given up is waited for, and with it one of the connections is missing.
    given_up_max: Duration,
}

/// The connections, shared out so that no kind of work can starve another.
pub(super) struct Pools {
    pub begin: Pool,
    pub settle: Pool,
    pub lease: Pool,
    pub upkeep: Pool,
}

/// `timeout`: how long a call may take.
pub(super) fn pools(server: &Server, max_connections: usize, timeout: Duration) -> Result<Pools, OpenError> {
    let total = max_connections.max(CONNECTIONS_MIN);
    // A lease cannot wait for an answer that will not come, where something on the way has forgotten the connection and
    // still takes in what is sent. Where it is without an answer for as long again as a call may take, it gets another.
    // Renewals wait for nobody's locks, so that they leave no processes behind.
    let lease = Pool { given_up_max: timeout.min(GIVEN_UP_MAX), ..pool(server, 1)? };
    let upkeep = if total > CONNECTIONS_MIN { pool(server, 1)? } else { lease.clone() };
    let rest = total - if total > CONNECTIONS_MIN { 2 } else { 1 };
    let settle = (rest / 3).max(2);
    Ok(Pools { begin: pool(server, rest - settle)?, settle: pool(server, settle)?, lease, upkeep })
}

fn pool(server: &Server, size: usize) -> Result<Pool, OpenError> {
    // `Fast`: a connection that died unnoticed costs one statement, which is tried again; asking each connection
    // whether it lives would cost every statement a round trip.
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(server.config.clone(), server.tls.clone(), fast);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(size).build();
    let connections = pool.map_err(|source| OpenError::Missing(Box::new(source)))?;
    Ok(Pool { connections, given_up_max: GIVEN_UP_MAX })
}

/// A connection while a statement is on it. It goes back to its pool only after the statement's answer has come.
/// Whatever happens else, dropping this included, it is thrown away, because nobody can say what it is doing: but only
/// once the server is done with it. Until then it counts as one of those we may have, or else a table that is locked for
/// a minute would collect a server process for each statement that was given up.
///
/// Nothing is cancelled. Cancel requests have crashed PgBouncer, with everybody's sessions, in one version after the
/// other (its issues 801, 822, 904), and what is executed late does no harm: a reservation that nobody waits for stands
/// under its instance's name and is found there, and the rest is fenced.
pub(super) struct Held {
    object: Option<Object>,
    given_up_max: Duration,
}

impl Held {
    /// A connection from the pool, or a new one.
    pub async fn get(pool: &Pool, deadline: Instant) -> Result<Self, Failure> {
        match timeout_at(deadline, pool.connections.get()).await {
            Ok(Ok(object)) => Ok(Self { object: Some(object), given_up_max: pool.given_up_max }),
            Ok(Err(deadpool_postgres::PoolError::Backend(source))) => {
                Err(Failure::Unsent(Arc::from(without_detail(source))))
            }
            Ok(Err(source)) => Err(Failure::Unsent(Arc::new(source))),
            Err(_) => Err(too_late()),
        }
    }

    pub fn client(&self) -> &Client {
        self.object.as_ref().expect("it is taken out only when the guard goes")
    }

    /// Waits for the statement's answer, and decides what becomes of the connection. Past the deadline nothing is sent:
    /// connecting may have taken all the time there was, and a time limit alone would let the first bytes out.
    pub async fn finish<T>(
        mut self,
        deadline: Instant,
        statement: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Failure> {
        if Instant::now() >= deadline {
            drop(self.object.take());
            return Err(too_late());
        }
        let answer = timeout_at(deadline, statement(self.client())).await;
        match answer {
            Err(_) => Err(Failure::TimedOut),
            Ok(Ok(answer)) => {
                drop(self.object.take());
                Ok(answer)
            }
            Ok(Err(error)) => {
                let failure = Failure::from(error);
                // Read-only is what a primary has become that is one no more: the next connection finds the new one.
                if !failure.in_doubt() && !failure.wants_another_connection() {
                    drop(self.object.take());
                }
                Err(failure)
            }
        }
    }
}

fn too_late() -> Failure {
    Failure::Unsent(Arc::<dyn Error + Send + Sync>::from(Box::from("no connection to the store became free in time")))
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            drop(Object::take(object));
            return;
        };
        let given_up_max = self.given_up_max;
        runtime.spawn(async move {
            // Answered after the statement that is under way, or not at all where the connection is gone.
            drop(timeout(given_up_max, object.check_connection()).await);
            drop(Object::take(object));
        });
    }
}
