//! What is kept so that only who has the secret can read it.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::fingerprint::{Secret, Secrets};
use super::record::RecordId;

/// Bytes under AES-256-GCM (NIST SP 800-38D), as they stand in the store.
///
/// Each has a key of its own: HMAC-SHA-256, under a key derived from the secret, over 32 random bytes that stand before
/// the text. So no key ever meets a second text, and the nonce is always zero; with one key for all, random nonces would
/// meet after some billion texts. The record's id is authenticated with it: it opens under that record and no other.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Which secret opens it, in words that give nothing of it away.
    pub secret: String,
    /// The salt, the text and its tag.
    pub bytes: Bytes,
}

/// Why something does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It was changed, cut, or is of another record.
    Broken,
    /// No secret that is configured is the one that it was made under.
    SecretGone,
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken => "it has been changed, or is of another key",
            Self::SecretGone => "the secret that it was made under is not configured any more",
        })
    }
}

const SALT_BYTES: usize = 32;

impl Sealed {
    /// Seals a text for a record, with 32 bytes from the operating system's generator.
    pub fn seal(secret: &Secret, id: &RecordId, salt: [u8; SALT_BYTES], text: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(SALT_BYTES + text.len() + AES_256_GCM.tag_len());
        bytes.extend_from_slice(text);
        key(secret, &salt)
            .seal_in_place_append_tag(nonce(), Aad::from(id.as_bytes()), &mut bytes)
            .expect("a request is far below what AES-GCM can take");
        bytes.splice(0..0, salt);
        Self { secret: secret.name(), bytes: bytes.into() }
    }

    /// The text.
    ///
    /// # Errors
    /// [`Unopened`]; nothing is known of the text then.
    pub fn open(&self, secrets: &Secrets, id: &RecordId) -> Result<Vec<u8>, Unopened> {
        let secret = secrets.named(&self.secret).ok_or(Unopened::SecretGone)?;
        let (salt, text) = self.bytes.split_first_chunk::<SALT_BYTES>().ok_or(Unopened::Broken)?;
        let mut text = text.to_vec();
        let opened = key(secret, salt).open_in_place(nonce(), Aad::from(id.as_bytes()), &mut text);
        let length = opened.map_err(|_| Unopened::Broken)?.len();
        text.truncate(length);
        Ok(text)
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({}, {} bytes)", self.secret, self.bytes.len())
    }
}

fn key(secret: &Secret, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.sealing()).expect("HMAC takes keys of any length");
    mac.update(salt);
    let key = UnboundKey::new(&AES_256_GCM, &mac.finalize().into_bytes()).expect("it is 32 bytes long");
    LessSafeKey::new(key)
}

/// The one text of its key.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> RecordId {
        RecordId::from_stored(&[byte; 32]).unwrap()
    }

    #[test]
    fn what_was_sealed_opens_under_its_record_and_its_secret_alone() {
        let [old, new] = ["the old secret of ours", "the new secret of ours"].map(Secret::new);
        let sealed = Sealed::seal(&old, &id(1), [7; 32], b"canary");
        assert!(memchr::memmem::find(&sealed.bytes, b"canary").is_none());
        let both = Secrets::new([new.clone(), old]);
        assert_eq!(sealed.open(&both, &id(1)).unwrap(), b"canary");
        assert_eq!(sealed.open(&both, &id(2)), Err(Unopened::Broken));
        assert_eq!(sealed.open(&Secrets::new([new]), &id(1)), Err(Unopened::SecretGone));
        assert_eq!(sealed.open(&Secrets::default(), &id(1)), Err(Unopened::SecretGone));
    }

    #[test]
    fn whatever_byte_is_changed_or_cut_it_does_not_open() {
        let secret = Secret::new("the only secret of ours");
        let secrets = Secrets::new([secret.clone()]);
        let sealed = Sealed::seal(&secret, &id(1), [7; 32], b"canary");
        for place in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.to_vec();
            bytes[place] ^= 1;
            let changed = Sealed { bytes: bytes.into(), ..sealed.clone() };
            assert_eq!(changed.open(&secrets, &id(1)), Err(Unopened::Broken), "{place}");
            let cut = Sealed { bytes: sealed.bytes.slice(..place), ..sealed.clone() };
            assert_eq!(cut.open(&secrets, &id(1)), Err(Unopened::Broken), "{place}");
        }
    }

    #[test]
    fn the_same_text_sealed_twice_looks_different() {
        let secret = Secret::new("the only secret of ours");
        let sealed = |salt| Sealed::seal(&secret, &id(1), [salt; 32], b"canary").bytes;
        assert_ne!(sealed(1)[32..], sealed(2)[32..]);
    }

    #[test]
    fn what_an_earlier_version_sealed_opens_for_ever() {
        let secret = Secret::new("the only secret of ours");
        let sealed = Sealed::seal(&secret, &id(1), [7; 32], b"canary");
        let hex: String = sealed.bytes[32..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((&*sealed.secret, &*hex), GOLDEN);
    }

    /// The secret's name, and text and tag. Who changes this can open nothing that is queued.
    const GOLDEN: (&str, &str) = ("53916527", "e721890e3e32cb62a564dea87083f4fee9143bf8b771");
}
