//! The operators' side of the store: listing keys, and applying decisions to them.
//!
//! A decision compares the record's token and state with those that the operator saw. Each decision is one commit together
//! with its audit entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::domain::execution_risk::{ActionKind, ActionRisk};
use crate::domain::ids::{RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::domain::response::StoredResponse;
use crate::domain::state::StateKind;
use crate::store::row::RowReader;

pub use current_row::CurrentRow;
pub use id_range::IdRange;
pub use instance_entry::InstanceEntry;
pub use key_entry::{EarlierAttempt, KeyEntry};
pub use without_route::KeysWithoutRoute;

mod current_row;
mod id_range;
mod instance_entry;
mod key_entry;
mod row;
mod without_route;

/// The most rows that one statement reads: about ten milliseconds' work where the table is in memory.
pub const SCAN_ROWS_MAX: u32 = 10_000;

/// The most decisions in one commit: few enough that their row locks delay no request noticeably.
pub const DECISIONS_MAX: usize = 500;

/// A filter on keys. The default fits all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFilter {
    /// The range of ids.
    pub ids: IdRange,
    /// The stored state: a record past its TTL keeps its state until it is reaped.
    pub state: Option<StateKind>,
    /// The range of callers' scopes.
    pub scope: Option<IdRange>,
    /// The route's name.
    pub route: Option<String>,
    /// The exact key, in any scope and space.
    pub key: Option<Vec<u8>>,
    /// The least time since the key was settled, by the store's clock; since it was created, where it is in flight.
    pub older_than: Option<Duration>,
}

impl KeyFilter {
    /// The order in which the keys are listed.
    pub fn order(&self) -> ListOrder {
        match self.state {
            Some(StateKind::Dead | StateKind::Unknown) => ListOrder::Age,
            Some(StateKind::InFlight) => ListOrder::Running,
            Some(StateKind::Completed | StateKind::Expired | StateKind::Queued | StateKind::Retryable) | None => {
                ListOrder::Id
            }
        }
    }
}

/// The order in which keys are listed; it follows from the indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// The key that was settled first comes first: for keys that wait for an operator.
    Age,
    /// By id, over the whole table, a scan at a time.
    Id,
    /// By id, among the keys in flight.
    Running,
}

/// A position in a listing: the last key read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When the key was settled, in milliseconds since 1970; 0 unless the order is [`ListOrder::Age`].
    pub settled_ms: i64,
    /// The key's id.
    pub id: RecordId,
}

impl Cursor {
    /// The smallest bytes that sort after the id.
    pub fn next_id(&self) -> Vec<u8> {
        self.id.as_bytes().iter().copied().chain([0]).collect()
    }
}

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct KeyPage {
    /// The keys that fit.
    pub entries: Vec<KeyEntry>,
    /// The position to continue from; `None` on the last page.
    pub next: Option<Cursor>,
}

/// A decision of an operator, or of a program that acts like one.
#[derive(Clone, Debug)]
pub struct OperatorDecision {
    /// The change to the keys.
    pub change: OperatorAction,
    /// The person or program that decided; for people to read, at most some hundred characters.
    pub actor: String,
    /// The reason.
    pub note: Option<String>,
    /// Whether the operator accepts a risk for which the decision is otherwise refused.
    pub accept_risk: bool,
}

impl OperatorDecision {
    /// The note for the audit log: the grounds on which the decision was allowed, and the operator's reason.
    pub fn audit_note(&self, target: &Target) -> Option<String> {
        let grounds = match (self.accept_risk, self.requires_quiet(target)) {
            (true, _) => Some("accept_risk"),
            (false, true) => Some("quiet"),
            (false, false) => None,
        };
        let parts: Vec<_> = grounds.into_iter().chain(self.note.as_deref()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The response that the key gets, as it is stored.
    pub fn response<'a>(&'a self, target: &'a Target) -> Option<&'a Arc<StoredResponse>> {
        match &self.change {
            OperatorAction::Complete(response) => Some(target.sealed_response.as_ref().unwrap_or(response)),
            OperatorAction::NotExecuted | OperatorAction::Purge | OperatorAction::Release | OperatorAction::Requeue => {
                None
            }
        }
    }

    /// Whether the decision is possible in the key's state, and its risk is accepted, or is none once the attempt is quiet.
    pub fn is_allowed(&self, target: &Target) -> bool {
        let is_safe = matches!(target.risk, None | Some(ActionRisk::AttemptRunning));
        self.change.kind().is_for(target.state) && (self.accept_risk || is_safe)
    }

    /// Whether the newest attempt must be quiet first, that is: nothing of it can be running any more.
    pub fn requires_quiet(&self, target: &Target) -> bool {
        target.risk == Some(ActionRisk::AttemptRunning) && !self.accept_risk
    }
}

/// The changes that an operator can make to a key.
#[derive(Clone, Debug)]
pub enum OperatorAction {
    /// The request has executed, and retries get this response.
    Complete(Arc<StoredResponse>),
    /// The request has not executed.
    NotExecuted,
    /// The record is deleted.
    Purge,
    /// The stored response is dropped and the token replaced: the next request becomes the next attempt.
    Release,
    /// The service is probed again; an accepted key that is known not to have executed is delivered again.
    Requeue,
}

impl OperatorAction {
    /// The kind, by which its risk is judged.
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Complete(_) => ActionKind::Completed,
            Self::NotExecuted => ActionKind::NotExecuted,
            Self::Purge => ActionKind::Purge,
            Self::Release => ActionKind::Release,
            Self::Requeue => ActionKind::Requeue,
        }
    }

    /// The action's name in the API and in the audit log.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Complete(_) | Self::NotExecuted => "resolve",
            Self::Purge => "purge",
            Self::Release => "release",
            Self::Requeue => "requeue",
        }
    }

    /// Whether it withdraws a response that instances may have cached.
    pub fn withdraws_response(&self) -> bool {
        matches!(self, Self::Purge | Self::Release)
    }

    /// The key's new state where it was not accepted for delivery; `None` where the record is deleted.
    pub fn resulting_state(&self) -> Option<StateKind> {
        match self {
            Self::Complete(_) => Some(StateKind::Completed),
            Self::NotExecuted | Self::Release => Some(StateKind::Retryable),
            Self::Purge => None,
            Self::Requeue => Some(StateKind::Unknown),
        }
    }

    /// Whether it may queue a key that was accepted for delivery.
    pub fn may_queue(&self) -> bool {
        matches!(self, Self::NotExecuted | Self::Requeue)
    }

    /// The name of [`Self::resulting_state`] in the audit log.
    pub fn resulting_state_name(&self) -> &'static str {
        self.resulting_state().map_or("none", StateKind::name)
    }
}

/// A key that a decision is about, as the operator saw it, with its route's settings.
#[derive(Clone, Debug)]
pub struct Target {
    /// The record's id.
    pub id: RecordId,
    /// The newest attempt's token.
    pub token: Token,
    /// The state.
    pub state: StateKind,
    /// The risk of the decision for the record with this token in this state.
    pub risk: Option<ActionRisk>,
    /// The TTL from now on.
    pub ttl: Duration,
    /// The time past its TTL for which the key is remembered, to refuse late retries.
    pub remember: Option<Duration>,
    /// The time past the newest attempt's deadline after which nothing of it can be running any more.
    pub quiet_after: Duration,
    /// The decision's response as the store encrypts it for this key; `None` where it does not, or there is none.
    pub sealed_response: Option<Arc<StoredResponse>>,
}

/// The results of a decision.
#[derive(Clone, Debug, Default)]
pub struct DecisionResults {
    /// One result for each target, in their order.
    pub verdicts: Vec<DecisionResult>,
    /// The keys that now wait for their next delivery.
    pub queued: Vec<RecordId>,
    /// The purge count after this decision, where it withdrew a response.
    pub purges: Option<u64>,
}

/// The result of a decision for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The key has changed since the operator saw it, and this is its state now.
    Changed(StateKind),
    /// The decision was applied and audited, durably.
    Done,
    /// The key does not exist any more.
    Gone,
    /// Another transaction has locked the row.
    Held,
    /// The newest attempt may still be running for this long.
    NotQuiet(Duration),
    /// The decision does not apply to the key's state, or not unless its risk is accepted.
    Unfit,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The entry's number.
    pub seq: i64,
    /// The time, by the store's clock.
    pub at: SystemTime,
    /// The person or program that acted.
    pub actor: String,
    /// The action's name.
    pub action: String,
    /// The key's record.
    pub id: RecordId,
    /// The state before.
    pub before: String,
    /// The state after; `none` where the record was deleted.
    pub after: String,
    /// The reason.
    pub note: Option<String>,
}

/// The numbers of keys, by route and state.
///
/// Keys in flight, queued, unknown or dead are counted by their indexes, up to [`COUNTED_MAX`] rows of each state. For
/// the other states the first [`SCAN_ROWS_MAX`] rows in the order of ids are counted: ids are hashes, so these rows are
/// a fair sample, and the last id gives the sample's share of the table. A table with no more rows is counted exactly.
#[derive(Clone, Debug)]
pub struct KeyCounts {
    /// One count for each route and state found.
    pub counts: Vec<KeyCount>,
    /// The number of rows in the sample, of all services.
    pub sampled: u64,
    /// The sample's share of the table, from 0 to 1; 1 where the sample is the whole table.
    pub share: f64,
}

/// The number of keys of a route in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCount {
    /// The route's name.
    pub route: String,
    /// The state.
    pub state: StateKind,
    /// The number of keys.
    pub keys: u64,
    /// Whether the number was counted, and not estimated or cut off.
    pub exact: bool,
}

/// The most unsettled keys of one state that are counted.
pub const COUNTED_MAX: u32 = 100_000;

/// The rows of a count as they are read.
#[derive(Default)]
pub(in crate::store) struct RowCounts {
    unsettled: Vec<RowCount>,
    settled: Vec<RowCount>,
    /// The rows that were read for the settled ones, and the id of the last.
    sampled: u64,
    last: Option<RecordId>,
}

/// The number of rows of a route and state.
struct RowCount {
    route: String,
    state: StateKind,
    rows: u64,
}

impl RowCount {
    fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
        Ok(Self { route: row.read("route")?, state: row.read("state")?, rows: row.read("rows")? })
    }
}

impl RowCounts {
    /// Adds a row of `count_unsettled_keys.sql`.
    pub(in crate::store) fn add_unsettled(&mut self, row: &impl RowReader) -> Result<(), CorruptRow> {
        self.unsettled.push(RowCount::read(row)?);
        Ok(())
    }

    /// Adds a row of `count_settled_keys.sql`.
    pub(in crate::store) fn add_settled(&mut self, row: &impl RowReader) -> Result<(), CorruptRow> {
        (self.sampled, self.last) = (row.read("scanned")?, row.read("last")?);
        // A sample without settled keys has a row for its end.
        if row.read::<Option<String>>("route")?.is_some() {
            self.settled.push(RowCount::read(row)?);
        }
        Ok(())
    }
}

impl From<RowCounts> for KeyCounts {
    fn from(RowCounts { unsettled, settled, sampled, last }: RowCounts) -> Self {
        let is_complete = sampled < u64::from(SCAN_ROWS_MAX);
        let share = match last {
            Some(last) if !is_complete => {
                let head = u64::from_be_bytes(last.as_bytes()[..8].try_into().unwrap_or([0xff; 8]));
                (head as f64 + 1.0) / (u64::MAX as f64)
            }
            _ => 1.0,
        };
        let mut rows_of_state = BTreeMap::<StateKind, u64>::new();
        unsettled.iter().for_each(|count| *rows_of_state.entry(count.state).or_default() += count.rows);
        let counted = unsettled.into_iter().map(|RowCount { route, state, rows }| {
            let exact = rows_of_state[&state] < u64::from(COUNTED_MAX);
            KeyCount { route, state, keys: rows, exact }
        });
        let estimated = settled.into_iter().map(|RowCount { route, state, rows }| {
            let keys = (rows as f64 / share).round() as u64;
            KeyCount { route, state, keys, exact: is_complete }
        });
        let mut counts: Vec<_> = counted.chain(estimated).collect();
        counts.sort_by(|one, other| (&one.route, one.state).cmp(&(&other.route, other.state)));
        Self { counts, sampled, share }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn decision(change: OperatorAction, accept_risk: bool) -> OperatorDecision {
        OperatorDecision { change, actor: "alice".into(), note: None, accept_risk }
    }

    fn target() -> Target {
        Target {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([1; 16]),
            state: StateKind::Unknown,
            risk: Some(ActionRisk::AttemptRunning),
            ttl: Duration::from_secs(1),
            remember: None,
            quiet_after: Duration::from_secs(1),
            sealed_response: None,
        }
    }

    fn response() -> StoredResponse {
        StoredResponse { status: StatusCode::OK, headers: HeaderMap::new(), body: None, trailers: HeaderMap::new() }
    }

    #[test]
    fn an_action_that_lets_an_attempt_follow_may_queue_a_key() {
        let completed = OperatorAction::Complete(response().into());
        let actions = [completed, OperatorAction::NotExecuted, OperatorAction::Release, OperatorAction::Requeue];
        assert_eq!(actions.map(|action| action.may_queue()), [false, true, false, true]);
        assert!(!OperatorAction::Purge.may_queue());
    }

    #[test]
    fn each_action_is_possible_in_its_states_and_none_for_a_running_key() {
        use StateKind::{Completed, Dead, Expired, Queued, Retryable, Unknown};
        for (change, states) in [
            (OperatorAction::Complete(response().into()), &[Dead, Unknown][..]),
            (OperatorAction::NotExecuted, &[Dead, Unknown]),
            (OperatorAction::Release, &[Completed]),
            (OperatorAction::Requeue, &[Dead]),
            (OperatorAction::Purge, &[Completed, Dead, Expired, Queued, Retryable, Unknown]),
        ] {
            let possible = |risk, accept_risk| {
                let decision = decision(change.clone(), accept_risk);
                let is_allowed = |state: &StateKind| decision.is_allowed(&Target { state: *state, risk, ..target() });
                StateKind::ALL.into_iter().filter(is_allowed).collect::<Vec<_>>()
            };
            assert_eq!(possible(None, false), states, "{change:?}");
            assert_eq!(possible(Some(ActionRisk::OutcomeUnknown), true), states, "{change:?}");
            assert_eq!(possible(Some(ActionRisk::AttemptRunning), false), states, "{change:?}");
            assert_eq!(possible(Some(ActionRisk::OutcomeUnknown), false), [], "{change:?}");
        }
    }

    #[test]
    fn a_samples_last_id_gives_its_share_of_the_table() {
        let last = |first: u8| {
            let mut id = [0xff; 32];
            id[0] = first;
            RecordId::from_stored(&id)
        };
        let scanned = u64::from(SCAN_ROWS_MAX);
        // The sample ends after a sixteenth of all hashes.
        let counts = |sampled| {
            let settled = vec![RowCount { route: "pay".into(), state: StateKind::Completed, rows: 5_000 }];
            KeyCounts::from(RowCounts { unsettled: Vec::new(), settled, sampled, last: last(0x0f) })
        };
        let (counts, of_all) = (counts(scanned), counts(scanned - 1));
        assert_eq!((counts.counts[0].keys, counts.counts[0].exact), (80_000, false));
        assert_eq!((of_all.counts[0].keys, of_all.counts[0].exact, of_all.share as u64), (5_000, true, 1));
    }

    #[test]
    fn the_current_row_shows_why_a_decision_was_not_applied() {
        let id = RecordId::from_stored(&[1; 32]).unwrap();
        let (token, other) = (Token::from_random([1; 16]), Token::from_random([2; 16]));
        let second = Duration::from_secs(1);
        let target = Target { id, token, quiet_after: second, ..target() };
        let found = |token, state| CurrentRow { id, current: Some((token, state)), deadline_in_ms: -400, last: None };
        let gone = CurrentRow { id, current: None, deadline_in_ms: 0, last: None };
        let plain = decision(OperatorAction::NotExecuted, false);
        assert_eq!(gone.verdict(&target, &plain, false), DecisionResult::Gone);
        assert_eq!(
            found(other, StateKind::Unknown).verdict(&target, &plain, false),
            DecisionResult::Changed(StateKind::Unknown)
        );
        assert_eq!(
            found(token, StateKind::Completed).verdict(&target, &plain, true),
            DecisionResult::Changed(StateKind::Completed)
        );
        let left = DecisionResult::NotQuiet(Duration::from_millis(600));
        assert_eq!(found(token, StateKind::Unknown).verdict(&target, &plain, false), left);
        let at_risk = decision(OperatorAction::NotExecuted, true);
        assert_eq!(found(token, StateKind::Unknown).verdict(&target, &at_risk, false), DecisionResult::Held);

        // The answer was lost, and the audit log shows that the decision was ours.
        let last = Some(("alice".to_owned(), "resolve".to_owned(), "retryable".to_owned()));
        let ours = CurrentRow { last: last.clone(), ..found(token, StateKind::Retryable) };
        assert_eq!(ours.verdict(&target, &plain, true), DecisionResult::Done);
        assert_eq!(ours.verdict(&target, &plain, false), DecisionResult::Changed(StateKind::Retryable));
        let theirs = CurrentRow { last: last.map(|(_, b, c)| ("bob".to_owned(), b, c)), ..ours };
        assert_eq!(theirs.verdict(&target, &plain, true), DecisionResult::Changed(StateKind::Retryable));

        // A release has left another token there.
        let (release, target) =
            (decision(OperatorAction::Release, false), Target { state: StateKind::Completed, ..target });
        let last = Some(("alice".to_owned(), "release".to_owned(), "retryable".to_owned()));
        for (left, verdict) in [(other, DecisionResult::Done), (token, DecisionResult::Changed(StateKind::Retryable))] {
            let ours = CurrentRow { last: last.clone(), ..found(left, StateKind::Retryable) };
            assert_eq!(ours.verdict(&target, &release, true), verdict);
        }
    }

    #[test]
    fn the_audit_note_holds_the_grounds_and_the_reason() {
        let audit_note = |risk, note: Option<&str>, accept_risk| {
            let decision =
                OperatorDecision { note: note.map(Into::into), ..decision(OperatorAction::Purge, accept_risk) };
            decision.audit_note(&Target { risk, ..target() })
        };
        assert_eq!(audit_note(None, None, false), None);
        assert_eq!(audit_note(None, None, true).as_deref(), Some("accept_risk"));
        assert_eq!(audit_note(Some(ActionRisk::AttemptRunning), None, false).as_deref(), Some("quiet"));
        assert_eq!(audit_note(None, Some("ticket 7"), true).as_deref(), Some("accept_risk; ticket 7"));
    }
}
