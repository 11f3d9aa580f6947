//! The background tasks: one loop for all of them, one pass at a time.
//!
//! A task takes its work from the store and has no other input, so that a timer and a restart are one code path. It
//! does not retry: the next pass does. Any number of instances may run the same task at once.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncegate_machine::jitter::random_fraction;
use oncegate_store::StoreError;
use oncegate_telemetry::logs::error_causes;

pub mod deferred_reports;
pub mod deliverer;
mod delivery_slots;
pub mod gone_routes;
pub mod heartbeat;
pub mod issuer_keys;
pub mod orphans;
pub mod reaper;
pub mod reconciler;
pub mod sweeper;
pub mod weekly_counts;

/// A periodic task.
pub trait Task: Send + 'static {
    /// The task's name in logs.
    const NAME: &'static str;

    /// Does one pass. Its result says when the next one is due: after a full batch, at once.
    fn run_once(&mut self) -> impl Future<Output = Result<PassResult, StoreError>> + Send;
}

/// The result of a pass: when the next one is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassResult {
    /// There was a full batch, so there may be more: at once.
    Full,
    /// Nothing is left: after the task's period.
    Idle,
    /// Nothing is left: after this time, for a task whose period changes.
    IdleFor(Duration),
}

/// Runs a task every `period` until `stop`. The first pass comes after a random part of the period, so that instances
/// that were started together do not hit the store together.
pub async fn run(mut task: impl Task, period: Duration, stop: CancellationToken) {
    let mut wait = period.mul_f64(random_fraction());
    loop {
        tokio::select! {
            // After `stop` no other pass begins, even if the timer is due as well.
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = match run_pass(&mut task).await {
            PassResult::Full => Duration::ZERO,
            PassResult::Idle => period,
            PassResult::IdleFor(time) => time,
        };
    }
}

async fn run_pass<T: Task>(task: &mut T) -> PassResult {
    task.run_once().await.unwrap_or_else(|error| {
        let cause = error_causes(&error);
        tracing::warn!(task = T::NAME, cause, "{error}; the next pass tries again");
        PassResult::Idle
    })
}
