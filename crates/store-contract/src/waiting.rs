//! Waiting for an event, with a limit.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Far longer than any working step takes: a test that waits this long has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Repeats a check until it returns a value; panics after the deadline.
pub async fn eventually<T>(deadline: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < deadline, "the condition was not met within {deadline:?}");
        sleep(Duration::from_millis(25)).await;
    }
}
