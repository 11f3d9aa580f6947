//! The operator's secrets: the current one, and earlier ones.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The operator's secret. With it, a fingerprint is an HMAC, so that nobody finds a short body (an amount, a card's
/// expiry) by trying all values.
#[derive(Clone, derive_more::Debug)]
#[debug("Secret({name})")]
pub struct Secret {
    name: String,
    pub(super) mac: Hmac<Sha256>,
    sealing: [u8; 32],
}

impl Secret {
    /// Makes a secret from the configured text. Each use of the secret has a derived key of its own.
    pub fn new(text: &str) -> Self {
        let derive = |purpose: &[u8]| -> [u8; 32] {
            let mut mac = Hmac::<Sha256>::new_from_slice(text.as_bytes()).expect("HMAC takes keys of any length");
            mac.update(purpose);
            mac.finalize().into_bytes().into()
        };
        Self {
            name: HEXLOWER.encode(&derive(b"oncegate key id")[..4]),
            mac: Hmac::new_from_slice(&derive(b"oncegate fingerprint")).expect("HMAC takes keys of any length"),
            sealing: derive(b"oncegate sealing"),
        }
    }

    /// A name that identifies the secret without revealing anything of it: 32 derived bits, in hexadecimal digits.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// The key from which the keys of sealed bytes are derived.
    pub(crate) fn sealing(&self) -> &[u8; 32] {
        &self.sealing
    }
}

/// The current secret, and earlier ones, which still open and compare what was made with them.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<[Secret]>);

impl Secrets {
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self(secrets.into_iter().collect())
    }

    /// The secret that new fingerprints are made with.
    pub fn current(&self) -> Option<&Secret> {
        self.0.first()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of all secrets, the current one first.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(Secret::name).collect()
    }

    pub fn named(&self, name: &str) -> Option<&Secret> {
        self.0.iter().find(|secret| secret.name.eq_ignore_ascii_case(name))
    }
}
