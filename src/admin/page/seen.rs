//! What the desk tells, as the page shows it: keys by their first characters, times by their age and in UTC.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::words::{self, Step};
use crate::domain::rfc3339;

/// As much of a key as is shown: enough to know it again, and not to use it.
const KEY_CHARS_MAX: usize = 8;
/// As much of an id: unique among more keys than fit on any disk.
const ID_DIGITS: usize = 16;
/// As much of the hash of a caller, or of a request: to tell two apart.
const HASH_DIGITS: usize = 12;

/// What the desk told; a member that is not there, or another one, is a mistake of ours and shows nothing.
pub fn read<T: DeserializeOwned + Default>(told: Value) -> T {
    serde_json::from_value(told).unwrap_or_default()
}

/// A time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "String")]
pub struct When {
    /// RFC 3339, for programs.
    pub iso: String,
}

impl From<String> for When {
    fn from(iso: String) -> Self {
        Self { iso }
    }
}

impl When {
    /// This moment.
    pub fn now() -> Self {
        rfc3339::show(SystemTime::now()).into()
    }

    /// For people who compare it with a log.
    pub fn utc(&self) -> String {
        format!("{} UTC", self.iso.get(..19).unwrap_or_default().replace('T', " "))
    }

    /// How long ago it was, or in how long it will be.
    pub fn age(&self) -> String {
        let Some(at) = rfc3339::parse(&self.iso) else { return String::new() };
        match SystemTime::now().duration_since(at) {
            Ok(ago) => format!("{} ago", span(ago)),
            Err(ahead) => format!("in {}", span(ahead.duration())),
        }
    }
}

/// A time span in its largest whole unit, of which there are two at least.
fn span(span: Duration) -> String {
    match span.as_secs() {
        1 => "1 second".to_owned(),
        seconds @ 0..120 => format!("{seconds} seconds"),
        seconds @ 120..7_200 => format!("{} minutes", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} hours", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A page of keys.
#[derive(Debug, Default, Deserialize)]
pub struct Keys {
    pub keys: Vec<Key>,
    pub next_cursor: Option<String>,
}

/// A key.
#[derive(Debug, Default, Deserialize)]
pub struct Key {
    pub id: String,
    key: String,
    scope: String,
    space: String,
    pub route: String,
    pub state: String,
    pub attempts: u32,
    pub created_at: When,
    pub reserved_at: When,
    pub deadline: When,
    pub settled_at: Option<When>,
    pub expires_at: Option<When>,
    pub lapsed: bool,
    pub instance: String,
    pub probes: u32,
    pub absences: u32,
    pub probe_at: Option<When>,
    #[serde(default)]
    pub quiet: bool,
    #[serde(default)]
    pub quiet_at: Option<When>,
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
    #[serde(default)]
    pub response: Option<Response>,
    #[serde(default)]
    pub audit: Vec<Note>,
}

/// What its first request was, as a hash.
#[derive(Debug, Default, Deserialize)]
pub struct Fingerprint {
    pub hash: String,
    pub recipe: String,
}

/// What is stored of its response.
#[derive(Debug, Default, Deserialize)]
pub struct Response {
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default)]
    pub body_bytes: Option<u64>,
    #[serde(default)]
    pub corrupt: Option<String>,
}

impl Key {
    pub fn key(&self) -> String {
        beginning(&self.key, KEY_CHARS_MAX)
    }

    pub fn id(&self) -> String {
        self.id.chars().take(ID_DIGITS).collect()
    }

    pub fn scope(&self) -> String {
        beginning(&self.scope, HASH_DIGITS)
    }

    /// For the link to this caller's keys.
    pub fn scope_query(&self) -> String {
        digits(&self.scope)
    }

    pub fn space(&self) -> String {
        visible(&self.space)
    }

    /// When its state began, as far as a list tells: what is in flight has not been settled.
    pub fn since(&self) -> &When {
        self.settled_at.as_ref().unwrap_or(&self.reserved_at)
    }

    pub fn words(&self) -> &'static str {
        words::state(&self.state)
    }

    pub fn steps(&self) -> &'static [Step] {
        Step::of(&self.state)
    }

    /// What a decision is made about: it must still be so when it is carried out.
    pub fn seen(&self) -> String {
        format!("{}-{}", self.state, self.attempts)
    }
}

impl Response {
    pub fn fields(&self) -> String {
        self.headers.join(", ")
    }
}

/// The audit log, or a part of it.
#[derive(Debug, Default, Deserialize)]
pub struct Log {
    pub entries: Vec<Note>,
    pub next_cursor: Option<String>,
}

/// A line of it.
#[derive(Debug, Default, Deserialize)]
pub struct Note {
    pub at: When,
    actor: String,
    pub action: String,
    pub id: String,
    pub before: String,
    pub after: String,
    note: Option<String>,
}

impl Note {
    pub fn actor(&self) -> String {
        visible(&self.actor)
    }

    pub fn id(&self) -> String {
        self.id.chars().take(ID_DIGITS).collect()
    }

    pub fn note(&self) -> Option<String> {
        self.note.as_deref().map(visible)
    }
}

/// How many keys there are, and what passes by.
#[derive(Debug, Default, Deserialize)]
pub struct Stats {
    counts: Vec<Count>,
    /// What no route guarded, most first; where the instance counts it.
    #[serde(default)]
    pub unguarded: Vec<Unguarded>,
    /// Whose requests were repeated or did not match; where the instance counts it.
    #[serde(default)]
    pub callers: Vec<Caller>,
}

#[derive(Debug, Deserialize)]
struct Count {
    route: String,
    state: String,
    keys: u64,
    exact: bool,
}

/// A state-changing method and path.
#[derive(Debug, Default, Deserialize)]
pub struct Unguarded {
    method: String,
    path: String,
    pub requests: u64,
}

impl Unguarded {
    pub fn method(&self) -> String {
        visible(&self.method)
    }

    pub fn path(&self) -> String {
        visible(&self.path)
    }
}

/// A caller, by the hash of their scope.
#[derive(Debug, Default, Deserialize)]
pub struct Caller {
    scope: String,
    #[serde(default)]
    pub route: Option<String>,
    pub duplicates: u64,
    pub mismatches: u64,
}

impl Caller {
    pub fn scope(&self) -> String {
        beginning(&self.scope, HASH_DIGITS)
    }

    /// For the link to this caller's keys.
    pub fn scope_query(&self) -> String {
        digits(&self.scope)
    }
}

/// How many keys are in a state.
#[derive(Debug, Default)]
pub struct Total {
    pub keys: u64,
    /// Counted, and not estimated.
    pub is_exact: bool,
    pub by_route: Vec<(String, u64)>,
}

impl Stats {
    /// The states that keys are in, those that wait for somebody first.
    pub fn totals(&self) -> Vec<(String, Total)> {
        let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
        for Count { route, state, keys, exact } in &self.counts {
            let total = totals.entry(state).or_insert(Total { is_exact: true, ..Total::default() });
            total.keys += keys;
            total.is_exact &= exact;
            total.by_route.push((route.clone(), *keys));
        }
        let mut totals: Vec<_> = totals.into_iter().map(|(state, total)| (state.to_owned(), total)).collect();
        let rank = |state: &str| ["dead", "unknown", "in_flight", "queued"].iter().position(|first| *first == state);
        totals.sort_by_key(|(state, _)| rank(state).unwrap_or(usize::MAX));
        totals
    }

    /// How many are in one.
    pub fn count(&self, state: &str) -> u64 {
        self.counts.iter().filter(|count| count.state == state).map(|count| count.keys).sum()
    }
}

/// Nothing but digits, for addresses.
fn digits(hash: &str) -> String {
    hash.chars().filter(char::is_ascii_hexdigit).take(64).collect()
}

/// The beginning of a text that may be anybody's.
pub fn beginning(text: &str, chars: usize) -> String {
    let mut shown: String = visible(text).chars().take(chars).collect();
    if text.chars().count() > chars {
        shown.push('…');
    }
    shown
}

/// A text that may be anybody's, without what would turn a line around or hide in it. Escaping it for HTML is for the
/// templates.
pub fn visible(text: &str) -> String {
    let safe = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if safe(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_told_by_their_age_and_in_utc() {
        let when = |at: SystemTime| When::from(rfc3339::show(at));
        let now = SystemTime::now();
        assert_eq!(when(now - Duration::from_secs(130)).age(), "2 minutes ago");
        assert_eq!(when(now + Duration::from_secs(3 * 3_600 + 9)).age(), "in 3 hours");
        assert_eq!(When::from("2026-11-21T03:04:05.678Z".to_owned()).utc(), "2026-11-21 03:04:05 UTC");
        for (seconds, told) in [(0, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (172_800, "2 days")] {
            assert_eq!(span(Duration::from_secs(seconds)), told);
        }
    }

    #[test]
    fn of_a_key_its_beginning_is_shown_and_nothing_that_turns_the_line_around() {
        let key = |key: &str| Key { key: key.to_owned(), ..Key::default() }.key();
        assert_eq!(key("order-1001-secret"), "order-10…");
        assert_eq!(key("order-10"), "order-10");
        assert_eq!(key("\u{202e}ab\r\ncd"), "\u{fffd}ab\u{fffd}\u{fffd}cd");
    }

    #[test]
    fn states_that_wait_for_somebody_come_first() {
        let count = |route: &str, state: &str, keys: u64, exact: bool| json!({ "route": route, "state": state, "keys": keys, "exact": exact });
        let counts = [
            count("pay", "completed", 7, false),
            count("pay", "unknown", 2, true),
            count("refund", "unknown", 1, true),
            count("refund", "dead", 1, true),
        ];
        let stats: Stats = read(json!({ "counts": counts }));
        let totals = stats.totals();
        let names: Vec<_> = totals.iter().map(|(state, total)| (&**state, total.keys, total.is_exact)).collect();
        assert_eq!(names, [("dead", 1, true), ("unknown", 3, true), ("completed", 7, false)]);
        assert_eq!(stats.count("unknown"), 3);
        assert!(stats.unguarded.is_empty() && stats.callers.is_empty());
    }
}
