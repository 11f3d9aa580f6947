//! Renews this instance's lease.

use std::sync::Arc;

use super::{Pass, Task};
use crate::gate::Shared;
use crate::gate::tenure::Moment;
use crate::store::{Renewal, StoreError};

/// All attempts of this instance live with its one row: the cost does not grow with what is in flight.
pub struct Heartbeat(pub Arc<Shared>);

impl Task for Heartbeat {
    const NAME: &'static str = "heartbeat";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, cache, config, .. } = &*self.0;
        let begun = Moment::now();
        let renewal = Renewal {
            instance: tenure.id(),
            service: Arc::clone(&config.service),
            expiry: tenure.expiry(),
            purges_seen: Some(cache.purges()),
        };
        let renewed = store.renew(renewal).await.inspect_err(|_| tenure.missed())?;
        // What was purged is forgotten before it is said to be seen, and before the memory may answer again: a lease that
        // comes back would let it tell once more what was purged while it was away.
        let grown = cache.purged(renewed.purges);
        tenure.renewed(begun, renewed.now);
        // Whoever purges waits until all have seen it.
        Ok(if grown { Pass::Full } else { Pass::Idle })
    }
}
