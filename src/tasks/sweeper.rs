//! Turns the keys of lapsed leases into unknown.

use std::sync::Arc;

use super::{Pass, Task};
use crate::gate::Shared;
use crate::store::StoreError;

/// As many rows as one pass locks for some milliseconds at most.
const BATCH: u32 = 500;

/// An attempt whose instance is gone may have executed: nobody knows, and the key says so from now on.
pub struct Sweeper(pub Arc<Shared>);

impl Task for Sweeper {
    const NAME: &'static str = "sweeper";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, watch, .. } = &*self.0;
        if !tenure.may_sweep() {
            return Ok(Pass::Idle);
        }
        let swept = store.sweep(tenure.expiry(), BATCH).await?;
        watch.meters.zombies.inc_by(swept.len() as u64);
        for key in &swept {
            tracing::warn!(record = %key.id, route = key.route, attempt = key.attempt, instance = %key.instance,
                "the attempt's lease has run out; its outcome is unknown");
        }
        // What its service had denied while it was running is free now.
        for id in store.testimony().heed(BATCH).await? {
            tracing::info!(record = %id, "not executed, by its service's word: the next request is the next attempt");
        }
        Ok(if swept.len() == BATCH as usize { Pass::Full } else { Pass::Idle })
    }
}
