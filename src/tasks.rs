//! What runs beside the requests: one loop for all, one pass at a time.
//!
//! A task looks at the store and nowhere else, and takes no input, so that a timer and a restart are one code path. It
//! does not retry: the next pass does. Any number of instances may run the same task at once.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::store::StoreError;
use crate::telemetry::logs::causes;

pub mod deliverer;
pub mod heartbeat;
pub mod reaper;
pub mod reconciler;
pub mod strays;
pub mod sweeper;

/// One thing that has to be done again and again.
pub trait Task: Send + 'static {
    /// For logs.
    const NAME: &'static str;

    /// One pass; says how many things it did, so that a full batch is followed by the next at once.
    fn run_once(&mut self) -> impl Future<Output = Result<Pass, StoreError>> + Send;
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// There was more than one pass takes.
    Full,
    /// Nothing is left for now.
    Idle,
    /// Nothing is left for so long: the task's period is not always the same.
    IdleFor(Duration),
}

/// Runs a task every `period` until told to stop. The first pass comes after a random part of the period, so that
/// instances that were started together do not knock together.
pub async fn run(mut task: impl Task, period: Duration, stop: CancellationToken) {
    let mut wait = period.mul_f64(fraction());
    loop {
        tokio::select! {
            // Told to stop, a task begins no other pass, whatever its timer says.
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = match run_pass(&mut task).await {
            Pass::Full => Duration::ZERO,
            Pass::Idle => period,
            Pass::IdleFor(time) => time,
        };
    }
}

async fn run_pass<T: Task>(task: &mut T) -> Pass {
    task.run_once().await.unwrap_or_else(|error| {
        let cause = causes(&error);
        tracing::warn!(task = T::NAME, cause, "{error}; the next pass tries again");
        Pass::Idle
    })
}

/// From 0 to 1, by chance.
fn fraction() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
