//! `oncegate reconcile`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::{CommandError, ConfigFile, block_on, failed, load_without_service, print, require_file};
use oncegate_domain::inquiry::{InquiryAnswer, SettledKey};
use oncegate_domain::key::shorten_middle;
use oncegate_domain::quantity::quantity;
use oncegate_domain::state::StateKind;
use oncegate_engine::tasks::reconciler::{ReconciledRoute, reconciled_routes};
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_http::upstream::inquiry::InquiryReply;
use oncegate_settings::{self as settings, Config, LoadedConfig, Route};
use oncegate_store::{self as store, ListSettledKeysParams, OpenError, Store, StoreError, StoreSettings};
use oncegate_telemetry::terminal::escape_invisible;

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
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = settings::parse_duration)]
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
    let routes = select_routes(&config.live, arguments.route.as_deref())?;
    require_file(&config.start.store.url, &arguments.file)?;
    let report = block_on(compare(&config, &routes, arguments.since))?;
    print(&if arguments.json { report.to_json() } else { report.to_text() })?;
    match report.failure() {
        None => Ok(()),
        Some(failure) => Err(failed(failure)),
    }
}

fn select_routes(config: &Config, only: Option<&str>) -> Result<Vec<Arc<Route>>, CommandError> {
    let is_wanted = |route: &&Arc<Route>| only.is_none_or(|only| route.has_name(only));
    let wanted: Vec<_> = config.routes.iter().filter(is_wanted).cloned().collect();
    Err(failed(match only {
        _ if wanted.iter().any(|route| route.reconcile.is_some()) => return Ok(wanted),
        Some(name) if wanted.is_empty() => format!("no route is named `{name}`"),
        Some(name) => format!("`{name}` has no `reconcile.url` to ask"),
        None => "no route has a `reconcile.url` to ask".into(),
    }))
}

async fn compare(
    config: &LoadedConfig,
    routes: &[Arc<Route>],
    since: Duration,
) -> Result<ComparisonReport, CommandError> {
    let location = &config.start.store.url;
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
    let routes = reconciled_routes(routes, &UpstreamSlots::new(config.start.limits.upstream_connections));
    let mut report = ComparisonReport::default();
    for service in config.live.service_names() {
        let own = routes.keys().filter(|route| config.live.is_of_service(route, service));
        compare_service(&store, service, &own.map(Arc::clone).collect::<Vec<_>>(), &routes, since, &mut report).await?;
    }
    Ok(report)
}

async fn compare_service(
    store: &Store,
    service: &Arc<str>,
    names: &[Arc<str>],
    routes: &BTreeMap<Arc<str>, Arc<ReconciledRoute>>,
    since: Duration,
    report: &mut ComparisonReport,
) -> Result<(), CommandError> {
    let mut after = None;
    while !names.is_empty() {
        let (service, names) = (Arc::clone(service), names.to_vec());
        let params = ListSettledKeysParams { service, routes: names, since, after, limit: PAGE };
        let page = store.list_settled_keys(params).await.map_err(failed)?;
        let keys = page.keys.into_iter().filter_map(|key| Some((routes.get(&*key.subject.route)?, key)));
        let compared = stream::iter(keys).map(|(route, key)| compare_key(store, route, key));
        let mut compared = compared.buffer_unordered(PROBES_MAX);
        while let Some((comparison, key, reply)) = compared.try_next().await.map_err(failed)? {
            match comparison {
                Comparison::Agree => report.agree += 1,
                Comparison::Changed => report.changed += 1,
                Comparison::Disagree => report.disagree.push((key, reply)),
                Comparison::Unanswered => report.unanswered.push((key, reply)),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

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
    store: &Store,
    route: &ReconciledRoute,
    key: SettledKey,
) -> Result<(Comparison, SettledKey, InquiryReply), StoreError> {
    let reply = route.ask(&key.subject).await;
    let mut comparison = compare_states(&key, &reply.answer);
    if comparison == Comparison::Disagree {
        let now = store.find(key.subject.id).await?;
        if now.is_none_or(|now| now.token != key.subject.token || now.state.kind() != key.state) {
            comparison = Comparison::Changed;
        }
    }
    Ok((comparison, key, reply))
}

fn compare_states(key: &SettledKey, answer: &InquiryAnswer) -> Comparison {
    match (key.state, answer) {
        (_, InquiryAnswer::Nothing) => Comparison::Unanswered,
        (StateKind::Completed, InquiryAnswer::Executed(response)) if key.status == Some(response.status.as_u16()) => {
            Comparison::Agree
        }
        // A refused request has left nothing that the service could know of.
        (StateKind::Completed, InquiryAnswer::Absent)
            if key.status.is_some_and(|status| (400..500).contains(&status)) =>
        {
            Comparison::Agree
        }
        (StateKind::Retryable, InquiryAnswer::Absent) => Comparison::Agree,
        (_, InquiryAnswer::Absent | InquiryAnswer::Executed(_)) => Comparison::Disagree,
    }
}

#[derive(Default)]
struct ComparisonReport {
    agree: usize,
    changed: usize,
    disagree: Vec<(SettledKey, InquiryReply)>,
    unanswered: Vec<(SettledKey, InquiryReply)>,
}

impl ComparisonReport {
    /// Returns what is wrong; `None` where all keys agree. A key that could not be compared does not agree.
    /// So a nightly comparison never looks content while the service is down.
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
                let (id, route, store, service) =
                    (&subject.id, &subject.route, describe_state(key), describe_reply(reply));
                text.push_str(&format!("{verdict:<11} {id}  {route}  {name}  store: {store}; service: {service}\n"));
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
        let list = |keys: &[(SettledKey, InquiryReply)]| {
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

fn render_key(key: &SettledKey, reply: &InquiryReply) -> Value {
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

fn describe_reply(reply: &InquiryReply) -> String {
    match reply.answer {
        InquiryAnswer::Absent => "404 (not executed)".into(),
        InquiryAnswer::Executed(_) => format!("{} (executed)", reply.summary),
        InquiryAnswer::Nothing => reply.summary.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;
    use oncegate_domain::ids::{RecordId, Token};
    use oncegate_domain::inquiry::InquirySubject;
    use oncegate_domain::response::StoredResponse;
    use oncegate_domain::scope::Scope;

    #[test]
    fn the_same_outcome_agrees_and_no_answer_does_not() {
        let key = |state, status| SettledKey {
            subject: InquirySubject {
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
            InquiryAnswer::Executed(StoredResponse {
                status,
                headers: HeaderMap::new(),
                body: None,
                trailers: HeaderMap::new(),
            })
        };
        for (state, status, answer, comparison) in [
            (StateKind::Completed, Some(201), executed(201), Comparison::Agree),
            (StateKind::Completed, Some(201), executed(200), Comparison::Disagree),
            (StateKind::Completed, Some(201), InquiryAnswer::Absent, Comparison::Disagree),
            (StateKind::Completed, Some(303), InquiryAnswer::Absent, Comparison::Disagree),
            (StateKind::Completed, Some(422), InquiryAnswer::Absent, Comparison::Agree),
            (StateKind::Completed, Some(422), executed(201), Comparison::Disagree),
            (StateKind::Retryable, None, InquiryAnswer::Absent, Comparison::Agree),
            (StateKind::Retryable, None, executed(201), Comparison::Disagree),
            (StateKind::Unknown, None, InquiryAnswer::Absent, Comparison::Disagree),
            (StateKind::Unknown, None, executed(201), Comparison::Disagree),
            (StateKind::Dead, None, executed(201), Comparison::Disagree),
            (StateKind::Completed, Some(201), InquiryAnswer::Nothing, Comparison::Unanswered),
            (StateKind::Unknown, None, InquiryAnswer::Nothing, Comparison::Unanswered),
        ] {
            assert_eq!(compare_states(&key(state, status), &answer), comparison, "{state} {status:?} {answer:?}");
        }
    }
}
