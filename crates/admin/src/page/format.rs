//! Values as the templates show them: of a key its first characters, times by their age and in UTC.
//!
//! Templates get the results of `key_admin` as they are, and call these methods. A text that anybody may have written
//! is shown `visible`. No template shows a key's token.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use super::text;
use crate::key_admin;
use crate::key_admin::timeline::TimelineAttempt;
use oncegate_domain::execution_risk::ActionKind;
use oncegate_domain::key::shorten_middle;
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_domain::urlencoded::escape;
use oncegate_store::admin::{KeyCount, KeyCounts, KeyEntry};

const KEY_CHARS_MAX: usize = 25;

pub trait ShownTime: Copy + Into<SystemTime> {
    /// RFC 3339, for programs.
    fn iso(self) -> String {
        rfc3339::format(self.into())
    }

    /// To the second, for people who compare it with a log.
    fn utc(self) -> String {
        format!("{} UTC", self.iso().get(..19).unwrap_or_default().replace('T', " "))
    }

    fn age(self) -> String {
        match SystemTime::now().duration_since(self.into()) {
            Ok(ago) => format!("{} ago", format_span(ago)),
            Err(ahead) => format!("in {}", format_span(ahead.duration())),
        }
    }
}

impl ShownTime for SystemTime {}

pub trait Shown: Display {
    /// A text that anybody may have written, without characters that turn the direction of a line or are invisible. The
    /// templates escape it for HTML.
    fn visible(&self) -> String {
        let safe = |c: char| {
            !c.is_control()
                && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        };
        self.to_string().chars().map(|c| if safe(c) { c } else { '\u{fffd}' }).collect()
    }

    /// The first digits of an id: unique among more keys than fit on any disk.
    fn short_id(&self) -> String {
        format!("{:.16}", self.to_string())
    }

    /// The first digits of a caller's hash: enough to tell two apart.
    fn short_hash(&self) -> String {
        format!("{:.12}…", self.to_string())
    }

    /// The value of a parameter in an address.
    fn in_query(&self) -> String {
        escape(self.to_string().as_bytes())
    }

    fn short_key(&self) -> String {
        shorten_middle(&self.visible(), KEY_CHARS_MAX)
    }
}

impl<T: Display + ?Sized> Shown for T {}

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

/// A duration in milliseconds below ten seconds, else in its largest unit.
pub fn format_duration(took: Duration) -> String {
    if took < Duration::from_secs(10) { format!("{} ms", took.as_millis()) } else { format_span(took) }
}

pub(super) trait KeyTexts {
    fn entry(&self) -> &KeyEntry;

    fn name(&self) -> String {
        if self.entry().is_redacted() {
            "redacted".into()
        } else {
            String::from_utf8_lossy(&self.entry().key).into_owned()
        }
    }

    /// The cause for which the outcome is unknown; `None` for keys in other states.
    fn undecided_cause(&self) -> Option<UnknownCause> {
        let key = self.entry();
        key.cause.filter(|_| matches!(key.state, StateKind::Dead | StateKind::Unknown))
    }

    /// The time at which its state began; a key in flight has not been settled.
    fn since(&self) -> SystemTime {
        self.entry().settled_at.unwrap_or(self.entry().reserved_at)
    }

    fn explanation(&self) -> &'static str {
        match self.entry().state {
            StateKind::Completed if self.entry().is_redacted() => {
                "It was executed, and what belonged to its caller was erased. Retries get 409 response-not-kept."
            }
            StateKind::Expired if self.entry().is_redacted() => {
                "What belonged to its caller was erased. Retries get 410 key-expired."
            }
            state => text::explain_state(state, self.entry().accepted_at.is_some()),
        }
    }

    fn actions(&self) -> Vec<ActionKind> {
        ActionKind::ALL.into_iter().filter(|action| self.entry().permits(*action)).collect()
    }

    fn version(&self) -> String {
        key_admin::version(self.entry())
    }
}

impl KeyTexts for KeyEntry {
    fn entry(&self) -> &KeyEntry {
        self
    }
}

impl TimelineAttempt {
    /// Its end; empty where it is not known.
    pub(super) fn end(&self) -> String {
        match (self.state, self.duration_ms) {
            (Some(state), Some(took)) => format!("{state} after {}", format_duration(Duration::from_millis(took))),
            (Some(state), None) => state.to_string(),
            (None, _) => String::new(),
        }
    }
}

#[derive(Debug)]
pub struct StateTotal {
    pub keys: u64,
    /// Whether they were counted, and not estimated.
    pub is_exact: bool,
    pub by_route: Vec<(String, u64)>,
}

pub(super) trait StateTotals {
    /// The totals of the states that keys are in, those that need an operator first.
    fn totals(&self) -> Vec<(StateKind, StateTotal)>;
    fn count_of(&self, state: StateKind) -> u64;
}

impl StateTotals for KeyCounts {
    fn totals(&self) -> Vec<(StateKind, StateTotal)> {
        let mut totals: BTreeMap<StateKind, StateTotal> = BTreeMap::new();
        for KeyCount { route, state, keys, exact } in &self.counts {
            let total = totals.entry(*state).or_insert(StateTotal { keys: 0, is_exact: true, by_route: Vec::new() });
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

    fn count_of(&self, state: StateKind) -> u64 {
        self.counts.iter().filter(|count| count.state == state).map(|count| count.keys).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_store::admin::CountSample;

    #[test]
    fn times_are_shown_by_their_age_and_in_utc() {
        let now = SystemTime::now();
        assert_eq!((now - Duration::from_secs(130)).age(), "2 minutes ago");
        assert_eq!((now + Duration::from_secs(3 * 3_600 + 9)).age(), "in 3 hours");
        let time = rfc3339::parse("2026-11-21T03:04:05.678Z").unwrap();
        assert_eq!((&*time.utc(), &*time.iso()), ("2026-11-21 03:04:05 UTC", "2026-11-21T03:04:05.678Z"));
        for (seconds, shown) in [(0, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (172_800, "2 days")] {
            assert_eq!(format_span(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn a_key_is_shown_so_that_it_can_be_told_apart_and_cannot_turn_the_line_around() {
        let one = "stripe-node-retry-0b9c7f7e-1f1a-4b8e-9d5e-3c1f0a7b2d44";
        assert_eq!(one.short_key(), "stripe-node-…3c1f0a7b2d44");
        assert_eq!("order-1001-which-is-short".short_key(), "order-1001-which-is-short");
        assert_eq!("order-1001-which-is-longer".short_key(), "order-1001-w…ch-is-longer");
        assert_eq!("\u{202e}ab\r\ncd".short_key(), "\u{fffd}ab\u{fffd}\u{fffd}cd");
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
        let counts = KeyCounts { counts, sample: CountSample { rows: 0, share: 1.0 } };
        let totals = counts.totals();
        let shown: Vec<_> = totals.iter().map(|(state, total)| (state.name(), total.keys, total.is_exact)).collect();
        assert_eq!(shown, [("dead", 1, true), ("unknown", 3, true), ("completed", 7, false)]);
        assert_eq!(counts.count_of(StateKind::Unknown), 3);
    }
}
