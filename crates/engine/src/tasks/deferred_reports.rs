//! Applies the reports of services that an attempt was not executed, once the attempt has ended.

use std::sync::Arc;

use super::{PassResult, Task};
use crate::instance::Instance;
use oncegate_store::StoreError;

/// The rows of one pass: few enough that their locks last some milliseconds at most.
const BATCH: u32 = 500;

/// A service reported these attempts as not executed while they were running; now their keys are free. Apart from the
/// sweeper, because this writes to the audit log, and nothing that waits there may delay a sweep.
pub struct DeferredReports(pub Arc<Instance>);

impl Task for DeferredReports {
    const NAME: &'static str = "deferred reports";

    // See docs/decisions/0005-believe-not-executed-late.md.
    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, .. } = &*self.0;
        if !instance_lease.may_sweep() {
            return Ok(PassResult::Idle);
        }
        let released = store.apply_deferred_reports(BATCH).await?;
        for id in &released {
            tracing::info!(record = %id, "the service reported that the attempt was not executed; the next request is the next attempt");
        }
        Ok(if released.len() == BATCH as usize { PassResult::Full } else { PassResult::Idle })
    }
}
