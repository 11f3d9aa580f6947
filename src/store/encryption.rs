//! Responses are encrypted on their way into the store and decrypted on their way out. Keys, states and statuses stay
//! readable: statements and operators need them.

use super::*;
use crate::config;
use crate::domain::attempt::AttemptOutcome;
use crate::domain::fingerprint::Secrets;
use crate::domain::ids::Token;
use crate::domain::probe::ProbeVerdict;
use crate::domain::response::{CorruptRow, StoredResponse};
use crate::domain::sealed_response;
use crate::domain::state::KeyState;
use crate::machine::fill_random;

/// The secrets, and whether new responses are encrypted. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    secrets: Secrets,
    encrypts: bool,
}

impl From<&config::Config> for Encryption {
    fn from(config: &config::Config) -> Self {
        Self { secrets: config.secrets.clone(), encrypts: config.store.encrypt }
    }
}

impl Encryption {
    /// The response as it is stored, where it is encrypted.
    fn encrypt(&self, id: &RecordId, token: &Token, response: &StoredResponse) -> Option<Arc<StoredResponse>> {
        let secret = self.secrets.current().filter(|_| self.encrypts)?;
        let mut salt = [0; 32];
        fill_random(&mut salt).expect("the operating system has random numbers");
        Some(Arc::new(sealed_response::seal(secret, id, token, salt, response)))
    }
}

/// The responses in the parameters or in the answer of a call.
pub(super) trait SealResponses {
    /// Encrypts the responses, where the store's are.
    fn seal(&mut self, _encryption: &Encryption) {}

    /// Decrypts the responses that are encrypted.
    fn open(&mut self, _encryption: &Encryption) -> Result<(), CorruptRow> {
        Ok(())
    }
}

impl SealResponses for Settlement {
    fn seal(&mut self, encryption: &Encryption) {
        if let AttemptOutcome::Completed { response, .. } = &mut self.outcome
            && let Some(sealed) = encryption.encrypt(&self.id, &self.token, response)
        {
            *response = sealed;
        }
    }
}

impl SealResponses for ProbeFinding {
    fn seal(&mut self, encryption: &Encryption) {
        if let ProbeVerdict::Completed { response, .. } = &mut self.verdict
            && let Some(sealed) = encryption.encrypt(&self.id, &self.token, response)
        {
            *response = sealed;
        }
    }
}

impl SealResponses for ApplyOperatorDecisionParams {
    fn seal(&mut self, encryption: &Encryption) {
        if let admin::OperatorAction::Complete(response) = &self.decision.change {
            for target in &mut self.targets {
                target.sealed_response = encryption.encrypt(&target.id, &target.token, response);
            }
        }
    }
}

impl SealResponses for Record {
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        if let KeyState::Completed(completed) = &mut self.state
            && let Some(opened) =
                sealed_response::open(&encryption.secrets, &self.id, &self.token, &completed.response)?
        {
            completed.response = Arc::new(opened);
        }
        Ok(())
    }
}

impl SealResponses for Option<Record> {
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        self.as_mut().map_or(Ok(()), |record| record.open(encryption))
    }
}

impl SealResponses for ReserveResult {
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        match self {
            Self::Taken(record) => record.open(encryption),
            Self::Fresh(_) => Ok(()),
        }
    }
}

impl SealResponses for SettleResult {
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        match self {
            Self::Fenced(record) => record.open(encryption),
            Self::Done { .. } => Ok(()),
        }
    }
}

impl SealResponses for EnqueueResult {
    fn open(&mut self, encryption: &Encryption) -> Result<(), CorruptRow> {
        match self {
            Self::Taken(record) => record.open(encryption),
            Self::Accepted => Ok(()),
        }
    }
}

/// All parameters of a call.
impl<P: SealResponses> SealResponses for (P,) {
    fn seal(&mut self, encryption: &Encryption) {
        self.0.seal(encryption);
    }
}

/// Types without responses that the store encrypts.
macro_rules! without_responses {
    ($($type:ty),+ $(,)?) => { $(impl SealResponses for $type {})+ };
}

without_responses!(
    ClaimProbesParams,
    CountInstancesBehindParams,
    CountLiveKeysParams,
    EnqueueParams,
    ExtendDeadlineParams,
    FindReservationParams,
    GiveUpParams,
    ListAuditEntriesParams,
    ListInFlightParams,
    ListInstancesParams,
    ListKeysParams,
    ListSettledKeysParams,
    MoveLiveKeysParams,
    ReapParams,
    RememberRouteIdentitiesParams,
    ReplaceSaltParams,
    StoreRouteRetentionParams,
    SweepParams,
    TakeOverParams,
);
without_responses!(ReserveRequest, LeaseRenewal, PickUpRequest, ServiceReport, InstanceId, RecordId, Arc<str>, u32, ());
without_responses!(RenewResult, PickUpResult, ReapedRows, SettledKeyPage, ReportResult, KeyPage, DecisionResults);
without_responses!(KeyCounts, Option<ReservedKey>, Option<Vec<u8>>, bool, u64);
without_responses!(Vec<SweptKey>, Vec<ReservedAttempt>, Vec<Probe>, Vec<RouteIdentity>, Vec<RecordId>);
without_responses!(Vec<AuditEntry>, Vec<InstanceEntry>);
