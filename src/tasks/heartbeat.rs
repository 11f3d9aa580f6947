//! Renews this instance's lease.

use std::sync::Arc;

use super::{PassResult, Task};
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::store::{LeaseRenewal, StoreError};

/// Renews the lease. All attempts of this instance depend on its one row: the cost does not grow with their number.
pub struct Heartbeat(pub Arc<Instance>);

impl Task for Heartbeat {
    const NAME: &'static str = "heartbeat";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let Instance { store, instance_lease, cache, config, .. } = &*self.0;
        let started = BootInstant::now();
        let renewal = LeaseRenewal {
            instance: instance_lease.id(),
            service: Arc::clone(&config.service),
            expiry: instance_lease.expiry(),
            purges_seen: Some(cache.purge_count()),
        };
        let (primaries, renewed) = tokio::join!(store.check_primaries(), store.renew_lease(renewal));
        if primaries.has_changed {
            // The new primary may have neither this lease nor what was reserved under it, and the renewal may have gone to
            // the former one.
            instance_lease.suspend();
            return Ok(PassResult::Full);
        }
        let renewed = renewed.inspect_err(|_| instance_lease.record_missed_renewal())?;
        // The cache drops purged records before the next heartbeat reports the purge as seen, and before the lease lets the
        // cache answer again: a lease that comes back would otherwise let it replay records that were purged meanwhile.
        let has_new_purge = cache.observe_purge_count(renewed.purges);
        instance_lease.record_renewal(started, renewed.now);
        // At once: a purge waits until all instances have reported it.
        Ok(if has_new_purge { PassResult::Full } else { PassResult::Idle })
    }
}
