//! The wait of a purge until no instance caches what it has taken back.
//!
//! A purge counts as one in the store. Each heartbeat reads the count, drops what its cache has of earlier ones, and
//! reports the count that it has read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{CountInstancesBehindParams, Store, StoreError};

impl Store {
    /// Waits at most `wait_max` until no living instance of the service caches a response purged by that count. Returns
    /// the number of instances that still may.
    pub async fn wait_until_forgotten(
        &self,
        service: Arc<str>,
        purges: u64,
        wait_max: Duration,
    ) -> Result<u64, StoreError> {
        let (params, deadline) = (CountInstancesBehindParams { service, purges }, Instant::now() + wait_max);
        loop {
            let behind = self.count_instances_behind(params.clone()).await?;
            if behind == 0 || Instant::now() >= deadline {
                return Ok(behind);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
