//! Sealed bytes: stored requests that can be read only with the secret.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::fingerprint::{Secret, Secrets};

/// Bytes under AES-256-GCM (NIST SP 800-38D), in their stored form.
///
/// Each text has a key of its own: HMAC-SHA-256, under a key derived from the secret, over 32 random bytes that precede
/// the text. So no key encrypts a second text, and the nonce is always zero; with one key for all, random nonces would
/// collide after some billion texts. The place of the text is authenticated too: it opens there and nowhere else.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("SealedBytes({secret}, {} bytes)", bytes.len())]
pub struct SealedBytes {
    pub secret: String,
    /// The salt, the text and its tag.
    pub bytes: Bytes,
}

/// Why sealed bytes do not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// They were changed or cut, or are of another record.
    #[error("it has been changed, or is of another key")]
    Broken,
    /// The secret that they were sealed with is not configured.
    #[error("the secret that it was sealed with is not configured any more")]
    SecretGone,
}

const SALT_BYTES: usize = 32;

impl SealedBytes {
    /// Seals a text, with 32 bytes from the operating system's generator. `bound_to` names its place, as a record's id.
    pub fn seal(secret: &Secret, bound_to: &[u8], salt: [u8; SALT_BYTES], text: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(SALT_BYTES + text.len() + AES_256_GCM.tag_len());
        bytes.extend_from_slice(text);
        key(secret, &salt)
            .seal_in_place_append_tag(nonce(), Aad::from(bound_to), &mut bytes)
            .expect("a request or response is far below the limit of AES-GCM");
        bytes.splice(0..0, salt);
        Self { secret: secret.name(), bytes: bytes.into() }
    }

    /// Opens the text. Of one that does not open, nothing is returned.
    pub fn open(&self, secrets: &Secrets, bound_to: &[u8]) -> Result<Vec<u8>, UnsealError> {
        let secret = secrets.named(&self.secret).ok_or(UnsealError::SecretGone)?;
        let (salt, text) = self.bytes.split_first_chunk::<SALT_BYTES>().ok_or(UnsealError::Broken)?;
        let mut text = text.to_vec();
        let opened = key(secret, salt).open_in_place(nonce(), Aad::from(bound_to), &mut text);
        let length = opened.map_err(|_| UnsealError::Broken)?.len();
        text.truncate(length);
        Ok(text)
    }
}

fn key(secret: &Secret, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.sealing()).expect("HMAC takes keys of any length");
    mac.update(salt);
    let key = UnboundKey::new(&AES_256_GCM, &mac.finalize().into_bytes()).expect("it is 32 bytes long");
    LessSafeKey::new(key)
}

/// The nonce of the only text of a key.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record's id, as a place.
    fn id(byte: u8) -> [u8; 32] {
        [byte; 32]
    }

    #[test]
    fn sealed_bytes_open_under_their_record_and_secret_alone() {
        let [old, new] = ["the old secret of ours", "the new secret of ours"].map(Secret::new);
        let sealed = SealedBytes::seal(&old, &id(1), [7; 32], b"canary");
        assert!(memchr::memmem::find(&sealed.bytes, b"canary").is_none());
        let both = Secrets::new([new.clone(), old]);
        assert_eq!(sealed.open(&both, &id(1)).unwrap(), b"canary");
        assert_eq!(sealed.open(&both, &id(2)), Err(UnsealError::Broken));
        assert_eq!(sealed.open(&Secrets::new([new]), &id(1)), Err(UnsealError::SecretGone));
        assert_eq!(sealed.open(&Secrets::default(), &id(1)), Err(UnsealError::SecretGone));
    }

    #[test]
    fn changed_or_cut_bytes_do_not_open() {
        let secret = Secret::new("the only secret of ours");
        let secrets = Secrets::new([secret.clone()]);
        let sealed = SealedBytes::seal(&secret, &id(1), [7; 32], b"canary");
        for place in 0..sealed.bytes.len() {
            let mut bytes = sealed.bytes.to_vec();
            bytes[place] ^= 1;
            let changed = SealedBytes { bytes: bytes.into(), ..sealed.clone() };
            assert_eq!(changed.open(&secrets, &id(1)), Err(UnsealError::Broken), "{place}");
            let cut = SealedBytes { bytes: sealed.bytes.slice(..place), ..sealed.clone() };
            assert_eq!(cut.open(&secrets, &id(1)), Err(UnsealError::Broken), "{place}");
        }
    }

    #[test]
    fn the_same_text_sealed_twice_differs() {
        let secret = Secret::new("the only secret of ours");
        let sealed = |salt| SealedBytes::seal(&secret, &id(1), [salt; 32], b"canary").bytes;
        assert_ne!(sealed(1)[32..], sealed(2)[32..]);
    }

    #[test]
    fn the_sealed_form_does_not_change_between_releases() {
        let secret = Secret::new("the only secret of ours");
        let sealed = SealedBytes::seal(&secret, &id(1), [7; 32], b"canary");
        let hex: String = data_encoding::HEXLOWER.encode(&sealed.bytes[32..]);
        assert_eq!((&*sealed.secret, &*hex), GOLDEN);
    }

    /// The secret's name, the text and the tag. With a change here, queued requests cannot be opened.
    const GOLDEN: (&str, &str) = ("53916527", "e721890e3e32cb62a564dea87083f4fee9143bf8b771");
}
