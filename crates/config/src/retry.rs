//! Reads and checks a route's `retry`.

use super::options::options;
use super::reader::Section;
use oncegate_domain::retry::RetryPolicy;

/// With the default `cap` of 10 minutes, this is about ten weeks.
const ATTEMPTS_MAX: usize = 10_000;

options! {
    struct RetryOptions for RetryPolicy {
        /// the number of attempts after which the key is dead: an operator must decide
        max_attempts: Integer = 10 => integer(1..=ATTEMPTS_MAX, "it counts attempts");
        /// the pause after the first attempt; doubled after each
        base: Duration = "1s" => duration_above_zero();
        /// the longest pause
        cap: Duration = "10m" => duration_above_zero();
        /// how long after its acceptance a request is tried
        give_up_after: Duration = "24h" => duration_above_zero();
    }
}

pub(super) fn read(section: &Section<'_>) -> RetryPolicy {
    let retry = RetryOptions::read(section);
    if retry.base > retry.cap {
        let message = "`base` must not be over `cap`: the first pause would be longer than the longest";
        section.conflict(&["base", "cap"], message);
    }
    retry
}
