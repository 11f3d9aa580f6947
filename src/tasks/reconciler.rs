//! Asks the services what became of attempts whose outcome nobody knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Pass, Task};
use crate::config::{Config, Reconcile, Route};
use crate::domain::probe::{Answer, Finding, Probe, Schedule, Terms, Verdict};
use crate::gate::Shared;
use crate::gate::lookup::{self, Pools, Said};
use crate::gate::meters::Reconciled;
use crate::store::StoreError;
use crate::telemetry::logs::causes;
use crate::upstream::Upstream;

/// Asked at once, by one instance: no load for a service, and one that is slow holds up few others. No more are claimed
/// than are asked, so that no more questions are lost with a process.
const AT_ONCE: u32 = 8;

/// The longest pause between two questions about a key. After a night's outage things are cleared up within the hour, and
/// one question an hour is no load.
const PAUSE_CAP: Duration = Duration::from_secs(60 * 60);

/// Whether a key is due is one look into a small index: often enough that this adds little to the routes' own times.
const PERIOD_MAX: Duration = Duration::from_secs(5);

/// One pass asks about what is quiet and due, on all routes that say whom to ask, and writes down what comes of it. The
/// question is counted before it is asked: any number of instances may do this at once, and one that dies has asked.
pub struct Reconciler {
    shared: Arc<Shared>,
    /// The configuration as it was last reloaded.
    live: watch::Receiver<Arc<Config>>,
}

/// A route, and how it is asked about.
struct Asked {
    route: Arc<Route>,
    reconcile: Reconcile,
    upstream: Upstream,
}

impl Reconciler {
    /// By the newest configuration that comes this way.
    pub fn new(shared: Arc<Shared>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { shared, live }
    }

    /// How often there may be something to do.
    pub fn period(&self) -> Duration {
        let config = self.live.borrow();
        let every = config.routes.iter().filter_map(|route| route.reconcile.as_ref()).map(|reconcile| reconcile.every);
        every.min().unwrap_or(PERIOD_MAX).min(PERIOD_MAX)
    }

    fn asked(&self) -> HashMap<Box<str>, Arc<Asked>> {
        let config = Arc::clone(&self.live.borrow());
        let mut pools = Pools::default();
        let asked = |route: &Arc<Route>| {
            let reconcile = route.reconcile.clone()?;
            let upstream = pools.of(route, &reconcile.lookup, &config.trust);
            Some((Box::from(&*route.name), Arc::new(Asked { route: Arc::clone(route), reconcile, upstream })))
        };
        config.routes.iter().filter_map(asked).collect()
    }
}

impl Task for Reconciler {
    const NAME: &'static str = "reconciler";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, draining, config, .. } = &*self.shared;
        let idle = Pass::IdleFor(self.period());
        let asked = self.asked();
        if asked.is_empty() || !tenure.may_start() || draining.is_cancelled() {
            return Ok(idle);
        }
        // In another order each time, as each map has: no route comes always after one that has more than is asked.
        let schedules = asked.values().map(|asked| schedule(asked)).collect();
        let probes = store.claim(&config.service, schedules, AT_ONCE).await?;
        let full = probes.len() == AT_ONCE as usize;
        let mut work = JoinSet::new();
        for probe in probes {
            if let Some(asked) = asked.get(&probe.subject.route) {
                work.spawn(clear_up(Arc::clone(&self.shared), Arc::clone(asked), probe));
            }
        }
        // What is asked is nothing that the drain would have to wait for.
        tokio::select! {
            () = draining.cancelled() => return Ok(idle),
            () = async { while work.join_next().await.is_some() {} } => {}
        }
        Ok(if full { Pass::Full } else { idle })
    }
}

fn schedule(asked: &Asked) -> Schedule {
    let every = asked.reconcile.every;
    Schedule {
        route: Arc::clone(&asked.route.name),
        quiet_after: asked.route.quiet_after,
        pause_first: every,
        pause_cap: every.max(PAUSE_CAP),
    }
}

async fn clear_up(shared: Arc<Shared>, asked: Arc<Asked>, probe: Probe) {
    let Asked { route, reconcile, upstream } = &*asked;
    let Reconcile { confirmations, max_attempts, .. } = *reconcile;
    let terms = Terms { confirmations, max_attempts, ttl: route.ttl, remember: route.remember };
    let said = match probe.is_beyond(&terms) {
        true => Said { answer: Answer::Nothing, status: None, words: "the last question was lost".into() },
        false => lookup::ask(upstream, route, reconcile, &probe.subject).await,
    };
    let Said { answer, words, .. } = said;
    let results = &shared.watch.meters.reconcile;
    results.count(Reconciled::Scheduled);
    if matches!(answer, Answer::Nothing) {
        results.count(Reconciled::Failed);
    }
    let verdict = probe.judge(answer, &terms);
    let note = note(&verdict, &words, &probe, &terms);
    let finding = Finding {
        id: probe.subject.id,
        token: probe.subject.token,
        probe: probe.number,
        verdict: verdict.clone(),
        note: note.clone(),
    };
    let (record, route) = (finding.id, &route.name);
    match shared.store.resolve(finding).await {
        Ok(true) => {
            if matches!(verdict, Verdict::Completed { .. } | Verdict::Retryable { .. }) {
                results.count(Reconciled::Resolved);
            }
            shared.waiters.nudge(record);
            tell(&verdict, &probe, route, &note);
        }
        Ok(false) => {
            tracing::info!(%record, %route, said = words, "asked about a key that others have settled meanwhile")
        }
        Err(error) => {
            let cause = causes(&error);
            tracing::warn!(%record, %route, said = words, cause, "{error}; what the service said is asked again");
        }
    }
}

/// The evidence, as it stands in the audit.
fn note(verdict: &Verdict, words: &str, probe: &Probe, terms: &Terms) -> String {
    match verdict {
        Verdict::Completed { .. } | Verdict::Open { .. } => words.to_owned(),
        Verdict::Retryable { .. } => format!("404 x {}", probe.absences + 1),
        Verdict::Dead => format!("asked {} times, at last: {words}", probe.number.min(terms.max_attempts)),
    }
}

fn tell(verdict: &Verdict, probe: &Probe, route: &str, note: &str) {
    let (record, asked) = (probe.subject.id, probe.number);
    match verdict {
        Verdict::Completed { .. } => {
            tracing::info!(%record, route, asked, said = note, "the service says that it was executed: completed");
        }
        Verdict::Retryable { .. } => {
            tracing::info!(%record, route, asked, said = note, "the service knows nothing of it: the next request is the next attempt");
        }
        Verdict::Dead => {
            tracing::warn!(%record, route, asked, said = note, "the service does not say how it ended: given up, an operator must decide");
        }
        Verdict::Open { .. } => {
            tracing::info!(%record, route, asked, said = note, "asked how it ended: still unknown");
        }
    }
}
