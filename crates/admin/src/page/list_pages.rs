//! Pages that change nothing.

use std::time::{Duration, SystemTime};

use askama::Template;
use http::{Response, StatusCode};
use tokio::time::Instant;

use super::format::{KeyTexts, Shown, ShownTime, StateTotals};
use super::text::{ActionTexts, CauseText, actions_on_many, explain_state};
use super::{FormParams, Frame, PageAnswer, Visit, redirect_to, render_page};
use crate::key_admin::dto::{AuditLog, InstanceStats, KeyDetails, KeyList, KeyStats, ResponseSummary};
use crate::key_admin::params::add_condition;
use crate::key_admin::problem::{ApiProblem, ProblemCode};
use crate::key_admin::timeline::TimelineEvent;
use oncegate_domain::execution_risk::ActionKind;
use oncegate_domain::quantity::quantity;
use oncegate_domain::state::StateKind;
use oncegate_domain::urlencoded::escape;
use oncegate_engine::instance::consumer_states::ConsumerView;
use oncegate_engine::instance::event_states::EventSinkView;
use oncegate_engine::instance::key_mismatches::KeyMismatch;
use oncegate_engine::instance::running_stream::RunningStream;
use oncegate_http::body::Body;
use oncegate_store::admin::{AuditEntry, KeyEntry, KeyFilter};

/// The number of dead keys that the overview shows, at most; the same for unknown keys.
const WAITING_SHOWN: u32 = 10;
const PAGE: u32 = 50;
const LOG_SHOWN: u32 = 8;
/// The time for which a key is searched through the whole table before the operator is asked whether to go on.
const FIND_MAX: Duration = Duration::from_secs(10);

/// A filter as it was typed: the names and texts of its conditions, none of them empty.
#[derive(Default)]
pub struct FilterForm {
    pub conditions: Vec<(&'static str, String)>,
}

impl FilterForm {
    pub fn from_params(params: &FormParams) -> Self {
        let names = ["state", "route", "scope", "older_than", "path", "created_from", "created_until"];
        let conditions = names.map(|name| (name, params.text(name).to_owned()));
        Self { conditions: conditions.into_iter().filter(|(_, text)| !text.is_empty()).collect() }
    }

    pub fn get(&self, name: &str) -> &str {
        self.conditions.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
    }

    pub fn to_key_filter(&self) -> Result<KeyFilter, ApiProblem> {
        let mut filter = KeyFilter::default();
        for (name, text) in &self.conditions {
            add_condition(&mut filter, name, text.as_bytes(), None)?;
        }
        Ok(filter)
    }

    pub fn query(&self) -> String {
        let pairs = self.conditions.iter().map(|(name, text)| format!("{name}={}", escape(text.as_bytes())));
        pairs.collect::<Vec<_>>().join("&")
    }

    pub fn actions(&self) -> Vec<ActionKind> {
        actions_on_many(StateKind::parse(self.get("state")))
    }
}

/// Keys of one state that need an operator, the oldest first.
struct WaitingKeys {
    state: StateKind,
    title: &'static str,
    explanation: &'static str,
    count: u64,
    list: KeyList,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    trouble: Option<String>,
    waiting: Vec<WaitingKeys>,
    stats: Option<KeyStats>,
    seen: InstanceStats,
    /// The consumers and sinks that need somebody, each with the reason.
    away: Vec<(String, String)>,
    log: Option<AuditLog>,
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeyListPage {
    frame: Frame,
    /// The field of the search, and the beginning of what it had; `None` where the list has a filter.
    found: Option<(&'static str, String)>,
    states: [&'static str; StateKind::ALL.len()],
    filter: FilterForm,
    list: KeyList,
}

impl KeyListPage {
    /// The decisions that are possible for one of the listed keys.
    fn actions(&self) -> Vec<ActionKind> {
        let is_for = |action: &ActionKind| self.list.keys.iter().any(|key| action.is_for(key.state));
        actions_on_many(None).into_iter().filter(is_for).collect()
    }
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPageView<'a> {
    frame: Frame,
    /// Its response, while this instance streams it.
    stream: Option<StreamView>,
    /// The last request that this instance refused because the key is not its own.
    mismatch: Option<KeyMismatch>,
    key: &'a KeyEntry,
    details: &'a KeyDetails,
}

struct StreamView {
    bytes: u64,
    /// `None` where it is no stream of events, or too long to be kept.
    events: Option<usize>,
    began: SystemTime,
    last: Option<SystemTime>,
}

impl StreamView {
    fn new(stream: &RunningStream) -> Self {
        let (progress, events) = stream.progress();
        let now = SystemTime::now();
        let time = |at: Instant| now.checked_sub(at.elapsed()).unwrap_or(now);
        Self { bytes: progress.bytes, events, began: time(progress.began), last: progress.last.map(time) }
    }
}

#[derive(Template)]
#[template(path = "gone.html")]
struct KeyGonePage {
    frame: Frame,
    detail: String,
    audit: Vec<AuditEntry>,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    log: AuditLog,
}

#[derive(Template)]
#[template(path = "runbook.html")]
struct RunbookPage {
    frame: Frame,
    title: &'static str,
    text: &'static str,
}

impl Visit<'_> {
    /// Shows the keys that need an operator, then the counts. Without the store the page is there too, and says so.
    pub(super) async fn show_overview(&self) -> Response<Body> {
        let key_admin = self.key_admin();
        let list = |state: StateKind| {
            let filter = KeyFilter { state: Some(state), ..KeyFilter::default() };
            key_admin.list_keys(filter, "", WAITING_SHOWN)
        };
        let (dead, unknown, stats, log) = tokio::join!(
            list(StateKind::Dead),
            list(StateKind::Unknown),
            key_admin.count_keys(),
            key_admin.list_audit("", "", LOG_SHOWN),
        );
        let problems = [dead.as_ref().err(), unknown.as_ref().err(), stats.as_ref().err(), log.as_ref().err()];
        let trouble = problems.into_iter().flatten().next().map(|problem| problem.detail.clone());
        let (stats, log) = (stats.ok(), log.ok());
        let lists = [(StateKind::Dead, "Dead", dead), (StateKind::Unknown, "Unknown outcome", unknown)];
        let waiting = lists.into_iter().filter_map(|(state, title, list)| {
            let list = list.ok()?;
            let counted = stats.as_ref().map_or(0, |stats| stats.counts.count_of(state));
            let count = counted.max(list.keys.len() as u64);
            Some(WaitingKeys { state, title, explanation: explain_state(state, false), count, list })
        });
        let waiting = waiting.collect();
        let (frame, seen) = (self.build_frame().await, self.admin.instance_stats(self.visitor.service.is_some()));
        let (consumers, sinks) = self.list_messages();
        let away = list_away(consumers, sinks);
        render_page(StatusCode::OK, &OverviewPage { frame, trouble, waiting, stats, seen, away, log })
    }

    /// Shows the keys that fit a filter, or leads to the one with an id.
    pub(super) async fn show_keys(&self) -> PageAnswer {
        let id = self.query.text("id");
        if !id.is_empty() {
            let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
            return Ok(redirect_to(&format!("/keys/{id}")));
        }
        let filter = FilterForm::from_params(&self.query);
        let list = self.key_admin().list_keys(filter.to_key_filter()?, self.query.get("cursor"), PAGE).await?;
        Ok(self.render_keys(None, filter, list).await)
    }

    /// Finds the keys with exactly this name, of this caller or with this value. A form sends it: an address stays in
    /// histories, and all of it belongs to a caller.
    pub(super) async fn find_keys(&self, form: &FormParams) -> PageAnswer {
        let conditions = ["key", "caller", "where"].map(|name| (name, form.text(name)));
        let given = conditions.into_iter().find(|(_, text)| !text.is_empty());
        let (name, text) =
            given.ok_or_else(|| ApiProblem::bad("key", "is empty: write the whole key, as the client sent it"))?;
        let begun = Instant::now();
        let mut filter = KeyFilter::default();
        match name {
            "caller" => {
                let hashes = self.key_admin().request_hashes().await?;
                return Ok(redirect_to(&format!("/keys?scope={}", hashes.caller(text, None)?)));
            }
            "where" => filter.lookup = Some(self.key_admin().request_hashes().await?.lookup(text)?),
            _ => filter.key = Some(text.as_bytes().to_owned()),
        }
        let mut found = KeyList { keys: Vec::new(), next: Some(form.get("cursor").to_owned()) };
        while begun.elapsed() < FIND_MAX
            && found.keys.len() < PAGE as usize
            && let Some(cursor) = &found.next
        {
            let list = self.key_admin().list_keys(filter.clone(), cursor, PAGE).await?;
            found.next = list.next;
            found.keys.extend(list.keys);
        }
        match (&*found.keys, &found.next) {
            ([one], None) => Ok(redirect_to(&format!("/keys/{}", one.id))),
            _ => Ok(self.render_keys(Some((name, text.short_key())), FilterForm::default(), found).await),
        }
    }

    async fn render_keys(
        &self,
        found: Option<(&'static str, String)>,
        filter: FilterForm,
        list: KeyList,
    ) -> Response<Body> {
        let (frame, states) = (self.build_frame().await, StateKind::ALL.map(StateKind::name));
        render_page(StatusCode::OK, &KeyListPage { frame, found, states, filter, list })
    }

    /// Shows all about one key; where it is gone, its entries of the audit log.
    pub(super) async fn show_key(&self, id: &str) -> PageAnswer {
        match self.key_admin().show_key(id).await {
            Ok(details) => {
                let (frame, key) = (self.build_frame().await, &details.entry);
                let stream = self.admin.instance.in_flight.find_stream(&key.id);
                let stream = stream.map(|stream| StreamView::new(&stream));
                let mismatch = self.admin.instance.observability.key_mismatches.find(&key.id);
                Ok(render_page(StatusCode::OK, &KeyPageView { frame, stream, mismatch, key, details: &details }))
            }
            Err(problem) if problem.code == ProblemCode::NoSuchKey => {
                // The log is found by whole ids alone, and may be out of reach: then nothing of it is shown.
                let log = self.key_admin().list_audit(id, "", PAGE).await;
                let audit = log.map(|log| log.entries).unwrap_or_default();
                let page = KeyGonePage { frame: self.build_frame().await, detail: problem.detail, audit };
                Ok(render_page(StatusCode::NOT_FOUND, &page))
            }
            Err(problem) => Err(problem),
        }
    }

    pub(super) async fn show_audit(&self) -> PageAnswer {
        let log = self.key_admin().list_audit("", self.query.get("cursor"), PAGE).await?;
        Ok(render_page(StatusCode::OK, &AuditPage { frame: self.build_frame().await, log }))
    }

    /// Shows the runbook of an alert, for those who have no other copy now.
    pub(super) async fn show_runbook(&self, markdown: &'static str) -> Response<Body> {
        let (title, text) = markdown.trim_start_matches("# ").split_once('\n').unwrap_or_default();
        render_page(StatusCode::OK, &RunbookPage { frame: self.build_frame().await, title, text: text.trim() })
    }
}

/// Lists the consumers and sinks that need somebody, each with the reason.
fn list_away(consumers: Vec<ConsumerView>, sinks: Vec<EventSinkView>) -> Vec<(String, String)> {
    let cause =
        |failure: Option<(SystemTime, String)>| failure.map_or_else(String::new, |(_, cause)| format!(": {cause}"));
    let consumers = consumers.into_iter().filter(|consumer| !consumer.connected);
    let away = consumers.map(|consumer| (consumer.queue, format!("not connected{}", cause(consumer.failure))));
    let sinks = sinks.into_iter().filter_map(|sink| match (sink.reachable, sink.dead) {
        (false, _) => Some((sink.sink, format!("not reachable{}", cause(sink.failure)))),
        (true, dead @ 1..) => Some((sink.sink, quantity(dead, "dead event", "dead events"))),
        (true, 0) => None,
    });
    away.chain(sinks).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Sessions;
    use super::*;
    use crate::auth::Role;
    use oncegate_domain::ids::{InstanceId, RecordId};
    use oncegate_engine::instance::metrics::RenewedPart;
    use oncegate_engine::instance::observability::UnguardedPath;
    use oncegate_engine::instance::same_bodies::SameBodyPair;
    use oncegate_store::admin::{CountSample, KeyCounts};

    fn render_overview(
        unguarded: Vec<UnguardedPath>,
        renewed: Vec<RenewedPart>,
        same_bodies: Vec<SameBodyPair>,
    ) -> String {
        let frame = Frame {
            others: Vec::new(),
            service: "shop".into(),
            instance: "ab".into(),
            reasons: vec!["store: <away>".into()],
            refused_reload: None,
            visitor: Sessions::new().anonymous_visitor(Role::Operator.into()),
            now: SystemTime::now(),
            version: "0",
            notice: None,
            live: None,
        };
        let stats = KeyStats {
            traffic: None,
            service: "shop".into(),
            counts: KeyCounts { counts: Vec::new(), sample: CountSample { rows: 0, share: 1.0 } },
            without_route: Vec::new(),
        };
        let seen = InstanceStats { instance: InstanceId::from_random(1), unguarded, renewed, same_bodies };
        OverviewPage {
            frame,
            trouble: None,
            waiting: Vec::new(),
            stats: Some(stats),
            seen,
            away: Vec::new(),
            log: None,
        }
        .render()
        .unwrap()
    }

    #[test]
    fn unguarded_requests_are_shown_where_there_are_some() {
        let page = render_overview(Vec::new(), Vec::new(), Vec::new());
        assert!(
            !page.contains("Coverage") && page.contains("Not ready") && page.contains("store: &#60;away&#62;"),
            "{page}"
        );
        let path = UnguardedPath {
            method: "DELETE".into(),
            path: "/v1/<b>".into(),
            requests: 7,
            with_key: 2,
            at_most_more: 0,
        };
        let keyless = UnguardedPath { path: "/v2".into(), with_key: 0, ..path.clone() };
        let page = render_overview(vec![path, keyless], Vec::new(), Vec::new());
        for words in ["Coverage", "DELETE /v1/&#60;b&#62;", "7 requests", "2 with a key"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert_eq!(page.matches("with a key</strong>").count(), 1, "{page}");
        let renewed = RenewedPart { route: "pay".into(), part: "cookie:s<id>".into(), responses: 1 };
        let page = render_overview(Vec::new(), vec![renewed], Vec::new());
        for words in ["Coverage", "pay cookie:s&#60;id&#62;", "1 response<"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let record = |byte| RecordId::from_stored(&[byte; 32]).unwrap();
        let pair = SameBodyPair { route: "pay".into(), first: record(0xab), second: record(0xcd) };
        let page = render_overview(Vec::new(), Vec::new(), vec![pair]);
        for words in ["Coverage", "Equal requests under different keys", "/keys/abab", "/keys/cdcd", "two orders"] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
