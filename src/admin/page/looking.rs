//! The pages that change nothing.

use std::time::Duration;

use askama::Template;
use http::{Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::seen::{Key, Keys, Log, Note, Stats, read};
use super::words::Step;
use super::{Frame, Pairs, Visit, html, see_other};
use crate::admin::desk::Verb;
use crate::admin::desk::problem::Problem;
use crate::body::Body;
use crate::domain::fingerprint::form::escape;
use crate::domain::phase::Phase;

/// As many of what waits for somebody as the overview shows of each state.
const WAITING_SHOWN: usize = 10;
/// As many keys, or lines of the audit log, as one page shows.
const PAGE: usize = 50;
/// As many lines of the log as the overview shows.
const LOG_SHOWN: usize = 8;
/// How long a key is looked for, through all of the table, before whoever looks is asked whether to go on.
const FIND_MAX: Duration = Duration::from_secs(10);

/// Which keys are listed, as it was typed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub state: String,
    pub route: String,
    pub scope: String,
    pub older_than: String,
}

impl Filter {
    pub fn of(pairs: &Pairs) -> Self {
        let text = |name: &str| pairs.get(name).trim().to_owned();
        Self { state: text("state"), route: text("route"), scope: text("scope"), older_than: text("older_than") }
    }

    /// Its conditions; what is empty is none.
    pub fn conditions(&self) -> Vec<(&'static str, &str)> {
        let all =
            [("state", &*self.state), ("route", &self.route), ("scope", &self.scope), ("older_than", &self.older_than)];
        all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.conditions().is_empty()
    }

    /// As it stands in an address.
    pub fn query(&self) -> String {
        let pair = |(name, value): (&str, &str)| format!("{name}={}", escape(value.as_bytes()));
        self.conditions().into_iter().map(pair).collect::<Vec<_>>().join("&")
    }

    /// What can be decided about keys that fit.
    pub fn steps(&self) -> &'static [Step] {
        if self.state.is_empty() { &Step::ALL } else { Step::of(&self.state) }
    }
}

/// Keys that wait for somebody: of one state, the oldest first.
struct Waiting {
    state: &'static str,
    title: &'static str,
    words: &'static str,
    keys: Vec<Key>,
    count: u64,
    more: bool,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    trouble: Option<String>,
    waiting: Vec<Waiting>,
    stats: Option<Stats>,
    log: Option<Log>,
}

#[derive(Template)]
#[template(path = "keys.html")]
struct List {
    frame: Frame,
    /// The beginning of the key that was looked for, where it was one.
    found: Option<String>,
    states: [&'static str; Phase::ALL.len()],
    filter: Filter,
    keys: Vec<Key>,
    /// Where to go on.
    cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "key.html")]
struct One {
    frame: Frame,
    key: Key,
}

/// A key that is gone; what was decided about it stands in the log.
#[derive(Template)]
#[template(path = "gone.html")]
struct Gone {
    frame: Frame,
    detail: String,
    audit: Vec<Note>,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    frame: Frame,
    log: Log,
}

impl Visit<'_> {
    /// What needs somebody, then what there is. It is there also when the store is not, and says so.
    pub(super) async fn overview(&self) -> Response<Body> {
        let waiting =
            async |state: &str| self.ask(Verb::List, "", &format!("state={state}&limit={WAITING_SHOWN}"), None).await;
        let log = format!("limit={LOG_SHOWN}");
        let (dead, unknown, stats, log) = tokio::join!(
            waiting("dead"),
            waiting("unknown"),
            self.ask(Verb::Stats, "", "", None),
            self.ask(Verb::Audit, "", &log, None),
        );
        let asked = [dead.as_ref(), unknown.as_ref(), stats.as_ref(), log.as_ref()];
        let trouble = asked.into_iter().find_map(|told| told.err().map(|problem| problem.detail.clone()));
        let stats: Option<Stats> = stats.ok().map(|mut told| {
            self.admin.seen(&mut told);
            read(told)
        });
        let titles = [("dead", "Given up", dead), ("unknown", "Nobody knows how they ended", unknown)];
        let waiting = titles.into_iter().filter_map(|(state, title, told)| {
            let Keys { keys, next_cursor } = read(told.ok()?);
            let counted = stats.as_ref().map_or(0, |stats| stats.count(state));
            let count = counted.max(keys.len() as u64);
            let words = super::words::state(state);
            Some(Waiting { state, title, words, keys, count, more: next_cursor.is_some() })
        });
        let waiting = waiting.collect();
        let page = Overview { frame: self.frame().await, trouble, waiting, stats, log: log.ok().map(read) };
        html(StatusCode::OK, &page)
    }

    /// Keys by a filter, or the one of an id.
    pub(super) async fn keys(&self) -> Result<Response<Body>, Problem> {
        let id = self.query.get("id").trim();
        if !id.is_empty() {
            let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
            return Ok(see_other(&format!("/keys/{id}")));
        }
        let filter = Filter::of(&self.query);
        let cursor = escape(self.query.get("cursor").as_bytes());
        let query = format!("{}&limit={PAGE}&cursor={cursor}", filter.query());
        let Keys { keys, next_cursor } = read(self.ask(Verb::List, "", &query, None).await?);
        Ok(self.list(None, filter, keys, next_cursor).await)
    }

    /// The keys with exactly this name. It is asked for by a form: an address stays in histories, and a key is its caller's.
    pub(super) async fn find(&self, form: &Pairs) -> Result<Response<Body>, Problem> {
        let key = form.get("key").trim();
        if key.is_empty() {
            return Err(Problem::bad("key", "is empty: write the whole key, as the client sent it"));
        }
        let begun = Instant::now();
        let mut found = Vec::new();
        let mut cursor = Some(form.get("cursor").to_owned());
        while let Some(place) = cursor.take_if(|_| begun.elapsed() < FIND_MAX && found.len() < PAGE) {
            let (key, place) = (escape(key.as_bytes()), escape(place.as_bytes()));
            let page: Keys =
                read(self.ask(Verb::List, "", &format!("key={key}&limit={PAGE}&cursor={place}"), None).await?);
            found.extend(page.keys);
            cursor = page.next_cursor;
        }
        match (&*found, &cursor) {
            ([one], None) => Ok(see_other(&format!("/keys/{}", one.id))),
            _ => {
                let name = super::seen::beginning(key, 8);
                Ok(self.list(Some(name), Filter::default(), found, cursor).await)
            }
        }
    }

    async fn list(
        &self,
        found: Option<String>,
        filter: Filter,
        keys: Vec<Key>,
        cursor: Option<String>,
    ) -> Response<Body> {
        let states = Phase::ALL.map(Phase::name);
        html(StatusCode::OK, &List { frame: self.frame().await, found, states, filter, keys, cursor })
    }

    /// All about one key; where it is gone, what was decided about it.
    pub(super) async fn key(&self, id: &str) -> Result<Response<Body>, Problem> {
        match self.ask(Verb::Show, id, "", None).await {
            Ok(told) => Ok(html(StatusCode::OK, &One { frame: self.frame().await, key: read(told) })),
            Err(problem) if problem.status == StatusCode::NOT_FOUND => {
                let log = self.ask(Verb::Audit, "", &format!("id={}&limit={PAGE}", escape(id.as_bytes())), None).await;
                let Log { entries, .. } = read(log.unwrap_or(Value::Null));
                let page = Gone { frame: self.frame().await, detail: problem.detail, audit: entries };
                Ok(html(StatusCode::NOT_FOUND, &page))
            }
            Err(problem) => Err(problem),
        }
    }

    /// What was decided, the latest first.
    pub(super) async fn log(&self) -> Result<Response<Body>, Problem> {
        let query = format!("limit={PAGE}&cursor={}", escape(self.query.get("cursor").as_bytes()));
        let log = read(self.ask(Verb::Audit, "", &query, None).await?);
        Ok(html(StatusCode::OK, &Audit { frame: self.frame().await, log }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::seen::When;
    use super::*;

    fn overview(stats: Value) -> String {
        let frame = Frame {
            service: "shop".into(),
            instance: "ab".into(),
            reasons: vec!["store: <away>".into()],
            form: "secret".into(),
            name: String::new(),
            is_signed_in: false,
            now: When::now(),
            version: "0",
            notice: None,
        };
        Overview { frame, trouble: None, waiting: Vec::new(), stats: Some(read(stats)), log: None }.render().unwrap()
    }

    #[test]
    fn what_nobody_guards_and_who_does_not_match_is_shown_where_it_is_counted() {
        let page = overview(json!({ "counts": [] }));
        assert!(
            !page.contains("Coverage") && page.contains("Not ready") && page.contains("store: &#60;away&#62;"),
            "{page}"
        );
        let scope = "ab".repeat(32);
        let page = overview(json!({
            "counts": [],
            "unguarded": [{ "method": "DELETE", "path": "/v1/<b>", "requests": 7 }],
            "callers": [{ "scope": scope, "duplicates": 3, "mismatches": 2 }],
        }));
        for words in ["Coverage", "DELETE /v1/&#60;b&#62;", "7 requests", "abababababab…", "3 duplicates, 2 mismatches"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(page.contains(&format!("/keys?scope={scope}")), "{page}");
    }
}
