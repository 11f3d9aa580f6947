//! Requests of operators about keys: read, carried out, answered with typed results.
//!
//! `params` reads requests, `queries` looks, `changes` decides. `dto` has the results, which are written as JSON for the API; the
//! operators' page renders the same results as HTML.
//!
//! Nothing here knows a socket. The admin listener brings requests here, and `oncegate keys`, where no instance runs,
//! brings the same ones over a store of its own. All requests are about one service.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use crate::config::Config;
use crate::instance::store_clock::StoreClock;
use crate::store::admin::{Cursor, KeyFilter};
use crate::store::{ListKeysParams, Store};
use dto::AdminResponse;
use params::KeyRequest;
use problem::ApiProblem;

mod changes;
pub mod dto;
pub mod params;
pub mod problem;
mod queries;
mod render_json;
pub mod timeline;
pub mod typed_response;

/// The length of a request's body, at most; also of a response that somebody types in.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminMethod {
    /// Lists the audit log.
    Audit,
    /// Counts keys, and changes them if they are not more than expected.
    BulkChange,
    /// Lists keys.
    List,
    /// Forgets a key.
    Purge,
    /// Drops a stored response, so that the next request is the next attempt.
    Release,
    /// Has the service asked again about a key that was given up, or its request delivered again.
    Requeue,
    /// Says how an unknown outcome ended.
    Resolve,
    /// Shows a key.
    Show,
    /// Counts keys by route and state.
    Stats,
}

/// A request as it comes over HTTP or from the command line, not read yet.
#[derive(Clone, Debug)]
pub struct AdminRequest<'a> {
    pub method: AdminMethod,
    /// The key's id as it was written; empty where the method is about no single key.
    pub id: &'a str,
    /// The query string without its `?`.
    pub query: &'a str,
    /// A JSON object, or nothing.
    pub body: &'a [u8],
    /// The name for the audit log.
    pub actor: String,
}

/// Answers requests about the keys of one service.
pub struct KeyAdmin {
    store: Arc<Store>,
    config: watch::Receiver<Arc<Config>>,
    store_clock: Option<Arc<StoreClock>>,
}

impl KeyAdmin {
    /// Works on this store. Each request goes by the configuration at its beginning. `store_clock` is `None` where no instance
    /// has watched the store's clock: then the operator vouches for it that an attempt is over, and no TTL counts as ended.
    pub fn new(store: Arc<Store>, config: watch::Receiver<Arc<Config>>, store_clock: Option<Arc<StoreClock>>) -> Self {
        Self { store, config, store_clock }
    }

    /// Reads a request and carries it out.
    ///
    /// # Errors
    /// [`ApiProblem`], and nothing was changed. Where the store failed, the problem says that it may have been.
    pub async fn answer(&self, request: AdminRequest<'_>) -> Result<AdminResponse, ApiProblem> {
        let snapshot = self.snapshot();
        Ok(match KeyRequest::parse(request)? {
            KeyRequest::Audit(query) => AdminResponse::Audit(snapshot.list_audit(query).await?),
            KeyRequest::BulkChange(request) => AdminResponse::BulkChange(snapshot.change_keys(request).await?),
            KeyRequest::Change { id, decision } => AdminResponse::Change(snapshot.change_key(id, decision).await?),
            KeyRequest::List(query) => AdminResponse::List(snapshot.list_keys(query).await?),
            KeyRequest::Show { id } => AdminResponse::Details(Box::new(snapshot.show_key(id).await?)),
            KeyRequest::Stats => AdminResponse::Stats(snapshot.count_keys().await?),
        })
    }

    /// Returns the administration for one request.
    pub fn snapshot(&self) -> KeyAdminSnapshot<'_> {
        KeyAdminSnapshot {
            store: &self.store,
            config: Arc::clone(&self.config.borrow()),
            store_clock: self.store_clock.as_deref(),
            as_of: self.store_clock.as_ref().map(|clock| clock.now()),
        }
    }
}

/// The administration of keys while one request is carried out: a reload does not change the configuration under it.
pub struct KeyAdminSnapshot<'a> {
    store: &'a Store,
    config: Arc<Config>,
    store_clock: Option<&'a StoreClock>,
    /// The store's time at the request's beginning, before any attempt was found quiet.
    as_of: Option<SystemTime>,
}

impl KeyAdminSnapshot<'_> {
    fn service(&self) -> Arc<str> {
        Arc::clone(&self.config.service)
    }

    /// The call for a page of the service's keys.
    fn key_page(&self, filter: KeyFilter, after: Option<Cursor>, limit: u32) -> ListKeysParams {
        ListKeysParams { service: self.service(), filter, after, limit }
    }
}

/// Returns the actor of a request over the admin listener, for the audit log: the peer's address, and the name that it
/// claims.
pub fn remote_actor(peer: std::net::IpAddr, claimed: Option<&[u8]>) -> String {
    let peer = peer.to_canonical();
    match claimed.map(clean_name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) at {peer}"),
        None => format!("operator at {peer}"),
    }
}

/// Returns the actor of a request from the command line, straight on the store.
pub fn local_actor(claimed: Option<&[u8]>) -> String {
    match claimed.map(clean_name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) on the command line"),
        None => "operator on the command line".to_owned(),
    }
}

/// Cleans a claimed name: short, and without characters that a terminal or a log would interpret.
fn clean_name(claimed: &[u8]) -> String {
    const LENGTH_MAX: usize = 64;
    let text = String::from_utf8_lossy(claimed);
    let safe = text
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '(' | ')' | '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    safe.take(LENGTH_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_named_and_cannot_claim_to_be_somebody_elses_entry() {
        let peer = "::ffff:10.0.0.7".parse().unwrap();
        assert_eq!(remote_actor(peer, None), "operator at 10.0.0.7");
        assert_eq!(remote_actor(peer, Some(b"  alice ")), "alice (claimed) at 10.0.0.7");
        assert_eq!(remote_actor(peer, Some(b"\r\n\x1b[31mx")), "[31mx (claimed) at 10.0.0.7");
        assert_eq!(
            remote_actor(peer, Some(b"bob (claimed) at 1.2.3.4")),
            "bob claimed at 1.2.3.4 (claimed) at 10.0.0.7"
        );
        assert_eq!(remote_actor(peer, Some(&[b'a'; 1000])).len(), 64 + " (claimed) at 10.0.0.7".len());
        assert_eq!(remote_actor(peer, Some(b"\xff")), "\u{fffd} (claimed) at 10.0.0.7");
        assert_eq!(local_actor(Some(b"")), "operator on the command line");
    }
}
