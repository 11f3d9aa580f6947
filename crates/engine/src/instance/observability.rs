//! Metrics, traces, and counts of unguarded paths and unguarded keys.

use std::cell::RefCell;
use std::time::Duration;

use http::HeaderName;
use schemars::JsonSchema;
use serde::Serialize;

use super::key_mismatches::KeyMismatches;
use super::metrics::{MethodLabel, Metrics, ReservationResult, RouteMetrics};
use super::same_bodies::{SameBodies, SameBodyPair};
use super::weekly_counts::WeeklyKind;
use oncegate_domain::fingerprint::Recipe;
use oncegate_domain::scope::Scope;
use oncegate_telemetry::log_limiter::LogLimiter;
use oncegate_telemetry::metrics::Label;
use oncegate_telemetry::top_k::{TopK, TopKCount};
use oncegate_telemetry::traces::Tracer;

/// The number of pairs of method and path that are counted apart, and that are logged within [`LINE_EVERY`].
const PATHS_MAX: usize = 200;

/// The period with one line about unguarded keys of a pair of method and path.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// The number of secrets that are missed with a line of their own, and the period with one line for each.
const LOST_SECRETS_MAX: usize = 16;
const LOST_SECRET_LINE_EVERY: Duration = Duration::from_secs(60 * 60);

/// The longest path in segments, and the longest segment in characters, that is kept. Templates of real APIs are
/// shorter.
const SEGMENTS_MAX: usize = 8;
const SEGMENT_MAX: usize = 40;

/// The indexes of an unguarded path's two counts.
const WITHOUT_KEY: usize = 0;
const WITH_KEY: usize = 1;

/// Everything that requests report to.
pub struct Observability {
    /// All metrics.
    pub metrics: Metrics,
    /// The queue of spans; `None` without a collector.
    pub tracer: Option<Tracer>,
    /// The database of the store, by its name in OpenTelemetry.
    pub(super) database: &'static str,
    /// Keyed by method and path with a space between.
    unguarded: TopK<String, 2>,
    unguarded_key_lines: LogLimiter,
    lost_secret_lines: LogLimiter,
    /// The requests with new keys of late.
    pub same_bodies: SameBodies,
    /// The requests of late with the key of another one.
    pub key_mismatches: KeyMismatches,
    same_body_lines: LogLimiter,
}

/// The field in which a request carries a key that nothing reads.
#[derive(Clone, Copy, Debug)]
pub enum UnguardedKey<'a> {
    /// A field for keys.
    In(&'a HeaderName),
    /// A field that would be one if it had `-` for `_`.
    Misspelled(&'a HeaderName),
}

/// State-changing requests that were forwarded with nothing to guard them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnguardedPath {
    /// The method; `other` for an unusual one.
    pub method: String,
    /// The path without identifiers and without the query.
    pub path: String,
    /// The number of requests since the start.
    pub requests: u64,
    /// Those of them that carried a key: their clients count on a guard.
    pub with_key: u64,
    /// The number by which `requests` may be too low, because the pair had to give its place away for a time.
    pub at_most_more: u64,
}

impl Observability {
    /// Everything at zero.
    pub fn new(metrics: Metrics, tracer: Option<Tracer>, database: &'static str) -> Self {
        let unguarded = TopK::new(PATHS_MAX);
        let unguarded_key_lines = LogLimiter::new(PATHS_MAX, LINE_EVERY);
        let lost_secret_lines = LogLimiter::new(LOST_SECRETS_MAX, LOST_SECRET_LINE_EVERY);
        let (same_bodies, same_body_lines) = (SameBodies::default(), LogLimiter::new(PATHS_MAX, LINE_EVERY));
        Self {
            metrics,
            tracer,
            database,
            unguarded,
            unguarded_key_lines,
            lost_secret_lines,
            same_bodies,
            key_mismatches: KeyMismatches::default(),
            same_body_lines,
        }
    }

    /// Counts the result of a keyed request's reservation, for the route and for the caller.
    pub fn count_reservation(
        &self,
        route: &RouteMetrics,
        (scope, kind): (&Scope, Option<WeeklyKind>),
        result: ReservationResult,
    ) {
        route.reservations.count(result);
        if let Some(kind) = kind {
            route.weekly.count(Some(scope), kind);
        }
    }

    /// Counts a state-changing request that nothing guards, and logs that it carried a key in this field: its client
    /// counts on a guard, and gets a second execution instead.
    pub fn count_unguarded(&self, method: MethodLabel, path: &str, unguarded_key: Option<UnguardedKey<'_>>) {
        thread_local! {
            static KEY: RefCell<String> = const { RefCell::new(String::new()) };
        }
        self.metrics.unguarded.count(method);
        KEY.with_borrow_mut(|key| {
            key.clear();
            key.push_str(method.name());
            key.push(' ');
            push_template(key, path);
            self.unguarded.count(key.as_str(), if unguarded_key.is_some() { WITH_KEY } else { WITHOUT_KEY });
            let Some(unguarded_key) = unguarded_key else { return };
            self.metrics.unguarded_keys.count(method);
            if let Some(requests) = self.unguarded_key_lines.count(key) {
                let path = key.split_once(' ').map_or("", |(_, path)| path);
                match unguarded_key {
                    UnguardedKey::In(field) => tracing::warn!(method = method.name(), path, %field, requests,
                        "nothing guards a request that carries a key: a retry of it is executed again"),
                    UnguardedKey::Misspelled(field) => tracing::warn!(method = method.name(), path, %field, requests,
                        "nothing guards a request that carries a key: its field has `_` for `-` and does not count, and a retry \
                         is executed again"),
                }
            }
        });
    }

    /// Logs that a caller has sent the same request under another key, and keeps the pair for the page.
    pub fn report_same_body(&self, pair: SameBodyPair) {
        if let Some(requests) = self.same_body_lines.count(&pair.route) {
            let SameBodyPair { route, first, second } = &pair;
            tracing::warn!(%route, record = %second, %first, requests,
                "a caller has sent a request that equals an earlier one of its own, under another key: if it is a retry, the client \
                 makes a new key for each try");
        }
        self.same_bodies.keep(pair);
    }

    /// Logs that a request could not be compared with its key's first one, because this recipe's secret is gone.
    pub fn log_incomparable(&self, recipe: &Recipe) {
        let Some(secret) = recipe.secret_name() else { return };
        if let Some(requests) = self.lost_secret_lines.count(secret) {
            tracing::error!(%secret, requests,
                "requests cannot be compared with the first ones of their keys, and get 409 outcome-unknown: the secret of the \
                 fingerprints is not configured any more. Put the earlier `secret` back, into `previous_secrets`");
        }
    }

    /// The most frequent unguarded state-changing paths.
    pub fn unguarded(&self, at_most: usize) -> Vec<UnguardedPath> {
        let shown = |(key, TopKCount { counts: [without_key, with_key], excess_max }): (String, TopKCount<2>)| {
            let (method, path) = key.split_once(' ')?;
            let (method, path, requests) = (method.to_owned(), path.to_owned(), without_key + with_key);
            Some(UnguardedPath { method, path, requests, with_key, at_most_more: excess_max })
        };
        self.unguarded.top(at_most).into_iter().filter_map(shown).collect()
    }
}

/// Appends the path with `{id}` in place of each segment that is not a word. A number, a UUID, a name with digits, an
/// address or a token identifies something: it is not part of a template, and must not be shown.
pub(super) fn push_template(template: &mut String, path: &str) {
    for (number, segment) in path.split('/').skip(1).enumerate() {
        template.push('/');
        if number == SEGMENTS_MAX {
            template.push('…');
            break;
        }
        template.push_str(if is_word(segment) { segment } else { "{id}" });
    }
}

/// Whether a segment consists of letters, `-`, `_`, `.` and `:`, as in `bulk-delete` or `orders:cancel`, or is a
/// version such as `v1`.
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
    fn identifiers_are_not_part_of_a_template() {
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
