//! The operators' side of the store: looking at keys, and deciding about them.
//!
//! [`Books`] is the promise; both stores keep it, and the contract suite holds them to it. All of it is about one
//! service: what others keep in the same database is not seen. Each statement's work is bounded, whatever the table's
//! size, so that somebody who looks is not felt by those who pay. Decisions compare what they were made about: the
//! record's token and state, as they were seen. Each is one commit together with its line in the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Pending, StoreError};
use crate::domain::attempt::{InstanceId, Token};
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::domain::response::StoredResponse;
use crate::domain::scope::Scope;

pub use look::Look;
pub use row::{RawEntry, RawLook, RawNote};

mod look;
mod row;

/// How many rows one statement looks at, at most: some ten milliseconds' work where the table is in memory.
pub const STRETCH: u32 = 10_000;

/// How many decisions go in one commit, at most: what they lock is free again before anybody feels it.
pub const DECISIONS_MAX: usize = 500;

/// What operators ask of a store.
pub trait Books: Send + Sync {
    /// Some of a service's keys that fit, without bodies and fields: at most `limit`, from one stretch of the table.
    /// A page may be empty and not the last.
    fn page(&self, service: Arc<str>, filter: Filter, after: Option<Bookmark>, limit: u32) -> Pending<'_, Page>;

    /// Carries a decision out on those of the keys that are still as they were seen, at most [`DECISIONS_MAX`]. The
    /// verdicts come in the order of the cases.
    fn decide(&self, service: Arc<str>, decision: Arc<Decision>, cases: Vec<Case>) -> Pending<'_, Decided>;

    /// What was decided, the latest first: about one key or all, before that place in the log.
    fn audit(&self, service: Arc<str>, of: Option<RecordId>, before: Option<i64>, limit: u32)
    -> Pending<'_, Vec<Note>>;

    /// How many keys there are.
    fn tally(&self, service: Arc<str>) -> Pending<'_, Tally>;

    /// How many living instances of the service may still remember what was purged by then.
    fn behind(&self, service: Arc<str>, purges: u64) -> Pending<'_, u64>;
}

/// Which keys. Nothing said is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// By their ids.
    pub ids: IdRange,
    /// In this state, as it stands in the store: what is past its TTL keeps its state until the reaper comes.
    pub state: Option<Phase>,
    /// Of callers whose hash begins so.
    pub scope: Option<IdRange>,
    /// Of this route.
    pub route: Option<String>,
    /// With exactly this key, in whatever scope and space.
    pub key: Option<Vec<u8>>,
    /// Settled so long ago, by the store's clock; what is in flight, made so long ago.
    pub older_than: Option<Duration>,
}

impl Filter {
    /// In which order the keys are gone through.
    pub fn order(&self) -> Order {
        match self.state {
            Some(Phase::Dead | Phase::Unknown) => Order::Age,
            Some(Phase::InFlight) => Order::Running,
            Some(Phase::Completed | Phase::Expired | Phase::Queued | Phase::Retryable) | None => Order::Id,
        }
    }
}

/// In which order keys are gone through, which is a question of what is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What was settled first comes first: what waits for somebody to look at it.
    Age,
    /// By id, all of the table, a stretch at a time.
    Id,
    /// By id, what is in flight.
    Running,
}

/// Hashes of 32 bytes between two ends, both of them included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first.
    pub low: Vec<u8>,
    /// The last.
    pub high: Vec<u8>,
}

impl Default for IdRange {
    fn default() -> Self {
        Self { low: Vec::new(), high: vec![0xff; 32] }
    }
}

impl IdRange {
    /// One alone.
    pub fn one(id: RecordId) -> Self {
        Self { low: id.as_bytes().to_vec(), high: id.as_bytes().to_vec() }
    }

    /// Those that begin with these hexadecimal digits, of which there are 1 to 64.
    pub fn of_hex(prefix: &str) -> Option<Self> {
        if prefix.is_empty() || prefix.len() > 64 {
            return None;
        }
        let filled = |with: char| {
            let digits: Vec<_> =
                prefix.chars().chain(std::iter::repeat(with)).take(64).map(|c| c.to_digit(16)).collect();
            digits.chunks(2).map(|pair| u8::try_from(pair[0]? * 16 + pair[1]?).ok()).collect::<Option<Vec<_>>>()
        };
        Some(Self { low: filled('0')?, high: filled('f')? })
    }
}

/// A place in a listing: what was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// When it was settled, in the store's own ticks; 0 where the order is another.
    pub ticks: i64,
    /// Its id.
    pub id: RecordId,
}

impl Bookmark {
    /// The least bytes that come after its id.
    pub fn next_id(&self) -> Vec<u8> {
        self.id.as_bytes().iter().copied().chain([0]).collect()
    }
}

/// What one look came to.
#[derive(Clone, Debug)]
pub struct Page {
    /// What fits.
    pub entries: Vec<Entry>,
    /// Where to look next; `None` where nothing is left.
    pub next: Option<Bookmark>,
}

impl Page {
    /// What a statement found, `scanned` rows up to `last`. A full page goes on after its last entry, a full stretch
    /// after its end.
    pub fn of_stretch(entries: Vec<Entry>, limit: u32, scanned: i64, last: Option<RecordId>) -> Self {
        let full = entries.len() >= limit as usize;
        let place = if full { entries.last().map(|entry| entry.id) } else { last };
        let more = full || scanned >= i64::from(STRETCH);
        Self { next: place.filter(|_| more).map(|id| Bookmark { ticks: 0, id }), entries }
    }

    /// What an index led to: all of it, up to the limit.
    pub fn of_index(entries: Vec<Entry>, limit: u32, order: Order) -> Self {
        let mark = |entry: &Entry| Bookmark { ticks: if order == Order::Age { entry.ticks } else { 0 }, id: entry.id };
        let full = entries.len() >= limit as usize;
        Self { next: entries.last().filter(|_| full).map(mark), entries }
    }
}

/// A key as operators see it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its record.
    pub id: RecordId,
    /// The newest attempt's token, for [`Case`]. Never to be shown.
    pub token: Token,
    /// Its state, as it stands in the store.
    pub state: Phase,
    /// How many attempts there were.
    pub attempts: u32,
    /// Under whose lease the newest runs or ran.
    pub instance: InstanceId,
    /// Whose key it is.
    pub scope: Scope,
    /// Within what it is unique.
    pub space: Vec<u8>,
    /// The client's name for the operation.
    pub key: Vec<u8>,
    /// The route that it came by last.
    pub route: String,
    /// When its first attempt was reserved.
    pub created_at: SystemTime,
    /// When its newest attempt was.
    pub reserved_at: SystemTime,
    /// When that one's time limit ends, or ended.
    pub deadline: SystemTime,
    /// When its state last changed, but in flight.
    pub settled_at: Option<SystemTime>,
    /// When it will be forgotten, where it has a TTL.
    pub expires_at: Option<SystemTime>,
    /// The stored response's status.
    pub status: Option<u16>,
    /// How long its body is; `None` where there is none, or it was too large to keep.
    pub body_bytes: Option<u64>,
    /// How often the service was asked what became of the newest attempt.
    pub probes: u32,
    /// How often in a row it knew of none.
    pub absences: u32,
    /// When it is asked next.
    pub probe_at: Option<SystemTime>,
    /// The store's time, when this was read.
    pub now: SystemTime,
    /// `settled_at` in the store's own ticks.
    pub ticks: i64,
}

impl Entry {
    /// Whether it is past its TTL, and counts as never seen (or as expired) although its row is still there.
    pub fn lapsed(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= self.now)
    }
}

/// What an operator, or whoever acts like one, has decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What.
    pub change: Change,
    /// Who; for people, at most some hundred characters.
    pub actor: String,
    /// On what grounds.
    pub note: Option<String>,
    /// Whether they take upon themselves what else is refused.
    pub accept_risk: bool,
}

impl Decision {
    /// The note as it stands in the audit log: what the decision rests on, and what was said about it.
    pub fn noted(&self) -> Option<String> {
        let grounds = match (self.accept_risk, self.wants_quiet()) {
            (true, _) => Some("accept_risk"),
            (false, true) => Some("quiet"),
            (false, false) => None,
        };
        let said: Vec<_> = grounds.into_iter().chain(self.note.as_deref()).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Whether it is for keys in that state.
    pub fn is_for(&self, state: Phase) -> bool {
        match (&self.change, state) {
            (Change::Complete(_) | Change::NotExecuted, Phase::Dead | Phase::Unknown) => true,
            (Change::Release, Phase::Completed) | (Change::Requeue, Phase::Dead) => true,
            (Change::Purge, Phase::Completed | Phase::Expired | Phase::Retryable) => true,
            (Change::Purge, Phase::Dead | Phase::Queued | Phase::Unknown) => self.accept_risk,
            _ => false,
        }
    }

    /// Whether the newest attempt must be quiet first: nothing of it can be running any more.
    pub fn wants_quiet(&self) -> bool {
        matches!(self.change, Change::NotExecuted) && !self.accept_risk
    }
}

/// The ways in which a key's state can be changed by hand.
#[derive(Clone, Debug)]
pub enum Change {
    /// It has executed, and this is what retries get.
    Complete(StoredResponse),
    /// It has not executed.
    NotExecuted,
    /// Forgotten.
    Purge,
    /// The stored response is dropped, and the attempt's token with it: the next request is the next attempt.
    Release,
    /// The service is to be asked again; what was accepted and is known not to have executed, to be delivered.
    Requeue,
}

impl Change {
    /// What it is called, in the API and in the audit log.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Complete(_) | Self::NotExecuted => "resolve",
            Self::Purge => "purge",
            Self::Release => "release",
            Self::Requeue => "requeue",
        }
    }

    /// Whether it takes a response back that instances may remember.
    pub fn takes_back(&self) -> bool {
        matches!(self, Self::Purge | Self::Release)
    }

    /// What the key becomes, where it was not accepted for delivery; `None` where it goes.
    pub fn leads_to(&self) -> Option<Phase> {
        match self {
            Self::Complete(_) => Some(Phase::Completed),
            Self::NotExecuted | Self::Release => Some(Phase::Retryable),
            Self::Purge => None,
            Self::Requeue => Some(Phase::Unknown),
        }
    }

    /// Whether a key that was accepted for delivery may be queued by it.
    pub fn may_queue(&self) -> bool {
        matches!(self, Self::NotExecuted | Self::Requeue)
    }

    /// What [`Self::leads_to`], as it stands in the audit log.
    pub fn leads_to_name(&self) -> &'static str {
        self.leads_to().map_or("none", Phase::name)
    }
}

/// A key that is decided about, as it was seen, with what its route says.
#[derive(Clone, Debug)]
pub struct Case {
    /// Which record.
    pub id: RecordId,
    /// Its newest attempt.
    pub token: Token,
    /// Its state.
    pub state: Phase,
    /// How long it is remembered from now.
    pub ttl: Duration,
    /// How long past that, to refuse late retries.
    pub remember: Option<Duration>,
    /// How long past its deadline nothing of its newest attempt can be running any more.
    pub quiet_after: Duration,
}

/// What became of the cases.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// In their order.
    pub verdicts: Vec<Verdict>,
    /// Those that wait for their next delivery now.
    pub queued: Vec<RecordId>,
    /// The count of purges after this one, where something was purged.
    pub purges: Option<u64>,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The key has changed since it was seen, and this is its state now.
    Changed(Phase),
    /// It is as was decided, durably, and stands in the audit log.
    Done,
    /// There is no such key any more.
    Gone,
    /// Somebody's open transaction holds it.
    Held,
    /// Its newest attempt may be running for so long.
    NotQuiet(Duration),
    /// The decision is none for keys in its state.
    Unfit,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its place in the log.
    pub seq: i64,
    /// When, by the store's clock.
    pub at: SystemTime,
    /// Who.
    pub actor: String,
    /// What.
    pub action: String,
    /// About which key.
    pub id: RecordId,
    /// Its state before.
    pub before: String,
    /// And after; `none` where it was forgotten.
    pub after: String,
    /// On what grounds.
    pub note: Option<String>,
}

/// How many keys there are, by route and state.
///
/// What is in flight, queued, unknown or dead is counted by its indexes, up to [`COUNTED_MAX`] rows of each. Of the rest
/// the first [`STRETCH`] rows in the order of their ids are counted: ids are hashes, so they are a fair sample, and the
/// last of them tells which share of all it is. A table that has no more is counted exactly.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Each route and state that was met.
    pub counts: Vec<Count>,
    /// How many rows the sample has, of all services.
    pub sampled: u64,
    /// Which share of the table that is, from 0 to 1; 1 where it is all.
    pub share: f64,
}

/// How many keys of a route are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The route's name.
    pub route: String,
    /// The state.
    pub state: Phase,
    /// How many.
    pub keys: u64,
    /// Whether they were counted, and not estimated or cut off.
    pub exact: bool,
}

/// How many unsettled keys of one state are counted, at most.
pub const COUNTED_MAX: u32 = 100_000;

/// A group of rows as it was counted.
#[derive(Clone, Debug)]
pub struct RawCount {
    /// The route's name.
    pub route: String,
    /// The state.
    pub state: Phase,
    /// How many rows.
    pub rows: u64,
}

impl Tally {
    /// From the unsettled rows, and a sample of `sampled` rows whose last has the id `last`.
    pub fn of(unsettled: Vec<RawCount>, settled: Vec<RawCount>, sampled: u64, last: Option<RecordId>) -> Self {
        let whole = sampled < u64::from(STRETCH);
        let share = match last {
            Some(last) if !whole => {
                let head = u64::from_be_bytes(last.as_bytes()[..8].try_into().unwrap_or([0xff; 8]));
                (head as f64 + 1.0) / (u64::MAX as f64)
            }
            _ => 1.0,
        };
        let mut of_state = BTreeMap::<Phase, u64>::new();
        unsettled.iter().for_each(|count| *of_state.entry(count.state).or_default() += count.rows);
        let counted = unsettled.into_iter().map(|RawCount { route, state, rows }| {
            let exact = of_state[&state] < u64::from(COUNTED_MAX);
            Count { route, state, keys: rows, exact }
        });
        let estimated = settled.into_iter().map(|RawCount { route, state, rows }| {
            let keys = (rows as f64 / share).round() as u64;
            Count { route, state, keys, exact: whole }
        });
        let mut counts: Vec<_> = counted.chain(estimated).collect();
        counts.sort_by(|one, other| (&one.route, one.state).cmp(&(&other.route, other.state)));
        Self { counts, sampled, share }
    }
}

/// Waits until every living instance of the service has forgotten what was purged by then, for so long at most. Tells how
/// many have not.
///
/// # Errors
/// [`StoreError`], where it cannot be told.
pub async fn forgotten(
    books: &dyn Books,
    service: Arc<str>,
    purges: u64,
    patience: Duration,
) -> Result<u64, StoreError> {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let behind = books.behind(Arc::clone(&service), purges).await?;
        if behind == 0 || tokio::time::Instant::now() >= deadline {
            return Ok(behind);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn decision(change: Change, accept_risk: bool) -> Decision {
        Decision { change, actor: "alice".into(), note: None, accept_risk }
    }

    fn response() -> StoredResponse {
        StoredResponse { status: StatusCode::OK, headers: HeaderMap::new(), body: None, trailers: HeaderMap::new() }
    }

    #[test]
    fn each_change_is_for_its_states_and_none_is_for_what_runs() {
        use Phase::{Completed, Dead, Expired, Queued, Retryable, Unknown};
        for (change, plain, at_risk) in [
            (Change::Complete(response()), &[Dead, Unknown][..], &[Dead, Unknown][..]),
            (Change::NotExecuted, &[Dead, Unknown], &[Dead, Unknown]),
            (Change::Release, &[Completed], &[Completed]),
            (Change::Requeue, &[Dead], &[Dead]),
            (Change::Purge, &[Completed, Expired, Retryable], &[Completed, Dead, Expired, Queued, Retryable, Unknown]),
        ] {
            for (accept_risk, states) in [(false, plain), (true, at_risk)] {
                let decision = decision(change.clone(), accept_risk);
                let fit: Vec<_> = Phase::ALL.into_iter().filter(|state| decision.is_for(*state)).collect();
                assert_eq!(fit, states, "{decision:?}");
            }
        }
    }

    #[test]
    fn a_prefix_is_a_range_of_hashes() {
        let range = IdRange::of_hex("0a1").unwrap();
        assert_eq!((&range.low[..3], range.low.len()), (&[0x0a, 0x10, 0][..], 32));
        assert_eq!((&range.high[..3], range.high.len()), (&[0x0a, 0x1f, 0xff][..], 32));
        let whole = IdRange::of_hex(&"ab".repeat(32)).unwrap();
        assert_eq!(whole, IdRange::one(RecordId::from_stored(&[0xab; 32]).unwrap()));
        for wrong in ["", "xyz", &"a".repeat(65), "ä", "+1"] {
            assert_eq!(IdRange::of_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_sample_tells_of_all_by_where_it_ends() {
        let settled = |rows| vec![RawCount { route: "pay".into(), state: Phase::Completed, rows }];
        let last = |first: u8| {
            let mut id = [0xff; 32];
            id[0] = first;
            RecordId::from_stored(&id)
        };
        let stretch = u64::from(STRETCH);
        // The sample ends after a sixteenth of all hashes.
        let tally = Tally::of(vec![], settled(5_000), stretch, last(0x0f));
        assert_eq!((tally.counts[0].keys, tally.counts[0].exact), (80_000, false));
        let tally = Tally::of(vec![], settled(5_000), stretch - 1, last(0x0f));
        assert_eq!((tally.counts[0].keys, tally.counts[0].exact, tally.share as u64), (5_000, true, 1));
    }

    #[test]
    fn why_a_decision_did_not_take_is_told() {
        let id = RecordId::from_stored(&[1; 32]).unwrap();
        let (token, other) = (Token::from_random([1; 16]), Token::from_random([2; 16]));
        let second = Duration::from_secs(1);
        let case = Case { id, token, state: Phase::Unknown, ttl: second, remember: None, quiet_after: second };
        let stands = |token, state| Look { id, stands: Some((token, state)), deadline_in_ms: -400, last: None };
        let gone = Look { id, stands: None, deadline_in_ms: 0, last: None };
        let plain = decision(Change::NotExecuted, false);
        assert_eq!(gone.verdict(&case, &plain, false), Verdict::Gone);
        assert_eq!(stands(other, Phase::Unknown).verdict(&case, &plain, false), Verdict::Changed(Phase::Unknown));
        assert_eq!(stands(token, Phase::Completed).verdict(&case, &plain, true), Verdict::Changed(Phase::Completed));
        let left = Verdict::NotQuiet(Duration::from_millis(600));
        assert_eq!(stands(token, Phase::Unknown).verdict(&case, &plain, false), left);
        let at_risk = decision(Change::NotExecuted, true);
        assert_eq!(stands(token, Phase::Unknown).verdict(&case, &at_risk, false), Verdict::Held);

        // The answer got lost, and the log says that it was us.
        let last = Some(("alice".to_owned(), "resolve".to_owned(), "retryable".to_owned()));
        let ours = Look { last: last.clone(), ..stands(token, Phase::Retryable) };
        assert_eq!(ours.verdict(&case, &plain, true), Verdict::Done);
        assert_eq!(ours.verdict(&case, &plain, false), Verdict::Changed(Phase::Retryable));
        let theirs = Look { last: last.map(|(_, b, c)| ("bob".to_owned(), b, c)), ..ours };
        assert_eq!(theirs.verdict(&case, &plain, true), Verdict::Changed(Phase::Retryable));

        // A release has left another token there.
        let (release, case) = (decision(Change::Release, false), Case { state: Phase::Completed, ..case });
        let last = Some(("alice".to_owned(), "release".to_owned(), "retryable".to_owned()));
        for (left, verdict) in [(other, Verdict::Done), (token, Verdict::Changed(Phase::Retryable))] {
            let ours = Look { last: last.clone(), ..stands(left, Phase::Retryable) };
            assert_eq!(ours.verdict(&case, &release, true), verdict);
        }
    }

    #[test]
    fn what_a_decision_says_stands_in_the_log() {
        let said = |note: Option<&str>, accept_risk| {
            Decision { note: note.map(Into::into), ..decision(Change::Purge, accept_risk) }.noted()
        };
        assert_eq!(said(None, false), None);
        assert_eq!(said(None, true).as_deref(), Some("accept_risk"));
        assert_eq!(decision(Change::NotExecuted, false).noted().as_deref(), Some("quiet"));
        assert_eq!(said(Some("ticket 7"), true).as_deref(), Some("accept_risk; ticket 7"));
    }
}
