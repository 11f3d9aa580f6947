//! The operators' verbs on keys: what is asked, who asks, and what came of it.
//!
//! The desk knows no socket. The admin listener brings it requests, and the command line, where no instance runs, brings
//! it the same ones over a store of its own. All of it is about one service.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Config;
use crate::store::Store;
use asked::Query;
use problem::Problem;

mod asked;
mod changes;
mod looks;
pub use asked::Fields;
pub mod problem;
mod shown;

/// A question's body is no longer; a response that somebody types in is not either.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Changes many keys, after their count was told.
    Act,
    /// Lists what was decided.
    Audit,
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
    /// Shows all about a key but what its response says.
    Show,
    /// Counts keys.
    Stats,
}

/// A question.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// What is asked.
    pub verb: Verb,
    /// About which key, as it was written; empty where the verb is about none.
    pub id: &'a str,
    /// What stands behind the `?`.
    pub query: &'a str,
    /// A JSON object, or nothing.
    pub body: &'a [u8],
    /// Who asks.
    pub actor: String,
}

/// Where questions are answered.
pub struct Desk {
    store: Arc<dyn Store>,
    config: watch::Receiver<Arc<Config>>,
}

impl Desk {
    /// Over this store, with what the configuration says at each moment.
    pub fn new(store: Arc<dyn Store>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { store, config }
    }

    /// Answers.
    ///
    /// # Errors
    /// [`Problem`], and nothing was changed; but for a store that failed, whose problem says so.
    pub async fn answer(&self, question: Question<'_>) -> Result<Value, Problem> {
        let Question { verb, id, query, body, actor } = question;
        let mut query = Query::parse(query)?;
        let mut fields = Fields::parse(body)?;
        let config = Arc::clone(&self.config.borrow());
        let at = At { store: &*self.store, config: &config };
        match verb {
            Verb::Audit => at.audit(query).await,
            Verb::List => at.list(query).await,
            Verb::Show => at.show(id, query).await,
            Verb::Stats => at.stats(query).await,
            Verb::Act => {
                query.end()?;
                at.act(fields, actor).await
            }
            Verb::Purge | Verb::Release | Verb::Requeue | Verb::Resolve => {
                // DELETE's body gets lost in some clients.
                let accept_risk = query.flag("accept_risk")?;
                query.end()?;
                let decision = fields.decision(verb, actor, accept_risk)?;
                fields.end()?;
                at.decide_one(id, decision).await
            }
        }
    }
}

/// The desk while one question is answered: the configuration does not change under it.
#[derive(Clone, Copy)]
struct At<'a> {
    store: &'a dyn Store,
    config: &'a Config,
}

impl At<'_> {
    fn service(&self) -> Arc<str> {
        Arc::clone(&self.config.service)
    }
}

/// Who asks over the admin listener, for the audit log: the peer's address, and the name that it claims.
pub fn actor(peer: std::net::IpAddr, claimed: Option<&[u8]>) -> String {
    let peer = peer.to_canonical();
    match claimed.map(name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) at {peer}"),
        None => format!("operator at {peer}"),
    }
}

/// Who asks on the command line, straight on the store.
pub fn actor_here(claimed: Option<&[u8]>) -> String {
    match claimed.map(name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) on the command line"),
        None => "operator on the command line".to_owned(),
    }
}

/// A name of people's making, short and without what a terminal or a log would take for something else.
fn name(claimed: &[u8]) -> String {
    const LENGTH_MAX: usize = 64;
    let text = String::from_utf8_lossy(claimed);
    let safe = text
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '(' | ')' | '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    safe.take(LENGTH_MAX).collect::<String>().trim().to_owned()
}

/// The answer to what the listener itself refuses.
pub fn body_too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body is over {bytes_max} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", detail)
}

/// A problem as a document.
pub fn document(problem: &Problem) -> Value {
    let mut document = json!({
        "type": "about:blank",
        "title": problem.status.canonical_reason().unwrap_or("Error"),
        "status": problem.status.as_u16(),
        "detail": problem.detail,
        "code": problem.code,
    });
    for (name, value) in &problem.more {
        document[*name] = value.clone();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_acts_is_named_and_cannot_be_somebody_elses_line() {
        let peer = "::ffff:10.0.0.7".parse().unwrap();
        assert_eq!(actor(peer, None), "operator at 10.0.0.7");
        assert_eq!(actor(peer, Some(b"  alice ")), "alice (claimed) at 10.0.0.7");
        assert_eq!(actor(peer, Some(b"\r\n\x1b[31mx")), "[31mx (claimed) at 10.0.0.7");
        assert_eq!(actor(peer, Some(b"bob (claimed) at 1.2.3.4")), "bob claimed at 1.2.3.4 (claimed) at 10.0.0.7");
        assert_eq!(actor(peer, Some(&[b'a'; 1000])).len(), 64 + " (claimed) at 10.0.0.7".len());
        assert_eq!(actor(peer, Some(b"\xff")), "\u{fffd} (claimed) at 10.0.0.7");
        assert_eq!(actor_here(Some(b"")), "operator on the command line");
    }
}
