//! Makes keys unknown whose instance's lease has lapsed, or whose attempt is past its deadline by a lease.

use std::sync::Arc;

use super::{PassResult, Task};
use crate::instance::Instance;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{StoreError, SweepParams};

/// The rows of one pass: few enough that their locks last some milliseconds at most.
const BATCH: u32 = 500;

/// An attempt whose instance is gone may have executed: its key becomes `unknown`.
pub struct Sweeper(pub Arc<Instance>);

impl Task for Sweeper {
    const NAME: &'static str = "sweeper";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, store_clock, observability, config, .. } = &*self.0;
        let clock = store_clock.view();
        // See docs/decisions/0004-watch-the-stores-clock.md.
        if !instance_lease.may_sweep() || clock.has_jumped_lately() {
            return Ok(PassResult::Idle);
        }
        let params = SweepParams { expiry: instance_lease.expiry(), limit: BATCH, as_of: clock.as_of };
        let swept = store.sweep(params).await?;
        observability.metrics.zombies.inc_by(swept.len() as u64);
        for key in &swept {
            observability.metrics.count_found_unknown(&key.route, UnknownCause::Crashed, &config.service);
            if !key.is_logged {
                tracing::warn!(record = %key.id, route = key.route, attempt = key.attempt, instance = %key.instance,
                    "the attempt's lease or its own deadline has run out; its outcome is unknown");
            }
        }
        Ok(if swept.len() >= BATCH as usize { PassResult::Full } else { PassResult::Idle })
    }
}
