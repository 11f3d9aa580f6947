//! Reads and checks `[store]`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::options::options;
use super::reader::{Section, Text};
use super::upstream_tls::SystemAuthorities;
use super::{STORE_CONNECTIONS_MIN, StoreConfig, StoreLocation, postgres_client_tls};
use crate::domain::fingerprint::Secrets;
use crate::tls::Authorities;

/// A PostgreSQL server allows 100 by default; no instance needs more than this.
const CONNECTIONS_MAX: usize = 1000;

/// The reason for the bounds of the connections.
const CONNECTIONS_WHY: &str = "each kind of work needs its own, and a database has few";

options! {
    /// The options of `[store]`.
    pub(super) struct StoreOptions {
        /// `sqlite:PATH`, `postgres://…` or `memory:`
        url: Text = "sqlite:oncegate.db";
        /// the most connections to PostgreSQL
        max_connections: Integer = 8 => usize, integer(STORE_CONNECTIONS_MIN..=CONNECTIONS_MAX, CONNECTIONS_WHY);
        /// for any one store operation
        timeout: Duration = "2s" => Duration, duration_above_zero();
        /// bring an old schema up to date at start, rather than refuse it
        migrate: Boolean = true => bool, boolean();
        /// distribute the keys of a new store over the nodes of a Citus cluster
        distribute: Boolean = false => bool, boolean();
        /// encrypt stored responses with `secret`
        encrypt: Boolean = false => bool, boolean();
        /// an instance's right to run attempts
        lease: Table(LeaseOptions::KEYS) = {};
        /// how often lapsed leases are looked for
        sweep_every: Duration = "5s" => Duration, duration_above_zero();
        /// how often keys past their ttl are deleted
        reap_every: Duration = "60s" => Duration, duration_above_zero();
    }
}

options! {
    /// The options of `store.lease`.
    pub(super) struct LeaseOptions {
        /// how often an instance renews its lease
        heartbeat: Duration = "2s" => Duration, duration_above_zero();
        /// how long a lease lives without being renewed
        expiry: Duration = "10s" => Duration, duration_above_zero();
    }
}

/// Reads the whole table.
pub(super) fn read(
    section: &Section<'_>,
    secrets: &Option<Secrets>,
    system_authorities: &SystemAuthorities<'_>,
) -> Option<StoreConfig> {
    let options = StoreOptions::read(section);
    let url = section.text("url").and_then(|text| match read_location(section, &text, system_authorities) {
        Ok(location) => Some(location),
        // The problem does not show the text, which may hold a password.
        Err(message) => {
            section.reader().problem(&text.position, message);
            None
        }
    });
    if let (Some(distribute), Some(StoreLocation::Memory | StoreLocation::Sqlite(_))) = (&options.distribute, &url)
        && distribute.value
    {
        section.reader().problem(&distribute.position, "needs a `url` of PostgreSQL: no other store has several nodes");
    }
    if let (Some(encrypt), Some(secrets)) = (&options.encrypt, secrets)
        && encrypt.value
        && secrets.current().is_none()
    {
        section.reader().problem(&encrypt.position, "needs a `secret` to encrypt with");
    }
    let LeaseOptions { heartbeat, expiry } = LeaseOptions::read(&section.table("lease"));
    if let (Some(heartbeat), Some(expiry)) = (&heartbeat, &expiry)
        && heartbeat.value * 2 > expiry.value
    {
        let message = "`expiry` must be twice `heartbeat` at least: a lease must outlive one lost heartbeat";
        section.reader().problem((&heartbeat.position).max(&expiry.position), message);
    }
    Some(StoreConfig {
        location: url?,
        max_connections: options.max_connections?.value,
        timeout: options.timeout?.value,
        migrate: options.migrate?.value,
        distribute: options.distribute?.value,
        encrypt: options.encrypt?.value,
        heartbeat: heartbeat?.value,
        expiry: expiry?.value,
        sweep_every: options.sweep_every?.value,
        reap_every: options.reap_every?.value,
    })
}

/// Reads the store's URL as far as the start does before it connects, its files included.
fn read_location(
    section: &Section<'_>,
    text: &Text,
    system_authorities: &SystemAuthorities<'_>,
) -> Result<StoreLocation, String> {
    let url = match StoreLocation::parse(&text.value)? {
        StoreLocation::Postgres(url) => url,
        other => return Ok(other),
    };
    let system = match url.tls().needs_system_authorities() {
        true => Arc::clone(&system_authorities.get().roots),
        false => Arc::clone(&Authorities::empty().roots),
    };
    let mut read = |path: &Path| section.reader().read_file(path).map(String::into_bytes);
    postgres_client_tls(&url, &system, &mut read)?;
    // A flag or a variable is not interpolated.
    let written = if text.is_interpolated { &text.shown } else { "" };
    Ok(StoreLocation::Postgres(Box::new(url.with_written(written))))
}
