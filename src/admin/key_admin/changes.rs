//! Requests that change keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::KeyAdminSnapshot;
use super::dto::{BulkChange, KeyChange, RefusedKey};
use super::params::{BulkRequest, KeySelection};
use super::problem::{ApiProblem, ProblemCode, ProblemMember};
use super::typed_response::check_response;
use crate::domain::execution_risk::{ActionKind, ActionRisk, RecordSummary, RetryRule};
use crate::domain::state::StateKind;
use crate::instance::quiet_time;
use crate::store::admin::{
    DECISIONS_MAX, DecisionResult, DecisionResults, KeyEntry, KeyFilter, OperatorAction, OperatorDecision, Target,
};
use crate::store::{ApplyOperatorDecisionParams, StoreError};

/// The number of keys that one request changes, at most: some minutes of work for the store.
const KEYS_MAX: usize = 100_000;

/// The number of ids that one request names, at most.
const IDS_MAX: usize = 500;

/// The number of unchanged keys that are returned with their reasons, at most.
const REFUSED_MAX: usize = 100;

/// The number of keys that one call of the store returns, at most.
const PAGE: u32 = 5_000;

/// The part of a route's configuration that matters to decisions about its keys.
pub(super) struct RouteTimes {
    ttl: Duration,
    remember: Option<Duration>,
    /// `None` where the configuration does not have the route: how long its proxies wait is not known here.
    pub(super) retry_rule: Option<RetryRule>,
}

impl KeyAdminSnapshot<'_> {
    /// Returns the times of a route. For a route that is not configured here, they are the longest TTL and memory of all routes. The
    /// time until its attempts are quiet cannot be guessed: other instances may have the route, and wait for longer than
    /// any route here.
    pub(super) fn route_times(&self, route: &str) -> RouteTimes {
        let routes = &self.config.routes;
        match routes.iter().find(|known| known.has_name(route)) {
            Some(route) => {
                let retry_rule = RetryRule { on_unknown: route.on_unknown, quiet_after: route.quiet_after };
                RouteTimes { ttl: route.ttl, remember: route.remember, retry_rule: Some(retry_rule) }
            }
            None => RouteTimes {
                ttl: routes.iter().map(|route| route.ttl).max().unwrap_or_default(),
                remember: routes.iter().filter_map(|route| route.remember).max(),
                retry_rule: None,
            },
        }
    }

    /// Returns the time until this instance believes the store's clock that the key's attempt is quiet; `None` if it does.
    fn unwatched_for(&self, entry: &KeyEntry) -> Option<Duration> {
        let route = self.config.routes.iter().find(|known| known.has_name(&entry.route))?;
        let running_for = entry.now.duration_since(entry.reserved_at).unwrap_or_default();
        self.store_clock?.view().unwatched_for(entry.now, running_for, quiet_time(&self.config.store, route))
    }

    /// The part of the record that decides whether the key may be executed again, without the passed times that are not certain: as
    /// this instance's gate would judge a retry. An end of a TTL that nobody has watched is none.
    fn certain_summary(&self, entry: &KeyEntry) -> RecordSummary {
        match self.store_clock {
            Some(clock) => clock.certain_summary(entry.summary(), entry.time_limit()),
            None => entry.summary().unwatched(entry.time_limit()),
        }
    }

    /// The risk of an action on a key, see [`ActionKind::risk`].
    pub(super) fn risk(&self, entry: &KeyEntry, action: ActionKind) -> Option<ActionRisk> {
        let certain = self.certain_summary(entry);
        let risk = action.risk(&certain, self.route_times(&entry.route).retry_rule.as_ref())?;
        let is_in_doubt = entry.summary().past_ttl && !certain.past_ttl;
        Some(if is_in_doubt { ActionRisk::TtlInDoubt } else { risk })
    }

    /// Whether nothing of the key's newest attempt can be running any more. Where nobody has watched the store's clock, the operator
    /// vouches for it.
    pub(super) fn is_quiet(&self, entry: &KeyEntry) -> bool {
        let summary = if self.store_clock.is_some() { self.certain_summary(entry) } else { entry.summary() };
        let rule = self.route_times(&entry.route).retry_rule;
        rule.is_some_and(|rule| summary.until_quiet(rule.quiet_after).is_zero())
    }

    /// Returns the target of a decision, unless the decision depends on a route that is not configured here.
    fn target(&self, entry: &KeyEntry, decision: &OperatorDecision) -> Result<Target, ApiProblem> {
        let RouteTimes { ttl, remember, retry_rule } = self.route_times(&entry.route);
        // A decision that does not need a quiet attempt never looks at this time.
        let quiet_after = retry_rule.map_or(Duration::MAX, |rule| rule.quiet_after);
        let risk = self.risk(entry, decision.change.kind());
        let target = Target {
            id: entry.id,
            token: entry.token,
            state: entry.state,
            risk,
            ttl,
            remember,
            quiet_after,
            sealed_response: None,
        };
        let must_be_quiet = decision.requires_quiet(&target);
        if must_be_quiet && retry_rule.is_none() {
            return Err(ApiProblem::unknown_route(&entry.route));
        }
        if let Some(left) = self.unwatched_for(entry).filter(|_| must_be_quiet) {
            return Err(ApiProblem::unwatched_clock(left));
        }
        Ok(target)
    }

    /// Carries a decision out on the key with this id, or on the one key whose id has this prefix.
    ///
    /// # Errors
    /// [`ApiProblem`], and nothing was changed. Where the store failed, the problem says that it may have been.
    pub async fn change_key(&self, id: &str, decision: OperatorDecision) -> Result<KeyChange, ApiProblem> {
        let entry = self.find_entry(id).await?;
        check_response(&decision)?;
        let decision = Arc::new(decision);
        let target = self.target(&entry, &decision).map_err(|problem| problem.about(entry.id))?;
        let decided = self.apply_decision(&decision, vec![target.clone()]).await?;
        let result = decided.verdicts.first().copied().unwrap_or(DecisionResult::Gone);
        if let Some(problem) = ApiProblem::from_result(result, &decision, &target) {
            return Err(problem.about(entry.id));
        }
        let is_queued = !decided.queued.is_empty();
        let after = if is_queued { Some(StateKind::Queued) } else { decision.change.resulting_state() };
        let after = after.map_or("none", StateKind::name);
        log_change(&decision, 1, after);
        Ok(KeyChange {
            id: entry.id,
            action: decision.change.action(),
            before: entry.state,
            after,
            instances_behind: self.wait_until_forgotten(decided.purges).await?,
        })
    }

    /// Changes the keys with these ids, or those that a filter finds. Without the number that is expected, the keys are
    /// only counted.
    ///
    /// # Errors
    /// [`ApiProblem`]. Where the store failed, the problem says how many keys were changed before. One response for several keys is
    /// refused unless the risk is accepted: most keys have a response of their own.
    pub async fn change_keys(&self, request: BulkRequest) -> Result<BulkChange, ApiProblem> {
        let BulkRequest { keys, decision, expect } = request;
        check_response(&decision)?;
        let decision = Arc::new(decision);
        let (targets, mut refused) = match keys {
            KeySelection::ByFilter(filter) => self.find_targets(&filter, &decision).await?,
            KeySelection::ByIds(ids) => self.find_targets_by_id(&ids, &decision).await?,
        };
        let count = targets.len() as u64;
        if count > 1 && matches!(decision.change, OperatorAction::Complete(_)) && !decision.accept_risk {
            return Err(ApiProblem::shared_response(count));
        }
        let mut by_state = BTreeMap::new();
        targets.iter().for_each(|target| *by_state.entry(target.state).or_insert(0_u64) += 1);
        let risks = targets.iter().filter_map(|target| target.risk).collect();
        let (changed, instances_behind) = match expect {
            None => (None, None),
            Some(expected) if count > expected => return Err(ApiProblem::more_than_expected(count, expected)),
            Some(_) => {
                let (changed, purges) = self.change_targets(&decision, &targets, &mut refused).await?;
                let after = if decision.change.may_queue() { "queued or " } else { "" };
                log_change(&decision, changed, &format!("{after}{}", decision.change.resulting_state_name()));
                (Some(changed), self.wait_until_forgotten(purges).await?)
            }
        };
        let RefusedTargets { keys: refused, count: refused_count } = refused;
        let action = decision.change.action();
        let (dry_run, changed) = (changed.is_none(), changed.unwrap_or(0));
        Ok(BulkChange { action, count, by_state, risks, changed, dry_run, instances_behind, refused, refused_count })
    }

    /// Changes keys in batches, each a commit of its own: keys that were changed before the store fails stay changed, and
    /// are in the audit log. Returns how many keys were changed, and the count of purges after that.
    async fn change_targets(
        &self,
        decision: &Arc<OperatorDecision>,
        targets: &[Target],
        refused: &mut RefusedTargets,
    ) -> Result<(u64, Option<u64>), ApiProblem> {
        let (mut changed, mut purges) = (0, None);
        for batch in targets.chunks(DECISIONS_MAX) {
            let decided = self.apply_decision(decision, batch.to_vec()).await;
            let decided = decided.map_err(|error| ApiProblem::from(error).with(ProblemMember::Changed(changed)))?;
            purges = decided.purges.max(purges);
            for (target, result) in batch.iter().zip(decided.verdicts) {
                match ApiProblem::from_result(result, decision, target) {
                    None => changed += 1,
                    Some(problem) => refused.add(target.id.to_string(), problem),
                }
            }
        }
        Ok((changed, purges))
    }

    async fn apply_decision(
        &self,
        decision: &Arc<OperatorDecision>,
        targets: Vec<Target>,
    ) -> Result<DecisionResults, StoreError> {
        let (service, decision, as_of) = (self.service(), Arc::clone(decision), self.as_of);
        self.store.apply_operator_decision(ApplyOperatorDecisionParams { service, decision, targets, as_of }).await
    }

    async fn find_targets_by_id(
        &self,
        ids: &[String],
        decision: &OperatorDecision,
    ) -> Result<(Vec<Target>, RefusedTargets), ApiProblem> {
        if ids.len() > IDS_MAX {
            return Err(ApiProblem::bad("ids", format!("has more than {IDS_MAX}")));
        }
        let (mut targets, mut refused): (Vec<Target>, _) = (Vec::new(), RefusedTargets::default());
        for id in ids {
            match self.find_entry(id).await {
                Ok(entry) if targets.iter().any(|target| target.id == entry.id) => {}
                Ok(entry) => match self.target(&entry, decision) {
                    Ok(target) => targets.push(target),
                    Err(problem) => refused.add(entry.id.to_string(), problem),
                },
                Err(problem) if problem.code == ProblemCode::NoSuchKey => refused.add(id.clone(), problem),
                Err(problem) => return Err(problem.with(ProblemMember::Id(id.clone()))),
            }
        }
        Ok((targets, refused))
    }

    /// Finds the keys that fit a filter and that the decision is for, with those that it is for only at a risk: where the risk is
    /// not accepted, they are counted, and refused one by one.
    async fn find_targets(
        &self,
        filter: &KeyFilter,
        decision: &OperatorDecision,
    ) -> Result<(Vec<Target>, RefusedTargets), ApiProblem> {
        // One state at a time where an index leads to it.
        let states: Vec<Option<StateKind>> = match (filter.state, &decision.change) {
            (Some(_), _) => vec![filter.state],
            (None, OperatorAction::Complete(_) | OperatorAction::NotExecuted) => {
                vec![Some(StateKind::Dead), Some(StateKind::Unknown)]
            }
            (None, OperatorAction::Requeue) => vec![Some(StateKind::Dead)],
            (None, OperatorAction::Release | OperatorAction::Purge) => vec![None],
        };
        let action = decision.change.kind();
        let (mut targets, mut refused) = (Vec::new(), RefusedTargets::default());
        for state in states {
            let filter = KeyFilter { state, ..filter.clone() };
            let mut after = None;
            loop {
                let page = self.store.list_keys(self.key_page(filter.clone(), after, PAGE)).await?;
                let fits = |entry: &&KeyEntry| filter.state.is_some() || action.is_for(entry.state);
                for entry in page.entries.iter().filter(fits) {
                    match self.target(entry, decision) {
                        Ok(target) => targets.push(target),
                        Err(problem) => refused.add(entry.id.to_string(), problem),
                    }
                }
                if targets.len() > KEYS_MAX {
                    return Err(ApiProblem::bad("filter", format!("fits more than {KEYS_MAX} keys: narrow it")));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok((targets, refused))
    }

    /// Waits until no instance remembers what was purged, for a lease's time at most: an instance that has not read the
    /// store for so long answers nothing from memory either. Returns how many instances may still remember it; `None`
    /// where nothing was purged.
    async fn wait_until_forgotten(&self, purges: Option<u64>) -> Result<Option<u64>, ApiProblem> {
        let Some(purges) = purges else { return Ok(None) };
        let behind = self.store.wait_until_forgotten(self.service(), purges, self.config.store.lease.expiry).await?;
        Ok(Some(behind))
    }
}

/// Keys that were not changed: the first with their reasons, and the count of all.
#[derive(Default)]
struct RefusedTargets {
    keys: Vec<RefusedKey>,
    count: u64,
}

impl RefusedTargets {
    fn add(&mut self, id: String, problem: ApiProblem) {
        self.count += 1;
        if self.keys.len() < REFUSED_MAX {
            self.keys.push(RefusedKey { id, problem });
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
