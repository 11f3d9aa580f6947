//! The current state of a key that a decision left unchanged.

use std::time::Duration;

use super::{DecisionResult, OperatorAction, OperatorDecision, Target};
use crate::row::{RowReader, millis};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::StateKind;

/// A key as it is found after a decision left it unchanged.
#[derive(Clone, Debug)]
pub struct CurrentRow {
    pub id: RecordId,
    /// The newest attempt's token and the state; `None` where the key is gone.
    pub current: Option<(Token, StateKind)>,
    /// The time until the newest attempt's time limit ends, in milliseconds.
    pub deadline_in_ms: i64,
    /// The key's last audit entry: actor, action, and the resulting state.
    pub last: Option<(String, String, String)>,
}

impl CurrentRow {
    pub(crate) fn read(row: &impl RowReader, id: RecordId) -> Result<Self, CorruptRow> {
        let current = row.read::<Option<_>>("token")?.zip(row.read::<Option<_>>("state")?);
        let deadline_in_ms = match row.read::<Option<i64>>("deadline")? {
            Some(deadline) => deadline - row.read::<i64>("now")?,
            None => 0,
        };
        let (actor, action) = (row.read::<Option<_>>("actor")?, row.read::<Option<_>>("action")?);
        let last = actor.zip(action).zip(row.read::<Option<_>>("after")?);
        Ok(Self { id, current, deadline_in_ms, last: last.map(|((actor, action), after)| (actor, action, after)) })
    }

    /// Returns why the decision was not applied; or that it was, where an earlier try of this very call lost its
    /// answer.
    pub fn verdict(&self, target: &Target, decision: &OperatorDecision, in_doubt: bool) -> DecisionResult {
        let current_name = self.current.map_or("none", |(_, state)| state.name());
        let is_ours = |(actor, action, after): &(String, String, String)| {
            *actor == decision.actor && action == decision.change.action() && after == current_name
        };
        let as_decided = match decision.change {
            OperatorAction::Propose(_) => self.current == Some((target.token, target.state)),
            _ => {
                let is_new = decision.change.withdraws_response() && !matches!(decision.change, OperatorAction::Redact);
                let left_token = if is_new { target.new_token } else { target.token };
                self.current.is_none_or(|(token, _)| token == left_token)
                    && match self.current.map(|(_, state)| state) {
                        Some(StateKind::Queued) => decision.change.may_queue(),
                        state => state == decision.change.resulting_state(target.state),
                    }
            }
        };
        if in_doubt && as_decided && self.last.as_ref().is_some_and(is_ours) {
            return DecisionResult::Done;
        }
        match self.current {
            None => DecisionResult::Gone,
            Some((token, state)) if token != target.token || state != target.state => DecisionResult::Changed(state),
            Some(_) => {
                let left = self.deadline_in_ms.saturating_add(millis(target.quiet_after));
                match u64::try_from(left) {
                    Ok(left) if decision.requires_quiet(target) && left > 0 => {
                        DecisionResult::NotQuiet(Duration::from_millis(left))
                    }
                    _ => DecisionResult::Held,
                }
            }
        }
    }
}
