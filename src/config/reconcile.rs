//! A route's `reconcile`.

use std::sync::Arc;
use std::time::Duration;

use super::lookup::Lookup;
use super::reader::Section;

/// How the service is asked what became of attempts with an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// Whom, and what for.
    pub lookup: Arc<Lookup>,
    /// Between the first two questions; doubled after each.
    pub every: Duration,
    /// So many questions without a verdict, and it is given up; at least `confirmations`.
    pub max_attempts: u32,
    /// So many times in a row the service must know of nothing, to be believed; at least one.
    pub confirmations: u32,
}

/// More than a year of questions.
const ATTEMPTS_MAX: usize = 10_000;

/// How long past a lease an attempt counts as over, and how it is asked about, where it is.
pub(super) fn read(section: &Section<'_>) -> Option<(Duration, Option<Reconcile>)> {
    let lookup = lookup(section);
    let after = section.duration("after");
    let every = section.duration_above_zero("every");
    let max_attempts = section.integer("max_attempts", 1..=ATTEMPTS_MAX, "it counts questions");
    let confirmations = section.integer("confirmations", 1..=ATTEMPTS_MAX, "it counts answers");
    let (max_attempts, confirmations) = (max_attempts?, confirmations?);
    if confirmations.value > max_attempts.value {
        let message = format!(
            "`confirmations` ({}) must not be over `max_attempts` ({}): so many answers would never come",
            confirmations.value, max_attempts.value
        );
        section.reader().problem((&confirmations.place).max(&max_attempts.place), message);
        return None;
    }
    let count = |value: usize| u32::try_from(value).expect("its bound is far below");
    let (every, max_attempts, confirmations) = (every?.value, count(max_attempts.value), count(confirmations.value));
    let reconcile = lookup?.map(|lookup| Reconcile { lookup, every, max_attempts, confirmations });
    Some((after?.value, reconcile))
}

/// Never shows the text, which may hold a password.
fn lookup(section: &Section<'_>) -> Option<Option<Arc<Lookup>>> {
    let text = section.text("url")?;
    if text.value.is_empty() {
        return Some(None);
    }
    match Lookup::parse(&text.value) {
        Ok(lookup) => Some(Some(Arc::new(lookup))),
        Err(message) => {
            section.reader().problem(&text.place, message);
            None
        }
    }
}
