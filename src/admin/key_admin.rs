//! Requests of operators about keys: read, carried out, answered with typed results.
//!
//! `params` reads requests, `queries` looks, `changes` decides. `dto` has the results, which are written as JSON for the API; the
//! operators' page renders the same results as HTML.
//!
//! Nothing here knows a socket. The admin listener brings requests here, and `oncegate keys`, where no instance runs,
//! brings the same ones over a store of its own. All requests are about one service.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::instance::store_clock::StoreClock;
use oncegate_settings::{Config, OidcConfig, Route, StartConfig};
use oncegate_store::Store;
use oncegate_store::admin::KeyEntry;
use params::{JsonFields, QueryParams};
use problem::ApiProblem;

pub mod changes;
pub mod dto;
pub mod four_eyes;
pub mod params;
pub mod problem;
mod queries;
pub mod timeline;
pub mod typed_response;

/// The length of a request's body, at most; also of a response that somebody types in.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminMethod {
    Audit,
    /// Counts keys, and changes them if they are not more than expected.
    BulkChange,
    List,
    /// Forgets a key.
    Purge,
    /// Drops a stored response, so that the next request is the next attempt.
    Release,
    /// Has the service asked again about a key that was given up, or its request delivered again.
    Requeue,
    /// Says how an unknown outcome ended.
    Resolve,
    Show,
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

/// The administration of one service's keys while one request is carried out: a reload does not change the configuration under
/// the request.
pub struct KeyAdmin<'a> {
    store: &'a Store,
    start: &'a StartConfig,
    config: Arc<Config>,
    /// `None` where no instance has watched the store's clock: then the operator vouches for it that an attempt is over, and no
    /// TTL counts as ended.
    store_clock: Option<&'a StoreClock>,
    /// The store's time at the request's beginning, before any attempt was found quiet.
    as_of: Option<SystemTime>,
}

impl<'a> KeyAdmin<'a> {
    pub fn new(
        store: &'a Store,
        start: &'a StartConfig,
        config: Arc<Config>,
        store_clock: Option<&'a StoreClock>,
    ) -> Self {
        Self { store, start, config, store_clock, as_of: store_clock.map(StoreClock::now) }
    }

    /// Reads a request, carries it out, and returns the response's JSON.
    ///
    /// # Errors
    /// [`ApiProblem`], and nothing was changed. Where the store failed, the problem says that it may have been.
    pub async fn answer(&self, request: AdminRequest<'_>) -> Result<Value, ApiProblem> {
        let AdminRequest { method, id, query, body, actor } = request;
        let (mut query, mut fields) = (QueryParams::parse(query)?, JsonFields::parse(body)?);
        Ok(match method {
            AdminMethod::Audit => {
                let (limit, id, cursor) = (query.take_limit()?, query.take_text("id")?, query.take_text("cursor")?);
                query.finish()?;
                json!(self.list_audit(&id, &cursor, limit).await?)
            }
            AdminMethod::BulkChange => {
                query.finish()?;
                let (method, keys, expect) =
                    (fields.take_action()?, fields.take_selection()?, fields.take_number("expect")?);
                let decision = fields.take_decision(method, actor, false)?;
                fields.finish()?;
                json!(self.change_keys(keys, decision, expect).await?)
            }
            AdminMethod::List => {
                let (filter, limit, cursor) = (query.take_filter()?, query.take_limit()?, query.take_text("cursor")?);
                query.finish()?;
                json!(self.list_keys(filter, &cursor, limit).await?)
            }
            AdminMethod::Purge | AdminMethod::Release | AdminMethod::Requeue | AdminMethod::Resolve => {
                // Some clients drop the body of a DELETE.
                let accept_risk = query.take_flag("accept_risk")?;
                query.finish()?;
                let decision = fields.take_decision(method, actor, accept_risk)?;
                fields.finish()?;
                json!(self.change_key(id, decision, None).await?)
            }
            AdminMethod::Show => {
                query.finish()?;
                json!(self.show_key(id).await?)
            }
            AdminMethod::Stats => {
                query.finish()?;
                json!(self.count_keys().await?)
            }
        })
    }

    fn service(&self) -> Arc<str> {
        Arc::clone(&self.start.service)
    }
}

/// Returns the version of a key that a decision is made about: its state, and its newest attempt as a digest of the attempt's token,
/// which is itself shown to nobody. A number would not do: a key that was forgotten and is used again has attempt 1 once more.
pub fn version(entry: &KeyEntry) -> String {
    let digest = Sha256::digest(entry.token.as_bytes());
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digits}", entry.state)
}

/// The route whose keys are stored under this name.
pub fn find_route<'a>(config: &'a Config, name: &str) -> Option<&'a Route> {
    config.routes.iter().find(|route| route.has_name(name)).map(|route| &**route)
}

/// A value of the route of that name; for a route that is not configured here, the largest of all routes.
pub fn route_value<T: Ord + Default>(config: &Config, name: &str, value: impl Fn(&Route) -> T) -> T {
    match find_route(config, name) {
        Some(route) => value(route),
        None => config.routes.iter().map(|route| value(route)).max().unwrap_or_default(),
    }
}

/// Returns the actor of a request, for the audit log: the name that the client claims, and the client's place.
pub fn actor(claimed: Option<&[u8]>, place: &str) -> String {
    match claimed.map(clean_name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) {place}"),
        None => format!("operator {place}"),
    }
}

/// Returns the actor of a request over the admin listener.
pub fn remote_actor(peer: std::net::IpAddr, claimed: Option<&[u8]>) -> String {
    actor(claimed, &format!("at {}", peer.to_canonical()))
}

/// Returns the actor of a request by a person whom the issuer has signed in: their name, and the issuer's own one, which nobody
/// else has there. A claimed name has no parentheses, and cannot look like it.
pub fn person_actor(name: &str, subject: &str, issuer: &str, peer: std::net::IpAddr) -> String {
    let (name, subject) = (clean_name(name.as_bytes()), clean_text(subject.as_bytes(), SUBJECT_LENGTH_MAX));
    format!("{name} (signed in as {subject} by {issuer}) at {}", peer.to_canonical())
}

/// A person whom an issuer has signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedInPerson<'a> {
    /// The issuer's own name of them.
    pub subject: &'a str,
    /// The [`issuer_digest`].
    pub issuer: &'a str,
}

/// The person in such an actor; `None` for an actor whose name is claimed.
pub fn person_of(actor: &str) -> Option<SignedInPerson<'_>> {
    let (_, rest) = actor.split_once(" (signed in as ")?;
    let (subject, issuer) = rest.split_once(") at ")?.0.rsplit_once(" by ")?;
    Some(SignedInPerson { subject, issuer })
}

/// A short text for an issuer and its client. Some issuers name a person differently for each client (OpenID Connect Core section 8).
pub fn issuer_digest(oidc: &OidcConfig) -> String {
    let digest = Sha256::digest(format!("{}\n{}", oidc.issuer, oidc.client_id));
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The longest name that an issuer gives a person (OpenID Connect Core section 2).
const SUBJECT_LENGTH_MAX: usize = 255;

/// Cleans a claimed name: short, and without characters that a terminal or a log would interpret.
fn clean_name(claimed: &[u8]) -> String {
    const LENGTH_MAX: usize = 64;
    clean_text(claimed, LENGTH_MAX)
}

fn clean_text(text: &[u8], length_max: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let safe = text
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '(' | ')' | '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    safe.take(length_max).collect::<String>().trim().to_owned()
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
        let ann = person_actor("ann (x)", "7f (y) by z", "1a2b3c4d", peer);
        assert_eq!(ann, "ann x (signed in as 7f y by z by 1a2b3c4d) at 10.0.0.7");
        assert_eq!(person_of(&ann), Some(SignedInPerson { subject: "7f y by z", issuer: "1a2b3c4d" }));
        for claimed in [&b"ann"[..], b"ann (signed in as 7f by 1a2b3c4d) at 1.2.3.4", b""] {
            assert_eq!(person_of(&remote_actor(peer, Some(claimed))), None);
        }
        assert_eq!(actor(Some(b""), "on the command line"), "operator on the command line");
    }
}
