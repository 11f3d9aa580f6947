//! An instance as operators see it.

use std::time::SystemTime;

use crate::domain::ids::InstanceId;
use crate::domain::response::CorruptRow;
use crate::store::row;

/// The lease of an instance. All times are the store's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEntry {
    /// The instance.
    pub id: InstanceId,
    /// When it took its lease.
    pub started_at: SystemTime,
    /// When it last renewed the lease.
    pub renewed_at: SystemTime,
    /// The end of the lease.
    pub lease_until: SystemTime,
    /// The time of the reading.
    pub now: SystemTime,
}

impl InstanceEntry {
    /// Whether the lease has not ended.
    pub fn is_leased(&self) -> bool {
        self.now < self.lease_until
    }
}

/// The columns of an instance.
#[derive(Clone, Copy, Debug)]
pub struct RawInstanceEntry {
    /// The instance's id.
    pub id: i64,
    /// When it took its lease, in milliseconds since 1970, like the other times.
    pub started_ms: i64,
    /// When it last renewed the lease.
    pub renewed_ms: i64,
    /// The end of the lease.
    pub lease_until_ms: i64,
    /// The time of the reading.
    pub now_ms: i64,
}

impl RawInstanceEntry {
    /// Decodes the columns.
    ///
    /// # Errors
    /// [`CorruptRow`], where a time is before 1970.
    pub fn decode(self) -> Result<InstanceEntry, CorruptRow> {
        Ok(InstanceEntry {
            id: InstanceId::from_stored(self.id),
            started_at: row::time(self.started_ms)?,
            renewed_at: row::time(self.renewed_ms)?,
            lease_until: row::time(self.lease_until_ms)?,
            now: row::time(self.now_ms)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_ended_at_its_end() {
        let is_leased = |now_ms| {
            let columns = RawInstanceEntry { id: 1, started_ms: 1, renewed_ms: 2, lease_until_ms: 10, now_ms };
            columns.decode().unwrap().is_leased()
        };
        assert!(is_leased(9));
        assert!(!is_leased(10));
    }
}
