//! The space: the set of requests in which a key is unique, as a hash.

use sha2::{Digest, Sha256};

use super::macros::hex_bytes;

hex_bytes! {
    /// SHA-256 of the set of requests in which a key is unique: method and path, route, or the whole service.
    ///
    /// It has 32 bytes whatever the client's path is, so that a record's size does not depend on it.
    pub struct SpaceHash;
}

impl SpaceHash {
    /// Hashes the description of a space.
    pub fn from_text(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Reads the stored bytes. Versions before 0.1.0 stored the text: any other length is hashed.
    pub fn from_stored_or_text(bytes: &[u8]) -> Self {
        Self::from_stored(bytes).unwrap_or_else(|| Self(Sha256::digest(bytes).into()))
    }
}
