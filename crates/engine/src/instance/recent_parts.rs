//! The bits of the parts of the requests that this instance has started lately, where the store has none: without a
//! `secret`, whoever reads the store could test guesses of each part alone.

use std::sync::OnceLock;

use parking_lot::Mutex;

use oncegate_domain::fingerprint::Fingerprint;
use oncegate_domain::ids::RecordId;
use oncegate_domain::part_bits::PartBits;

/// The slots, each for the last request of its records: with bits 2 MiB. Each request writes into one, so that a slot
/// costs it less than a table would that keeps the most used ones.
const SLOTS: usize = 16 * 1024;

/// The bits, by the record of the request's key. Until the first one is noted there are no slots.
#[derive(Default)]
pub struct RecentParts(OnceLock<Box<[Slot]>>);

type Slot = Mutex<Option<RecentRequest>>;

struct RecentRequest {
    id: RecordId,
    fingerprint: Fingerprint,
    parts: PartBits,
}

impl RecentParts {
    /// Notes the bits of a request with this fingerprint.
    pub fn note(&self, id: RecordId, fingerprint: Fingerprint, parts: PartBits) {
        let slots = self.0.get_or_init(|| (0..SLOTS).map(|_| Slot::default()).collect());
        *slots[place(&id)].lock() = Some(RecentRequest { id, fingerprint, parts });
    }

    /// Returns the bits of the request that made the fingerprint.
    pub fn find(&self, id: &RecordId, fingerprint: &Fingerprint) -> Option<PartBits> {
        let slot = self.0.get()?[place(id)].lock();
        let own = slot.as_ref().filter(|own| own.id == *id && own.fingerprint == *fingerprint);
        own.map(|own| own.parts.clone())
    }
}

/// A record's id is a hash.
fn place(id: &RecordId) -> usize {
    let [low, high, ..] = *id.as_bytes();
    usize::from(u16::from_le_bytes([low, high])) % SLOTS
}

#[cfg(test)]
mod tests {
    use oncegate_domain::fingerprint::Fingerprint;

    use super::*;

    #[test]
    fn the_last_request_of_a_slot_is_found_by_its_record_and_its_fingerprint() {
        let recent = RecentParts::default();
        let [one, other] = [1, 2].map(|last| {
            let mut bytes = [7; 32];
            bytes[31] = last;
            RecordId::from_stored(&bytes).unwrap()
        });
        let [first, second] = [1, 2].map(|byte| Fingerprint::from_stored(&[byte; 32]).unwrap());
        let parts = PartBits::from_stored(&[1, 2, 3, 4, 5]).unwrap();
        recent.note(one, first, parts.clone());
        assert_eq!(recent.find(&one, &first), Some(parts.clone()));
        assert_eq!((recent.find(&one, &second), recent.find(&other, &first)), (None, None));
        recent.note(other, second, parts.clone());
        assert_eq!((recent.find(&one, &first), recent.find(&other, &second)), (None, Some(parts)));
    }
}
