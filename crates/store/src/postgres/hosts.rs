//! The servers of the URL: the connection to the one that takes writes, and the look at all of them.
//!
//! Each host has a limited time to accept a connection, and the one that worked last comes first. The driver goes
//! through a list by itself, but limits only the TCP handshake: a host that accepts connections and says nothing, as a
//! frozen server or one with a hung disk does, would take all the time of those behind it.
//!
//! More than one server may take writes. The look has a connection of its own to each address, which it keeps, to
//! standbys too: they may be promoted. All addresses are asked side by side, so that a silent one delays no other.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::{Client, Config};

use super::primaries::{KnownPrimary, PrimaryConflict, PrimaryIdentity, PrimaryRefusal, ServerRole};
use super::session::{self, PgDriver};
use super::tls::{BoxError, PgTls};
use crate::PrimaryCheck;
use oncegate_machine::jitter::random_fraction;

/// The time limit of an address where the URL has no `connect_timeout`, for TCP, TLS, authentication and the question
/// whether the server takes writes. A lost SYN is sent again after 1 s (RFC 6298, section 2.1), so that a single lost
/// packet passes over no host.
// See docs/decisions/0008-follow-the-newest-timeline.md.
const ADDRESS_MAX: Duration = Duration::from_secs(2);

/// The time limit of a look, and at most half of the store's `timeout`. A heartbeat waits for it, so it is short beside
/// the default lease of 10 s; making a connection takes some round trips.
const LOOK_MAX: Duration = Duration::from_secs(1);

const DEFAULT_PORT: u16 = 5432;

pub(super) struct HostList {
    hosts: Vec<Config>,
    tls: PgTls,
    connect_timeout: Option<Duration>,
    look_max: Duration,
    worked_last: Mutex<ServerAddress>,
    /// The primary among several hosts. A single one is compared with none.
    known_primary: Option<Arc<KnownPrimary>>,
    kept: Mutex<HashMap<ServerAddress, Client>>,
    /// The primaries of the last look if there were several: each conflict is logged once.
    logged: Mutex<Vec<FoundPrimary>>,
}

/// The host's place in the list, and the address of a host that has several.
type ServerAddress = (usize, Option<IpAddr>);

/// A server that takes writes, with its address for people.
type FoundPrimary = (PrimaryIdentity, String);

/// A server that takes writes and is not used.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {refusal}")]
struct RefusedHost {
    name: String,
    refusal: PrimaryRefusal,
}

impl HostList {
    /// The settings for each host, with that host alone. `call_timeout` is the time limit of one call of the store.
    /// `known_primary` is the memory of an earlier list of the same store.
    pub fn new(hosts: &[Config], tls: PgTls, call_timeout: Duration, known_primary: Option<Arc<KnownPrimary>>) -> Self {
        let connect_timeout = hosts.first().and_then(Config::get_connect_timeout).copied();
        let first = match hosts.first().map(Config::get_load_balance_hosts) {
            Some(LoadBalanceHosts::Random) => (random_fraction() * hosts.len() as f64) as usize % hosts.len(),
            _ => 0,
        };
        let has_several = hosts.len() > 1;
        Self {
            hosts: hosts.iter().map(|host| complete(host, &tls, call_timeout)).collect(),
            tls,
            connect_timeout,
            look_max: LOOK_MAX.min(call_timeout / 2),
            worked_last: Mutex::new((first, None)),
            known_primary: has_several.then(|| known_primary.unwrap_or_default()),
            kept: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    pub fn known_primary(&self) -> Option<&Arc<KnownPrimary>> {
        self.known_primary.as_ref()
    }

    /// Connects to the first host that answers in time, takes writes and is not refused, and drives the connection in a
    /// task of its own. `budget` is the caller's time limit, which the hosts share. Returns the error of a refused
    /// host, or else of the last one that was tried.
    pub async fn connect(&self, budget: Duration) -> Result<(Client, JoinHandle<()>), BoxError> {
        let (host_last, address_last) = *self.worked_last.lock();
        let mut failure = BoxError::from("no host of store.url has an address");
        // Stable, so that all others keep their order; so are their addresses.
        let mut hosts: Vec<usize> = (0..self.hosts.len()).collect();
        hosts.sort_by_key(|host| *host != host_last);
        for (place, host) in hosts.into_iter().enumerate() {
            let is_last_host = place + 1 == self.hosts.len();
            let limit = self.limit(budget, 1, is_last_host);
            let found = timeout(limit, targets(&self.hosts[host])).await;
            let late = |_| Err(io::Error::other(format!("no address was found within {limit:?}")));
            let mut targets = match found.unwrap_or_else(late) {
                Ok(targets) => targets,
                Err(error) => {
                    failure = keep_refusal(failure, format!("{}: {error}", name(&self.hosts[host])).into());
                    continue;
                }
            };
            targets.sort_by_key(|target| address(target) != address_last);
            for (place, target) in targets.iter().enumerate() {
                let is_last = is_last_host && place + 1 == targets.len();
                let limit = self.limit(budget, targets.len(), is_last);
                match timeout(limit, self.connect_to(target)).await {
                    Ok(Ok(connected)) => {
                        *self.worked_last.lock() = (host, address(target));
                        return Ok(connected);
                    }
                    Ok(Err(error)) => failure = keep_refusal(failure, error),
                    Err(_) => {
                        let host = name(target);
                        tracing::warn!(host, "a host of the store did not answer in time");
                        failure = keep_refusal(failure, format!("{host}: no answer within {limit:?}").into());
                    }
                }
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, target: &Config) -> Result<(Client, JoinHandle<()>), BoxError> {
        let (client, mut driver) = self.open(target).await?;
        let mut compared = None;
        if let Some(known_primary) = &self.known_primary {
            match session::ask(&client, &mut driver).await? {
                ServerRole::Primary(server) => {
                    let refused = |refusal| RefusedHost { name: name(target), refusal };
                    known_primary.admit(server).map_err(refused)?;
                    compared = Some((Arc::clone(known_primary), server));
                }
                ServerRole::ReadOnly => return Err(format!("{}: the server takes no writes", name(target)).into()),
                ServerRole::Unidentified => tracing::warn!(
                    host = name(target),
                    "a host of the store does not say which server it is: two primaries would not be seen"
                ),
            }
        }
        Ok((client, tokio::spawn(session::drive_until_refused(driver, compared))))
    }

    async fn open(&self, target: &Config) -> Result<(Client, PgDriver), BoxError> {
        target.connect(self.tls.clone()).await.map_err(|error| self.tls.explain(error, target))
    }

    /// The time limit of one address. The last one has nobody behind it, and may use all the time that is left.
    fn limit(&self, budget: Duration, addresses: usize, is_last: bool) -> Duration {
        if is_last {
            return self.connect_timeout.unwrap_or(budget);
        }
        let shares = u32::try_from(self.hosts.len() * addresses).unwrap_or(u32::MAX).max(1);
        self.connect_timeout.unwrap_or(ADDRESS_MAX).min(budget / shares)
    }

    /// Finds the servers that take writes, and refuses all but the newest from then on. Does nothing with a single
    /// host.
    pub async fn look(&self) -> PrimaryCheck {
        let Some(known_primary) = &self.known_primary else { return PrimaryCheck::default() };
        let deadline = Instant::now() + self.look_max;
        let looks = (0..self.hosts.len()).map(|host| self.look_at_host(host, deadline));
        let mut found = join_all(looks).await.concat();
        // In an order of their own, and each server once, also if several addresses or poolers lead to it.
        found.sort_by_key(|(identity, _)| *identity);
        found.dedup_by_key(|(identity, _)| *identity);
        let identities: Vec<PrimaryIdentity> = found.iter().map(|(identity, _)| *identity).collect();
        let conflict = known_primary.record(&identities);
        self.log(found, conflict);
        PrimaryCheck { primaries: identities.len(), has_changed: known_primary.take_change() }
    }

    async fn look_at_host(&self, host: usize, deadline: Instant) -> Vec<FoundPrimary> {
        let Ok(Ok(targets)) = timeout_at(deadline, targets(&self.hosts[host])).await else { return Vec::new() };
        let looks = targets.iter().map(async |target| {
            match timeout_at(deadline, self.look_at((host, address(target)), target)).await {
                Ok(Ok(ServerRole::Primary(identity))) => {
                    let port = target.get_ports().first().map_or_else(String::new, |port| format!(":{port}"));
                    Some((identity, format!("{}{port}", name(target))))
                }
                _ => None,
            }
        });
        join_all(looks).await.into_iter().flatten().collect()
    }

    /// Asks one server, on the connection of the last look if it still works.
    async fn look_at(&self, address: ServerAddress, target: &Config) -> Result<ServerRole, BoxError> {
        let kept = self.kept.lock().remove(&address).filter(|client| !client.is_closed());
        let client = match kept {
            Some(client) => client,
            None => {
                let mut target = target.clone();
                target.target_session_attrs(TargetSessionAttrs::Any);
                let (client, driver) = self.open(&target).await?;
                tokio::spawn(session::drive_until_refused(driver, None));
                client
            }
        };
        let role = ServerRole::ask(&client).await?;
        self.kept.lock().insert(address, client);
        Ok(role)
    }

    /// Logs each conflict when it begins or changes, and its end.
    fn log(&self, found: Vec<FoundPrimary>, conflict: Option<PrimaryConflict>) {
        let several = if found.len() > 1 { found } else { Vec::new() };
        let mut logged = self.logged.lock();
        if *logged == several {
            return;
        }
        let server = |(identity, name): &FoundPrimary| format!("{name} (timeline {})", identity.timeline);
        let servers = several.iter().map(server).collect::<Vec<_>>().join(", ");
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
}

/// Fills in the settings that the URL leaves out.
fn complete(host: &Config, tls: &PgTls, call_timeout: Duration) -> Config {
    let mut config = host.clone();
    config.ssl_mode(tls.mode());
    // A standby would return old records.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(call_timeout);
    }
    if config.get_application_name().is_none() {
        config.application_name("oncegate");
    }
    if config.get_tcp_user_timeout().is_none() {
        // The operating system itself takes a quarter of an hour to detect a lost peer.
        config.tcp_user_timeout(call_timeout.max(Duration::from_secs(1)));
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        // For a peer that dies after it has received the statement: then no data of ours is unacknowledged.
        config.keepalives_idle(Duration::from_secs(2));
        config.keepalives_interval(Duration::from_secs(1));
        config.keepalives_retries(3);
    }
    config
}

/// The failure that is reported: a server that was refused says more than one that is away.
fn keep_refusal(earlier: BoxError, later: BoxError) -> BoxError {
    if earlier.is::<RefusedHost>() { earlier } else { later }
}

/// The settings for each address of a host.
async fn targets(host: &Config) -> io::Result<Vec<Config>> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else { return Ok(vec![host.clone()]) };
    let port = host.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
    let found = lookup_host((name.as_str(), port)).await?;
    Ok(found
        .map(|address| {
            let mut target = host.clone();
            target.hostaddr(address.ip());
            target
        })
        .collect())
}

fn address(target: &Config) -> Option<IpAddr> {
    target.get_hostaddrs().first().copied()
}

/// The host as the URL names it, for people.
fn name(target: &Config) -> String {
    match (target.get_hosts(), target.get_hostaddrs()) {
        ([Host::Tcp(name), ..], _) => name.clone(),
        #[cfg(unix)]
        ([Host::Unix(path), ..], _) => path.display().to_string(),
        ([], addresses) => addresses.first().map(IpAddr::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_settings::PostgresUrl;

    fn list(url: &str) -> HostList {
        let url = PostgresUrl::parse(url).unwrap();
        HostList::new(url.hosts(), PgTls::new(url.tls(), None), Duration::from_secs(2), None)
    }

    #[test]
    fn the_hosts_share_the_callers_time() {
        let seconds = Duration::from_secs;
        let two = list("postgres://a,b");
        assert_eq!(two.limit(seconds(2), 1, false), seconds(1));
        assert_eq!(two.limit(seconds(2), 2, false), seconds(1) / 2);
        assert_eq!(two.limit(seconds(30), 1, false), ADDRESS_MAX);
        assert_eq!(two.limit(seconds(30), 1, true), seconds(30));
        let limited = list("postgres://a,b?connect_timeout=5");
        assert_eq!(limited.limit(seconds(30), 1, false), seconds(5));
        assert_eq!(limited.limit(seconds(30), 1, true), seconds(5));
    }

    #[test]
    fn a_random_host_is_one_of_the_list() {
        let draw = |_| list("postgres://a,b,c?load_balance_hosts=random&sslmode=disable").worked_last.lock().0;
        let drawn: Vec<_> = (0..200).map(draw).collect();
        assert!((0..3).all(|host| drawn.contains(&host)) && drawn.iter().all(|host| *host < 3), "{drawn:?}");
    }
}
