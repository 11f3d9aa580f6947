//! The hosts of the URL. Each has a limited time to accept a connection, and the one that worked last comes first.
//!
//! The driver goes through a list by itself, but limits only the TCP handshake: a host that accepts connections and
//! says nothing, as a frozen server or one with a hung disk does, would take all the time of those behind it.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::primaries::{KnownPrimary, PrimaryIdentity, PrimaryRefusal, ServerRole};
use super::session;
use super::tls::{BoxError, PgTls};

/// The time limit of an address where the URL has no `connect_timeout`, for TCP, TLS, authentication and the question
/// whether the server takes writes. A lost SYN is sent again after 1 s (RFC 6298, section 2.1), so that a single lost
/// packet passes over no host.
const ADDRESS_MAX: Duration = Duration::from_secs(2);

/// The port of PostgreSQL where the URL names none.
const DEFAULT_PORT: u16 = 5432;

/// The side of a connection that reads and writes its socket.
pub(super) type PgDriver = Connection<Socket, <PgTls as MakeTlsConnect<Socket>>::Stream>;

/// A new connection.
pub(super) struct PgSession {
    pub client: Client,
    pub driver: PgDriver,
    /// The server at the other end, if it is compared with others.
    pub server: Option<PrimaryIdentity>,
}

/// The hosts in the URL's order.
pub(super) struct HostList {
    /// The settings for each host, with that host alone.
    hosts: Vec<Config>,
    /// The URL's `connect_timeout`.
    connect_timeout: Option<Duration>,
    worked_last: Mutex<ServerAddress>,
    /// The primary among several hosts. A single one is compared with none.
    known_primary: Option<Arc<KnownPrimary>>,
}

/// One of the addresses to which a list leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServerAddress {
    /// The host's place in the list.
    host: usize,
    /// The address of a host that has several.
    address: Option<IpAddr>,
}

/// A server that takes writes and is not used.
#[derive(Debug)]
struct RefusedHost {
    name: String,
    refusal: PrimaryRefusal,
}

impl fmt::Display for RefusedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.refusal)
    }
}

impl Error for RefusedHost {}

impl HostList {
    /// The settings for each host, with that host alone. `call_timeout` is the driver's limit for TCP where the URL has none.
    /// `known_primary` is the memory of an earlier list of the same store.
    pub fn new(mut hosts: Vec<Config>, call_timeout: Duration, known_primary: Option<Arc<KnownPrimary>>) -> Self {
        let connect_timeout = hosts.first().and_then(Config::get_connect_timeout).copied();
        for host in &mut hosts {
            host.connect_timeout(connect_timeout.unwrap_or(call_timeout));
        }
        let first = match hosts.first().map(Config::get_load_balance_hosts) {
            Some(LoadBalanceHosts::Random) => random_below(hosts.len()),
            _ => 0,
        };
        let worked_last = Mutex::new(ServerAddress { host: first, address: None });
        let known_primary = known_primary.filter(|_| hosts.len() > 1);
        let known_primary = known_primary.or_else(|| (hosts.len() > 1).then(|| Arc::new(KnownPrimary::new())));
        Self { hosts, connect_timeout, worked_last, known_primary }
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// The primary among several hosts.
    pub fn known_primary(&self) -> Option<&Arc<KnownPrimary>> {
        self.known_primary.as_ref()
    }

    /// The addresses of a host, with the settings for each.
    pub async fn addresses(&self, host: usize) -> std::io::Result<Vec<(ServerAddress, Config)>> {
        let targets = targets(&self.hosts[host]).await?;
        Ok(targets.into_iter().map(|target| (ServerAddress { host, address: address(&target) }, target)).collect())
    }

    /// Connects to the first host that answers in time, takes writes and is not refused. `budget` is the caller's time
    /// limit, which the hosts share. Returns the error of a refused host, or else of the last one that was tried.
    pub async fn connect(&self, tls: &PgTls, budget: Duration) -> Result<PgSession, BoxError> {
        let worked_last = *self.worked_last();
        let mut failure = BoxError::from("no host of store.url has an address");
        for (place, host) in order(self.hosts.len(), worked_last.host).enumerate() {
            let is_last_host = place + 1 == self.hosts.len();
            let limit = self.limit(budget, 1, is_last_host);
            let mut targets = match timeout(limit, targets(&self.hosts[host])).await {
                Ok(Ok(targets)) => targets,
                Ok(Err(error)) => {
                    failure = keep_refusal(failure, format!("{}: {error}", name(&self.hosts[host])).into());
                    continue;
                }
                Err(_) => {
                    let late = format!("{}: no address was found within {limit:?}", name(&self.hosts[host]));
                    failure = keep_refusal(failure, late.into());
                    continue;
                }
            };
            // Stable, so that all others keep their order.
            targets.sort_by_key(|target| address(target) != worked_last.address);
            for (place, target) in targets.iter().enumerate() {
                let is_last = is_last_host && place + 1 == targets.len();
                match self.connect_within(self.limit(budget, targets.len(), is_last), target, tls).await {
                    Ok(session) => {
                        *self.worked_last() = ServerAddress { host, address: address(target) };
                        return Ok(session);
                    }
                    Err(error) => failure = keep_refusal(failure, error),
                }
            }
        }
        Err(failure)
    }

    async fn connect_within(&self, limit: Duration, target: &Config, tls: &PgTls) -> Result<PgSession, BoxError> {
        timeout(limit, self.connect_to(target, tls)).await.unwrap_or_else(|_| {
            let host = name(target);
            tracing::warn!(host, "a host of the store did not answer in time");
            Err(format!("{host}: no answer within {limit:?}").into())
        })
    }

    async fn connect_to(&self, target: &Config, tls: &PgTls) -> Result<PgSession, BoxError> {
        let (client, mut driver) = target.connect(tls.clone()).await.map_err(|error| tls.explain(error, target))?;
        let Some(known_primary) = &self.known_primary else { return Ok(PgSession { client, driver, server: None }) };
        let server = match session::ask(&client, &mut driver).await? {
            ServerRole::Primary(server) => server,
            ServerRole::ReadOnly => return Err(format!("{}: the server takes no writes", name(target)).into()),
            ServerRole::Unidentified => {
                let host = name(target);
                tracing::warn!(
                    host,
                    "a host of the store does not say which server it is: two primaries would not be seen"
                );
                return Ok(PgSession { client, driver, server: None });
            }
        };
        let refused = |refusal| RefusedHost { name: name(target), refusal };
        known_primary.admit(server).map_err(refused)?;
        Ok(PgSession { client, driver, server: Some(server) })
    }

    /// The time limit of one address. The last one has nobody behind it, and may use all the time that is left.
    fn limit(&self, budget: Duration, addresses: usize, is_last: bool) -> Duration {
        if is_last {
            return self.connect_timeout.unwrap_or(budget);
        }
        let shares = u32::try_from(self.hosts.len() * addresses).unwrap_or(u32::MAX).max(1);
        self.connect_timeout.unwrap_or(ADDRESS_MAX).min(budget / shares)
    }

    fn worked_last(&self) -> MutexGuard<'_, ServerAddress> {
        self.worked_last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure that is reported: a server that was refused says more than one that is away.
fn keep_refusal(earlier: BoxError, later: BoxError) -> BoxError {
    if earlier.is::<RefusedHost>() { earlier } else { later }
}

/// The places of `count` hosts, beginning with the one that worked last.
fn order(count: usize, worked_last: usize) -> impl Iterator<Item = usize> {
    std::iter::once(worked_last).chain((0..count).filter(move |place| *place != worked_last))
}

/// The settings for each address of a host.
async fn targets(host: &Config) -> std::io::Result<Vec<Config>> {
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
pub(super) fn name(target: &Config) -> String {
    match (target.get_hosts(), target.get_hostaddrs()) {
        ([Host::Tcp(name), ..], _) => name.clone(),
        #[cfg(unix)]
        ([Host::Unix(path), ..], _) => path.display().to_string(),
        ([], addresses) => addresses.first().map(IpAddr::to_string).unwrap_or_default(),
    }
}

fn random_below(count: usize) -> usize {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("the operating system has random numbers");
    // The remainder is below `count`, which fits.
    usize::try_from(u64::from_le_bytes(random) % count as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PostgresUrl;

    #[test]
    fn the_host_that_worked_last_comes_first() {
        assert_eq!(order(4, 2).collect::<Vec<_>>(), [2, 0, 1, 3]);
        assert_eq!(order(1, 0).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn the_hosts_share_the_callers_time() {
        let list = |url: &str| {
            let url = PostgresUrl::parse(url).unwrap();
            HostList::new(url.hosts().to_vec(), Duration::from_secs(2), None)
        };
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
        let drawn: Vec<_> = (0..200).map(|_| random_below(3)).collect();
        assert!((0..3).all(|host| drawn.contains(&host)) && drawn.iter().all(|host| *host < 3), "{drawn:?}");
    }
}
