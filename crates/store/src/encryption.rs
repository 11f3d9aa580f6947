//! Responses are encrypted on their way into the store and decrypted on their way out. Keys, states and statuses stay
//! readable: statements and operators need them.

use super::*;
use oncegate_domain::attempt::AttemptOutcome;
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::ids::Token;
use oncegate_domain::probe::ProbeVerdict;
use oncegate_domain::response::{CorruptRow, StoredResponse};
use oncegate_domain::sealed_response;
use oncegate_domain::state::KeyState;
use oncegate_machine::fill_random;
use oncegate_settings as settings;

/// The secrets, and whether new responses are encrypted. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    secrets: Secrets,
    encrypts: bool,
}

impl Encryption {
    /// The encryption that a store was started with, under the secrets of the last reload.
    pub fn new(store: &settings::StoreConfig, secrets: &Secrets) -> Self {
        Self { secrets: secrets.clone(), encrypts: store.encrypt }
    }

    /// The response as it is stored.
    pub(super) fn encrypt(&self, id: &RecordId, token: &Token, response: &Arc<StoredResponse>) -> Arc<StoredResponse> {
        match self.secrets.current().filter(|_| self.encrypts) {
            Some(secret) => Arc::new(sealed_response::seal(secret, id, token, random(), response)),
            None => Arc::clone(response),
        }
    }

    /// Decrypts the record's response, if it is encrypted.
    // See docs/decisions/0016-encrypt-above-the-stores.md.
    fn open(&self, record: &mut Record) -> Result<(), CorruptRow> {
        if let KeyState::Completed(completed) = &mut record.state
            && let Some(opened) = self.open_response(&record.id, &record.token, &completed.response)?
        {
            completed.response = Arc::new(opened);
        }
        Ok(())
    }

    /// Decrypts a response; `None` where it is not encrypted.
    pub(super) fn open_response(
        &self,
        id: &RecordId,
        token: &Token,
        response: &StoredResponse,
    ) -> Result<Option<StoredResponse>, CorruptRow> {
        sealed_response::open(&self.secrets, id, token, response)
    }
}

/// The responses in the parameters or in the answer of a call.
pub(super) trait SealResponses {
    /// Encrypts the responses, where the store's are.
    fn seal(&mut self, _encryption: &Encryption) {}

    /// The record whose response may be encrypted.
    fn record(&mut self) -> Option<&mut Record> {
        None
    }

    /// Decrypts the response of the record.
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        self.record().map_or(Ok(()), |record| encryption.open(record))
    }
}

impl SealResponses for Settlement {
    fn seal(&mut self, encryption: &Encryption) {
        if let AttemptOutcome::Completed { response, .. } = &mut self.outcome {
            *response = encryption.encrypt(&self.id, &self.token, response);
        }
    }
}

impl SealResponses for ProbeFinding {
    fn seal(&mut self, encryption: &Encryption) {
        if let ProbeVerdict::Completed { response, .. } = &mut self.verdict {
            *response = encryption.encrypt(&self.id, &self.token, response);
        }
    }
}

/// All parameters of a call.
impl<P: SealResponses> SealResponses for (P,) {
    fn seal(&mut self, encryption: &Encryption) {
        self.0.seal(encryption);
    }
}

/// Answers that hold a record in one of their variants.
macro_rules! with_record {
    ($($Answer:ty: $holds:pat => $record:expr;)+) => { $(
        impl SealResponses for $Answer {
            fn record(&mut self) -> Option<&mut Record> {
                if let $holds = self { $record } else { None }
            }
        }
    )+ };
}

with_record! {
    Option<Record>: Some(record) => Some(record);
    EnqueueResult: Self::Taken(record) => Some(record);
    ReserveResult: Self::Taken(record) => Some(record);
    SettleResult: Self::Fenced(record) => record.as_mut();
}

/// Types without responses that the store encrypts.
macro_rules! without_responses {
    ($($type:ty),+ $(,)?) => { $(impl SealResponses for $type {})+ };
}

without_responses!(ReserveRequest, PickUpRequest, ServiceReport, InstanceId, RecordId, Arc<str>, u32, ());
without_responses!(RenewResult, PickUpResult, ReapedRows, SettledKeyPage, ReportResult, KeyPage, DecisionResults);
without_responses!(KeyCounts, Option<ReservedKey>, Option<Vec<u8>>, Option<i64>, bool, u64);
without_responses!(Vec<SweptKey>, Vec<ReservedAttempt>, Vec<Probe>, Option<RouteIdentities>, Vec<RecordId>);
without_responses!(Vec<AuditEntry>, Vec<InstanceEntry>, EventCounts);

/// Draws a salt.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    fill_random(&mut bytes).expect("the operating system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_salts_are_the_same() {
        let (one, two) = (random(), random());
        assert_ne!(one, two);
        assert!([one, two].iter().all(|salt| salt.iter().any(|byte| *byte > 1)));
    }
}
