//! Settles what stands under this instance's name and is not running here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Pass, Task};
use crate::domain::attempt::{Settlement, Token};
use crate::domain::record::RecordId;
use crate::gate::Shared;
use crate::gate::tenure::Moment;
use crate::store::StoreError;

/// A reservation can commit after its request has given up waiting for it. Nothing of such a request was sent: the
/// attempt's token leaves the table of those underway only when its end is durable or it never began. It is released.
///
/// Or a failover has lost the end of an attempt, and not its reservation. The table remembers those that may have acted,
/// and such a one is unknown.
pub struct Strays {
    shared: Arc<Shared>,
    /// What the last pass found standing.
    stood: HashSet<Token>,
}

impl Strays {
    /// Nothing was found yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, stood: HashSet::new() }
    }
}

/// How long a stray is remembered as retryable; the retry that follows takes the key over with its route's own TTL.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Before a delivery that is a stray is due again.
const PAUSE: Duration = Duration::from_secs(1);

/// How long, beyond a lease, the end of an attempt may take to reach the standby that is promoted. One that lags behind by
/// more is hardly promoted, and each minute costs memory.
const LAG: Duration = Duration::from_secs(5 * 60);

impl Task for Strays {
    const NAME: &'static str = "strays";

    async fn run_once(&mut self) -> Result<Pass, StoreError> {
        let Shared { store, tenure, underway, config, .. } = &*self.shared;
        let begun = Moment::now();
        // In this order. An attempt that ends between the two is still in the first, and one that had ended before the
        // first is in flight no more at the second: asked the other way round, an attempt that has just become unknown
        // would be taken for one that was never sent.
        let running = underway.tokens();
        let standing = store.standing(tenure.id(), config.store.timeout).await?;
        // Only what the last pass found too: it was reserved before the first look, whatever the clocks have done since.
        // What stood then, is not running at that look and stands now has never begun.
        let stood = std::mem::replace(&mut self.stood, standing.iter().map(|(_, token)| *token).collect());
        let idle: HashMap<Token, RecordId> =
            standing.into_iter().filter(|(_, token)| !running.contains(token)).map(|(id, token)| (token, id)).collect();
        let acted = underway.acted(idle.keys().copied());
        for (token, id) in idle {
            if acted.contains(&token) {
                tracing::warn!(record = %id, "the store has lost this attempt's end; its outcome is unknown");
                store.settle(Settlement::of_lost(id, token)).await?;
            } else if stood.contains(&token) {
                tracing::info!(record = %id, "a reservation came after its request had given up; it is released");
                // Should it be a delivery: it was not sent, so it is due again, and does not count.
                self.shared.does_not_count(id);
                store.settle(Settlement::of_stray(id, token, TTL).due_in(Some(PAUSE))).await?;
            }
        }
        // Only now, and by when this pass began: what ended before a long outage is still known at the first look after it.
        underway.forget(begun, tenure.expiry() + LAG);
        Ok(Pass::Idle)
    }
}
