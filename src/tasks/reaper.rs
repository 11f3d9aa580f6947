//! Deletes records that are past their TTL.

use std::sync::Arc;

use super::{PassResult, Task};
use crate::instance::Instance;
use crate::store::StoreError;

/// The rows that one statement deletes: few enough not to slow requests down.
const BATCH: u32 = 500;

/// Deletes completed and retryable records only. A record in flight or unknown never expires.
pub struct Reaper(pub Arc<Instance>);

impl Task for Reaper {
    const NAME: &'static str = "reaper";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let deleted = self.0.store.reap(BATCH).await?;
        self.0.observability.metrics.reaped.inc_by(deleted);
        Ok(if deleted >= u64::from(BATCH) { PassResult::Full } else { PassResult::Idle })
    }
}
