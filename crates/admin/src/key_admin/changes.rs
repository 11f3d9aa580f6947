//! Requests that change keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;

use super::dto::{BulkChange, KeyChange, RefusedKey};
use super::params::{ChosenKey, KeySelection};
use super::problem::{ApiProblem, ProblemCode};
use super::typed_response::check_response;
use super::{KeyAdmin, find_route, route_value, version};
use oncegate_domain::execution_risk::{ActionKind, ActionRisk, RecordSummary, RetryRule};
use oncegate_domain::quantity::quantity;
use oncegate_domain::state::StateKind;
use oncegate_engine::gate::admit::fresh_token;
use oncegate_store::admin::{
    DECISIONS_MAX, DecisionResult, DecisionResults, KeyEntry, KeyFilter, OperatorAction, OperatorDecision, Target,
};
use oncegate_store::{ApplyOperatorDecisionParams, ForgetCallerParams, ListKeysParams, StoreError};

/// The number of keys that one request changes, at most: some minutes of work for the store.
const KEYS_MAX: usize = 100_000;

const IDS_MAX: usize = 500;

/// The number of keys that are returned one by one, at most: as many of the changed ones as of those that were not,
/// each with its reason.
pub const LISTED_MAX: usize = 100;

const PAGE: u32 = 5_000;

impl KeyAdmin<'_> {
    /// `None` for a route that is not configured here: the time until its attempts are quiet cannot be guessed. Other
    /// instances may have the route, and wait for longer than any route here.
    pub(super) fn retry_rule(&self, route: &str) -> Option<RetryRule> {
        let route = find_route(&self.config, &self.service, route)?;
        Some(route.retry_rule())
    }

    /// The part of the record that decides whether the key may be executed again, without the passed times that are not
    /// certain: as this instance's gate would judge a retry. An end of a TTL that nobody has watched is none.
    fn certain_summary(&self, entry: &KeyEntry) -> RecordSummary {
        match self.store_clock {
            Some(clock) => clock.certain_summary(entry.summary(), entry.time_limit()),
            None => entry.summary().unwatched(entry.time_limit()),
        }
    }

    pub(super) fn risk(&self, entry: &KeyEntry, action: ActionKind) -> Option<ActionRisk> {
        let certain = self.certain_summary(entry);
        let risk = action.risk(&certain, self.retry_rule(&entry.route).as_ref())?;
        let is_in_doubt = entry.summary().past_ttl && !certain.past_ttl;
        Some(if is_in_doubt { ActionRisk::TtlInDoubt } else { risk })
    }

    /// The time from which nothing of the key's newest attempt can be running: the same for the page, the API and the
    /// refusal. This instance believes it when it has watched the store's clock for long enough; where nobody has, the
    /// operator vouches for it. `None` where the key's route is not configured here.
    pub(super) fn quiet_at(&self, entry: &KeyEntry) -> Option<SystemTime> {
        let quiet_after = self.retry_rule(&entry.route)?.quiet_after;
        let summary = if self.store_clock.is_some() { self.certain_summary(entry) } else { entry.summary() };
        let left = summary.until_quiet(quiet_after);
        Some(if left.is_zero() { entry.deadline + quiet_after } else { entry.now + left })
    }

    /// Returns the target of a decision, unless the key's state does not allow it, or it depends on a route that is not
    /// configured here.
    fn target(&self, entry: &KeyEntry, decision: &OperatorDecision) -> Result<Target, ApiProblem> {
        let retry_rule = self.retry_rule(&entry.route);
        // There the next request with the key is executed all the same.
        let is_redelivered = decision.change.kind() == ActionKind::Redact
            && entry.state == StateKind::Retryable
            && retry_rule.is_some_and(|rule| rule.redelivers);
        if !entry.permits(decision.change.kind()) || is_redelivered {
            return Err(ApiProblem::not_permitted(&decision.change, entry));
        }
        // A decision that does not need a quiet attempt never looks at this time.
        let quiet_after = retry_rule.map_or(Duration::MAX, |rule| rule.quiet_after);
        let risk = self.risk(entry, decision.change.kind());
        let target = Target {
            id: entry.id,
            token: entry.token,
            new_token: fresh_token(),
            state: entry.state,
            route: entry.route.as_str().into(),
            settled_at: entry.settled_at,
            is_by_hand: entry.is_by_hand,
            risk,
            ttl: route_value(&self.config, (&self.service, &entry.route), |route| route.options.ttl),
            remember: route_value(&self.config, (&self.service, &entry.route), |route| route.options.remember),
            quiet_after,
            sealed_response: None,
        };
        let must_be_quiet = decision.requires_quiet(&target);
        if must_be_quiet && retry_rule.is_none() {
            let detail = format!(
                "its route `{}` is not in the configuration here, so it is not known when its last attempt can no longer run: \
                 use the proxies' own configuration (-c), an instance that has the route (--admin), or use accept_risk",
                entry.route
            );
            return Err(ApiProblem::new(ProblemCode::RouteUnknown, detail).with("route", &*entry.route));
        }
        let left = self.quiet_at(entry).and_then(|at| at.duration_since(entry.now).ok()).unwrap_or_default();
        // What the store's clock says, the store looks at itself. This instance has not watched it since the attempt.
        if must_be_quiet && left > entry.summary().until_quiet(quiet_after) {
            return Err(ApiProblem::not_quiet(left, true));
        }
        Ok(target)
    }

    /// Carries a decision out on the key with this id, or on the one key whose id has this prefix. `seen_proposal` is
    /// the number of the proposal of this change that the operator saw.
    pub async fn change_key(
        &self,
        id: &str,
        decision: OperatorDecision,
        seen_proposal: Option<i64>,
    ) -> Result<KeyChange, ApiProblem> {
        let entry = self.find_entry(id).await?;
        check_response(&decision)?;
        self.check_empty_body(&decision, &entry.route).await?;
        let decision = self.under_four_eyes(&entry, decision, seen_proposal).await;
        let decision = decision.map_err(|problem| problem.about(entry.id))?;
        let is_proposal = matches!(decision.change, OperatorAction::Propose(_));
        let decision = Arc::new(decision);
        let target = self.target(&entry, &decision).map_err(|problem| problem.about(entry.id))?;
        let decided = self.apply_decision(&decision, vec![target.clone()]).await?;
        let result = decided.verdicts.first().copied().unwrap_or(DecisionResult::Gone);
        if let Some(problem) = ApiProblem::from_result(result, &decision, &target) {
            return Err(problem.about(entry.id));
        }
        let is_queued = !decided.queued.is_empty();
        let after = match (is_queued, is_proposal) {
            (true, _) => Some(StateKind::Queued),
            (false, true) => Some(entry.state),
            (false, false) => decision.change.resulting_state(entry.state),
        };
        let after = after.map_or("none", StateKind::name);
        match is_proposal {
            true => tracing::info!(
                actor = decision.actor,
                action = decision.change.action(),
                "a change of a key was proposed"
            ),
            false => log_change(&decision, 1, after),
        }
        Ok(KeyChange {
            id: entry.id,
            action: decision.change.action(),
            before: entry.state,
            after,
            is_proposal,
            instances_behind: self.wait_until_forgotten(decided.purges).await?,
        })
    }

    /// Changes keys. Without the number that is expected at most, the keys are only counted. Where the store fails, the
    /// problem says how many keys were changed before. One response for several keys is refused unless the risk is
    /// accepted: most keys have a response of their own.
    pub async fn change_keys(
        &self,
        keys: KeySelection,
        decision: OperatorDecision,
        expect: Option<u64>,
    ) -> Result<BulkChange, ApiProblem> {
        self.refuse_bulk_change(&decision.change)?;
        check_response(&decision)?;
        let action = decision.change.action();
        let erased = erased_caller(&keys, &decision.change);
        let decision = Arc::new(decision);
        let retries = retries_after(&decision.change);
        let mut change = BulkChange { action, retries, dry_run: expect.is_none(), ..BulkChange::default() };
        let targets = match keys {
            KeySelection::ByFilter(filter) => self.find_targets(&filter, &decision, &mut change).await?,
            KeySelection::ByIds(keys) => self.find_targets_by_id(&keys, &decision, &mut change).await?,
        };
        change.count = targets.len() as u64;
        if let [key] = &*change.keys {
            self.check_empty_body(&decision, &key.route).await?;
        }
        if change.count > 1 && decision.change.response().is_some() && !decision.accept_risk {
            let detail = format!(
                "the retries of {} keys, perhaps of several callers, would all get this response: complete each key with its \
                 own, or use accept_risk",
                change.count
            );
            return Err(ApiProblem::new(ProblemCode::SharedResponse, detail).with("count", change.count));
        }
        for target in &targets {
            *change.by_state.entry(target.state).or_default() += 1;
            change.risks.extend(target.risk);
        }
        if let Some(expected) = expect {
            if change.count > expected {
                let keys = quantity(change.count, "key", "keys");
                let detail = format!("{keys} match, more than the {expected} that were expected; nothing was changed");
                return Err(ApiProblem::new(ProblemCode::MoreThanExpected, detail).with("count", change.count));
            }
            if let Some(caller) = erased {
                self.forget_caller(caller).await?;
            }
            let purges = self.change_targets(&decision, &targets, &mut change).await?;
            let after: BTreeSet<_> =
                change.by_state.keys().map(|from| decision.change.resulting_state_name(*from)).collect();
            let queued = decision.change.may_queue().then_some("queued");
            let after = queued.into_iter().chain(after).collect::<Vec<_>>().join(" or ");
            log_change(&decision, change.changed, &after);
            change.instances_behind = self.wait_until_forgotten(purges).await?;
        }
        Ok(change)
    }

    /// Changes keys in batches, each a commit of its own: keys that were changed before the store fails stay changed,
    /// and are in the audit log. Returns the count of purges after that.
    async fn change_targets(
        &self,
        decision: &Arc<OperatorDecision>,
        targets: &[Target],
        change: &mut BulkChange,
    ) -> Result<Option<u64>, ApiProblem> {
        let mut purges = None;
        for batch in targets.chunks(DECISIONS_MAX) {
            let decided = self.apply_decision(decision, batch.to_vec()).await;
            let decided = decided.map_err(|error| ApiProblem::from(error).with("changed", change.changed))?;
            purges = decided.purges.max(purges);
            for (target, result) in batch.iter().zip(decided.verdicts) {
                match ApiProblem::from_result(result, decision, target) {
                    None => {
                        change.changed += 1;
                        push_listed(&mut change.changed_keys, target.id);
                    }
                    Some(problem) => change.refuse(target.id, problem),
                }
            }
        }
        Ok(purges)
    }

    async fn apply_decision(
        &self,
        decision: &Arc<OperatorDecision>,
        targets: Vec<Target>,
    ) -> Result<DecisionResults, StoreError> {
        let resolves = matches!(decision.change, OperatorAction::Complete(_) | OperatorAction::NotExecuted);
        let was_unknown = |target: &Target| resolves && matches!(target.state, StateKind::Dead | StateKind::Unknown);
        let since =
            |target: &Target| Some((Arc::clone(&target.route), target.settled_at.filter(|_| was_unknown(target))?));
        let since: Vec<_> = targets.iter().map(since).collect();
        let (service, decision, as_of) = (self.service(), Arc::clone(decision), self.as_of);
        let params = ApplyOperatorDecisionParams { service, decision, targets, as_of };
        let decided = self.store.apply_operator_decision(params).await?;
        for (verdict, since) in decided.verdicts.iter().zip(since) {
            if let (DecisionResult::Done, Some((route, since)), Some(instance)) = (verdict, since, self.instance) {
                instance.count_resolved((&self.service, &route), since);
            }
        }
        Ok(decided)
    }

    /// Takes a caller's name from the weekly counts.
    async fn forget_caller(&self, caller: String) -> Result<(), ApiProblem> {
        // What this instance has counted and not written has it too.
        self.write_weekly_counts().await?;
        let replacement = format!("erased-{}", HEXLOWER.encode(&fresh_token().as_bytes()[..8]));
        Ok(self.store.forget_caller(ForgetCallerParams { service: self.service(), caller, replacement }).await?)
    }

    async fn find_targets_by_id(
        &self,
        keys: &[ChosenKey],
        decision: &OperatorDecision,
        change: &mut BulkChange,
    ) -> Result<Vec<Target>, ApiProblem> {
        if keys.len() > IDS_MAX {
            return Err(ApiProblem::bad("ids", format!("has more than {IDS_MAX}")));
        }
        let mut targets: Vec<Target> = Vec::new();
        for ChosenKey { id, seen } in keys {
            match self.find_entry(id).await {
                Ok(entry) if targets.iter().any(|target| target.id == entry.id) => {}
                Ok(entry) if seen.as_ref().is_some_and(|seen| *seen != version(&entry)) => {
                    change.refuse(entry.id, ApiProblem::key_changed(entry.state));
                }
                Ok(entry) => targets.extend(self.target_or_refusal(entry, decision, change)),
                Err(problem) if problem.code == ProblemCode::NoSuchKey => change.refuse(id, problem),
                Err(problem) => return Err(problem.about(id)),
            }
        }
        Ok(targets)
    }

    /// Returns the target of a decision, and notes the key as one that the change is for, or as refused.
    fn target_or_refusal(
        &self,
        entry: KeyEntry,
        decision: &OperatorDecision,
        change: &mut BulkChange,
    ) -> Option<Target> {
        match self.target(&entry, decision) {
            Ok(target) => {
                push_listed(&mut change.keys, entry);
                Some(target)
            }
            Err(problem) => {
                change.refuse(entry.id, problem);
                None
            }
        }
    }

    /// Finds the keys that fit a filter and that the decision is for, with those that it is for only at a risk: where
    /// the risk is not accepted, they are counted, and refused one by one.
    async fn find_targets(
        &self,
        filter: &KeyFilter,
        decision: &OperatorDecision,
        change: &mut BulkChange,
    ) -> Result<Vec<Target>, ApiProblem> {
        // One state at a time where an index leads to it.
        let states: Vec<Option<StateKind>> = match (filter.state, &decision.change) {
            (Some(_), _) => vec![filter.state],
            (None, OperatorAction::Complete(_) | OperatorAction::NotExecuted) => {
                vec![Some(StateKind::Dead), Some(StateKind::Unknown)]
            }
            (None, OperatorAction::Requeue) => vec![Some(StateKind::Dead)],
            (None, OperatorAction::Replace(_)) => vec![Some(StateKind::Completed)],
            (
                None,
                OperatorAction::Propose(_) | OperatorAction::Purge | OperatorAction::Redact | OperatorAction::Release,
            ) => vec![None],
        };
        let action = decision.change.kind();
        let mut targets = Vec::new();
        for state in states {
            let filter = KeyFilter { state, ..filter.clone() };
            let mut after = None;
            loop {
                let page = self
                    .store
                    .list_keys(ListKeysParams { service: self.service(), filter: filter.clone(), after, limit: PAGE })
                    .await?;
                // A redaction names the open keys that it leaves.
                let is_whole = filter.state.is_some() || action == ActionKind::Redact;
                let fits = |entry: &KeyEntry| is_whole || action.is_for(entry.state);
                let fitting = page.entries.into_iter().filter(fits);
                targets.extend(fitting.filter_map(|entry| self.target_or_refusal(entry, decision, change)));
                if targets.len() > KEYS_MAX {
                    return Err(ApiProblem::bad("filter", format!("fits more than {KEYS_MAX} keys: narrow it")));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(targets)
    }

    /// Waits until no instance remembers what was purged, for a lease's time at most: an instance that has not read the
    /// store for so long answers nothing from memory either. Returns how many instances may still remember it; `None`
    /// where nothing was purged.
    async fn wait_until_forgotten(&self, purges: Option<u64>) -> Result<Option<u64>, ApiProblem> {
        let Some(purges) = purges else { return Ok(None) };
        let behind = self.store.wait_until_forgotten(self.service(), purges, self.start.store.lease.expiry).await?;
        Ok(Some(behind))
    }
}

/// The caller that a redaction by a filter erases, as the weekly counts have it; `None` where the filter has the
/// beginning of a hash alone.
fn erased_caller(keys: &KeySelection, change: &OperatorAction) -> Option<String> {
    match keys {
        KeySelection::ByFilter(KeyFilter { scope: Some(scope), .. })
            if matches!(change, OperatorAction::Redact) && scope.low == scope.high =>
        {
            Some(HEXLOWER.encode(&scope.low[..8]))
        }
        KeySelection::ByFilter(_) | KeySelection::ByIds(_) => None,
    }
}

impl BulkChange {
    fn refuse(&mut self, id: impl ToString, problem: ApiProblem) {
        self.refused_count += 1;
        push_listed(&mut self.refused, RefusedKey { id: id.to_string(), problem });
    }
}

fn push_listed<T>(listed: &mut Vec<T>, item: T) {
    if listed.len() < LISTED_MAX {
        listed.push(item);
    }
}

/// The answer that each retry gets after a decision, unless the route's `on_unknown` says otherwise.
fn retries_after(change: &OperatorAction) -> String {
    match change {
        OperatorAction::Complete(response) | OperatorAction::Replace(response) => {
            let bytes = response.body.as_ref().map_or(0, bytes::Bytes::len) as u64;
            format!("get {} with {}", response.status.as_u16(), quantity(bytes, "byte", "bytes"))
        }
        OperatorAction::NotExecuted | OperatorAction::Release => {
            "are executed: the next one is sent to the service".into()
        }
        OperatorAction::Propose(_) => "get what they get now".into(),
        OperatorAction::Purge => "are executed, as first requests".into(),
        OperatorAction::Redact => {
            "get 409 response-not-kept where the request was executed, else 410 key-expired; nothing is executed".into()
        }
        OperatorAction::Requeue => {
            "get what an accepted request gets; it is delivered again, and may be executed again".into()
        }
    }
}

/// Logs a change that the audit log has too, for people who read only logs.
fn log_change(decision: &OperatorDecision, keys: u64, after: &str) {
    tracing::info!(
        actor = decision.actor,
        action = decision.change.action(),
        after,
        keys,
        accept_risk = decision.accept_risk,
        "keys were changed by hand"
    );
}
