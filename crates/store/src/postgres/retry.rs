//! Repeating a call until its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::PgCall;
use super::failure::{PgFailure, PgResult};
use crate::StoreError;

/// The connections on which a call is tried of which nothing was sent. Without a server these tries take no time.
const TRIES_MAX: usize = 3;

/// When a failed call is tried again before its deadline.
#[derive(Clone, Copy)]
pub(super) enum RetryBudget {
    /// After any failure: executing the call twice does no harm, and not executing it does.
    Always,
    /// Only where it may have been executed, as a caller cannot act on "perhaps"; and up to [`TRIES_MAX`] times
    /// where a connection failed while it was being made, or led to a server that takes no writes any more.
    InDoubt,
    /// Its caller goes on without it.
    Never,
}

/// Repeats a call until its outcome is known, or its deadline has come.
// See docs/decisions/0007-answer-from-durable-rows.md.
pub(super) async fn retry_until_known<'a, P, T, F: Future<Output = PgResult<T>>>(
    mut call: PgCall<'a>,
    budget: RetryBudget,
    params: P,
    call_once: impl Fn(PgCall<'a>, Arc<P>) -> F,
) -> Result<T, StoreError> {
    let params = Arc::new(params);
    let (mut tries, mut taken) = (0, false);
    let mut pauses = RetryPauses::new();
    loop {
        let failure = match call_once(call, Arc::clone(&params)).await {
            Ok(done) => return Ok(done),
            // Once a try has found that somebody has the key, a later try that reads nothing does not undo that.
            Err(failure) if taken => failure.for_taken_key(),
            Err(failure) => failure,
        };
        taken = matches!(failure, PgFailure::Taken(_));
        tries += 1;
        call.in_doubt |= failure.in_doubt();
        let is_worth_it = match budget {
            RetryBudget::Always => true,
            RetryBudget::InDoubt => call.in_doubt || (tries < TRIES_MAX && failure.wants_another_connection()),
            RetryBudget::Never => false,
        };
        if failure.is_final() || !is_worth_it || Instant::now() + pauses.length >= call.deadline {
            return Err(failure.into());
        }
        pauses.next().await;
    }
}

/// Growing pauses between tries: short enough at first to hide a dropped connection, long enough at last not to burden
/// a server that is starting.
pub(super) struct RetryPauses {
    length: Duration,
}

impl RetryPauses {
    pub fn new() -> Self {
        Self { length: Duration::from_millis(5) }
    }

    pub async fn next(&mut self) {
        sleep(self.length).await;
        self.length = (self.length * 2).min(Duration::from_millis(200));
    }
}
