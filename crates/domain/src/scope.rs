//! The scope: the caller of a request, as a hash.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::macros::hex_bytes;

hex_bytes! {
    /// The caller of a request, as a hash: the same key in two scopes is two records.
    ///
    /// The parts of a scope are mostly credentials. They are hashed with the service's salt, and never stored.
    pub struct Scope;
}

impl Scope {
    /// The scope of a caller: HMAC-SHA-256 under the service's salt over each part's name and value, length-prefixed.
    /// An absent part and an empty one differ.
    pub fn from_parts<'a>(salt: &Salt, parts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&salt.0).expect("HMAC takes keys of any length");
        for (name, value) in parts {
            mac.update(&(name.len() as u64).to_be_bytes());
            mac.update(name.as_bytes());
            mac.update(&[u8::from(value.is_some())]);
            let value = value.unwrap_or_default();
            mac.update(&(value.len() as u64).to_be_bytes());
            mac.update(value);
        }
        Self(mac.finalize().into_bytes().into())
    }
}

/// 256 random bits, drawn at a service's first start in a store and kept there for ever, sealed where there is a secret
/// ([`StoredSalt`](super::stored_salt::StoredSalt)): without them, nobody can find a weak credential by its scope.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("Salt(..)")]
pub struct Salt([u8; 32]);

impl Salt {
    /// Makes a salt from 32 random bytes, or from the stored ones.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// HMAC-SHA-256 under the salt, for other purposes than scopes: over the purpose and each part, length-prefixed.
    pub fn mac<'a>(&self, purpose: &'a str, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // No part of a scope has so long a name, so that this MAC is never a scope.
        mac.update(&u64::MAX.to_be_bytes());
        for part in [purpose.as_bytes()].into_iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_callers_can_be_joined_into_one_scope() {
        let salt = Salt::new([7; 32]);
        let scope = |parts: &[(&str, Option<&[u8]>)]| Scope::from_parts(&salt, parts.iter().copied());
        let callers = [
            scope(&[]),
            scope(&[("a", None)]),
            scope(&[("a", Some(b""))]),
            scope(&[("a", Some(b"b|c"))]),
            scope(&[("a", Some(b"b")), ("c", None)]),
            scope(&[("a", Some(b"bc"))]),
            scope(&[("ab", Some(b"c"))]),
            scope(&[("a", Some(b"b")), ("", Some(b"c"))]),
        ];
        for (i, one) in callers.iter().enumerate() {
            for other in &callers[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn another_salt_is_another_scope() {
        let of = |salt: u8| Scope::from_parts(&Salt::new([salt; 32]), [("authorization", Some(&b"Bearer t"[..]))]);
        assert_ne!(of(1), of(2));
        assert_eq!(of(1), of(1));
    }
}
