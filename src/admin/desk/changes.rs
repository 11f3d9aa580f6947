//! The questions that change something.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::asked::{Fields, Which};
use super::problem::Problem;
use super::{At, Verb, document};
use crate::domain::phase::Phase;
use crate::store::books::{self, Case, Change, DECISIONS_MAX, Decision, Entry, Filter, Verdict};

/// How many keys one question changes, at most: what it was counted for must still be in somebody's mind.
const KEYS_MAX: usize = 100_000;

/// How many ids one question names, at most.
const IDS_MAX: usize = 500;

/// How many of those that were not changed are told with their reasons.
const REFUSED_TOLD: usize = 100;

/// As many keys as are looked for at a time.
const PAGE: u32 = 5_000;

/// What a route says about its keys, as far as it matters here.
pub(super) struct Terms {
    ttl: Duration,
    remember: Option<Duration>,
    /// `None` where the configuration does not have the route: how long its proxies wait is not known here.
    pub(super) quiet_after: Option<Duration>,
}

impl At<'_> {
    /// What the route says; for one that is not known here, the most careful of all that are. When its attempts are quiet
    /// cannot be guessed: other instances may have it, and wait for longer than any that is known.
    pub(super) fn terms(&self, route: &str) -> Terms {
        let routes = &self.config.routes;
        match routes.iter().find(|known| *known.name == *route) {
            Some(route) => Terms { ttl: route.ttl, remember: route.remember, quiet_after: Some(route.quiet_after) },
            None => Terms {
                ttl: routes.iter().map(|route| route.ttl).max().unwrap_or_default(),
                remember: routes.iter().filter_map(|route| route.remember).max(),
                quiet_after: None,
            },
        }
    }

    /// What is decided about, unless it hangs on a route that is not known here.
    fn case(&self, entry: &Entry, decision: &Decision) -> Result<Case, Problem> {
        let Terms { ttl, remember, quiet_after } = self.terms(&entry.route);
        if quiet_after.is_none() && decision.wants_quiet() && decision.is_for(entry.state) {
            return Err(Problem::unknown_route(&entry.route));
        }
        // Who asks for no quiet is not told of it either.
        let quiet_after = quiet_after.unwrap_or(Duration::MAX);
        Ok(Case { id: entry.id, token: entry.token, state: entry.state, ttl, remember, quiet_after })
    }

    pub(super) async fn decide_one(&self, id: &str, decision: Decision) -> Result<Value, Problem> {
        let entry = self.entry(id).await?;
        let decision = Arc::new(decision);
        let case = self.case(&entry, &decision).map_err(|problem| problem.with("id", entry.id.to_string().into()))?;
        let decided = self.store.books().decide(self.service(), Arc::clone(&decision), vec![case]).await?;
        let verdict = decided.verdicts.first().copied().unwrap_or(Verdict::Gone);
        if let Some(problem) = Problem::of(verdict, &decision, entry.state) {
            return Err(problem.with("id", entry.id.to_string().into()));
        }
        log(&decision, 1);
        let mut told = json!({
            "id": entry.id.to_string(),
            "action": decision.change.action(),
            "before": entry.state.name(),
            "after": if decided.queued.is_empty() { decision.change.leads_to_name() } else { Phase::Queued.name() },
        });
        self.forgotten(&mut told, decided.purges).await?;
        Ok(told)
    }

    /// Changes many keys: those of these ids, or those that a filter finds. Without the count that is expected, it is only
    /// told.
    pub(super) async fn act(&self, mut fields: Fields, actor: String) -> Result<Value, Problem> {
        let verb = match fields.text("action")?.as_deref() {
            Some("purge") => Verb::Purge,
            Some("release") => Verb::Release,
            Some("requeue") => Verb::Requeue,
            Some("resolve") => Verb::Resolve,
            Some(_) => return Err(Problem::bad("action", "is none of `resolve`, `release`, `requeue` and `purge`")),
            None => return Err(Problem::bad("action", "is missing")),
        };
        let which = fields.which()?;
        let expect = fields.number("expect")?;
        let decision = Arc::new(fields.decision(verb, actor, false)?);
        fields.end()?;
        let (cases, mut refused) = match which {
            Which::Fitting(filter) => self.found(&filter, &decision).await?,
            Which::Named(ids) => self.named(&ids, &decision).await?,
        };
        let count = cases.len() as u64;
        let mut by_state = BTreeMap::new();
        cases.iter().for_each(|case| *by_state.entry(case.state.name()).or_insert(0_u64) += 1);
        let mut told = json!({ "action": decision.change.action(), "count": count, "by_state": by_state });
        match expect {
            None => {
                told["changed"] = 0.into();
                told["dry_run"] = true.into();
            }
            Some(expect) if count > expect => {
                let detail =
                    format!("{count} keys fit, more than the {expect} that were expected; nothing was changed");
                let problem = Problem::new(http::StatusCode::CONFLICT, "more-than-expected", detail);
                return Err(problem.with("count", count.into()));
            }
            Some(_) => {
                let (changed, purges) = self.carry_out(&decision, &cases, &mut refused).await?;
                log(&decision, changed);
                told["changed"] = changed.into();
                told["dry_run"] = false.into();
                self.forgotten(&mut told, purges).await?;
            }
        }
        told["refused"] = refused.told.into();
        told["refused_count"] = refused.count.into();
        Ok(told)
    }

    /// In batches, each a commit of its own: what was changed when the store fails stays changed, and is in the log.
    async fn carry_out(
        &self,
        decision: &Arc<Decision>,
        cases: &[Case],
        refused: &mut Refused,
    ) -> Result<(u64, Option<u64>), Problem> {
        let (mut changed, mut purges) = (0, None);
        for batch in cases.chunks(DECISIONS_MAX) {
            let decided = self.store.books().decide(self.service(), Arc::clone(decision), batch.to_vec()).await;
            let decided = decided.map_err(|error| Problem::from(error).with("changed", changed.into()))?;
            purges = decided.purges.max(purges);
            for (case, verdict) in batch.iter().zip(decided.verdicts) {
                match Problem::of(verdict, decision, case.state) {
                    None => changed += 1,
                    Some(problem) => refused.add(&case.id.to_string(), &problem),
                }
            }
        }
        Ok((changed, purges))
    }

    async fn named(&self, ids: &[String], decision: &Decision) -> Result<(Vec<Case>, Refused), Problem> {
        if ids.len() > IDS_MAX {
            return Err(Problem::bad("ids", format!("has more than {IDS_MAX}")));
        }
        let (mut cases, mut refused): (Vec<Case>, _) = (Vec::new(), Refused::default());
        for id in ids {
            match self.entry(id).await {
                Ok(entry) if cases.iter().any(|case| case.id == entry.id) => {}
                Ok(entry) => match self.case(&entry, decision) {
                    Ok(case) => cases.push(case),
                    Err(problem) => refused.add(&entry.id.to_string(), &problem),
                },
                Err(problem) if problem.status == http::StatusCode::NOT_FOUND => refused.add(id, &problem),
                Err(problem) => return Err(problem.with("id", id.as_str().into())),
            }
        }
        Ok((cases, refused))
    }

    /// What a filter finds of the keys that the decision is for.
    async fn found(&self, filter: &Filter, decision: &Decision) -> Result<(Vec<Case>, Refused), Problem> {
        // A state at a time where an index leads to it.
        let states: Vec<Option<Phase>> = match (filter.state, &decision.change) {
            (Some(_), _) => vec![filter.state],
            (None, Change::Complete(_) | Change::NotExecuted) => vec![Some(Phase::Dead), Some(Phase::Unknown)],
            (None, Change::Requeue) => vec![Some(Phase::Dead)],
            (None, Change::Release | Change::Purge) => vec![None],
        };
        let (mut cases, mut refused) = (Vec::new(), Refused::default());
        for state in states {
            let filter = Filter { state, ..filter.clone() };
            let mut place = None;
            loop {
                let page = self.store.books().page(self.service(), filter.clone(), place, PAGE).await?;
                let fits = |entry: &&Entry| filter.state.is_some() || decision.is_for(entry.state);
                for entry in page.entries.iter().filter(fits) {
                    match self.case(entry, decision) {
                        Ok(case) => cases.push(case),
                        Err(problem) => refused.add(&entry.id.to_string(), &problem),
                    }
                }
                if cases.len() > KEYS_MAX {
                    return Err(Problem::bad("filter", format!("fits more than {KEYS_MAX} keys: narrow it")));
                }
                place = page.next;
                if place.is_none() {
                    break;
                }
            }
        }
        Ok((cases, refused))
    }

    /// Waits until what was purged is in nobody's memory, a lease's time at most: an instance that has not read the store
    /// for so long answers nothing from memory either.
    async fn forgotten(&self, told: &mut Value, purges: Option<u64>) -> Result<(), Problem> {
        if let Some(purges) = purges {
            let patience = self.config.store.expiry;
            let behind = books::forgotten(self.store.books(), self.service(), purges, patience).await?;
            told["instances_behind"] = behind.into();
        }
        Ok(())
    }
}

/// Keys that were not changed.
#[derive(Default)]
struct Refused {
    told: Vec<Value>,
    count: u64,
}

impl Refused {
    fn add(&mut self, id: &str, problem: &Problem) {
        self.count += 1;
        if self.told.len() < REFUSED_TOLD {
            let mut why = document(problem);
            why["id"] = id.into();
            self.told.push(why);
        }
    }
}

/// Beside the audit log, for those who read logs alone.
fn log(decision: &Decision, keys: u64) {
    let (action, after) = (decision.change.action(), decision.change.leads_to_name());
    tracing::info!(
        actor = decision.actor,
        action,
        after,
        keys,
        accept_risk = decision.accept_risk,
        "keys were changed by hand"
    );
}
