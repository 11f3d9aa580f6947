//! What a decision finds that did not take.

use std::time::Duration;

use super::{Case, Change, Decision, Verdict};
use crate::domain::attempt::Token;
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::store::row::millis;

/// A key as it is found after a decision did not take.
#[derive(Clone, Debug)]
pub struct Look {
    /// Which.
    pub id: RecordId,
    /// Its newest attempt and its state; `None` where it is gone.
    pub stands: Option<(Token, Phase)>,
    /// Until its newest attempt's time limit ends.
    pub deadline_in_ms: i64,
    /// The last line about it in the audit log: actor, action, and what it led to.
    pub last: Option<(String, String, String)>,
}

impl Look {
    /// Why the decision did not take; or that it did, where an earlier try of this very call lost its answer.
    pub fn verdict(&self, case: &Case, decision: &Decision, doubt: bool) -> Verdict {
        let stands_as = self.stands.map_or("none", |(_, state)| state.name());
        let said = |(actor, action, after): &(String, String, String)| {
            *actor == decision.actor && action == decision.change.action() && after == stands_as
        };
        let keeps_token = !matches!(decision.change, Change::Release);
        let as_decided = self.stands.is_none_or(|(token, _)| (token == case.token) == keeps_token)
            && match self.stands.map(|(_, state)| state) {
                Some(Phase::Queued) => decision.change.may_queue(),
                state => state == decision.change.leads_to(),
            };
        if doubt && as_decided && self.last.as_ref().is_some_and(said) {
            return Verdict::Done;
        }
        match self.stands {
            None => Verdict::Gone,
            Some((token, state)) if token != case.token || state != case.state => Verdict::Changed(state),
            Some(_) => {
                let left = self.deadline_in_ms.saturating_add(millis(case.quiet_after));
                match u64::try_from(left) {
                    Ok(left) if decision.wants_quiet() && left > 0 => Verdict::NotQuiet(Duration::from_millis(left)),
                    _ => Verdict::Held,
                }
            }
        }
    }
}
