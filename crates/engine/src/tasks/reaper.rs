//! Deletes records that are past their TTL.

use std::sync::Arc;

use super::{PassResult, Task};
use crate::instance::Instance;
use oncegate_store::{ReapParams, StoreError};

/// The rows that one call handles: few enough not to slow requests down.
const BATCH: u32 = 500;

/// Deletes completed and retryable records only, or drops the responses of those that are still remembered. A record in
/// flight or unknown never expires.
pub struct Reaper(pub Arc<Instance>);

impl Task for Reaper {
    const NAME: &'static str = "reaper";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let reaped =
            self.0.store.reap(ReapParams { limit: BATCH, scope: self.0.store_clock.view().reap_scope() }).await?;
        self.0.observability.metrics.reaped.inc_by(reaped.deleted);
        Ok(if reaped.is_full_batch(BATCH) { PassResult::Full } else { PassResult::Idle })
    }
}
