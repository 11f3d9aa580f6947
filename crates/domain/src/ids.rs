//! The names of instances, attempts and records.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::key::Key;
use super::macros::hex_bytes;
use super::scope::Scope;
use super::space::SpaceHash;

/// One running proxy process. Its lease, and with it the right to start attempts, is stored under this number.
///
/// Drawn at random at start and never reused: a restarted process is another instance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{_0:016x}")]
pub struct InstanceId(i64);

impl InstanceId {
    /// Makes an id from random bits. The sign bit is dropped, so that the number reads the same in every store.
    pub fn from_random(bits: u64) -> Self {
        Self((bits >> 1).cast_signed())
    }

    pub fn from_stored(number: i64) -> Self {
        Self(number)
    }

    pub fn get(self) -> i64 {
        self.0
    }
}

/// The fencing token of one attempt: 128 random bits.
///
/// Every attempt replaces its predecessor's token in the record, so whoever holds the record's token is its newest
/// attempt. Attempt numbers would not do: after a failover that lost a commit a number can come again, a token cannot.
/// Tokens are capabilities: they are not printed, not even by `{:?}`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug)]
#[debug("Token(..)")]
pub struct Token([u8; 16]);

impl Token {
    /// Makes a token from 16 random bytes, which must come from the operating system's generator.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Whether the two tokens are equal, compared in constant time.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

hex_bytes! {
    /// The id of one record: the SHA-256 of its service, scope, space and key, each length-prefixed.
    ///
    /// It is the primary key in every store, and the shard key of stores that shard. Being a hash it has one length
    /// whatever clients send, and two different quadruples cannot be joined into the same bytes.
    #[derive(PartialOrd, Ord)]
    pub struct RecordId;
}

impl RecordId {
    pub fn derive(service: &str, scope: &Scope, space: &SpaceHash, key: &Key) -> Self {
        let mut hash = Sha256::new();
        for part in [service.as_bytes(), scope.as_bytes(), space.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}
