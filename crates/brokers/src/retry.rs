//! Pauses before another try, and work that is tried again after a panic.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use oncegate_machine::jitter::jittered;

/// Returns the pause after so many failures in a row: the first one, doubled with each further failure, up to the cap.
pub(super) fn doubled(first: Duration, failures: u32, cap: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(cap)
}

/// Starts work again and again until it ends without a panic. A panic is a bug, which `log` reports. Returns `None` if
/// `stop` ends the pause after one.
pub(super) async fn again_after_panics<T, F: Future<Output = T>>(
    stop: &CancellationToken,
    pause: impl Fn(u32) -> Duration,
    log: impl Fn(u32),
    start: impl Fn() -> F,
) -> Option<T> {
    let mut panics = 0;
    loop {
        if let Ok(ended) = AssertUnwindSafe(start()).catch_unwind().await {
            return Some(ended);
        }
        panics += 1;
        log(panics);
        stop.run_until_cancelled(sleep(jittered(pause(panics)))).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_started_again_until_it_is_stopped() {
        let (starts, logged, stop) = (Cell::new(0), Cell::new(0), CancellationToken::new());
        let work = |panics: u32| {
            starts.set(starts.get() + 1);
            let number = starts.get();
            async move { assert!(number > panics, "a bug in the work") }
        };
        let run = |panics| {
            again_after_panics(&stop, |_| Duration::from_secs(1), |panics| logged.set(panics), move || work(panics))
        };
        assert_eq!(run(2).await, Some(()));
        assert_eq!((starts.take(), logged.take()), (3, 2), "two have panicked, and the third one has ended");
        stop.cancel();
        assert_eq!((run(u32::MAX).await, starts.get()), (None, 1), "none is started after the stop");
    }
}
