//! The name under which a client asks after what was accepted.

use std::fmt;

use super::record::RecordId;
use super::scope::{Salt, Scope};

/// An operation's name: the record's id, and 128 bits that only this store's proxies can compute, for this caller.
///
/// It needs no table: whoever presents it proves that it was given to this caller, after the record is gone too. It says
/// nothing of the key, whose hash is salted by the scope, and stays the same as long as the key means the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OperationId {
    /// Whose record.
    pub record: RecordId,
    proof: [u8; 16],
}

impl OperationId {
    /// The name of what this caller's key was accepted for.
    pub fn of(record: RecordId, scope: &Scope, salt: &Salt) -> Self {
        let mac = salt.mac("oncegate operation", [&record.as_bytes()[..], scope.as_bytes()]);
        let mut proof = [0; 16];
        proof.copy_from_slice(&mac[..16]);
        Self { record, proof }
    }

    /// Reads what a client presents; nothing of it is proved yet.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let text: &[u8; 96] = text.as_bytes().try_into().ok()?;
        let pairs = text.as_chunks::<2>().0;
        let bytes: Vec<u8> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<_>>()?;
        let (record, proof) = bytes.split_at(32);
        Some(Self { record: RecordId::from_stored(record)?, proof: proof.try_into().ok()? })
    }

    /// Whether it was given to this caller. Takes as long whatever is wrong with it.
    pub fn is_of(&self, scope: &Scope, salt: &Salt) -> bool {
        let proof = Self::of(self.record, scope, salt).proof;
        self.proof.iter().zip(proof).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.record)?;
        self.proof.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_callers_alone_and_is_read_as_it_was_written() {
        let salt = Salt::new([7; 32]);
        let [mine, yours] = [1, 2].map(|byte| Scope::from_stored(&[byte; 32]).unwrap());
        let name = OperationId::of(RecordId::from_stored(&[3; 32]).unwrap(), &mine, &salt);
        let text = name.to_string();
        assert_eq!(OperationId::parse(&text), Some(name));
        assert!(name.is_of(&mine, &salt));
        assert!(!name.is_of(&yours, &salt) && !name.is_of(&mine, &Salt::new([8; 32])));
        for wrong in [&text[1..], &text.to_uppercase(), &text.replace('0', "g"), "", &format!("{text}0")] {
            assert_eq!(OperationId::parse(wrong), None, "{wrong}");
        }
        let mut guessed = text.clone();
        guessed.replace_range(95.., if text.ends_with('0') { "1" } else { "0" });
        assert!(!OperationId::parse(&guessed).unwrap().is_of(&mine, &salt));
    }
}
