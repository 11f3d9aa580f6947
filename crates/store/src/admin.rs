//! The operators' side of the store: listing keys, and applying decisions to them.
//!
//! A decision compares the record's token and state with those that the operator saw. Each decision is one commit
//! together with its audit entry.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::row::{FromRow, RowReader, from_row, since_1970_ms};
use oncegate_domain::execution_risk::{ActionKind, ActionRisk, FourEyesAction};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::lookup::LookupHash;
use oncegate_domain::response::{CorruptRow, StoredResponse};
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;

pub use current_row::CurrentRow;
pub use id_range::IdRange;
pub(super) use key_counts::RowCounts;
pub use key_counts::{COUNTED_MAX, CountSample, KeyCount, KeyCounts, KeysWithoutRoute};
pub use key_entry::{EarlierAttempt, KeyEntry};

mod current_row;
mod id_range;
mod key_counts;
mod key_entry;

/// The most rows that one statement reads: about ten milliseconds' work where the table is in memory.
pub const SCAN_ROWS_MAX: u32 = 10_000;

/// The most decisions in one commit: few enough that their row locks delay no request noticeably.
pub const DECISIONS_MAX: usize = 500;

/// A filter on keys. The default fits all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFilter {
    /// All ids by default. Beside a narrower range, no other condition counts.
    pub ids: IdRange,
    /// The stored state: a record past its TTL keeps its state until it is reaped.
    pub state: Option<StateKind>,
    pub scope: Option<IdRange>,
    pub route: Option<String>,
    pub key: Option<Vec<u8>>,
    /// The beginning of the newest request's path, of which the record keeps 256 bytes.
    pub path: Option<String>,
    /// The first time at which a key may have been seen first.
    pub created_from: Option<SystemTime>,
    /// The time before which it was seen first.
    pub created_until: Option<SystemTime>,
    /// A value of its request, as [`Salt::lookup`](oncegate_domain::scope::Salt::lookup) hashes it.
    pub lookup: Option<LookupHash>,
    /// The least time since the key was settled, by the store's clock; since it was created, where it is in flight.
    pub older_than: Option<Duration>,
}

impl KeyFilter {
    pub fn order(&self) -> ListOrder {
        match self.state {
            _ if self.ids != IdRange::default() => ListOrder::Id,
            _ if self.lookup.is_some() => ListOrder::Newest,
            Some(StateKind::Dead | StateKind::Unknown) => ListOrder::Age,
            Some(StateKind::InFlight) => ListOrder::Running,
            Some(StateKind::Completed | StateKind::Expired | StateKind::Queued | StateKind::Retryable) | None => {
                ListOrder::Newest
            }
        }
    }
}

/// The order in which keys are listed; it follows from the indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// The key that was settled first comes first: for keys that wait for an operator.
    Age,
    /// By id, among those that begin alike.
    Id,
    /// The key that was seen last for the first time comes first: over the whole table, a scan at a time.
    Newest,
    /// By id, among the keys in flight.
    Running,
}

/// A position in a listing: the last key read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The time by which the order goes, in milliseconds since 1970; 0 in an order of ids.
    pub at_ms: i64,
    pub id: RecordId,
}

#[derive(Clone, Debug, Default)]
pub struct KeyPage {
    pub entries: Vec<KeyEntry>,
    /// The position to continue from; `None` on the last page.
    pub next: Option<Cursor>,
}

impl KeyPage {
    /// Adds a row of a listing. A full page continues after its last entry, a full scan after its end; an index search
    /// finds all keys that fit, up to the limit.
    pub(super) fn add(&mut self, row: &impl RowReader, filter: &KeyFilter, limit: u32) -> Result<(), CorruptRow> {
        if filter.order() == ListOrder::Newest {
            let (scanned, end): (u64, Option<RecordId>) = (row.read("scanned")?, row.read("last")?);
            let end = end.filter(|_| scanned >= u64::from(SCAN_ROWS_MAX)).zip(row.read("last_at")?);
            self.next = end.map(|(id, at_ms)| Cursor { at_ms, id });
            // A scan that finds nothing has a row for its end.
            if row.read::<Option<RecordId>>("id")?.is_none() {
                return Ok(());
            }
        }
        let entry = KeyEntry::read(row)?;
        if self.entries.len() + 1 >= limit as usize {
            let at = match filter.order() {
                ListOrder::Age => entry.settled_at,
                ListOrder::Newest => Some(entry.created_at),
                ListOrder::Id | ListOrder::Running => None,
            };
            self.next = Some(Cursor { at_ms: at.map_or(0, since_1970_ms), id: entry.id });
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// A decision of an operator, or of a program that acts like one.
#[derive(Clone, Debug)]
pub struct OperatorDecision {
    pub change: OperatorAction,
    /// The person or program that decided; for people to read, at most some hundred characters.
    pub actor: String,
    pub note: Option<String>,
    /// Whether the operator accepts a risk for which the decision is otherwise refused.
    pub accept_risk: bool,
    /// Whether an empty body of its response was written as one, and not left out.
    pub means_empty_body: bool,
}

impl OperatorDecision {
    /// The note for the audit log: the grounds on which the decision was allowed, and the operator's reason.
    pub fn audit_note(&self, target: &Target) -> Option<String> {
        let grounds = match (self.accept_risk, self.requires_quiet(target)) {
            (true, _) => Some(GROUNDS[0]),
            (false, true) => Some(GROUNDS[1]),
            (false, false) => None,
        };
        let proposed = matches!(self.change, OperatorAction::Propose(_)).then(|| proposal_mark(&target.token));
        let parts: Vec<_> = grounds.into_iter().chain(proposed.as_deref()).chain(self.note.as_deref()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The response that the key gets, as it is stored.
    pub fn response<'a>(&'a self, target: &'a Target) -> Option<&'a Arc<StoredResponse>> {
        let response = self.change.response()?;
        Some(target.sealed_response.as_ref().unwrap_or(response))
    }

    /// Whether the decision is possible in the key's state, and its risk is accepted, or is none once the attempt is
    /// quiet.
    pub fn is_allowed(&self, target: &Target) -> bool {
        let is_safe = matches!(target.risk, None | Some(ActionRisk::AttemptRunning));
        let is_possible = target.is_by_hand || !matches!(self.change, OperatorAction::Replace(_));
        self.change.kind().is_for(target.state) && is_possible && (self.accept_risk || is_safe)
    }

    /// Whether the newest attempt must be quiet first, that is: nothing of it can be running any more.
    pub fn requires_quiet(&self, target: &Target) -> bool {
        target.risk == Some(ActionRisk::AttemptRunning) && !self.accept_risk
    }
}

/// The words in a proposal's note that name the attempt which the proposer saw. The token itself is a capability.
pub fn proposal_mark(token: &Token) -> String {
    format!("of attempt {}", &HEXLOWER.encode(&Sha256::digest(token.as_bytes()))[..16])
}

/// Whether a proposal's note names this attempt. Its mark stands behind the grounds, if it has some, and before the
/// text that the proposer has typed, which may look like a mark.
pub fn names_attempt(note: &str, token: &Token) -> bool {
    let marked = GROUNDS.iter().find_map(|grounds| note.strip_prefix(grounds)?.strip_prefix("; ")).unwrap_or(note);
    marked.split("; ").next() == Some(&*proposal_mark(token))
}

/// The grounds of a decision: the operator accepts its risk, or nothing of the attempt can be running any more.
const GROUNDS: [&str; 2] = ["accept_risk", "quiet"];

/// The changes that an operator can make to a key.
#[derive(Clone, Debug)]
pub enum OperatorAction {
    /// The request has executed, and retries get this response.
    Complete(Arc<StoredResponse>),
    NotExecuted,
    /// Nothing changes: the audit log says that this person proposes this action.
    Propose(FourEyesAction),
    Purge,
    /// The caller's data in the record are dropped: response, path, key and lookups. Its retries are refused, also
    /// those that would be executed.
    Redact,
    /// The stored response is dropped and the token replaced: the next request becomes the next attempt.
    Release,
    /// The response that an operator has written is replaced by this one.
    Replace(Arc<StoredResponse>),
    /// The service is asked again; an accepted key that is known not to have executed is delivered again.
    Requeue,
}

impl OperatorAction {
    /// The kind, by which its risk is judged.
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Complete(_) => ActionKind::Completed,
            Self::NotExecuted => ActionKind::NotExecuted,
            Self::Propose(action) => action.kind(),
            Self::Purge => ActionKind::Purge,
            Self::Redact => ActionKind::Redact,
            Self::Release => ActionKind::Release,
            Self::Replace(_) => ActionKind::Replace,
            Self::Requeue => ActionKind::Requeue,
        }
    }

    /// The response that an operator has written.
    pub fn response(&self) -> Option<&Arc<StoredResponse>> {
        match self {
            Self::Complete(response) | Self::Replace(response) => Some(response),
            Self::NotExecuted | Self::Propose(_) | Self::Purge | Self::Redact | Self::Release | Self::Requeue => None,
        }
    }

    /// The action's name in the API and in the audit log.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Complete(_) | Self::NotExecuted => "resolve",
            Self::Propose(action) => action.proposal(),
            Self::Purge => "purge",
            Self::Redact => "redact",
            Self::Release => "release",
            Self::Replace(_) => "replace",
            Self::Requeue => "requeue",
        }
    }

    /// Whether it withdraws a response that instances may have cached.
    pub fn withdraws_response(&self) -> bool {
        matches!(self, Self::Purge | Self::Redact | Self::Release | Self::Replace(_))
    }

    /// The new state of a key in a state, where it was not accepted for delivery; `None` where the record is deleted,
    /// or nothing changes.
    pub fn resulting_state(&self, from: StateKind) -> Option<StateKind> {
        match self {
            Self::Complete(_) | Self::Replace(_) => Some(StateKind::Completed),
            Self::NotExecuted | Self::Release => Some(StateKind::Retryable),
            Self::Propose(_) | Self::Purge => None,
            Self::Redact if from == StateKind::Completed => Some(StateKind::Completed),
            Self::Redact => Some(StateKind::Expired),
            Self::Requeue => Some(StateKind::Unknown),
        }
    }

    /// Whether it may queue a key that was accepted for delivery.
    pub fn may_queue(&self) -> bool {
        matches!(self, Self::NotExecuted | Self::Requeue)
    }

    /// The name of [`Self::resulting_state`] in the audit log.
    pub fn resulting_state_name(&self, from: StateKind) -> &'static str {
        self.resulting_state(from).map_or("none", StateKind::name)
    }
}

/// A key that a decision is about, as the operator saw it, with its route's settings.
#[derive(Clone, Debug)]
pub struct Target {
    pub id: RecordId,
    pub token: Token,
    /// The token that the key gets if the decision withdraws its response: the attempt cannot end a second time.
    pub new_token: Token,
    pub state: StateKind,
    /// The route and when the state began, for counts.
    pub route: Arc<str>,
    pub settled_at: Option<SystemTime>,
    pub is_by_hand: bool,
    pub risk: Option<ActionRisk>,
    pub ttl: Duration,
    /// The time past its TTL for which the key is remembered, to refuse late retries.
    pub remember: Option<Duration>,
    /// The time past the newest attempt's deadline after which nothing of it can be running any more.
    pub quiet_after: Duration,
    /// The decision's response as the store encrypts it for this key; `None` where it does not, or there is none.
    pub sealed_response: Option<Arc<StoredResponse>>,
}

#[derive(Clone, Debug, Default)]
pub struct DecisionResults {
    /// One result for each target, in their order.
    pub verdicts: Vec<DecisionResult>,
    /// The keys that now wait for their next delivery.
    pub queued: Vec<RecordId>,
    /// The purge count after this decision, where it withdrew a response.
    pub purges: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The key is not as the operator saw it: this is its state now.
    Changed(StateKind),
    Done,
    Gone,
    /// Another transaction has locked the row.
    Held,
    /// The newest attempt may still be running for this long.
    NotQuiet(Duration),
    /// The decision does not apply to the key's state, or not unless its risk is accepted.
    Unfit,
}

from_row! {
    /// An entry of the audit log.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
    pub struct AuditEntry {
        #[serde(skip)]
        pub seq: i64,
        /// The time, by the store's clock.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "rfc3339::Written")]
        pub at: SystemTime,
        pub actor: String,
        pub action: String,
        pub id: RecordId,
        pub before: String,
        /// The state after; `none` where the record was deleted.
        pub after: String,
        pub note: Option<String>,
    }

    /// The lease of an instance. All times are the store's.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct InstanceEntry {
        pub id: InstanceId,
        /// When it took its lease.
        pub started_at: SystemTime,
        pub renewed_at: SystemTime,
        pub lease_until: SystemTime,
        /// The time of the reading.
        pub now: SystemTime,
    }
}

impl InstanceEntry {
    pub fn is_leased(&self) -> bool {
        self.now < self.lease_until
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::row::StoredValue;
    use crate::row::tests::TestRow;

    fn decision(change: OperatorAction, accept_risk: bool) -> OperatorDecision {
        OperatorDecision { change, actor: "alice".into(), note: None, accept_risk, means_empty_body: false }
    }

    fn target() -> Target {
        Target {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([1; 16]),
            new_token: Token::from_random([2; 16]),
            state: StateKind::Unknown,
            route: "pay".into(),
            settled_at: None,
            is_by_hand: true,
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
            (OperatorAction::Replace(response().into()), &[Completed]),
            (OperatorAction::Redact, &[Completed, Expired, Retryable]),
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
        let of_service = Target { state: Completed, risk: None, is_by_hand: false, ..target() };
        assert!(!decision(OperatorAction::Replace(response().into()), true).is_allowed(&of_service));
    }

    #[test]
    fn a_scan_goes_on_after_its_end_where_it_was_full() {
        let id = RecordId::from_stored(&[7; 32]);
        let next = |scanned| {
            let (mut page, last) = (KeyPage::default(), Some(StoredValue::Bytes(&[7; 32])));
            let scanned = Some(StoredValue::Number(scanned));
            let row = [("scanned", scanned), ("last", last), ("last_at", Some(StoredValue::Number(5))), ("id", None)];
            page.add(&TestRow(row.into()), &KeyFilter::default(), 10).unwrap();
            page.next.map(|cursor| (cursor.at_ms, cursor.id))
        };
        assert_eq!(next(i64::from(SCAN_ROWS_MAX)), id.map(|id| (5, id)));
        assert_eq!(next(i64::from(SCAN_ROWS_MAX) - 1), None);
    }

    #[test]
    fn a_lease_has_ended_at_its_end() {
        let [started_at, renewed_at, lease_until, before] =
            [1, 2, 10, 9].map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
        let entry = |now| InstanceEntry { id: InstanceId::from_stored(1), started_at, renewed_at, lease_until, now };
        assert_eq!([before, lease_until].map(|now| entry(now).is_leased()), [true, false]);
    }

    #[test]
    fn the_current_row_shows_why_a_decision_was_not_applied() {
        use DecisionResult::{Changed, Done, Gone, Held, NotQuiet};
        use OperatorAction::{NotExecuted, Release};
        use StateKind::{Completed, Retryable, Unknown};
        let (token, other) = (target().token, target().new_token);
        let left = NotQuiet(Duration::from_millis(600));
        for (change, accept_risk, current, last, in_doubt, verdict) in [
            (NotExecuted, false, None, None, false, Gone),
            (NotExecuted, false, Some((other, Unknown)), None, false, Changed(Unknown)),
            (NotExecuted, false, Some((token, Completed)), None, true, Changed(Completed)),
            (NotExecuted, false, Some((token, Unknown)), None, false, left),
            (NotExecuted, true, Some((token, Unknown)), None, false, Held),
            // The answer was lost, and the audit log shows that the decision was ours.
            (NotExecuted, false, Some((token, Retryable)), Some(("alice", "resolve")), true, Done),
            (NotExecuted, false, Some((token, Retryable)), Some(("alice", "resolve")), false, Changed(Retryable)),
            (NotExecuted, false, Some((token, Retryable)), Some(("bob", "resolve")), true, Changed(Retryable)),
            // A release has left another token there.
            (Release, false, Some((other, Retryable)), Some(("alice", "release")), true, Done),
            (Release, false, Some((token, Retryable)), Some(("alice", "release")), true, Changed(Retryable)),
        ] {
            let state = if matches!(change, Release) { Completed } else { Unknown };
            let last = last.map(|(actor, action)| (actor.to_owned(), action.to_owned(), "retryable".to_owned()));
            let row = CurrentRow { id: target().id, current, deadline_in_ms: -400, last };
            let found = row.verdict(&Target { state, ..target() }, &decision(change, accept_risk), in_doubt);
            assert_eq!(found, verdict, "{row:?}");
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
