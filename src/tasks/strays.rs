//! Settles what stands under this instance's name and is not running here.

use std::sync::Arc;
use std::time::Duration;

use super::{Pass, Task};
use crate::domain::attempt::Lease;
use crate::gate::Shared;
use crate::store::StoreError;

/// A reservation can commit after its request has given up waiting for it. Nothing of such a request was sent: the
/// attempt's token leaves the table of those underway only when its end is durable or it never began.
pub struct Strays(pub Arc<Shared>);

/// How long a stray is remembered as retryable; the retry that follows takes the key over with its route's own TTL.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

impl Task for Strays {
    const NAME: &'static str = "strays";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, underway, config, .. } = &*self.0;
        // In this order. An attempt that ends between the two is still in the first, and one that had ended before the
        // first is in flight no more at the second: asked the other way round, an attempt that has just become unknown
        // would be taken for one that was never sent.
        let running = underway.tokens();
        // Old enough that whoever asked for it has its answer or has given up, and that it began before the first look.
        let standing = store.standing(tenure.id(), config.store.timeout * 2).await?;
        for (id, token) in standing.into_iter().filter(|(_, token)| !running.contains(token)) {
            tracing::info!(record = %id, "a reservation came after its request had given up; it is released");
            store.settle(Lease { id, token, attempt: 0 }.release(TTL)).await?;
        }
        Ok(Pass::Idle)
    }
}
