//! The stored form of a salt: in clear, or sealed under secrets.
//!
//! A salt never changes: with another one, no key would be found again, and retries would be executed again. With a
//! secret, it is sealed, so that a reader of the store cannot try credentials against the scopes. It is sealed once for
//! each secret, so that the secret can be changed while instances with the old one and with the new one run.

use bytes::Bytes;

use super::fingerprint::Secrets;
use super::scope::Salt;
use super::sealed::{SealedBytes, UnsealError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredSalt {
    /// Readable: no instance of the service has had a secret yet.
    Clear(Salt),
    /// A copy for each secret, in the order in which the secrets came into use.
    Sealed(Vec<SealedBytes>),
}

/// The reason for which a stored salt cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaltError {
    /// The stored bytes were changed, or are another service's.
    #[error(
        "the salt of this service's scopes has been changed in the store, or is another service's; restore the table \
         `salts` from a backup"
    )]
    Broken,
    /// The store has another salt than the one that this process has used so far.
    #[error("the store has another salt of this service's scopes than this process uses")]
    Changed,
    /// It is sealed under the secrets of these names, and none of them is configured.
    #[error(
        "the salt of this service's scopes is encrypted under the secret {}, and {}. Configure that secret, as `secret` or \
         in `previous_secrets`: `oncegate check` shows the names of secrets. Without the salt no key would be found, and \
         retries would be executed again",
        names.join(" or "),
        if *has_secret { "neither `secret` nor `previous_secrets` has it" } else { "`secret` is empty" }
    )]
    Locked { names: Vec<String>, has_secret: bool },
    /// It is not sealed under the current secret, so no instance has used that one.
    #[error(
        "the instances of this service do not use the `secret` of this file but {}, and could not replay a response that \
         is encrypted under it. Configure theirs: `oncegate check` shows the names of secrets",
        if names.is_empty() { "none".to_owned() } else { names.join(" or ") }
    )]
    OtherSecret {
        /// The names of the secrets that the instances have used, the latest last.
        names: Vec<String>,
    },
}

const NAME_BYTES: usize = 8;

/// The length of a sealed copy: the salt of its encryption, the text and the tag.
const COPY_BYTES: usize = 32 + 32 + 16;

impl StoredSalt {
    /// The form of a new salt under these secrets. `sealing` is 32 bytes from the operating system's generator.
    pub fn new(salt: &Salt, service: &str, secrets: &Secrets, sealing: [u8; 32]) -> Self {
        let clear = Self::Clear(salt.clone());
        clear.for_secrets(salt, service, secrets, sealing).unwrap_or(clear)
    }

    /// Reads the stored bytes. An error is [`SaltError::Broken`]: no salt has this length.
    pub fn decode(bytes: &[u8]) -> Result<Self, SaltError> {
        if let Ok(salt) = bytes.try_into() {
            return Ok(Self::Clear(Salt::new(salt)));
        }
        let copies = bytes.chunks(NAME_BYTES + COPY_BYTES).map(|copy| {
            let (name, bytes) = copy.split_at_checked(NAME_BYTES)?;
            let secret = str::from_utf8(name).ok()?.to_owned();
            (bytes.len() == COPY_BYTES).then(|| SealedBytes { secret, bytes: Bytes::copy_from_slice(bytes) })
        });
        let copies: Vec<_> = copies.collect::<Option<_>>().ok_or(SaltError::Broken)?;
        if copies.is_empty() { Err(SaltError::Broken) } else { Ok(Self::Sealed(copies)) }
    }

    /// The bytes to store: the salt itself, or each copy behind its secret's name.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Clear(salt) => salt.as_bytes().to_vec(),
            Self::Sealed(copies) => {
                copies.iter().flat_map(|copy| [copy.secret.as_bytes(), &copy.bytes].concat()).collect()
            }
        }
    }

    pub fn open(&self, service: &str, secrets: &Secrets) -> Result<Salt, SaltError> {
        let copies = match self {
            Self::Clear(salt) => return Ok(salt.clone()),
            Self::Sealed(copies) => copies,
        };
        for copy in copies.iter().rev() {
            match copy.open(secrets, &binding(service)) {
                Ok(salt) => return salt.try_into().map(Salt::new).map_err(|_| SaltError::Broken),
                Err(UnsealError::Broken) => return Err(SaltError::Broken),
                Err(UnsealError::SecretGone) => {}
            }
        }
        Err(SaltError::Locked { names: self.names(), has_secret: !secrets.is_empty() })
    }

    /// Checks that the service's instances have used the current secret.
    pub fn check_current(&self, secrets: &Secrets) -> Result<(), SaltError> {
        let names = self.names();
        match secrets.current().is_some_and(|current| names.contains(&current.name())) {
            true => Ok(()),
            false => Err(SaltError::OtherSecret { names }),
        }
    }

    /// The form that an instance with these secrets, which has opened the salt, puts in the place of this one; `None`
    /// if this one is right:
    ///
    /// - The current secret has a copy, and no copy is in clear.
    /// - The copies of earlier secrets that are not configured any more are removed. A copy that came after the current
    ///   secret's stays: the instance may be the last one with the configuration before a rotation.
    // See docs/decisions/0016-encrypt-above-the-stores.md.
    pub fn for_secrets(&self, salt: &Salt, service: &str, secrets: &Secrets, sealing: [u8; 32]) -> Option<Self> {
        let current = secrets.current()?;
        let copies = match self {
            Self::Clear(_) => &[][..],
            Self::Sealed(copies) => copies,
        };
        let is_configured = |copy: &SealedBytes| secrets.named(&copy.secret).is_some();
        let is_current = |copy: &SealedBytes| copy.secret == current.name();
        let place = copies.iter().position(is_current);
        // A copy that comes later, of a secret that is a previous one here: the operator has gone back to this secret.
        let is_back = place.is_some_and(|place| place + 1 < copies.len()) && copies.last().is_some_and(is_configured);
        let kept = match place {
            Some(place) if !is_back => {
                let kept = copies.iter().enumerate().filter(|(i, copy)| *i >= place || is_configured(copy));
                kept.map(|(_, copy)| copy.clone()).collect()
            }
            _ => {
                let others = copies.iter().filter(|copy| is_configured(copy) && !is_current(copy));
                let own = SealedBytes::seal(current, &binding(service), sealing, salt.as_bytes());
                others.cloned().chain([own]).collect()
            }
        };
        let changed = Self::Sealed(kept);
        (changed.names() != self.names()).then_some(changed)
    }

    /// The names of the secrets that open it, in the order in which they came into use; none of a salt in clear.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Clear(_) => Vec::new(),
            Self::Sealed(copies) => copies.iter().map(|copy| copy.secret.clone()).collect(),
        }
    }
}

/// The data that a copy is bound to: it opens as the salt of this service, and as nothing else.
fn binding(service: &str) -> Vec<u8> {
    [b"salt of the scopes of ", service.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Secret;

    const SALT: [u8; 32] = [7; 32];

    fn secrets(texts: &[&str]) -> Secrets {
        Secrets::new(texts.iter().map(|text| Secret::new(text)))
    }

    fn names(texts: &[&str]) -> Vec<String> {
        secrets(texts).names()
    }

    /// The stored form after instances with these secrets have started one after the other.
    fn after(starts: &[&[&str]]) -> Result<StoredSalt, SaltError> {
        let mut stored = StoredSalt::Clear(Salt::new(SALT));
        for start in starts {
            let secrets = secrets(start);
            let salt = stored.open("shop", &secrets)?;
            assert_eq!(salt, Salt::new(SALT));
            stored = stored.for_secrets(&salt, "shop", &secrets, [9; 32]).unwrap_or(stored);
            assert_eq!(stored.for_secrets(&salt, "shop", &secrets, [8; 32]), None, "a second start changes nothing");
        }
        Ok(stored)
    }

    #[test]
    fn a_salt_has_a_copy_for_each_configured_secret_that_was_in_use() {
        for (starts, expected) in [
            (&[&[][..]][..], &[][..]),
            (&[&["a"]], &["a"]),
            (&[&[], &["a"]], &["a"]),
            // A rotation as it is documented, and a late start with each configuration before the last.
            (&[&["a"], &["a", "b"]], &["a"]),
            (&[&["a"], &["a", "b"], &["b", "a"]], &["a", "b"]),
            (&[&["a"], &["b", "a"], &["a"]], &["a", "b"]),
            (&[&["a"], &["b", "a"], &["b"]], &["b"]),
            // Old and new instances that start in turn during a rotation.
            (&[&["a"], &["b", "a"], &["a"], &["b", "a"], &["b"]], &["b"]),
            (&[&["a"], &["b", "a"], &["a", "b"], &["b", "a"], &["b"]], &["b"]),
            // Back to the secret before.
            (&[&["a"], &["b", "a"], &["a", "b"]], &["b", "a"]),
            (&[&["a"], &["b", "a"], &["a", "b"], &["a"]], &["a"]),
            // A rotation before the last one has ended.
            (&[&["a"], &["b", "a"], &["c", "b"]], &["b", "c"]),
        ] {
            assert_eq!(after(starts).map(|stored| stored.names()), Ok(names(expected)), "{starts:?}");
        }
    }

    #[test]
    fn a_salt_opens_for_its_service_and_secrets_alone() {
        let stored = after(&[&["a"], &["b", "a"]]).unwrap();
        for (configured, has_secret) in [(&[][..], false), (&["c"], true)] {
            let locked = SaltError::Locked { names: names(&["a", "b"]), has_secret };
            assert_eq!(stored.open("shop", &secrets(configured)), Err(locked));
        }
        assert_eq!(stored.open("bank", &secrets(&["a"])), Err(SaltError::Broken));
        assert_eq!(after(&[&["a"], &["b", "a"], &["b"], &["a"]]).map_err(|_| ()), Err(()), "the old secret is retired");
    }

    #[test]
    fn the_stored_form_decodes_to_itself_or_not_at_all() {
        for starts in [&[&[][..]][..], &[&["a"]], &[&["a"], &["b", "a"]]] {
            let stored = after(starts).unwrap();
            let bytes = stored.encode();
            assert_eq!(StoredSalt::decode(&bytes).as_ref(), Ok(&stored));
            for end in (0..bytes.len()).filter(|end| ![32, NAME_BYTES + COPY_BYTES].contains(end)) {
                assert_eq!(StoredSalt::decode(&bytes[..end]), Err(SaltError::Broken), "{end}");
            }
            if stored.names().is_empty() {
                continue;
            }
            assert!(memchr::memmem::find(&bytes, &SALT).is_none());
        }
    }
}
