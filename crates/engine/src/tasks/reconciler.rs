//! Asks the services for the outcome of unknown attempts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{PassResult, Task};
use crate::instance::Instance;
use crate::instance::metrics::ReconcileResult;
use oncegate_domain::decision::INQUIRY_PERIOD_MAX;
use oncegate_domain::inquiry::{
    Inquiry, InquiryAnswer, InquiryFinding, InquirySchedule, InquirySubject, InquiryVerdict, ReconcilePolicy,
};
use oncegate_domain::quantity::quantity;
use oncegate_http::upstream::UpstreamClient;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_http::upstream::inquiry::{self, InquiryPools, InquiryReply};
use oncegate_machine::random_u32;
use oncegate_settings::{Config, ReconcileConfig, Route};
use oncegate_store::{ClaimInquiriesParams, StoreError};
use oncegate_telemetry::logs::error_causes;

/// The inquiries that one instance sends at once: no load for a service, and a slow one delays few others. A pass
/// claims no more than it sends, so that a crash loses no more inquiries than these.
const INQUIRIES_MAX: u32 = 8;

/// The longest pause between two inquiries of a key. After a night's outage all keys are reconciled within the hour,
/// and one inquiry an hour is no load.
const PAUSE_CAP: Duration = Duration::from_secs(60 * 60);

/// The task that reconciles: a pass asks about the keys that are quiet and due, on all routes with a `reconcile`
/// table, and stores the results. An inquiry is counted before it is sent: any number of instances may do this at
/// once, and the inquiry of one that crashes counts as sent.
pub struct Reconciler {
    instance: Arc<Instance>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
}

/// A route with a `reconcile` table, and the client for its inquiries.
pub struct ReconciledRoute {
    route: Arc<Route>,
    reconcile: ReconcileConfig,
    upstream: UpstreamClient,
}

impl ReconciledRoute {
    /// Asks the service about one attempt.
    pub async fn ask(&self, subject: &InquirySubject) -> InquiryReply {
        inquiry::send_inquiry(&self.upstream, &self.route, &self.reconcile, subject).await
    }
}

/// Those of the routes that have a `reconcile` table, by each name that their keys are stored under.
pub fn reconciled_routes(routes: &[Arc<Route>], slots: &UpstreamSlots) -> BTreeMap<Arc<str>, Arc<ReconciledRoute>> {
    let mut pools = InquiryPools::default();
    let mut by_name = BTreeMap::new();
    for (route, reconcile) in routes.iter().filter_map(|route| Some((route, route.reconcile.clone()?))) {
        let upstream = pools.client_for(route, &reconcile.lookup, slots);
        let reconciled = Arc::new(ReconciledRoute { route: Arc::clone(route), reconcile, upstream });
        by_name.extend(route.names().map(|name| (Arc::clone(name), Arc::clone(&reconciled))));
    }
    by_name
}

impl Reconciler {
    /// Creates the task; each pass uses the newest configuration of `live`.
    pub fn new(instance: Arc<Instance>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { instance, live }
    }

    /// Returns the pause between two passes: the shortest `every` of the routes, and 5 s at most.
    pub fn period(&self) -> Duration {
        let config = self.live.borrow();
        let every = config.routes.iter().filter_map(|route| route.reconcile.as_ref()).map(|reconcile| reconcile.every);
        every.min().unwrap_or(INQUIRY_PERIOD_MAX).min(INQUIRY_PERIOD_MAX)
    }
}

impl Task for Reconciler {
    const NAME: &'static str = "reconciler";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, store_clock, draining, .. } = &*self.instance;
        let idle = PassResult::IdleFor(self.period());
        let (live, clock) = (Arc::clone(&self.live.borrow()), store_clock.view());
        let mut routes = reconciled_routes(&live.routes, &self.instance.upstream_slots);
        // Before that, an attempt may be running that is quiet only by the store's clock.
        routes.retain(|_, reconciled| clock.is_watched_for(self.instance.quiet_time(&reconciled.route)));
        if routes.is_empty() || !instance_lease.may_start() || draining.is_cancelled() {
            return Ok(idle);
        }
        let mut schedules: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, reconciled) in &routes {
            let of_service = schedules.entry(Arc::clone(&reconciled.route.service.name)).or_default();
            of_service.push(schedule(name, reconciled));
        }
        let (mut inquiries, mut full) = (Vec::new(), false);
        for (service, mut schedules) in schedules {
            // No route always comes after one that fills every batch.
            let first = random_u32().unwrap_or_default() as usize % schedules.len();
            schedules.rotate_left(first);
            let params = ClaimInquiriesParams { service, schedules, limit: INQUIRIES_MAX, as_of: clock.as_of };
            let claimed = store.claim_inquiries(params).await?;
            full |= claimed.len() == INQUIRIES_MAX as usize;
            inquiries.extend(claimed);
        }
        let mut work = JoinSet::new();
        for inquiry in inquiries {
            if let Some(route) = routes.get(&*inquiry.subject.route) {
                work.spawn(reconcile_key(Arc::clone(&self.instance), Arc::clone(route), inquiry));
            }
        }
        // A drain does not wait for inquiries.
        tokio::select! {
            biased;
            () = draining.cancelled() => return Ok(idle),
            () = async { while work.join_next().await.is_some() {} } => {}
        }
        Ok(if full { PassResult::Full } else { idle })
    }
}

fn schedule(name: &Arc<str>, reconciled: &ReconciledRoute) -> InquirySchedule {
    let every = reconciled.reconcile.every;
    InquirySchedule {
        route: Arc::clone(name),
        quiet_after: reconciled.route.quiet_after,
        pause_first: every,
        pause_cap: every.max(PAUSE_CAP),
    }
}

async fn reconcile_key(instance: Arc<Instance>, reconciled: Arc<ReconciledRoute>, inquiry: Inquiry) {
    let ReconciledRoute { route, reconcile, .. } = &*reconciled;
    let ReconcileConfig { confirmations, max_attempts, .. } = *reconcile;
    let policy =
        ReconcilePolicy { confirmations, max_attempts, ttl: route.options.ttl, remember: route.options.remember };
    let reply = match inquiry.is_past_last(&policy) {
        true => {
            InquiryReply { answer: InquiryAnswer::Nothing, status: None, summary: "the last question was lost".into() }
        }
        false => reconciled.ask(&inquiry.subject).await,
    };
    let InquiryReply { answer, summary, .. } = reply;
    let results = &instance.observability.metrics.reconcile;
    results.count(ReconcileResult::Scheduled);
    if matches!(answer, InquiryAnswer::Nothing) {
        results.count(ReconcileResult::Failed);
    }
    let verdict = inquiry.verdict_on(answer, &policy);
    let note = audit_note(&verdict, &summary, &inquiry, &policy);
    let finding = InquiryFinding {
        id: inquiry.subject.id,
        token: inquiry.subject.token,
        inquiry: inquiry.number,
        verdict: verdict.clone(),
        note: note.clone(),
    };
    let (record, route) = (finding.id, &route.name);
    match instance.store.apply_inquiry_finding(finding).await {
        Ok(true) => {
            if matches!(verdict, InquiryVerdict::Completed { .. } | InquiryVerdict::Retryable { .. }) {
                results.count(ReconcileResult::Resolved);
                instance.count_resolved((&reconciled.route.service.name, route), inquiry.unknown_since);
            }
            instance.wait_groups.wake(record);
            log_verdict(&verdict, &inquiry, route, &note);
        }
        Ok(false) => {
            tracing::info!(%record, %route, result = summary, "the key was settled by another instance or an operator during the inquiry")
        }
        Err(error) => {
            let cause = error_causes(&error);
            tracing::warn!(%record, %route, result = summary, cause, "{error}; the service's reply is not stored, the service is asked again");
        }
    }
}

/// Returns the evidence for the audit log.
fn audit_note(verdict: &InquiryVerdict, summary: &str, inquiry: &Inquiry, policy: &ReconcilePolicy) -> String {
    match verdict {
        InquiryVerdict::Completed { .. } | InquiryVerdict::Open { .. } => summary.to_owned(),
        InquiryVerdict::Retryable { .. } => format!("404 x {}", inquiry.absences + 1),
        InquiryVerdict::Dead => {
            let asked = quantity(inquiry.number.min(policy.max_attempts).into(), "time", "times");
            format!("asked {asked}, at last: {summary}")
        }
    }
}

fn log_verdict(verdict: &InquiryVerdict, inquiry: &Inquiry, route: &str, note: &str) {
    let (record, asked) = (inquiry.subject.id, inquiry.number);
    match verdict {
        InquiryVerdict::Completed { .. } => {
            tracing::info!(%record, route, asked, result = note, "the service says that it was executed: completed");
        }
        InquiryVerdict::Retryable { .. } => {
            tracing::info!(%record, route, asked, result = note, "the service does not know the operation: the next request is the next attempt");
        }
        InquiryVerdict::Dead => {
            tracing::warn!(%record, route, asked, result = note,
                "the service reported no outcome; the reconciliation was given up, and the key is dead until an operator decides");
        }
        InquiryVerdict::Open { .. } => {
            tracing::info!(%record, route, asked, result = note, "the service reported no outcome yet: still unknown");
        }
    }
}
