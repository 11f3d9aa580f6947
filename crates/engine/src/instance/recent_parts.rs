//! The bits of the parts of the requests that this instance has started lately, where the store has none: without a
//! `secret`, whoever reads the store could test guesses of each part alone.

use quick_cache::sync::Cache as Table;

use oncegate_domain::fingerprint::Fingerprint;
use oncegate_domain::ids::RecordId;
use oncegate_domain::part_bits::PartBits;

/// The requests that are remembered, the most used and the latest ones: 2 MiB.
const REQUESTS_MAX: usize = 16 * 1024;

/// The bits, by the record of the request's key.
#[derive(Debug)]
pub struct RecentParts(Table<RecordId, (Fingerprint, PartBits)>);

impl Default for RecentParts {
    fn default() -> Self {
        Self(Table::new(REQUESTS_MAX))
    }
}

impl RecentParts {
    /// Notes the bits of a request with this fingerprint.
    pub fn note(&self, id: RecordId, fingerprint: Fingerprint, parts: PartBits) {
        self.0.insert(id, (fingerprint, parts));
    }

    /// Returns the bits of the request that made the fingerprint.
    pub fn find(&self, id: &RecordId, fingerprint: &Fingerprint) -> Option<PartBits> {
        self.0.get(id).filter(|(own, _)| own == fingerprint).map(|(_, parts)| parts)
    }
}
