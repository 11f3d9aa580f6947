//! Reads and checks `[store]`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::options::options;
use super::problem::ParseResult;
use super::reader::{Section, Text};
use super::{StoreLocation, postgres_client_tls};
use oncegate_domain::fingerprint::Secrets;
use oncegate_trust::tls::Authorities;

/// The fewest connections to PostgreSQL: one each for the lease, the sweep, upkeep and reservations, and two for settlements.
/// With fewer, one kind of work could starve another.
pub const STORE_CONNECTIONS_MIN: usize = 6;

/// A PostgreSQL server allows 100 by default; no instance needs more than this.
const CONNECTIONS_MAX: usize = 1000;

/// The reason for the bounds of the connections.
const CONNECTIONS_WHY: &str = "each kind of work needs its own, and a database has few";

options! {
    /// The options of `[store]`. Its URL is shown without its password.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StoreConfig {
        /// `sqlite:PATH`, `postgres://…` or `memory:`
        url: Text = "sqlite:oncegate.db" => StoreLocation, made(read_url);
        /// the most connections to PostgreSQL
        max_connections: Integer = 10 => usize, integer(STORE_CONNECTIONS_MIN..=CONNECTIONS_MAX, CONNECTIONS_WHY);
        /// for any one store operation
        timeout: Duration = "2s" => Duration, duration_above_zero();
        /// bring an old schema up to date at start, rather than refuse it
        migrate: Boolean = true => bool, boolean();
        /// accepts one change of how keys are found, by the digest that the refusal of the start names
        accept_route_changes: Text = "" => Option<Box<str>>, optional(parse_digest);
        /// distribute the keys of a new store over the nodes of a Citus cluster
        distribute: Boolean = false => bool, boolean();
        /// encrypt stored responses with `secret`
        encrypt: Boolean = false => bool, boolean();
        /// an instance's right to run attempts
        lease: Table(LeaseConfig::KEYS) = {} => LeaseConfig, inner(read_lease);
        /// how often lapsed leases are looked for
        sweep_every: Duration = "5s" => Duration, duration_above_zero();
        /// how often keys past their ttl are deleted
        reap_every: Duration = "60s" => Duration, duration_above_zero();
    }
}

options! {
    /// The options of `store.lease`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LeaseConfig {
        /// how often an instance renews its lease
        heartbeat: Duration = "2s" => Duration, duration_above_zero();
        /// how long a lease lives without being renewed
        expiry: Duration = "10s" => Duration, duration_above_zero();
    }
}

/// Reads the whole table.
pub(super) fn read(section: &Section<'_>, secrets: &Option<Secrets>) -> StoreConfig {
    let store = StoreConfig::read(section);
    if store.encrypt && secrets.as_ref().is_some_and(|secrets| secrets.current().is_none()) {
        section.problem("encrypt", "needs a `secret` to encrypt with");
    }
    store
}

fn parse_digest(text: &str) -> Result<Box<str>, String> {
    match text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(text.into()),
        false => Err("is no digest of a change: write the 16 hexadecimal digits that the refusal names".into()),
    }
}

fn read_lease(section: &Section<'_>) -> LeaseConfig {
    let lease = LeaseConfig::read(section);
    if lease.heartbeat * 2 > lease.expiry {
        let message = "`expiry` must be twice `heartbeat` at least: a lease must outlive one lost heartbeat";
        section.conflict(&["heartbeat", "expiry"], message);
    }
    lease
}

/// Reads the URL. The memory stands for one with a problem, which is not shown, as it may hold a password.
fn read_url(section: &Section<'_>) -> StoreLocation {
    let Some(text) = section.text("url") else { return StoreLocation::Memory };
    match read_location(section, &text) {
        Ok(StoreLocation::Memory | StoreLocation::Sqlite(_)) if section.boolean("distribute") => {
            section.problem("distribute", "needs a `url` of PostgreSQL: no other store has several nodes");
        }
        Ok(location) => return location,
        Err(message) => section.problem("url", message),
    }
    StoreLocation::Memory
}

/// Parses the store's URL. Its relative paths are placed as [`ConfigReader::folder`] says.
pub(super) fn parse_location(section: &Section<'_>, text: &Text) -> ParseResult<StoreLocation> {
    let location = StoreLocation::parse(&text.value)?;
    let Some(folder) = section.reader().folder(&text.position) else { return Ok(location) };
    Ok(match location {
        StoreLocation::Sqlite(path) => StoreLocation::Sqlite(folder.join(path)),
        StoreLocation::Postgres(url) => StoreLocation::Postgres(Box::new(url.with_files_in(folder))),
        StoreLocation::Memory => StoreLocation::Memory,
    })
}

/// Reads the store's URL as far as the start does before it connects, its files included.
fn read_location(section: &Section<'_>, text: &Text) -> Result<StoreLocation, String> {
    let url = match parse_location(section, text)? {
        StoreLocation::Postgres(url) => url,
        other => return Ok(other),
    };
    let system = match url.tls().needs_system_authorities() {
        true => Arc::clone(&section.reader().system_authorities().roots),
        false => Arc::clone(&Authorities::empty().roots),
    };
    let mut read = |path: &Path| section.reader().read_file(path).map(String::into_bytes);
    postgres_client_tls(&url, &system, &mut read)?;
    // A flag or a variable is not interpolated.
    let written = if text.is_interpolated { &text.shown } else { "" };
    Ok(StoreLocation::Postgres(Box::new(url.with_written(written))))
}
