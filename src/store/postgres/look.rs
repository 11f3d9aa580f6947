//! The look at all servers of the URL: more than one may take writes.
//!
//! The look has a connection of its own to each address, which it keeps, to standbys too: they may be promoted. All
//! addresses are asked side by side, so that a silent one delays no other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config};

use super::hosts::{self, HostList, ServerAddress};
use super::primaries::{PrimaryIdentity, ServerRole};
use super::session;
use super::tls::{BoxError, PgTls};
use crate::store::PrimaryCheck;

/// The time limit of a look, and at most half of the store's `timeout`. A heartbeat waits for it, so it is short beside
/// the default lease of 10 s; making a connection takes some round trips.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Looks at all servers of a list.
pub(super) struct PrimaryLook {
    hosts: Arc<HostList>,
    tls: PgTls,
    limit: Duration,
    /// The connections of the last look.
    kept: Mutex<HashMap<ServerAddress, Client>>,
    /// The primaries of the last look if there were several: each conflict is logged once.
    logged: Mutex<Vec<FoundPrimary>>,
}

/// A server that takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundPrimary {
    /// Its address, for people.
    place: String,
    identity: PrimaryIdentity,
}

impl fmt::Display for FoundPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (timeline {})", self.place, self.identity.timeline)
    }
}

impl PrimaryLook {
    /// Looks at these hosts. `call_timeout` is the time limit of one call of the store.
    pub fn new(hosts: Arc<HostList>, tls: PgTls, call_timeout: Duration) -> Self {
        let limit = LOOK_MAX.min(call_timeout / 2);
        Self { hosts, tls, limit, kept: Mutex::default(), logged: Mutex::default() }
    }

    /// Finds the servers that take writes, and refuses all but the newest from then on. Does nothing with a single host.
    pub async fn look(&self) -> PrimaryCheck {
        let Some(known_primary) = self.hosts.known_primary() else { return PrimaryCheck::default() };
        let deadline = Instant::now() + self.limit;
        let looks = (0..self.hosts.count()).map(|host| self.look_at_host(host, deadline));
        let mut found = join_all(looks).await.concat();
        // In an order of their own, and each server once, also if several addresses or poolers lead to it.
        found.sort_by_key(|primary| {
            (primary.identity.timeline, primary.identity.system, primary.identity.started_at_us)
        });
        found.dedup_by_key(|primary| primary.identity);
        let identities: Vec<PrimaryIdentity> = found.iter().map(|primary| primary.identity).collect();
        let conflict = known_primary.record(&identities);
        let primaries = found.len();
        self.log(found, conflict.map(|conflict| conflict.to_string()));
        PrimaryCheck { primaries, has_changed: known_primary.take_change() }
    }

    async fn look_at_host(&self, host: usize, deadline: Instant) -> Vec<FoundPrimary> {
        let Ok(Ok(addresses)) = timeout_at(deadline, self.hosts.addresses(host)).await else { return Vec::new() };
        let looks = addresses.iter().map(async |(address, target)| {
            let role = timeout_at(deadline, self.look_at(*address, target)).await;
            match role {
                Ok(Ok(ServerRole::Primary(identity))) => Some(FoundPrimary { place: place(target), identity }),
                _ => None,
            }
        });
        join_all(looks).await.into_iter().flatten().collect()
    }

    /// Asks one server, on the connection of the last look if it still works.
    async fn look_at(&self, address: ServerAddress, target: &Config) -> Result<ServerRole, BoxError> {
        let kept = self.kept().remove(&address).filter(|client| !client.is_closed());
        let client = match kept {
            Some(client) => client,
            None => self.connect(target).await?,
        };
        let role = ServerRole::ask(&client).await?;
        self.kept().insert(address, client);
        Ok(role)
    }

    async fn connect(&self, target: &Config) -> Result<Client, BoxError> {
        let mut target = target.clone();
        target.target_session_attrs(TargetSessionAttrs::Any);
        let (client, driver) =
            target.connect(self.tls.clone()).await.map_err(|error| self.tls.explain(error, &target))?;
        tokio::spawn(session::drive_until_refused(driver, None));
        Ok(client)
    }

    /// Logs each conflict when it begins or changes, and its end.
    fn log(&self, found: Vec<FoundPrimary>, conflict: Option<String>) {
        let several = if found.len() > 1 { found } else { Vec::new() };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if *logged == several {
            return;
        }
        let servers = several.iter().map(FoundPrimary::to_string).collect::<Vec<_>>().join(", ");
        match conflict {
            Some(conflict) => {
                tracing::error!(servers, "several servers of the store take writes, and none is used: {conflict}");
            }
            None if several.is_empty() => tracing::warn!("at most one server of the store takes writes again"),
            None => tracing::error!(
                servers,
                "several servers of the store take writes; only the one with the newest timeline is used"
            ),
        }
        *logged = several;
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<ServerAddress, Client>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's address as the log shows it.
fn place(target: &Config) -> String {
    let port = target.get_ports().first().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", hosts::name(target))
}
