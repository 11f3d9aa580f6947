//! The connection that a worker keeps for itself, on its own runtime, for calls beside which no other waits.
//!
//! It is a short cut and never a condition: where it is in use, or cannot be made, a call goes through a lane at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::{PgConnection, PgPool};
use super::server::PgServer;
use crate::OpenError;

/// The shortest time between two tries to connect: a server that is full is not asked at each request.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The longest time without a call. Calls that are alone are few: a middlebox may have forgotten the connection
/// meanwhile, and the call that finds out would wait for its whole time limit.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// The workers' own connections, by the workers' numbers.
pub(super) type WorkerConnections = Arc<[WorkerConnection]>;

pub(super) struct WorkerConnection {
    pool: PgPool,
    tried_at: Mutex<Option<Instant>>,
}

impl WorkerConnection {
    pub fn new(server: &PgServer) -> Result<Self, OpenError> {
        Ok(Self { pool: PgPool::new(server, 1)?, tried_at: Mutex::new(None) })
    }

    /// Takes the connection. Where it is not there, it is made meanwhile, for the next calls. To be called on the
    /// worker's runtime.
    pub async fn take(&self, deadline: Instant) -> Option<PgConnection> {
        match self.pool.get_idle(UNUSED_MAX, deadline).await {
            None => {
                self.connect();
                None
            }
            held => held,
        }
    }

    fn connect(&self) {
        let (now, mut tried_at) = (Instant::now(), self.tried_at.lock());
        if tried_at.is_some_and(|then| now < then + TRY_EVERY) {
            return;
        }
        *tried_at = Some(now);
        let pool = self.pool.clone();
        // Its problem is that of every other connection, which is reported there.
        tokio::spawn(async move { pool.prepare(now + pool.server().timeout()).await });
    }
}
