//! Requests of operators about keys: read, carried out, answered with typed results.
//!
//! `params` reads requests, `queries` looks, `changes` decides. `dto` has the results, which are written as JSON for
//! the API; the operators' page renders the same results as HTML. A request that ends with an `ApiProblem` has changed
//! nothing; where the store failed, the problem says that it may have.
//!
//! Nothing here knows a socket. The admin listener brings requests here, and `oncegate keys`, where no instance runs,
//! brings the same ones over a store of its own. All requests are about one service.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use dto::InstanceStats;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::store_clock::StoreClock;
use oncegate_settings::{Config, Route, StartConfig};
use oncegate_store::Store;
use oncegate_store::admin::KeyEntry;
use params::{JsonFields, QueryParams};
use problem::ApiProblem;

pub use actors::terminal_actor;

pub mod actors;
pub mod changes;
pub mod dto;
pub mod explain;
pub mod four_eyes;
pub mod inputs;
pub mod params;
pub mod problem;
mod queries;
pub mod request_hashes;
pub mod timeline;
pub mod typed_response;

/// The length of a request's body, at most; also of a response that somebody types in.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// A question about keys, or a change of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminMethod {
    /// Lists entries of the audit log.
    Audit,
    /// Counts keys, and changes them if they are not more than expected.
    BulkChange,
    /// Says whether a request is that of a record, and in which parts they differ.
    Compare,
    /// Says how a request is treated.
    Explain,
    /// Lists keys.
    List,
    /// Forgets a key.
    Purge,
    /// Drops the caller's data in a record, so that its retries are refused.
    Redact,
    /// Drops a stored response, so that the next request is the next attempt.
    Release,
    /// Has the service asked again about a key that was given up, or its request delivered again.
    Requeue,
    /// Says how an unknown outcome ended.
    Resolve,
    /// Counts what was answered without an execution, by week and caller.
    Saved,
    /// Shows all about a key.
    Show,
    /// Counts keys by route and state.
    Stats,
}

/// A request as it comes over HTTP or from the command line, not read yet.
#[derive(Clone, Debug)]
pub struct AdminRequest<'a> {
    /// The question or change.
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

/// The administration of one service's keys while one request is carried out: a reload does not change the
/// configuration under the request.
pub struct KeyAdmin<'a> {
    store: &'a Store,
    start: &'a StartConfig,
    config: Arc<Config>,
    service: Arc<str>,
    /// `None` where no instance runs.
    instance: Option<&'a Instance>,
    /// `None` where no instance has watched the store's clock: then the operator vouches for it that an attempt is
    /// over, and no TTL counts as ended.
    store_clock: Option<&'a StoreClock>,
    /// The store's time at the request's beginning, before any attempt was found quiet.
    as_of: Option<SystemTime>,
    /// The traffic that the instance has seen, for its counts of keys.
    pub traffic: Option<InstanceStats>,
}

impl<'a> KeyAdmin<'a> {
    pub fn new(
        store: &'a Store,
        start: &'a StartConfig,
        config: Arc<Config>,
        service: Arc<str>,
        instance: Option<&'a Instance>,
    ) -> Self {
        let store_clock = instance.map(|instance| &*instance.store_clock);
        let as_of = store_clock.map(StoreClock::now);
        Self { store, start, config, service, instance, store_clock, as_of, traffic: None }
    }

    /// Reads a request, carries it out, and returns the response's JSON.
    pub async fn answer(&self, request: AdminRequest<'_>) -> Result<Value, ApiProblem> {
        let AdminRequest { method, id, query, body, actor } = request;
        let mut query = QueryParams::parse(query, method.query())?;
        let mut fields = JsonFields::parse(body, method.body())?;
        Ok(match method {
            AdminMethod::Audit => {
                let (limit, id, cursor) = (query.take_limit()?, query.take_text("id")?, query.take_text("cursor")?);
                json!(self.list_audit(&id, &cursor, limit).await?)
            }
            AdminMethod::BulkChange => {
                let hashes = self.hashes_if(fields.has_hashed_condition()).await?;
                let (method, keys, expect) =
                    (fields.take_action()?, fields.take_selection(hashes.as_ref())?, fields.take_number("expect")?);
                let decision = fields.take_decision(method, actor, false)?;
                fields.finish()?;
                json!(self.change_keys(keys, decision, expect).await?)
            }
            AdminMethod::Compare | AdminMethod::Explain => {
                let (head, body) = fields.take_request()?;
                fields.finish()?;
                self.explain(&head, &body, (method == AdminMethod::Compare).then_some(id)).await?
            }
            AdminMethod::List => {
                let hashes = self.hashes_if(query.has_hashed_condition()).await?;
                let (filter, limit, cursor) =
                    (query.take_filter(hashes.as_ref())?, query.take_limit()?, query.take_text("cursor")?);
                json!(self.list_keys(filter, &cursor, limit).await?)
            }
            AdminMethod::Purge
            | AdminMethod::Redact
            | AdminMethod::Release
            | AdminMethod::Requeue
            | AdminMethod::Resolve => {
                // Some clients drop the body of a DELETE.
                let accept_risk = query.take_flag("accept_risk")?;
                let decision = fields.take_decision(method, actor, accept_risk)?;
                fields.finish()?;
                json!(self.change_key(id, decision, None).await?)
            }
            AdminMethod::Saved => json!(self.show_saved(&query.take_text("week")?).await?),
            AdminMethod::Show => json!(self.show_key(id).await?),
            AdminMethod::Stats => json!(self.count_keys().await?),
        })
    }

    fn service(&self) -> Arc<str> {
        Arc::clone(&self.service)
    }
}

/// Answers a request on a store that no running instance answers for, as an instance would.
pub async fn answer_on_store(
    store: &Store,
    start: &StartConfig,
    config: Arc<Config>,
    service: Arc<str>,
    request: AdminRequest<'_>,
) -> (StatusCode, Value) {
    let answer = match request.body.len() <= BODY_BYTES_MAX {
        true => KeyAdmin::new(store, start, config, service, None).answer(request).await,
        false => Err(ApiProblem::body_too_large(BODY_BYTES_MAX)),
    };
    answer.map_or_else(|problem| (problem.status(), json!(problem)), |answer| (StatusCode::OK, answer))
}

/// Returns the version of a key that a decision is made about: its state, and its newest attempt as a digest of the
/// attempt's token, which is itself shown to nobody. A number would not do: a key that was forgotten and is used again
/// has attempt 1 once more.
pub fn version(entry: &KeyEntry) -> String {
    let digest = Sha256::digest(entry.token.as_bytes());
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digits}", entry.state)
}

pub fn find_route<'a>(config: &'a Config, service: &str, name: &str) -> Option<&'a Route> {
    config.routes_of(service).find(|route| route.has_name(name)).map(|route| &**route)
}

/// A value of the route of that name; for a route that is not configured here, the largest of all routes.
pub fn route_value<T: Ord + Default>(config: &Config, (service, name): (&str, &str), value: impl Fn(&Route) -> T) -> T {
    match find_route(config, service, name) {
        Some(route) => value(route),
        None => config.routes.iter().map(|route| value(route)).max().unwrap_or_default(),
    }
}
