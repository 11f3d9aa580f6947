//! The operator's secrets: the one in use, and those before it.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The operator's secret. With it a fingerprint is an HMAC, so that a body with little in it (an amount, a card's
/// expiry) cannot be found by trying.
#[derive(Clone)]
pub struct Secret {
    pub(super) id: KeyId,
    pub(super) mac: Hmac<Sha256>,
    sealing: [u8; 32],
}

impl Secret {
    /// From the configured text. The key of the HMAC is derived, so that other uses of the secret get other keys.
    pub fn new(text: &str) -> Self {
        let derive = |purpose: &[u8]| -> [u8; 32] {
            let mut mac = Hmac::<Sha256>::new_from_slice(text.as_bytes()).expect("HMAC takes keys of any length");
            mac.update(purpose);
            mac.finalize().into_bytes().into()
        };
        let id = derive(b"oncegate key id");
        Self {
            id: KeyId([id[0], id[1], id[2], id[3]]),
            mac: Hmac::new_from_slice(&derive(b"oncegate fingerprint")).expect("HMAC takes keys of any length"),
            sealing: derive(b"oncegate sealing"),
        }
    }

    /// What tells it from other secrets, and gives nothing of it away.
    pub fn name(&self) -> String {
        self.id.to_string()
    }

    /// From which the keys are derived that seal what is stored.
    pub(in crate::domain) fn sealing(&self) -> &[u8; 32] {
        &self.sealing
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

/// The secret in use and those before it, which still read what was made under them.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<[Secret]>);

impl Secrets {
    /// The current secret first.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self(secrets.into_iter().collect())
    }

    /// The one that new fingerprints are made with.
    pub fn current(&self) -> Option<&Secret> {
        self.0.first()
    }

    /// The one of that [`Secret::name`].
    pub fn named(&self, name: &str) -> Option<&Secret> {
        self.get(KeyId::from_hex(name)?)
    }

    pub(super) fn get(&self, id: KeyId) -> Option<&Secret> {
        self.0.iter().find(|secret| secret.id == id)
    }
}

/// Tells secrets apart without giving anything of them away: 32 bits derived from the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyId([u8; 4]);

impl KeyId {
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        (text.len() == 8).then(|| u32::from_str_radix(text, 16).ok())?.map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}
