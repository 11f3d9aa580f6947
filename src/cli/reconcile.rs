//! `oncegate reconcile`

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::escape_invisible;
use super::{CommandError, ConfigFile, block_on, load_without_service, print, require_file};
use crate::config::{self, Config, ReconcileConfig, Route};
use crate::domain::ids::RecordId;
use crate::domain::key::shorten_middle;
use crate::domain::probe::{ProbeAnswer, SettledKey};
use crate::domain::quantity::quantity;
use crate::domain::state::StateKind;
use crate::store::{self, ListSettledKeysParams, OpenError, Store, StoreError, StoreSettings};
use crate::upstream::UpstreamClient;
use crate::upstream::connection_slots::UpstreamSlots;
use crate::upstream::probe::{self, ProbePools, ProbeReply};

/// The number of characters of a key that a line shows.
const KEY_CHARS_MAX: usize = 40;

/// The number of rows that the store reads at once: few enough that running proxies do not slow down.
const PAGE: u32 = 500;

/// The number of probes at a time: hardly any load for a service.
const PROBES_MAX: usize = 8;

#[derive(Args)]
pub(super) struct ReconcileArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Compares keys that were settled in this time
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = config::parse_duration)]
    since: Duration,
    /// Compares keys of this route only
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &ReconcileArguments) -> Result<(), CommandError> {
    let config = load_without_service(&arguments.file)?;
    let routes = select_routes(&config, arguments.route.as_deref())?;
    let report = block_on(compare(&config, &routes, arguments.since))?;
    print(&if arguments.json { report.to_json() } else { report.to_text() })?;
    match report.failure() {
        None => Ok(()),
        Some(failure) => Err(CommandError::Other(failure.into())),
    }
}

/// A route whose keys are compared, and the way to its service.
struct ComparedRoute {
    route: Arc<Route>,
    reconcile: ReconcileConfig,
    upstream: UpstreamClient,
}

/// By each name that their keys are stored under.
type Routes = HashMap<Arc<str>, Arc<ComparedRoute>>;

fn select_routes(config: &Config, only: Option<&str>) -> Result<Vec<(Arc<Route>, ReconcileConfig)>, CommandError> {
    let wanted = config.routes.iter().filter(|route| only.is_none_or(|only| route.has_name(only)));
    let selected: Vec<_> =
        wanted.clone().filter_map(|route| Some((Arc::clone(route), route.reconcile.clone()?))).collect();
    match (selected.is_empty(), only) {
        (false, _) => Ok(selected),
        (true, Some(name)) if wanted.count() == 0 => {
            Err(CommandError::Other(format!("no route is named `{name}`").into()))
        }
        (true, Some(name)) => Err(CommandError::Other(format!("`{name}` has no `reconcile.url` to ask").into())),
        (true, None) => Err(CommandError::Other("no route has a `reconcile.url` to ask".into())),
    }
}

async fn compare(
    config: &Config,
    selected: &[(Arc<Route>, ReconcileConfig)],
    since: Duration,
) -> Result<ComparisonReport, CommandError> {
    let location = &config.store.url;
    require_file(location)?;
    // A command that only reads must not migrate.
    let settings = StoreSettings { migrate: false, ..config.into() };
    let store = store::open(&settings).await.map_err(|error| {
        if matches!(error, OpenError::InUse { .. }) {
            eprintln!(
                "oncegate: stop the proxy that has the embedded store first; only PostgreSQL can be compared while proxies run"
            );
        }
        CommandError::Store(location.clone(), error)
    })?;
    let (mut pools, slots) = (ProbePools::default(), UpstreamSlots::new(config.limits.upstream_connections));
    let routes: Routes = selected
        .iter()
        .flat_map(|(route, reconcile)| {
            let upstream = pools.client_for(route, &reconcile.lookup, &slots);
            let compared = ComparedRoute { route: Arc::clone(route), reconcile: reconcile.clone(), upstream };
            let compared = Arc::new(compared);
            route.names().map(move |name| (Arc::clone(name), Arc::clone(&compared)))
        })
        .collect();
    compare_pages(&store, &config.service, &routes, since).await.map_err(|error| CommandError::Other(error.into()))
}

async fn compare_pages(
    store: &Arc<Store>,
    service: &Arc<str>,
    routes: &Routes,
    since: Duration,
) -> Result<ComparisonReport, StoreError> {
    let names: Vec<Arc<str>> = routes.keys().map(Arc::clone).collect();
    let (mut report, mut after): (_, Option<RecordId>) = (ComparisonReport::default(), None);
    loop {
        let service = Arc::clone(service);
        let params = ListSettledKeysParams { service, routes: names.clone(), since, after, limit: PAGE };
        let page = store.list_settled_keys(params).await?;
        let mut work = JoinSet::new();
        for key in page.keys {
            let Some(route) = routes.get(&*key.subject.route).cloned() else { continue };
            if work.len() >= PROBES_MAX
                && let Some(joined) = work.join_next().await
            {
                report.add(joined)?;
            }
            work.spawn(compare_key(Arc::clone(store), route, key));
        }
        while let Some(joined) = work.join_next().await {
            report.add(joined)?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(report);
        }
    }
}

/// The result for one key.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    Agree,
    /// The key has changed while the service was asked, so there is nothing to compare any more.
    Changed,
    Disagree,
    /// The service's reply does not say.
    Unanswered,
}

async fn compare_key(
    store: Arc<Store>,
    route: Arc<ComparedRoute>,
    key: SettledKey,
) -> Result<(Comparison, SettledKey, ProbeReply), StoreError> {
    let reply = probe::send_probe(&route.upstream, &route.route, &route.reconcile, &key.subject).await;
    let mut comparison = compare_states(&key, &reply.answer);
    if comparison == Comparison::Disagree {
        let now = store.find(key.subject.id).await?;
        if now.is_none_or(|now| now.token != key.subject.token || now.state.kind() != key.state) {
            comparison = Comparison::Changed;
        }
    }
    Ok((comparison, key, reply))
}

fn compare_states(key: &SettledKey, answer: &ProbeAnswer) -> Comparison {
    match (key.state, answer) {
        (_, ProbeAnswer::Nothing) => Comparison::Unanswered,
        (StateKind::Completed, ProbeAnswer::Executed(response)) if key.status == Some(response.status.as_u16()) => {
            Comparison::Agree
        }
        // A refused request has left nothing that the service could know of.
        (StateKind::Completed, ProbeAnswer::Absent)
            if key.status.is_some_and(|status| (400..500).contains(&status)) =>
        {
            Comparison::Agree
        }
        (StateKind::Retryable, ProbeAnswer::Absent) => Comparison::Agree,
        (_, ProbeAnswer::Absent | ProbeAnswer::Executed(_)) => Comparison::Disagree,
    }
}

/// The results for all keys.
#[derive(Default)]
struct ComparisonReport {
    agree: usize,
    changed: usize,
    disagree: Vec<(SettledKey, ProbeReply)>,
    unanswered: Vec<(SettledKey, ProbeReply)>,
}

type Joined = Result<Result<(Comparison, SettledKey, ProbeReply), StoreError>, tokio::task::JoinError>;

impl ComparisonReport {
    fn add(&mut self, joined: Joined) -> Result<(), StoreError> {
        let (comparison, key, reply) = joined.unwrap_or_else(|panic| Err(StoreError::Unavailable(panic.into())))?;
        match comparison {
            Comparison::Agree => self.agree += 1,
            Comparison::Changed => self.changed += 1,
            Comparison::Disagree => self.disagree.push((key, reply)),
            Comparison::Unanswered => self.unanswered.push((key, reply)),
        }
        Ok(())
    }

    /// Returns what is wrong; `None` where all keys agree. A key that could not be compared does not agree.
    fn failure(&self) -> Option<String> {
        let all = self.agree + self.disagree.len() + self.unanswered.len();
        let all = quantity(all as u64, "key", "keys");
        match (self.disagree.len(), self.unanswered.len()) {
            (0, 0) => None,
            (0, unanswered) => Some(format!("the service does not say what became of {unanswered} of {all}")),
            (disagree, 0) => Some(format!("store and service disagree about {disagree} of {all}")),
            (disagree, unanswered) => Some(format!(
                "store and service disagree about {disagree} of {all}, and the service does not say what became \
                 of {unanswered}"
            )),
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for (verdict, keys) in [("DISAGREE", &self.disagree), ("unanswered", &self.unanswered)] {
            for (key, reply) in keys {
                let SettledKey { subject, .. } = key;
                let name = shorten_middle(&escape_invisible(&String::from_utf8_lossy(&subject.key)), KEY_CHARS_MAX);
                writeln!(
                    text,
                    "{verdict:<11} {}  {}  {name}  store: {}; service: {}",
                    subject.id,
                    subject.route,
                    describe_state(key),
                    describe_reply(reply)
                )
                .expect("writing to a String does not fail");
            }
        }
        let (disagree, unanswered) = (self.disagree.len(), self.unanswered.len());
        let changed = match self.changed {
            0 => String::new(),
            count => format!(", {count} changed meanwhile"),
        };
        text + &format!("{} agree, {disagree} disagree, {unanswered} unanswered{changed}\n", self.agree)
    }

    fn to_json(&self) -> String {
        let list = |keys: &[(SettledKey, ProbeReply)]| {
            keys.iter().map(|(key, reply)| render_key(key, reply)).collect::<Vec<_>>()
        };
        let document = json!({
            "agree": self.agree,
            "changed": self.changed,
            "disagree": list(&self.disagree),
            "unanswered": list(&self.unanswered),
        });
        format!("{document:#}\n")
    }
}

fn render_key(key: &SettledKey, reply: &ProbeReply) -> Value {
    let SettledKey { subject, state, status } = key;
    json!({
        "id": subject.id.to_string(),
        "key": String::from_utf8_lossy(&subject.key),
        "scope": subject.scope.to_string(),
        "route": subject.route,
        "state": state.name(),
        "status": status,
        "service": reply.summary,
    })
}

fn describe_state(key: &SettledKey) -> String {
    match (key.state, key.status) {
        (state, Some(status)) => format!("{state} {status}"),
        (StateKind::Retryable, None) => "released".into(),
        (state, None) => state.name().into(),
    }
}

fn describe_reply(reply: &ProbeReply) -> String {
    match reply.answer {
        ProbeAnswer::Absent => "404 (not executed)".into(),
        ProbeAnswer::Executed(_) => format!("{} (executed)", reply.summary),
        ProbeAnswer::Nothing => reply.summary.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::domain::ids::Token;
    use crate::domain::probe::ProbeSubject;
    use crate::domain::response::StoredResponse;
    use crate::domain::scope::Scope;

    #[test]
    fn the_same_outcome_agrees_and_no_answer_does_not() {
        let key = |state, status| SettledKey {
            subject: ProbeSubject {
                id: RecordId::from_stored(&[1; 32]).unwrap(),
                token: Token::from_random([2; 16]),
                scope: Scope::from_stored(&[3; 32]).unwrap(),
                key: Bytes::from_static(b"k"),
                route: "pay".into(),
                path: None,
            },
            state,
            status,
        };
        let executed = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            ProbeAnswer::Executed(StoredResponse {
                status,
                headers: HeaderMap::new(),
                body: None,
                trailers: HeaderMap::new(),
            })
        };
        for (state, status, answer, comparison) in [
            (StateKind::Completed, Some(201), executed(201), Comparison::Agree),
            (StateKind::Completed, Some(201), executed(200), Comparison::Disagree),
            (StateKind::Completed, Some(201), ProbeAnswer::Absent, Comparison::Disagree),
            (StateKind::Completed, Some(303), ProbeAnswer::Absent, Comparison::Disagree),
            (StateKind::Completed, Some(422), ProbeAnswer::Absent, Comparison::Agree),
            (StateKind::Completed, Some(422), executed(201), Comparison::Disagree),
            (StateKind::Retryable, None, ProbeAnswer::Absent, Comparison::Agree),
            (StateKind::Retryable, None, executed(201), Comparison::Disagree),
            (StateKind::Unknown, None, ProbeAnswer::Absent, Comparison::Disagree),
            (StateKind::Unknown, None, executed(201), Comparison::Disagree),
            (StateKind::Dead, None, executed(201), Comparison::Disagree),
            (StateKind::Completed, Some(201), ProbeAnswer::Nothing, Comparison::Unanswered),
            (StateKind::Unknown, None, ProbeAnswer::Nothing, Comparison::Unanswered),
        ] {
            assert_eq!(compare_states(&key(state, status), &answer), comparison, "{state} {status:?} {answer:?}");
        }
    }
}
