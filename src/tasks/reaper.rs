//! Deletes what is past its TTL.

use std::sync::Arc;

use super::{Pass, Task};
use crate::gate::Shared;
use crate::store::StoreError;

/// As many rows as one statement deletes without anybody feeling it.
const BATCH: u32 = 500;

/// Completed and retryable records only. What is in flight or unknown never lapses.
pub struct Reaper(pub Arc<Shared>);

impl Task for Reaper {
    const NAME: &'static str = "reaper";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let reaped = self.0.store.reap(BATCH).await?;
        self.0.watch.meters.reaped.inc_by(reaped);
        Ok(if reaped >= u64::from(BATCH) { Pass::Full } else { Pass::Idle })
    }
}
