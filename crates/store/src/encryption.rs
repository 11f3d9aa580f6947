//! Responses are encrypted on their way into the store and decrypted on their way out. Keys, states and statuses stay
//! readable: statements and operators need them.

use std::sync::Arc;

use super::{ApplyOperatorDecisionParams, KeyEvent};
use oncegate_domain::attempt::{AttemptOutcome, Settlement};
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::inquiry::{InquiryFinding, InquiryVerdict};
use oncegate_domain::record::Record;
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

    /// Encrypts the response of an attempt, where the store's are.
    pub(super) fn seal_settlement(&self, settlement: &mut Settlement) {
        if let AttemptOutcome::Completed { response, .. } = &mut settlement.outcome {
            *response = self.seal(&settlement.id, &settlement.token, response);
        }
    }

    pub(super) fn seal_finding(&self, finding: &mut InquiryFinding) {
        if let InquiryVerdict::Completed { response, .. } = &mut finding.verdict {
            *response = self.seal(&finding.id, &finding.token, response);
        }
    }

    /// Encrypts the response of an operator, for each key.
    pub(super) fn seal_decision(&self, params: &mut ApplyOperatorDecisionParams) {
        let Some(response) = params.decision.change.response() else { return };
        let withdraws = params.decision.change.withdraws_response();
        for target in &mut params.targets {
            let token = if withdraws { &target.new_token } else { &target.token };
            target.sealed_response = Some(self.seal(&target.id, token, response));
        }
    }

    fn seal(&self, id: &RecordId, token: &Token, response: &Arc<StoredResponse>) -> Arc<StoredResponse> {
        match self.secrets.current().filter(|_| self.encrypts) {
            Some(secret) => Arc::new(sealed_response::seal(secret, id, token, random(), response)),
            None => Arc::clone(response),
        }
    }

    /// Decrypts the record's response, if it is encrypted.
    // See docs/decisions/0016-encrypt-above-the-stores.md.
    pub(super) fn open(&self, record: &mut Record) -> Result<(), CorruptRow> {
        if let KeyState::Completed(completed) = &mut record.state
            && let Some(opened) = sealed_response::open(&self.secrets, &record.id, &record.token, &completed.response)?
        {
            completed.response = Arc::new(opened);
        }
        Ok(())
    }

    /// Decrypts the responses of events. One whose secret is gone waits until it is there again.
    pub(super) fn open_events(&self, events: &mut [KeyEvent]) {
        for event in events {
            let Ok(Some(response)) = &event.response else { continue };
            match sealed_response::open(&self.secrets, &event.id, &event.token, response) {
                Ok(None) => {}
                Ok(Some(opened)) => event.response = Ok(Some(Arc::new(opened))),
                Err(corrupt) => event.response = Err(corrupt),
            }
        }
    }
}

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
