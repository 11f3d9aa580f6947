//! What is remembered of requests beside their keys: numbers, who repeats himself, and what nothing guards.

use std::cell::RefCell;
use std::time::Duration;

use super::meters::{Found, Meters, RouteMeters, Verb};
use crate::domain::scope::Scope;
use crate::telemetry::heavy::{Count, Heavy};
use crate::telemetry::metrics::Label;
use crate::telemetry::traces::Tracer;

/// Callers that are told apart; beyond, the rarest gives way.
const CALLERS_MAX: usize = 1_000;

/// "Of late": what a caller did is half forgotten after this time.
const HALF_LIFE: Duration = Duration::from_secs(10 * 60);

/// Methods and paths that are told apart.
const PATHS_MAX: usize = 200;

/// Segments of a path, and characters of a segment, that are kept; nobody's paths are longer who has templates.
const SEGMENTS_MAX: usize = 8;
const SEGMENT_MAX: usize = 40;

/// Which of its two numbers a caller's request adds to.
const DUPLICATES: usize = 0;
const MISMATCHES: usize = 1;

/// What all requests of this process are told to.
pub struct Watch {
    /// All metrics.
    pub meters: Meters,
    /// Where spans go; `None` where nobody wants them.
    pub tracer: Option<Tracer>,
    callers: Heavy<[u8; 32], 2>,
    /// By method and path, with a space between.
    unguarded: Heavy<String, 1>,
}

/// A caller that repeats himself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who: the hash that stands with his keys.
    pub scope: Scope,
    /// Requests whose key had been used for the same request, of late.
    pub duplicates: u64,
    /// Requests whose key had been used for another one, of late.
    pub mismatches: u64,
}

/// State-changing requests that were forwarded with nothing to guard them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unguarded {
    /// Their method, `other` for what is none of the usual ones.
    pub method: String,
    /// Their path without what tells one request from another, and without a query.
    pub path: String,
    /// How many since the start.
    pub requests: u64,
    /// By how many that may be too low: when places were taken, it began again.
    pub at_most_more: u64,
}

impl Watch {
    /// Nothing has been seen.
    pub fn new(meters: Meters, tracer: Option<Tracer>) -> Self {
        let (callers, unguarded) = (Heavy::lately(CALLERS_MAX, HALF_LIFE), Heavy::new(PATHS_MAX));
        Self { meters, tracer, callers, unguarded }
    }

    /// A keyed request has found something.
    pub(super) fn found(&self, route: &RouteMeters, scope: &Scope, found: Found) {
        route.reservations.count(found);
        match found {
            Found::Created | Found::FailedRetry => {}
            Found::KeyMisuse => self.callers.count(scope.as_bytes(), MISMATCHES),
            Found::Expired | Found::InFlight | Found::Replay | Found::Unknown => {
                self.callers.count(scope.as_bytes(), DUPLICATES)
            }
        }
    }

    /// A request that changes something passes with nothing to guard it.
    pub(super) fn passes_unguarded(&self, verb: Verb, path: &str) {
        thread_local! {
            static KEY: RefCell<String> = const { RefCell::new(String::new()) };
        }
        self.meters.unguarded.count(verb);
        KEY.with_borrow_mut(|key| {
            key.clear();
            key.push_str(verb.name());
            key.push(' ');
            push_template(key, path);
            self.unguarded.count(key.as_str(), 0);
        });
    }

    /// The callers with most duplicates and mismatches of late, the worst first.
    pub fn callers(&self, at_most: usize) -> Vec<Caller> {
        let caller = |(scope, Count { of: [duplicates, mismatches], .. }): ([u8; 32], _)| {
            let scope = Scope::from_stored(&scope)?;
            Some(Caller { scope, duplicates, mismatches })
        };
        self.callers.top(at_most).into_iter().filter_map(caller).collect()
    }

    /// What most often passes unguarded and changes something.
    pub fn unguarded(&self, at_most: usize) -> Vec<Unguarded> {
        let shown = |(key, Count { of: [requests], at_most_less }): (String, Count<1>)| {
            let (method, path) = key.split_once(' ')?;
            let (method, path) = (method.to_owned(), path.to_owned());
            Some(Unguarded { method, path, requests, at_most_more: at_most_less })
        };
        self.unguarded.top(at_most).into_iter().filter_map(shown).collect()
    }
}

/// A path with `{id}` in the place of each segment that is no word. What identifies something is neither a template's part
/// nor anybody's business: a number, a UUID, a name with digits, an address, a token.
fn push_template(template: &mut String, path: &str) {
    for (number, segment) in path.split('/').skip(1).enumerate() {
        template.push('/');
        if number == SEGMENTS_MAX {
            template.push('…');
            break;
        }
        template.push_str(if is_word(segment) { segment } else { "{id}" });
    }
}

/// Letters, with `-`, `_`, `.` and `:` between them as in `bulk-delete` or `orders:cancel`; or a version, `v1`.
fn is_word(segment: &str) -> bool {
    let is_version = segment
        .strip_prefix('v')
        .is_some_and(|digits| (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()));
    let is_letters = segment.len() <= SEGMENT_MAX
        && segment.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_.:".contains(&byte));
    is_version || is_letters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(path: &str) -> String {
        let mut template = String::new();
        push_template(&mut template, path);
        template
    }

    #[test]
    fn what_identifies_something_is_no_part_of_a_template() {
        for (path, expected) in [
            ("/v1/payments", "/v1/payments"),
            ("/v1/payments/42/refund", "/v1/payments/{id}/refund"),
            ("/orders/6ba7b810-9dad-11d1-80b4-00c04fd430c8", "/orders/{id}"),
            ("/orders:cancel/", "/orders:cancel/"),
            ("/users/alice@example.com/keys", "/users/{id}/keys"),
            ("/t/ch_1Nirtg2eZvKYlo2C", "/t/{id}"),
            ("/t/%41lice", "/t/{id}"),
            ("/v1234/x", "/{id}/x"),
            ("/a/b/c/d/e/f/g/h/i/j", "/a/b/c/d/e/f/g/h/…"),
            ("/", "/"),
            ("*", ""),
        ] {
            assert_eq!(template(path), expected, "{path}");
        }
        assert_eq!(template(&format!("/{}", "a".repeat(41))), "/{id}");
    }
}
