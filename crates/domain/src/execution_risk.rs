//! The one rule about further attempts of a key: whether one may start, and whether an operator's action lets one start
//! that may execute again what was executed.
//!
//! Requests and operators are judged by the same function, [`RecordSummary::may_be_executed`]. Its times have to be
//! certain, see `StoreClock::certain` of the instance. Pure, so that its test is a table.

use crate::macros::named;
use std::time::Duration;

use super::record::{Record, RecordReading};
use super::response_policy::OnUnknown;
use super::state::StateKind;

/// The part of a record that decides whether its key may be executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    pub state: StateKind,
    /// Whether the key was accepted for asynchronous delivery.
    pub is_accepted: bool,
    /// Whether none of its attempts has executed, for all that is known.
    pub is_unexecuted: bool,
    pub past_ttl: bool,
    pub late: bool,
    pub running_for: Duration,
    pub deadline_in_ms: i64,
    pub reading: Option<RecordReading>,
}

impl From<&Record> for RecordSummary {
    fn from(record: &Record) -> Self {
        Self {
            state: record.state.kind(),
            is_accepted: record.accepted_at.is_some(),
            is_unexecuted: matches!(record.state.kind(), StateKind::Queued | StateKind::Retryable),
            past_ttl: record.past_ttl,
            late: record.late,
            running_for: record.running_for,
            deadline_in_ms: record.deadline_in_ms,
            reading: record.reading,
        }
    }
}

/// A route's rule for further attempts of a key whose outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub struct RetryRule {
    /// Whether and when one may start.
    pub on_unknown: OnUnknown,
    /// The time after its deadline from which an attempt cannot be running any more.
    pub quiet_after: Duration,
    /// Whether a late retry is a redelivery, which executes anew.
    pub redelivers: bool,
}

impl RetryRule {
    /// Whether a completed record may be what a later attempt has replaced: its TTL has ended, for a redelivery at
    /// least.
    pub fn counts_as_none(&self, record: &Record) -> bool {
        record.past_ttl || (record.late && self.redelivers)
    }
}

impl RecordSummary {
    /// The record with the times of this summary.
    pub fn apply_to(&self, record: Record) -> Record {
        let &Self { past_ttl, late, deadline_in_ms, .. } = self;
        Record { past_ttl, late, deadline_in_ms, ..record }
    }

    /// The summary where nobody has watched the store's clock: no time has passed for certain. Of an expired key the
    /// response is gone.
    pub fn unwatched(self, time_limit: Duration) -> Self {
        let time_limit = i64::try_from(time_limit.as_millis()).unwrap_or(i64::MAX);
        Self {
            past_ttl: false,
            late: self.late && self.state == StateKind::Expired,
            deadline_in_ms: self.deadline_in_ms.max(time_limit),
            ..self
        }
    }

    /// Whether a further attempt may start now: by a retry, or by the deliverer where the key was accepted.
    pub fn may_be_executed(&self, rule: &RetryRule) -> bool {
        match self.state {
            // A record past its TTL counts as none.
            _ if self.past_ttl => true,
            _ if self.late => rule.redelivers,
            StateKind::Queued | StateKind::Retryable => true,
            StateKind::Unknown => match rule.on_unknown {
                // Oncegate repeats the request itself, under its key at the vendor.
                OnUnknown::Hold | OnUnknown::Vendor => false,
                OnUnknown::Retry => true,
                OnUnknown::RetryWhenQuiet => self.until_quiet(rule.quiet_after).is_zero(),
            },
            StateKind::Completed | StateKind::Dead | StateKind::Expired | StateKind::InFlight => false,
        }
    }

    /// The time until nothing of the attempt can be running any more, whatever happened to its instance.
    pub fn until_quiet(&self, quiet_after: Duration) -> Duration {
        let quiet_after = i64::try_from(quiet_after.as_millis()).unwrap_or(i64::MAX);
        let left = self.deadline_in_ms.saturating_add(quiet_after);
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }
}

/// The kinds of an operator's action on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// The request has executed, and retries get the operator's response.
    Completed,
    NotExecuted,
    Purge,
    /// The caller's data in the record are dropped, and the key stays: no attempt follows.
    Redact,
    /// The stored response is dropped: the next request becomes the next attempt.
    Release,
    /// The response that an operator has written is replaced by another one of theirs.
    Replace,
    /// The service is asked again, or the accepted request delivered again.
    Requeue,
}

named! {
    /// The actions for which two persons can be needed: they take back what callers were told.
    pub enum FourEyesAction {
        Purge => "purge",
        Release => "release",
    }
}

impl FourEyesAction {
    pub fn kind(self) -> ActionKind {
        match self {
            Self::Purge => ActionKind::Purge,
            Self::Release => ActionKind::Release,
        }
    }

    /// The action of this kind; `None` for a kind that one person decides.
    pub fn of_kind(kind: ActionKind) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.kind() == kind)
    }

    /// The name of its proposal in the audit log.
    pub const fn proposal(self) -> &'static str {
        match self {
            Self::Purge => "propose purge",
            Self::Release => "propose release",
        }
    }
}

/// The risk of an action: after it an attempt may start that could not start before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionRisk {
    /// The operator says that the request has not executed, and its attempt may still be running.
    AttemptRunning,
    /// The request was accepted, and is never delivered.
    DeliveryLost,
    /// The request was executed, its TTL has ended, and its late retries are refused until then.
    LateRetries,
    /// The request may have executed, and its retries are refused until then.
    OutcomeUnknown,
    /// The request was executed, and its retries get its response until then.
    ResponseWithdrawn,
    /// The request was executed, and the end of its TTL is not certain: its retries are not executed until it is.
    TtlInDoubt,
    /// The request may have executed. The route executes retries of an unknown outcome, not those of a dead key.
    UnknownRetried,
}

impl ActionKind {
    /// All actions in the order in which they are offered: those that settle a key first, the one that forgets it last.
    pub const ALL: [Self; 7] =
        [Self::Completed, Self::Replace, Self::NotExecuted, Self::Requeue, Self::Release, Self::Redact, Self::Purge];

    /// Whether the action is possible in a state. A replacement also needs a response that an operator has written.
    pub fn is_for(self, state: StateKind) -> bool {
        match self {
            Self::Completed | Self::NotExecuted => matches!(state, StateKind::Dead | StateKind::Unknown),
            Self::Purge => state != StateKind::InFlight,
            // An open outcome is decided first: its key and its path are what it can be found by at the service.
            Self::Redact => matches!(state, StateKind::Completed | StateKind::Expired | StateKind::Retryable),
            Self::Release | Self::Replace => state == StateKind::Completed,
            Self::Requeue => state == StateKind::Dead,
        }
    }

    /// The risk of the action on a record whose times are certain: `None` where an attempt may start anyway, or cannot
    /// start after the action either, or the request has not executed and is not lost. An action that is not possible
    /// has none. `rule` is `None` where the key's route is not known: then its retries may be refused now, and executed
    /// as unknown ones.
    pub fn risk(self, record: &RecordSummary, rule: Option<&RetryRule>) -> Option<ActionRisk> {
        if !self.is_for(record.state) {
            return None;
        }
        // Nobody has to accept what the next retry does anyway. But the caller of an accepted request sends none.
        if record.is_unexecuted || record.may_be_executed(rule.unwrap_or(&HOLDING)) {
            let is_lost = self == Self::Purge && record.is_accepted && !record.past_ttl;
            return is_lost.then_some(ActionRisk::DeliveryLost);
        }
        match (self, record.state) {
            (Self::Completed | Self::Redact | Self::Replace, _) => None,
            (Self::NotExecuted, _) => Some(ActionRisk::AttemptRunning),
            (Self::Purge | Self::Release, StateKind::Completed) if !record.late => Some(ActionRisk::ResponseWithdrawn),
            (Self::Purge | Self::Release, StateKind::Completed | StateKind::Expired) => Some(ActionRisk::LateRetries),
            (Self::Purge | Self::Release, _) => Some(ActionRisk::OutcomeUnknown),
            (Self::Requeue, _) => {
                let holds = rule.is_some_and(|rule| matches!(rule.on_unknown, OnUnknown::Hold | OnUnknown::Vendor));
                (!holds).then_some(ActionRisk::UnknownRetried)
            }
        }
    }
}

/// The rule that lets no attempt follow an unknown outcome.
const HOLDING: RetryRule = RetryRule { on_unknown: OnUnknown::Hold, quiet_after: Duration::MAX, redelivers: false };

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET_AFTER: Duration = Duration::from_secs(70);

    fn summary(state: StateKind) -> RecordSummary {
        RecordSummary {
            state,
            is_accepted: state == StateKind::Queued,
            is_unexecuted: matches!(state, StateKind::Queued | StateKind::Retryable),
            past_ttl: false,
            late: state == StateKind::Expired,
            running_for: Duration::from_secs(3_600),
            deadline_in_ms: -3_570_000,
            reading: None,
        }
    }

    fn rule(on_unknown: OnUnknown) -> RetryRule {
        RetryRule { on_unknown, quiet_after: QUIET_AFTER, redelivers: false }
    }

    /// The risks of "not executed", purge, release and requeue.
    fn risks(record: &RecordSummary, rule: Option<&RetryRule>) -> [Option<ActionRisk>; 4] {
        [ActionKind::NotExecuted, ActionKind::Purge, ActionKind::Release, ActionKind::Requeue]
            .map(|action| action.risk(record, rule))
    }

    #[test]
    fn an_action_has_a_risk_where_only_after_it_an_attempt_may_start() {
        use ActionRisk::{
            AttemptRunning, DeliveryLost, LateRetries, OutcomeUnknown, ResponseWithdrawn, UnknownRetried,
        };
        let completed = summary(StateKind::Completed);
        let (dead, unknown) = (summary(StateKind::Dead), summary(StateKind::Unknown));
        let running = RecordSummary { deadline_in_ms: 1, ..unknown };
        let undelivered = RecordSummary { is_accepted: true, is_unexecuted: true, ..dead };
        let delivered = RecordSummary { is_accepted: true, ..unknown };
        let (hold, retry, quiet) = (OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet);
        let none = [None; 4];
        for (name, record, rules, expected) in [
            (
                "completed",
                completed,
                &[hold, retry, quiet][..],
                [None, Some(ResponseWithdrawn), Some(ResponseWithdrawn), None],
            ),
            (
                "completed, past its TTL, remembered",
                RecordSummary { late: true, ..completed },
                &[hold, retry, quiet],
                [None, Some(LateRetries), Some(LateRetries), None],
            ),
            (
                "completed, past its TTL, forgotten",
                RecordSummary { past_ttl: true, late: true, ..completed },
                &[hold, retry, quiet],
                none,
            ),
            ("expired", summary(StateKind::Expired), &[hold, retry, quiet], [None, Some(LateRetries), None, None]),
            (
                "expired, forgotten",
                RecordSummary { past_ttl: true, ..summary(StateKind::Expired) },
                &[hold, retry, quiet],
                none,
            ),
            ("retryable", summary(StateKind::Retryable), &[hold, retry, quiet], none),
            ("queued", summary(StateKind::Queued), &[hold, retry, quiet], [None, Some(DeliveryLost), None, None]),
            ("in flight", summary(StateKind::InFlight), &[hold, retry, quiet], none),
            ("unknown", unknown, &[hold], [Some(AttemptRunning), Some(OutcomeUnknown), None, None]),
            ("unknown, retried", unknown, &[retry, quiet], none),
            (
                "unknown, perhaps running",
                running,
                &[hold, quiet],
                [Some(AttemptRunning), Some(OutcomeUnknown), None, None],
            ),
            ("unknown, accepted, retried", delivered, &[retry, quiet], [None, Some(DeliveryLost), None, None]),
            (
                "unknown, accepted, perhaps running",
                RecordSummary { is_accepted: true, ..running },
                &[hold, quiet],
                [Some(AttemptRunning), Some(OutcomeUnknown), None, None],
            ),
            ("dead", dead, &[hold], [Some(AttemptRunning), Some(OutcomeUnknown), None, None]),
            (
                "dead, retried where it is unknown",
                dead,
                &[retry, quiet],
                [Some(AttemptRunning), Some(OutcomeUnknown), None, Some(UnknownRetried)],
            ),
            ("dead, not executed", undelivered, &[hold, retry, quiet], [None, Some(DeliveryLost), None, None]),
        ] {
            for on_unknown in rules {
                assert_eq!(risks(&record, Some(&rule(*on_unknown))), expected, "{name}, {on_unknown:?}");
                for action in [ActionKind::Completed, ActionKind::Replace] {
                    assert_eq!(action.risk(&record, Some(&rule(*on_unknown))), None);
                }
            }
        }
        let of_unknown_route = [Some(AttemptRunning), Some(OutcomeUnknown), None, Some(UnknownRetried)];
        assert_eq!(risks(&dead, None), of_unknown_route, "the route is not known");
    }

    #[test]
    fn to_forget_what_may_have_executed_is_a_risk_exactly_where_no_attempt_may_start_anyway() {
        use StateKind::{Completed, Dead, Expired, InFlight, Unknown};
        for state in [Completed, Dead, Expired, InFlight, Unknown] {
            for (past_ttl, late) in [(false, false), (false, true), (true, true)] {
                for on_unknown in [OnUnknown::Hold, OnUnknown::Retry, OnUnknown::RetryWhenQuiet] {
                    let (record, rule) = (RecordSummary { past_ttl, late, ..summary(state) }, rule(on_unknown));
                    for action in [ActionKind::Purge, ActionKind::Release] {
                        let is_safe = !action.is_for(state) || record.may_be_executed(&rule);
                        assert_eq!(action.risk(&record, Some(&rule)).is_none(), is_safe, "{action:?} of {record:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_end_that_nobody_watched_is_no_end() {
        let limit = Duration::from_secs(30);
        let past = |state| RecordSummary { past_ttl: true, late: true, ..summary(state) };
        for (state, late) in [(StateKind::Completed, false), (StateKind::Expired, true), (StateKind::Unknown, false)] {
            let unwatched = past(state).unwatched(limit);
            assert_eq!(
                (unwatched.past_ttl, unwatched.late, unwatched.deadline_in_ms),
                (false, late, 30_000),
                "{state}"
            );
        }
    }
}
