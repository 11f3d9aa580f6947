//! Reads and checks a route's `delivery` and `retry`.

use std::time::Duration;

use super::options::options;
use super::reader::Section;
use super::words::words;
use oncegate_domain::retry::RetryPolicy;

words! {
    /// When a request is sent to the service.
    pub enum DeliveryMode {
        /// At once.
        Sync = "sync",
        /// Later, for all requests.
        Async = "async",
        /// Later, where the client says that it prefers that (`Prefer: respond-async`, RFC 7240 section 4.1).
        Prefer = "prefer",
    }
}

/// With the default `cap` of 10 minutes, this is about ten weeks.
const ATTEMPTS_MAX: usize = 10_000;

options! {
    /// The options of a route's `retry`.
    pub(super) struct RetryOptions {
        /// the number of attempts after which the key is dead: an operator must decide
        max_attempts: Integer = 10 => u32, integer(1..=ATTEMPTS_MAX, "it counts attempts");
        /// the pause after the first attempt; doubled after each
        base: Duration = "1s" => Duration, duration_above_zero();
        /// the longest pause
        cap: Duration = "10m" => Duration, duration_above_zero();
        /// how long after its acceptance a request is tried
        give_up_after: Duration = "24h" => Duration, duration_above_zero();
    }
}

/// Reads `retry`.
pub(super) fn read(section: &Section<'_>) -> RetryPolicy {
    let RetryOptions { max_attempts, base, cap, give_up_after } = RetryOptions::read(section);
    if base > cap {
        let message = "`base` must not be over `cap`: the first pause would be longer than the longest";
        section.conflict(&["base", "cap"], message);
    }
    RetryPolicy { max_attempts, base, cap, give_up_after }
}
