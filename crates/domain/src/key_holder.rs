//! The holder of a live key, where a route limits how many one holder may have.

use std::net::IpAddr;

use data_encoding::HEXLOWER;

use super::scope::{Salt, Scope};

/// The length of a holder. Two of so many random bits are never the same by chance.
const BYTES: usize = 16;

/// The party that a live key counts for: a caller on a route, or the address of callers that no service has accepted
/// yet. A hash under the store's salt, so that a reader of the store finds no address by trying all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug)]
#[debug("{}", HEXLOWER.encode_display(_0))]
pub struct KeyHolder([u8; BYTES]);

impl KeyHolder {
    /// A caller on a route. `space_name` is the route's name that stays as it is when the route is renamed.
    pub fn of_caller(salt: &Salt, service: &str, space_name: &str, scope: &Scope) -> Self {
        Self::derive(salt, "holder: caller", service, space_name, scope.as_bytes())
    }

    /// An address on a route.
    pub fn of_address(salt: &Salt, service: &str, space_name: &str, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::derive(salt, "holder: address", service, space_name, &address.octets()),
            IpAddr::V6(address) => Self::derive(salt, "holder: address", service, space_name, &address.octets()),
        }
    }

    fn derive(salt: &Salt, purpose: &str, service: &str, space_name: &str, party: &[u8]) -> Self {
        let mac = salt.mac(purpose, [service.as_bytes(), space_name.as_bytes(), party]);
        Self(mac[..BYTES].try_into().expect("a MAC is longer"))
    }

    /// A holder of a test of the store.
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_a_caller_or_an_address_on_one_route_of_one_service() {
        let salt = Salt::new([1; 32]);
        let [one, two] = [1, 2].map(|byte| Scope::from_stored(&[byte; 32]).unwrap());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let all = [
            KeyHolder::of_caller(&salt, "shop", "pay", &one),
            KeyHolder::of_caller(&salt, "shop", "pay", &two),
            KeyHolder::of_caller(&salt, "shop", "charge", &one),
            KeyHolder::of_caller(&salt, "other", "pay", &one),
            KeyHolder::of_caller(&Salt::new([2; 32]), "shop", "pay", &one),
            KeyHolder::of_address(&salt, "shop", "pay", address),
            KeyHolder::of_address(&salt, "shop", "charge", address),
            KeyHolder::of_address(&salt, "shop", "pay", "2001:db8::".parse().unwrap()),
        ];
        let distinct: std::collections::HashSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(KeyHolder::of_caller(&salt, "shop", "pay", &one), all[0]);
    }
}
