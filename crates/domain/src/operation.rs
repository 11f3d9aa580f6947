//! The id of an operation, by which a client asks about an accepted request.

use data_encoding::HEXLOWER;
use subtle::ConstantTimeEq;

use super::ids::RecordId;
use super::scope::{Salt, Scope};

/// An operation's id: the record's id, and 128 bits that only this store's proxies can compute, for this caller.
///
/// It needs no table: a client that presents it proves that it was given to this caller, also after the record is gone.
/// It reveals nothing of the key, whose hash is salted by the scope, and does not change as long as the key means the
/// same.
#[derive(Clone, Copy, PartialEq, Eq, derive_more::Debug, derive_more::Display)]
#[debug("OperationId({record})")]
#[display("{record}{}", HEXLOWER.encode_display(proof))]
pub struct OperationId {
    pub record: RecordId,
    proof: [u8; 16],
}

impl OperationId {
    pub fn derive(record: RecordId, scope: &Scope, salt: &Salt) -> Self {
        let mac = salt.mac("oncegate operation", [&record.as_bytes()[..], scope.as_bytes()]);
        Self { record, proof: *mac.first_chunk().expect("a MAC is longer") }
    }

    /// Reads an id that a client presents; its proof is not checked yet.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        let (record, proof) = bytes.split_at_checked(32)?;
        Some(Self { record: RecordId::from_stored(record)?, proof: proof.try_into().ok()? })
    }

    /// Whether it was given to this caller, compared in constant time.
    pub fn is_valid_for(&self, scope: &Scope, salt: &Salt) -> bool {
        let proof = Self::derive(self.record, scope, salt).proof;
        self.proof.ct_eq(&proof).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_valid_for_its_caller_alone_and_reads_back() {
        let salt = Salt::new([7; 32]);
        let [mine, yours] = [1, 2].map(|byte| Scope::from_stored(&[byte; 32]).unwrap());
        let name = OperationId::derive(RecordId::from_stored(&[3; 32]).unwrap(), &mine, &salt);
        let text = name.to_string();
        assert_eq!(OperationId::parse(&text), Some(name));
        assert!(name.is_valid_for(&mine, &salt));
        assert!(!name.is_valid_for(&yours, &salt) && !name.is_valid_for(&mine, &Salt::new([8; 32])));
        for wrong in [&text[1..], &text.to_uppercase(), &text.replace('0', "g"), "", &format!("{text}0")] {
            assert_eq!(OperationId::parse(wrong), None, "{wrong}");
        }
        let mut guessed = text.clone();
        guessed.replace_range(95.., if text.ends_with('0') { "1" } else { "0" });
        assert!(!OperationId::parse(&guessed).unwrap().is_valid_for(&mine, &salt));
    }
}
