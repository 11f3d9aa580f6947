//! When a call to PostgreSQL is tried again: its row in the table of the calls says after which failures.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Postgres;
use super::call::PgTry;
use super::failure::{PgFailure, PgResult};
use crate::StoreError;
use crate::call_spec::{CallSpec, RetryWhen};

/// The connections on which a call is tried of which nothing was sent. Without a server these tries take no time.
const TRIES_MAX: usize = 3;

impl Postgres {
    /// Makes a call until its outcome is known, or its deadline has come: tries of its body.
    // See docs/decisions/0007-answer-from-durable-rows.md.
    pub(crate) async fn call<'a, P, T, F: Future<Output = PgResult<T>>>(
        &'a self,
        spec: CallSpec,
        params: P,
        call_once: impl Fn(PgTry<'a>, Arc<P>) -> F,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + spec.limit.of(self.server.timeout());
        let mut call = PgTry { store: self, spec, deadline, in_doubt: false };
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
            let is_worth_it = match spec.retry {
                RetryWhen::AnyFailure => true,
                RetryWhen::InDoubt => call.in_doubt || (tries < TRIES_MAX && failure.wants_another_connection()),
                RetryWhen::Never => false,
            };
            if failure.is_final() || !is_worth_it || Instant::now() + pauses.length >= call.deadline {
                return Err(failure.into());
            }
            pauses.next().await;
        }
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
