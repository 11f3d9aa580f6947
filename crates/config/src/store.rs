//! Reads and checks `[store]`.

use std::path::Path;
use std::sync::Arc;

use super::interpolate::{STAND_IN, STAND_IN_STORE, files_of, interpolate_again, is_one_placeholder};
use super::options::options;
use super::reader::{Section, Text};
use oncegate_domain::fingerprint::Secrets;
use oncegate_settings::{
    LeaseConfig, ParseResult, STORE_CONNECTIONS_MIN, StoreConfig, StoreLocation, UrlText, postgres_client_tls,
};
use oncegate_trust::tls::Authorities;

/// A PostgreSQL server allows 100 by default; no instance needs more than this.
const CONNECTIONS_MAX: usize = 1000;

/// The reason for the bounds of the connections.
const CONNECTIONS_WHY: &str = "each kind of work needs its own, and a database has few";

options! {
    /// The options of `[store]`. Its URL is shown without its password.
    struct StoreOptions for StoreConfig {
        /// `sqlite:PATH`, `postgres://…` or `memory:`
        url: Concealed = "sqlite:oncegate.db" => made(read_url);
        /// the most connections to PostgreSQL
        max_connections: Integer = 10 => integer(STORE_CONNECTIONS_MIN..=CONNECTIONS_MAX, CONNECTIONS_WHY);
        /// for any one store operation
        timeout: Duration = "2s" => duration_above_zero();
        /// bring an old schema up to date at start, rather than refuse it
        migrate: Boolean = true => boolean();
        /// accepts one change of how keys are found, by the digest that the refusal of the start names
        accept_route_changes: Text = "" => optional(parse_digest);
        /// distribute the keys of a new store over the nodes of a Citus cluster
        distribute: Boolean = false => boolean();
        /// encrypt stored responses with `secret`
        encrypt: Boolean = false => boolean();
        /// an instance's right to run attempts
        lease: Table(LeaseOptions::KEYS) = {} => inner(read_lease);
        /// how often lapsed leases are looked for
        sweep_every: Duration = "5s" => duration_above_zero();
        /// how often keys past their ttl are deleted
        reap_every: Duration = "60s" => duration_above_zero();
    }
}

options! {
    /// The options of `store.lease`.
    struct LeaseOptions for LeaseConfig {
        /// how often an instance renews its lease
        heartbeat: Duration = "2s" => duration_above_zero();
        /// how long a lease lives without being renewed
        expiry: Duration = "10s" => duration_above_zero();
    }
}

pub(super) fn read(section: &Section<'_>, secrets: &Option<Secrets>) -> StoreConfig {
    let store = StoreOptions::read(section);
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
    let lease = LeaseOptions::read(section);
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
    let location = match StoreLocation::parse(&text.value) {
        Err(_) if text.value.contains(STAND_IN) && is_one_placeholder(&text.shown) => {
            StoreLocation::parse(STAND_IN_STORE)?
        }
        parsed => parsed?,
    };
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
    let written = files_of(&text.shown).next().filter(|_| text.is_interpolated);
    let written = written.map(|_| UrlText { text: (&*text.shown).into(), fill_in: interpolate_again });
    Ok(StoreLocation::Postgres(Box::new(url.with_written(written))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Overrides, ProcessEnvironment, load};
    use oncegate_settings::PostgresUrl;

    #[test]
    fn the_files_of_a_url_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "first\n").unwrap();
        let written = format!("postgres://u:${{file:{}}}@h/d", file.display());
        let first = written_url(&written);
        assert!(first.has_files() && first.read_again().unwrap() == first);
        std::fs::write(&file, "second\n").unwrap();
        let second = first.read_again().unwrap();
        assert!(second != first && second.is_of_same_text(&first) && second.differs_in_password_alone(&first));
        assert!(second.hosts()[0].get_password() == Some(b"second"));
        std::fs::write(&file, "a token@/?#%\n").unwrap();
        assert!(first.read_again().unwrap().hosts()[0].get_password() == Some(b"a token@/?#%"));
        std::fs::remove_file(&file).unwrap();
        assert!(first.read_again().unwrap_err().contains("cannot be read"));
        let without = written_url("postgres://u:first@h/d");
        assert!(!without.has_files() && without.read_again().unwrap() == without && !without.is_of_same_text(&second));
    }

    fn written_url(url: &str) -> PostgresUrl {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("oncegate.toml");
        std::fs::write(&file, format!("upstream = 'http://a'\nstore.url = '{url}?sslmode=disable'")).unwrap();
        match load(Some(&file), &Overrides::default(), &ProcessEnvironment).unwrap().live.store_url {
            StoreLocation::Postgres(url) => *url,
            other => panic!("{other}"),
        }
    }
}
