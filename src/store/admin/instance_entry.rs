//! An instance as operators see it.

use std::time::SystemTime;

use crate::domain::ids::InstanceId;

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

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_lease_has_ended_at_its_end() {
        let time = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let is_leased = |now| {
            let (id, started_at, renewed_at, lease_until) = (InstanceId::from_stored(1), time(1), time(2), time(10));
            InstanceEntry { id, started_at, renewed_at, lease_until, now: time(now) }.is_leased()
        };
        assert!(is_leased(9));
        assert!(!is_leased(10));
    }
}
