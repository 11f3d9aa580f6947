//! The answers of the store's calls.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use super::row::{FromRow, RowReader, from_row};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::record::Record;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::rfc3339;

/// The result of a look at all servers of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryCheck {
    /// The number of servers that take writes; 0 for a store at one place, which is compared with none.
    pub primaries: usize,
    /// Whether a server that this instance used is refused since the last look: another one takes writes now, on a
    /// newer timeline, or none can be preferred. Then the store may have lost what this instance has reserved, and its
    /// lease.
    pub has_changed: bool,
}

/// The store's answer to a [settlement](super::Store::settle).
#[derive(Debug)]
pub enum SettleResult {
    /// Written, and durable.
    Done {
        /// When the record will be forgotten, where it has a TTL.
        expires_at: Option<SystemTime>,
    },
    /// Nothing was changed: a newer attempt, another decision or an earlier copy of this settlement has settled the
    /// key. Holds the current record; `None` if there is none and the outcome need not be stored.
    Fenced(Option<Record>),
}

impl FromRow for PartBits {
    fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
        row.read("parts")
    }
}

from_row! {
    /// The result of a lease renewal.
    #[derive(Clone, Copy, Debug)]
    pub struct RenewResult {
        pub now: SystemTime,
        /// The number of purges by all instances that share the store.
        pub purges: u64,
        /// The latest `hold_ttls_until` of all instances; 1970 where there is none.
        pub ttls_held_until: SystemTime,
    }

    /// A key that [`Store::sweep`](super::Store::sweep) made unknown.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SweptKey {
        pub id: RecordId,
        pub route: String,
        /// The number of the attempt whose outcome is unknown.
        pub attempt: u32,
        /// The instance that had reserved the attempt.
        pub instance: InstanceId,
        /// Whether the start of the embedded store has made it unknown, and logged it, before the first sweep.
        pub is_logged: bool = not_logged,
    }

    /// A reservation that [`Store::list_in_flight`](super::Store::list_in_flight) found.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReservedAttempt {
        pub id: RecordId,
        pub token: Token,
        pub route: String,
    }

    /// The records that one call of [`Store::reap`](super::Store::reap) handled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReapedRows {
        pub deleted: u64,
        /// The records that are still remembered and lost their response.
        pub responses_dropped: u64,
    }

    /// A count of one week, over all callers.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
    pub struct WeekCount {
        /// Its Monday, 00:00 UTC.
        #[serde(serialize_with = "rfc3339::serialize")]
        #[schemars(with = "rfc3339::Written")]
        pub week: SystemTime,
        pub route: String,
        pub kind: String,
        pub count: u64,
    }

    /// A caller's count of one week.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
    pub struct CallerCount {
        pub route: String,
        pub caller: String,
        pub kind: String,
        pub count: u64,
    }

    /// The requests of a service's routes, and the way in which they find their keys.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RouteIdentities {
        pub service: String,
        /// A number that grows with each change.
        pub generation: i64,
        /// An opaque description.
        pub finds: String,
    }
}

fn not_logged(_: &impl RowReader) -> Result<bool, CorruptRow> {
    Ok(false)
}

impl ReapedRows {
    /// Whether a call with this limit may have left records behind that are past their TTL.
    pub fn is_full_batch(self, limit: u32) -> bool {
        self.deleted + self.responses_dropped >= u64::from(limit)
    }
}
