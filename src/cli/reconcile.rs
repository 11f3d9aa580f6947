//! `oncegate reconcile`

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{ConfigFile, Ended, block_on, load_without_service, print};
use crate::config::{self, Config, Reconcile, Route};
use crate::domain::probe::{Answer, Kept};
use crate::domain::record::RecordId;
use crate::gate::lookup::{self, Pools, Said};
use crate::store::{self, OpenError, Settings, Store, StoreError};
use crate::upstream::Upstream;

/// Rows that the store reads at once: nothing that those who serve requests would feel.
const PAGE: u32 = 500;

/// Asked at once: no load for a service.
const AT_ONCE: usize = 8;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Keys that were settled in this time
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = config::duration)]
    since: Duration,
    /// Keys of this route only
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    let config = load_without_service(&arguments.file)?;
    let asked = asked(&config, arguments.route.as_deref())?;
    let report = block_on(compare(&config, &asked, arguments.since))?;
    print(&if arguments.json { report.json() } else { report.words() })?;
    match report.verdict() {
        None => Ok(()),
        Some(verdict) => Err(Ended::Other(verdict.into())),
    }
}

/// A route, and how it is asked about.
struct Asked {
    route: Arc<Route>,
    reconcile: Reconcile,
    upstream: Upstream,
}

type Routes = HashMap<Box<str>, Arc<Asked>>;

fn asked(config: &Config, only: Option<&str>) -> Result<Vec<(Arc<Route>, Reconcile)>, Ended> {
    let wanted = config.routes.iter().filter(|route| only.is_none_or(|only| *route.name == *only));
    let asked: Vec<_> =
        wanted.clone().filter_map(|route| Some((Arc::clone(route), route.reconcile.clone()?))).collect();
    match (asked.is_empty(), only) {
        (false, _) => Ok(asked),
        (true, Some(name)) if wanted.count() == 0 => Err(Ended::Other(format!("no route is named `{name}`").into())),
        (true, Some(name)) => Err(Ended::Other(format!("`{name}` has no `reconcile.url` to ask").into())),
        (true, None) => Err(Ended::Other("no route has a `reconcile.url` to ask".into())),
    }
}

async fn compare(config: &Config, asked: &[(Arc<Route>, Reconcile)], since: Duration) -> Result<Report, Ended> {
    let location = &config.store.location;
    // Whoever only looks migrates nothing.
    let settings = Settings { migrate: false, ..(&config.store).into() };
    let store = store::open(&settings).await.map_err(|error| {
        if matches!(error, OpenError::InUse { .. }) {
            eprintln!(
                "oncegate: stop the proxy that has the embedded store first; PostgreSQL is asked while proxies run"
            );
        }
        Ended::Store(location.clone(), error)
    })?;
    let mut pools = Pools::default();
    let routes: Routes = asked
        .iter()
        .map(|(route, reconcile)| {
            let upstream = pools.of(route, &reconcile.lookup, &config.trust);
            let (route, reconcile) = (Arc::clone(route), reconcile.clone());
            (Box::from(&*route.name), Arc::new(Asked { route, reconcile, upstream }))
        })
        .collect();
    walk(&store, &config.service, &routes, since).await.map_err(|error| Ended::Other(error.into()))
}

async fn walk(
    store: &Arc<dyn Store>,
    service: &Arc<str>,
    routes: &Routes,
    since: Duration,
) -> Result<Report, StoreError> {
    let names: Vec<Arc<str>> = routes.values().map(|asked| Arc::clone(&asked.route.name)).collect();
    let (mut report, mut after): (_, Option<RecordId>) = (Report::default(), None);
    loop {
        let page = store.page(service, names.clone(), since, after, PAGE).await?;
        let mut work = JoinSet::new();
        for kept in page.keys {
            let Some(asked) = routes.get(&kept.subject.route).cloned() else { continue };
            if work.len() >= AT_ONCE {
                report.take(work.join_next().await)?;
            }
            work.spawn(look(Arc::clone(store), asked, kept));
        }
        while let Some(finding) = work.join_next().await {
            report.take(Some(finding))?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(report);
        }
    }
}

/// What was found about one key.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Agree,
    /// It has changed while the service was asked: there is nothing to compare any more.
    Changed,
    Disagree,
    /// The service did not say.
    Unanswered,
}

async fn look(store: Arc<dyn Store>, asked: Arc<Asked>, kept: Kept) -> Result<(Finding, Kept, Said), StoreError> {
    let said = lookup::ask(&asked.upstream, &asked.route, &asked.reconcile, &kept.subject).await;
    let mut finding = judge(&kept, &said.answer);
    if finding == Finding::Disagree {
        let now = store.find(kept.subject.id).await?;
        if now.is_none_or(|now| now.token != kept.subject.token || now.state.name() != kept.state) {
            finding = Finding::Changed;
        }
    }
    Ok((finding, kept, said))
}

fn judge(kept: &Kept, answer: &Answer) -> Finding {
    match (kept.state, answer) {
        (_, Answer::Nothing) => Finding::Unanswered,
        ("completed", Answer::Executed(response)) if kept.status == Some(response.status.as_u16()) => Finding::Agree,
        // What was refused has left nothing that the service could know of.
        ("completed", Answer::Absent) if kept.status.is_some_and(|status| (400..500).contains(&status)) => {
            Finding::Agree
        }
        ("retryable", Answer::Absent) => Finding::Agree,
        (_, Answer::Absent | Answer::Executed(_)) => Finding::Disagree,
    }
}

#[derive(Default)]
struct Report {
    agree: usize,
    changed: usize,
    disagree: Vec<(Kept, Said)>,
    unanswered: Vec<(Kept, Said)>,
}

type Joined = Result<Result<(Finding, Kept, Said), StoreError>, tokio::task::JoinError>;

impl Report {
    fn take(&mut self, joined: Option<Joined>) -> Result<(), StoreError> {
        let Some(joined) = joined else { return Ok(()) };
        let (finding, kept, said) = joined.unwrap_or_else(|panic| Err(StoreError::Unavailable(panic.into())))?;
        match finding {
            Finding::Agree => self.agree += 1,
            Finding::Changed => self.changed += 1,
            Finding::Disagree => self.disagree.push((kept, said)),
            Finding::Unanswered => self.unanswered.push((kept, said)),
        }
        Ok(())
    }

    /// What is wrong, if something is. A comparison that could not be made is no agreement.
    fn verdict(&self) -> Option<String> {
        let all = self.agree + self.disagree.len() + self.unanswered.len();
        match (self.disagree.len(), self.unanswered.len()) {
            (0, 0) => None,
            (0, unanswered) => Some(format!("the service does not say what became of {unanswered} of {all} keys")),
            (disagree, 0) => Some(format!("store and service disagree about {disagree} of {all} keys")),
            (disagree, unanswered) => Some(format!(
                "store and service disagree about {disagree} of {all} keys, and the service does not say what became \
                 of {unanswered}"
            )),
        }
    }

    fn words(&self) -> String {
        let mut text = String::new();
        for (word, keys) in [("DISAGREE", &self.disagree), ("unanswered", &self.unanswered)] {
            for (kept, said) in keys {
                let Kept { subject, .. } = kept;
                let key = String::from_utf8_lossy(&subject.key);
                let key: String = key.chars().take(8).collect();
                writeln!(
                    text,
                    "{word:<11} {}  {}  {key}…  {} here, {}",
                    subject.id,
                    subject.route,
                    here(kept),
                    there(said)
                )
                .expect("a String takes everything");
            }
        }
        let (disagree, unanswered) = (self.disagree.len(), self.unanswered.len());
        let changed = match self.changed {
            0 => String::new(),
            count => format!(", {count} changed meanwhile"),
        };
        text + &format!("{} agree, {disagree} disagree, {unanswered} unanswered{changed}\n", self.agree)
    }

    fn json(&self) -> String {
        let list = |keys: &[(Kept, Said)]| keys.iter().map(|(kept, said)| entry(kept, said)).collect::<Vec<_>>();
        let document = json!({
            "agree": self.agree,
            "changed": self.changed,
            "disagree": list(&self.disagree),
            "unanswered": list(&self.unanswered),
        });
        format!("{document:#}\n")
    }
}

fn entry(kept: &Kept, said: &Said) -> Value {
    let Kept { subject, state, status } = kept;
    json!({
        "id": subject.id.to_string(),
        "key": String::from_utf8_lossy(&subject.key),
        "scope": subject.scope.to_string(),
        "route": subject.route,
        "state": state,
        "status": status,
        "service": said.words,
    })
}

fn here(kept: &Kept) -> String {
    match (kept.state, kept.status) {
        (state, Some(status)) => format!("{state} {status}"),
        ("retryable", None) => "released".into(),
        (state, None) => state.into(),
    }
}

fn there(said: &Said) -> String {
    match said.answer {
        Answer::Absent => "404 there: not executed".into(),
        Answer::Executed(_) => format!("{} there: executed", said.words),
        Answer::Nothing => said.words.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::domain::attempt::Token;
    use crate::domain::probe::Subject;
    use crate::domain::response::StoredResponse;
    use crate::domain::scope::Scope;

    #[test]
    fn who_says_the_same_agrees_and_who_says_nothing_does_not() {
        let kept = |state, status| Kept {
            subject: Subject {
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
            Answer::Executed(StoredResponse {
                status,
                headers: HeaderMap::new(),
                body: None,
                trailers: HeaderMap::new(),
            })
        };
        for (state, status, answer, finding) in [
            ("completed", Some(201), executed(201), Finding::Agree),
            ("completed", Some(201), executed(200), Finding::Disagree),
            ("completed", Some(201), Answer::Absent, Finding::Disagree),
            ("completed", Some(303), Answer::Absent, Finding::Disagree),
            ("completed", Some(422), Answer::Absent, Finding::Agree),
            ("completed", Some(422), executed(201), Finding::Disagree),
            ("retryable", None, Answer::Absent, Finding::Agree),
            ("retryable", None, executed(201), Finding::Disagree),
            ("unknown", None, Answer::Absent, Finding::Disagree),
            ("unknown", None, executed(201), Finding::Disagree),
            ("dead", None, executed(201), Finding::Disagree),
            ("completed", Some(201), Answer::Nothing, Finding::Unanswered),
            ("unknown", None, Answer::Nothing, Finding::Unanswered),
        ] {
            assert_eq!(judge(&kept(state, status), &answer), finding, "{state} {status:?} {answer:?}");
        }
    }
}
