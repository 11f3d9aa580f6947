//! Adds the counts of this instance to those of the week in the store, and keeps these few.

use std::sync::Arc;
use std::time::Duration;

use super::{PassResult, Task};
use crate::instance::Instance;
use oncegate_store::StoreError;

/// The period: a crash loses the counts of one.
pub const PERIOD: Duration = Duration::from_secs(60);

/// The passes from one tending to the next: an hour.
const TENDED_EVERY: u32 = 60;

/// The task. The requests that are counted wait for nothing.
pub struct WeeklyCounter {
    instance: Arc<Instance>,
    /// The passes until the next tending.
    left: u32,
}

impl WeeklyCounter {
    /// Creates the task.
    pub fn new(instance: Arc<Instance>) -> Self {
        Self { instance, left: 0 }
    }
}

impl Task for WeeklyCounter {
    const NAME: &'static str = "weekly counts";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        self.instance.write_weekly_counts().await?;
        if self.left == 0 {
            self.instance.tend_weekly_counts().await?;
            self.left = TENDED_EVERY;
        }
        self.left -= 1;
        Ok(PassResult::Idle)
    }
}
