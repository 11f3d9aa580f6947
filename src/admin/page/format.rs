//! View models: typed results as the templates show them. Of a key its first characters, times by their age and in UTC.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use super::text;
use crate::admin::key_admin::dto::{AuditLog, FingerprintSummary, KeyDetails, KeyList, KeyStats, ResponseSummary};
use crate::admin::key_admin::params::cursor_text;
use crate::admin::key_admin::timeline::{TimelineEvent, timeline};
use crate::domain::execution_risk::{ActionKind, ActionRisk};
use crate::domain::key::shorten_middle;
use crate::domain::quantity::quantity;
use crate::domain::rfc3339;
use crate::domain::state::StateKind;
use crate::domain::unknown_cause::UnknownCause;
use crate::instance::observability::{RepeatingCaller, UnguardedPath};
use crate::store::admin::{AuditEntry, KeyCount, KeyEntry, KeysWithoutRoute};

/// The number of characters of a key that a list shows.
const KEY_CHARS_MAX: usize = 25;
/// The number of digits of an id that are shown: unique among more keys than fit on any disk.
const ID_DIGITS: usize = 16;
/// The number of digits of a caller's hash that are shown: enough to tell two apart.
const HASH_DIGITS: usize = 12;

/// A time.
#[derive(Clone, Copy, Debug)]
pub struct TimeView(SystemTime);

impl TimeView {
    pub fn at(time: SystemTime) -> Self {
        Self(time)
    }

    pub fn now() -> Self {
        Self(SystemTime::now())
    }

    /// RFC 3339, for programs.
    pub fn iso(self) -> String {
        rfc3339::format(self.0)
    }

    /// To the second, for people who compare it with a log.
    pub fn utc(self) -> String {
        format!("{} UTC", self.iso().get(..19).unwrap_or_default().replace('T', " "))
    }

    /// Returns the time since then, or until then.
    pub fn age(self) -> String {
        match SystemTime::now().duration_since(self.0) {
            Ok(ago) => format!("{} ago", format_span(ago)),
            Err(ahead) => format!("in {}", format_span(ahead.duration())),
        }
    }
}

/// A time span in its largest unit of which it has at least two.
fn format_span(span: Duration) -> String {
    match span.as_secs() {
        1 => "1 second".to_owned(),
        seconds @ 0..120 => format!("{seconds} seconds"),
        seconds @ 120..7_200 => format!("{} minutes", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} hours", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A page of keys.
#[derive(Debug, Default)]
pub struct KeyListView {
    pub keys: Vec<KeyView>,
    pub next_cursor: Option<String>,
}

impl From<KeyList> for KeyListView {
    fn from(list: KeyList) -> Self {
        let KeyList { keys, next } = list;
        Self { keys: keys.iter().map(KeyView::from).collect(), next_cursor: next.map(cursor_text) }
    }
}

/// A key. No template shows its token.
#[derive(Debug)]
pub struct KeyView(KeyEntry);

impl From<&KeyEntry> for KeyView {
    fn from(entry: &KeyEntry) -> Self {
        Self(entry.clone())
    }
}

/// Templates show columns as they are, or by one of the methods below.
impl Deref for KeyView {
    type Target = KeyEntry;

    fn deref(&self) -> &KeyEntry {
        &self.0
    }
}

impl KeyView {
    fn utf8_key(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0.key)
    }

    pub fn created_at(&self) -> TimeView {
        TimeView(self.created_at)
    }

    pub fn reserved_at(&self) -> TimeView {
        TimeView(self.reserved_at)
    }

    pub fn deadline(&self) -> TimeView {
        TimeView(self.deadline)
    }

    pub fn settled_at(&self) -> Option<TimeView> {
        self.settled_at.map(TimeView)
    }

    pub fn expires_at(&self) -> Option<TimeView> {
        self.expires_at.map(TimeView)
    }

    pub fn probe_at(&self) -> Option<TimeView> {
        self.probe_at.map(TimeView)
    }

    /// The key's beginning and end, for lists.
    pub fn key(&self) -> String {
        shorten_key(&self.utf8_key())
    }

    /// The whole key, where somebody decides about it.
    pub fn whole_key(&self) -> String {
        make_visible(&self.utf8_key())
    }

    /// The cause for which the outcome is unknown; `None` for keys in other states.
    pub fn cause(&self) -> Option<CauseView> {
        let undecided = matches!(self.state, StateKind::Dead | StateKind::Unknown);
        self.cause.filter(|_| undecided).map(CauseView)
    }

    pub fn id(&self) -> String {
        self.id.to_string().chars().take(ID_DIGITS).collect()
    }

    pub fn scope(&self) -> String {
        shorten(&self.scope.to_string(), HASH_DIGITS)
    }

    /// The whole hash, for the link to this caller's keys.
    pub fn scope_query(&self) -> String {
        self.scope.to_string()
    }

    pub fn space(&self) -> String {
        make_visible(&self.space.to_string())
    }

    /// The path of its newest request; `None` where it was not kept.
    pub fn path(&self) -> Option<String> {
        self.path.as_deref().map(make_visible)
    }

    /// The time at which its state began; a key in flight has not been settled.
    pub fn since(&self) -> TimeView {
        TimeView(self.settled_at.unwrap_or(self.reserved_at))
    }

    pub fn explanation(&self) -> &'static str {
        text::explain_state(self.state, self.accepted_at.is_some())
    }

    pub fn actions(&self) -> &'static [ActionKind] {
        ActionKind::for_state(self.state)
    }

    /// The version that a decision is made about: it must still be the same when the decision is carried out.
    pub fn version(&self) -> String {
        format!("{}-{}", self.state, self.attempts)
    }
}

/// The cause of an unknown outcome.
#[derive(Clone, Copy, Debug)]
pub struct CauseView(UnknownCause);

impl CauseView {
    pub fn name(&self) -> String {
        self.0.to_string()
    }

    pub fn explanation(&self) -> String {
        text::explain_cause(self.0)
    }
}

/// An event in the history of a key.
#[derive(Debug)]
pub enum EventView {
    Attempt { at: TimeView, number: u32, instance: String, end: String, cause: Option<CauseView> },
    Decision(AuditEntryView),
}

impl From<TimelineEvent> for EventView {
    fn from(event: TimelineEvent) -> Self {
        match event {
            TimelineEvent::Attempt(attempt) => Self::Attempt {
                at: TimeView(attempt.began_at),
                number: attempt.number,
                instance: attempt.instance.to_string(),
                end: match (attempt.state, attempt.duration()) {
                    (Some(state), Some(took)) => format!("{state} after {}", format_duration(took)),
                    (Some(state), None) => state.to_string(),
                    (None, _) => String::new(),
                },
                cause: attempt.cause.map(CauseView),
            },
            TimelineEvent::Decision(entry) => Self::Decision(AuditEntryView::from(entry)),
        }
    }
}

/// A duration in milliseconds below ten seconds, else in its largest unit.
pub fn format_duration(took: Duration) -> String {
    if took < Duration::from_secs(10) { format!("{} ms", took.as_millis()) } else { format_span(took) }
}

/// The details of a key that its own page shows.
#[derive(Debug)]
pub struct KeyDetailsView {
    pub quiet: bool,
    pub risks: Vec<(ActionKind, ActionRisk)>,
    pub quiet_at: Option<TimeView>,
    pub fingerprint: Option<FingerprintSummary>,
    pub response: Option<ResponseView>,
    pub timeline: Vec<EventView>,
}

impl From<KeyDetails> for KeyDetailsView {
    fn from(details: KeyDetails) -> Self {
        Self {
            quiet: details.is_quiet,
            risks: details.risks,
            quiet_at: details.quiet_at.map(TimeView),
            fingerprint: details.fingerprint,
            response: details.response.map(ResponseView::from),
            timeline: timeline(&details.entry, &details.audit).into_iter().map(EventView::from).collect(),
        }
    }
}

/// A stored response.
#[derive(Debug)]
pub enum ResponseView {
    Corrupt(String),
    Stored { status: u16, body: String, field_names: String },
}

impl From<ResponseSummary> for ResponseView {
    fn from(response: ResponseSummary) -> Self {
        match response {
            ResponseSummary::Corrupt(row) => Self::Corrupt(row.to_string()),
            ResponseSummary::Stored { status, headers, trailers: _, body_bytes } => {
                let body = body_bytes.map(|bytes| quantity(bytes as u64, "byte", "bytes"));
                let body = body.unwrap_or_else(|| "a body that was not kept".into());
                Self::Stored { status: status.as_u16(), body, field_names: headers.join(", ") }
            }
        }
    }
}

/// Some of the audit log.
#[derive(Debug, Default)]
pub struct AuditLogView {
    pub entries: Vec<AuditEntryView>,
    pub next_cursor: Option<String>,
}

impl From<AuditLog> for AuditLogView {
    fn from(log: AuditLog) -> Self {
        let AuditLog { entries, next } = log;
        Self {
            entries: entries.into_iter().map(AuditEntryView::from).collect(),
            next_cursor: next.map(|place| place.to_string()),
        }
    }
}

/// An entry of the audit log.
#[derive(Debug)]
pub struct AuditEntryView {
    pub at: TimeView,
    actor: String,
    pub action: String,
    pub id: String,
    pub before: String,
    pub after: String,
    note: Option<String>,
}

impl From<AuditEntry> for AuditEntryView {
    fn from(entry: AuditEntry) -> Self {
        let AuditEntry { seq: _, at, actor, action, id, before, after, note } = entry;
        Self { at: TimeView(at), actor, action, id: id.to_string(), before, after, note }
    }
}

impl AuditEntryView {
    pub fn actor(&self) -> String {
        make_visible(&self.actor)
    }

    pub fn id(&self) -> String {
        self.id.chars().take(ID_DIGITS).collect()
    }

    pub fn note(&self) -> Option<String> {
        self.note.as_deref().map(make_visible)
    }
}

/// The numbers of keys, and the traffic that this instance has seen.
#[derive(Debug)]
pub struct StatsView {
    counts: Vec<KeyCount>,
    /// Unsettled keys of routes that are not configured.
    pub without_route: Vec<KeysWithoutRoute>,
    /// Requests that no route guards, the most frequent first.
    pub unguarded: Vec<UnguardedView>,
    /// Callers whose requests were repeated or did not match.
    pub callers: Vec<CallerView>,
}

impl From<KeyStats> for StatsView {
    fn from(stats: KeyStats) -> Self {
        let (callers, unguarded) = stats.instance.map(|seen| (seen.callers, seen.unguarded)).unwrap_or_default();
        Self {
            counts: stats.counts.counts,
            without_route: stats.without_route,
            unguarded: unguarded.into_iter().map(UnguardedView).collect(),
            callers: callers.into_iter().map(CallerView).collect(),
        }
    }
}

/// A state-changing method and path.
#[derive(Debug)]
pub struct UnguardedView(UnguardedPath);

impl UnguardedView {
    pub fn method(&self) -> String {
        make_visible(&self.0.method)
    }

    pub fn path(&self) -> String {
        make_visible(&self.0.path)
    }

    pub fn requests(&self) -> u64 {
        self.0.requests
    }

    /// The number of those requests that carried a key.
    pub fn with_key(&self) -> u64 {
        self.0.with_key
    }
}

/// A caller, by the hash of their scope.
#[derive(Debug)]
pub struct CallerView(RepeatingCaller);

impl CallerView {
    pub fn scope(&self) -> String {
        shorten(&self.0.scope.to_string(), HASH_DIGITS)
    }

    /// The whole hash, for the link to this caller's keys.
    pub fn scope_query(&self) -> String {
        self.0.scope.to_string()
    }

    pub fn counts(&self) -> String {
        let duplicates = quantity(self.0.duplicates, "duplicate", "duplicates");
        format!("{duplicates}, {}", quantity(self.0.mismatches, "mismatch", "mismatches"))
    }
}

/// The number of keys in a state.
#[derive(Debug)]
pub struct TotalView {
    pub keys: u64,
    /// Whether they were counted, and not estimated.
    pub is_exact: bool,
    pub by_route: Vec<(String, u64)>,
}

impl StatsView {
    /// The totals of the states that keys are in, those that need an operator first.
    pub fn totals(&self) -> Vec<(StateKind, TotalView)> {
        let mut totals: BTreeMap<StateKind, TotalView> = BTreeMap::new();
        for KeyCount { route, state, keys, exact } in &self.counts {
            let total = totals.entry(*state).or_insert(TotalView { keys: 0, is_exact: true, by_route: Vec::new() });
            total.keys += keys;
            total.is_exact &= exact;
            total.by_route.push((route.clone(), *keys));
        }
        let mut totals: Vec<_> = totals.into_iter().collect();
        let urgent = [StateKind::Dead, StateKind::Unknown, StateKind::InFlight, StateKind::Queued];
        let rank = |state: StateKind| urgent.iter().position(|known| *known == state).unwrap_or(urgent.len());
        totals.sort_by_key(|(state, _)| rank(*state));
        totals
    }

    /// Returns the number of keys in this state.
    pub fn count(&self, state: StateKind) -> u64 {
        self.counts.iter().filter(|count| count.state == state).map(|count| count.keys).sum()
    }
}

/// The first characters of a text that anybody may have written.
pub fn shorten(text: &str, chars: usize) -> String {
    let mut shown: String = make_visible(text).chars().take(chars).collect();
    if text.chars().count() > chars {
        shown.push('…');
    }
    shown
}

/// The beginning and the end of a key.
pub fn shorten_key(key: &str) -> String {
    shorten_middle(&make_visible(key), KEY_CHARS_MAX)
}

/// A text that anybody may have written, without characters that turn the direction of a line or are invisible. The
/// templates escape it for HTML.
pub fn make_visible(text: &str) -> String {
    let safe = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if safe(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_by_their_age_and_in_utc() {
        let now = SystemTime::now();
        assert_eq!(TimeView(now - Duration::from_secs(130)).age(), "2 minutes ago");
        assert_eq!(TimeView(now + Duration::from_secs(3 * 3_600 + 9)).age(), "in 3 hours");
        let time = TimeView(rfc3339::parse("2026-11-21T03:04:05.678Z").unwrap());
        assert_eq!((&*time.utc(), &*time.iso()), ("2026-11-21 03:04:05 UTC", "2026-11-21T03:04:05.678Z"));
        for (seconds, shown) in [(0, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (172_800, "2 days")] {
            assert_eq!(format_span(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn a_key_is_shown_so_that_it_can_be_told_apart_and_cannot_turn_the_line_around() {
        let one = "stripe-node-retry-0b9c7f7e-1f1a-4b8e-9d5e-3c1f0a7b2d44";
        assert_eq!(shorten_key(one), "stripe-node-…3c1f0a7b2d44");
        assert_eq!(shorten_key("order-1001-which-is-short"), "order-1001-which-is-short");
        assert_eq!(shorten_key("order-1001-which-is-longer"), "order-1001-w…ch-is-longer");
        assert_eq!(shorten_key("\u{202e}ab\r\ncd"), "\u{fffd}ab\u{fffd}\u{fffd}cd");
    }

    #[test]
    fn states_that_need_an_operator_come_first() {
        let count = |route: &str, state, keys, exact| KeyCount { route: route.to_owned(), state, keys, exact };
        let counts = vec![
            count("pay", StateKind::Completed, 7, false),
            count("pay", StateKind::Unknown, 2, true),
            count("refund", StateKind::Unknown, 1, true),
            count("refund", StateKind::Dead, 1, true),
        ];
        let stats = StatsView { counts, without_route: Vec::new(), unguarded: Vec::new(), callers: Vec::new() };
        let totals = stats.totals();
        let shown: Vec<_> = totals.iter().map(|(state, total)| (state.name(), total.keys, total.is_exact)).collect();
        assert_eq!(shown, [("dead", 1, true), ("unknown", 3, true), ("completed", 7, false)]);
        assert_eq!(stats.count(StateKind::Unknown), 3);
    }
}
