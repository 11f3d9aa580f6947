//! Whose key it is.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Who is calling, as a hash: the same key in two scopes is two records.
///
/// The parts of a scope are mostly credentials. They are hashed with a salt that is kept in the store, and never stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope([u8; 32]);

impl Scope {
    /// The scope of a caller: HMAC-SHA-256 under the store's salt over each part's name and value, length-prefixed, an
    /// absent part told apart from an empty one.
    pub fn of<'a>(salt: &Salt, parts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> Self {
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

    /// As it stands in the store; `None` if the length is wrong.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As it stands in the store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// 256 random bits that are drawn when a store is made and stay in it: without them a scope cannot be guessed from a
/// weak credential.
#[derive(Clone)]
pub struct Salt([u8; 32]);

impl Salt {
    /// From 32 random bytes, or as it stands in the store.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// HMAC-SHA-256 under it, for another purpose than scopes: over the purpose and each part, length-prefixed.
    pub fn mac<'a>(&self, purpose: &'a str, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // No name of a part of a scope is so long.
        mac.update(&u64::MAX.to_be_bytes());
        for part in [purpose.as_bytes()].into_iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_callers_can_be_joined_into_one_scope() {
        let salt = Salt::new([7; 32]);
        let scope = |parts: &[(&str, Option<&[u8]>)]| Scope::of(&salt, parts.iter().copied());
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
        let of = |salt: u8| Scope::of(&Salt::new([salt; 32]), [("authorization", Some(&b"Bearer t"[..]))]);
        assert_ne!(of(1), of(2));
        assert_eq!(of(1), of(1));
    }
}
