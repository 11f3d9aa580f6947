//! Values of a request by which its key can be looked up, as hashes.

use super::place::Place;
use super::scope::Salt;

/// The length of a hash: two of so many random bits are never the same by chance.
pub const LOOKUP_BYTES: usize = 16;

/// The most values of a key: each costs a first attempt an entry of an index.
pub const LOOKUPS_MAX: usize = 4;

/// A value at a place of a request, hashed under the service's salt. A reader of a store whose salt is encrypted, as it
/// is with a `secret`, finds none by trying.
pub type LookupHash = [u8; LOOKUP_BYTES];

impl Salt {
    pub fn lookup(&self, service: &str, place: &Place, value: &[u8]) -> LookupHash {
        let mac = self.mac("lookup", [service.as_bytes(), place.to_string().as_bytes(), value]);
        mac[..LOOKUP_BYTES].try_into().expect("a MAC is longer")
    }
}

/// The hashes of a request's values, at most [`LOOKUPS_MAX`]; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupHashes(Vec<u8>);

impl LookupHashes {
    /// Joins hashes; `None` where there are none.
    pub fn join(hashes: impl IntoIterator<Item = LookupHash>) -> Option<Self> {
        let joined = hashes.into_iter().take(LOOKUPS_MAX).collect::<Vec<_>>().concat();
        (!joined.is_empty()).then_some(Self(joined))
    }

    /// The hashes, one behind the other, as they are stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_is_a_value_at_one_place_of_one_service() {
        let (salt, other) = (Salt::new([1; 32]), Salt::new([2; 32]));
        let [order, email] = ["json:/order_id", "json:/email"].map(|place| Place::parse(place).unwrap());
        let all = [
            salt.lookup("shop", &order, b"o-9"),
            salt.lookup("shop", &order, b"o-8"),
            salt.lookup("shop", &email, b"o-9"),
            salt.lookup("other", &order, b"o-9"),
            other.lookup("shop", &order, b"o-9"),
        ];
        let distinct: std::collections::HashSet<_> = all.into_iter().collect();
        assert_eq!((distinct.len(), salt.lookup("shop", &order, b"o-9")), (all.len(), all[0]));
        assert_eq!(LookupHashes::join([]), None);
        assert_eq!(LookupHashes::join(all).unwrap().as_bytes().len(), LOOKUPS_MAX * LOOKUP_BYTES);
    }
}
