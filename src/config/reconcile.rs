//! Reads and checks a route's `reconcile`.

use std::sync::Arc;
use std::time::Duration;

use super::reader::Section;
use super::reconcile_url::ReconcileUrl;

/// The way in which the service is asked about unknown outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileConfig {
    /// The URL to ask.
    pub lookup: Arc<ReconcileUrl>,
    /// The pause between the first two questions; doubled after each.
    pub every: Duration,
    /// The number of questions without a verdict after which the key is given up; at least `confirmations`.
    pub max_attempts: u32,
    /// The number of 404 responses in a row after which "not executed" is accepted; at least one.
    pub confirmations: u32,
}

/// With pauses of up to an hour, this is more than a year.
const ATTEMPTS_MAX: usize = 10_000;

/// Reads how long past a lease an attempt counts as over, and how the service is asked about it, where it is. `bypasses` is
/// whether the route forwards requests without a reservation.
pub(super) fn read(section: &Section<'_>, bypasses: bool) -> Option<(Duration, Option<ReconcileConfig>)> {
    let lookup = read_url(section, bypasses);
    let after = section.duration("after");
    let every = section.duration_above_zero("every");
    let max_attempts = section.integer("max_attempts", 1..=ATTEMPTS_MAX, "it counts questions");
    let confirmations = section.integer("confirmations", 1..=ATTEMPTS_MAX, "it counts answers");
    let (max_attempts, confirmations) = (max_attempts?, confirmations?);
    if confirmations.value > max_attempts.value {
        let message = format!(
            "`confirmations` ({}) must not be over `max_attempts` ({}): so many answers could never come",
            confirmations.value, max_attempts.value
        );
        section.reader().problem((&confirmations.position).max(&max_attempts.position), message);
        return None;
    }
    let count = |value: usize| u32::try_from(value).expect("its bound is far below");
    let (every, max_attempts, confirmations) = (every?.value, count(max_attempts.value), count(confirmations.value));
    let reconcile = lookup?.map(|lookup| ReconcileConfig { lookup, every, max_attempts, confirmations });
    Some((after?.value, reconcile))
}

/// Reads the URL. Problems never show the text, which may hold a password.
fn read_url(section: &Section<'_>, bypasses: bool) -> Option<Option<Arc<ReconcileUrl>>> {
    let text = section.text("url")?;
    if text.value.is_empty() {
        return Some(None);
    }
    match ReconcileUrl::parse(&text.value).and_then(|lookup| check_bypass(lookup, bypasses)) {
        Ok(lookup) => Some(Some(Arc::new(lookup))),
        Err(message) => {
            section.reader().problem(&text.position, message);
            None
        }
    }
}

/// Refuses a lookup by the id alone for a route that bypasses. A bypassed request has no `Oncegate-Reservation`, so the
/// service would answer 404 for a request that it has executed.
fn check_bypass(lookup: ReconcileUrl, bypasses: bool) -> Result<ReconcileUrl, String> {
    if bypasses && lookup.needs_id() {
        return Err(
            "asks by `{id}` alone, which the service does not have of a request that `store_down = \"bypass\"` \
                    forwards: add `{key}`, or write `store_down = \"reject\"`"
                .into(),
        );
    }
    Ok(lookup)
}
