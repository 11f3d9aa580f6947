//! The names of instances, attempts and records.

use std::fmt;

use sha2::{Digest, Sha256};

use super::key::Key;
use super::macros::{debug_as_display, hex_bytes};
use super::scope::Scope;
use super::space::SpaceHash;

/// One running proxy process. Its lease, and with it the right to start attempts, is stored under this number.
///
/// Drawn at random at start and never reused: a restarted process is another instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(i64);

impl InstanceId {
    /// Makes an id from random bits. The sign bit is dropped, so that the number reads the same in every store.
    pub fn from_random(bits: u64) -> Self {
        Self((bits >> 1).cast_signed())
    }

    /// Reads the stored number.
    pub fn from_stored(number: i64) -> Self {
        Self(number)
    }

    /// The number as it is stored.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

debug_as_display!(InstanceId);

/// The fencing token of one attempt: 128 random bits.
///
/// Every attempt replaces its predecessor's token in the record, so whoever holds the record's token is its newest
/// attempt. Attempt numbers would not do: after a failover that lost a commit a number can come again, a token cannot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Makes a token from 16 random bytes, which must come from the operating system's generator.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads the stored bytes; `None` if the length is wrong.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Whether the two tokens are equal, compared in constant time.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }

    /// The bytes as they are stored.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Tokens are capabilities: they are not printed, not even by `{:?}`.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The id of one record: the SHA-256 of its service, scope, space and key, each length-prefixed.
///
/// It is the primary key in every store, and the shard key of stores that shard. Being a hash it has one length
/// whatever clients send, and two different quadruples cannot be joined into the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// The id of a key within its service, scope and space.
    pub fn derive(service: &str, scope: &Scope, space: &SpaceHash, key: &Key) -> Self {
        let mut hash = Sha256::new();
        for part in [service.as_bytes(), scope.as_bytes(), space.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Reads the stored bytes; `None` if the length is wrong.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

hex_bytes!(RecordId);
