//! Reads and checks a route's `reconcile`.

use std::sync::Arc;
use std::time::Duration;

use super::options::options;
use super::reader::Section;
use oncegate_settings::{ReconcileConfig, ReconcileUrl};

/// With pauses of up to an hour, this is more than a year.
const ATTEMPTS_MAX: usize = 10_000;

options! {
    struct ReconcileOptions {
        /// the service's URL for the outcome of a key, with `{id}`, `{key}`, `{scope}`, `{route}`, `{path}`; empty for
        /// none
        url: Concealed = "" => Option<ReconcileUrl>, optional(ReconcileUrl::parse);
        /// the time past a lease after which an attempt counts as over
        after: Duration = "1m" => Duration, duration();
        /// the pause between the first two questions; doubled after each, up to an hour
        every: Duration = "30s" => Duration, duration_above_zero();
        /// questions without a verdict before the key is given up
        max_attempts: Integer = 10 => u32, integer(1..=ATTEMPTS_MAX, "it counts questions");
        /// how often in a row the service must answer 404 to be believed
        confirmations: Integer = 2 => u32, integer(1..=ATTEMPTS_MAX, "it counts answers");
    }
}

/// Reads how long past a lease an attempt counts as over, and how the service is asked about it, where it is.
/// `bypasses` is whether the route forwards requests without a reservation.
pub(super) fn read(section: &Section<'_>, bypasses: bool) -> (Duration, Option<ReconcileConfig>) {
    let ReconcileOptions { url, after, every, max_attempts, confirmations } = ReconcileOptions::read(section);
    // A bypassed request has no `Oncegate-Reservation`, so the service would answer 404 for a request that it has
    // executed.
    if bypasses && url.as_ref().is_some_and(ReconcileUrl::needs_id) {
        let message = "asks by `{id}` alone, which the service does not have of a request that `store_down = \"bypass\"` \
                       forwards: add `{key}`, or write `store_down = \"reject\"`";
        section.problem("url", message);
    }
    if confirmations > max_attempts {
        let message = format!(
            "`confirmations` ({confirmations}) must not be over `max_attempts` ({max_attempts}): so many answers could \
             never come"
        );
        section.conflict(&["confirmations", "max_attempts"], message);
    }
    let reconcile = |lookup| ReconcileConfig { lookup: Arc::new(lookup), every, max_attempts, confirmations };
    (after, url.map(reconcile))
}
