//! The wait of a purge until no cache has the response that it has taken back.
//!
//! A purge counts as one in the store, each heartbeat reads the count, and an instance that has read it has emptied its
//! cache of what is older.

use super::KeyAdmin;
use super::problem::ApiProblem;

impl KeyAdmin<'_> {
    /// Waits until no instance remembers what was purged, for a lease's time at most: an instance that has not read the
    /// store for so long answers nothing from memory either. Returns how many instances may still remember it; `None`
    /// where nothing was purged.
    pub(super) async fn wait_until_forgotten(&self, purges: Option<u64>) -> Result<Option<u64>, ApiProblem> {
        let Some(purges) = purges else { return Ok(None) };
        let behind = self.store.wait_until_forgotten(self.service(), purges, self.start.store.lease.expiry).await?;
        Ok(Some(behind))
    }
}
