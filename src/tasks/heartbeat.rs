//! Renews this instance's lease.

use std::sync::Arc;

use super::{Pass, Task};
use crate::gate::Shared;
use crate::gate::tenure::Moment;
use crate::store::StoreError;

/// All attempts of this instance live with its one row: the cost does not grow with what is in flight.
pub struct Heartbeat(pub Arc<Shared>);

impl Task for Heartbeat {
    const NAME: &'static str = "heartbeat";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, .. } = &*self.0;
        let begun = Moment::now();
        let now = store.renew(tenure.id(), tenure.expiry()).await.inspect_err(|_| tenure.missed())?;
        tenure.renewed(begun, now);
        Ok(Pass::Idle)
    }
}
