//! Accepts a request for asynchronous delivery. A client that gets 202 has its key and its request durable in the store.
//!
//! `claim` decides whether the key may be accepted, and `deliver` sends the request later.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::admit::GuardedRequest;
use super::claim::{Claim, KeyTaker, TakeResult};
use super::new_key::NewKeyPermit;
use super::response_context::ResponseContext;
use super::progress::{AwaitedEnd, RequestProgress};
use super::state::Gate;
use crate::instance::Instance;
use oncegate_domain::delivery::{EnqueueRequest, EnqueueResult};
use oncegate_domain::record::{ExpectedRecord, Record};
use oncegate_domain::sealed::SealedBytes;
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::request_codec;
use oncegate_machine::fill_random;
use oncegate_store::{EnqueueParams, Store, StoreError};

impl GuardedRequest {
    /// The record of the request once it is accepted.
    fn queued_record(&self) -> Record {
        let request = &self.reserve_request;
        Record {
            id: request.id,
            attempt: 0,
            token: request.token,
            recipe: request.recipe.clone(),
            fingerprint: request.fingerprint,
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: Some(self.store_clock.now()),
            state: KeyState::Queued,
            reading: None,
        }
    }

    /// The request, sealed for the time until its delivery.
    fn seal(&self) -> SealedBytes {
        let secret = self.secrets.current().expect("the configuration requires a secret for asynchronous routes");
        let mut salt = [0; 32];
        fill_random(&mut salt).expect("the operating system has random numbers");
        let encoded = request_codec::encode(&self.head, &self.body, &self.origin);
        SealedBytes::seal(secret, self.reserve_request.id.as_bytes(), salt, &encoded)
    }
}

/// Takes a key for the delivery of a request.
struct DeliveryTaker<'a> {
    instance: &'a Instance,
    sealed: SealedBytes,
    /// Notes nothing.
    context: ResponseContext,
}

/// Whether the store may have another salt. Under another one, a retry elsewhere would not find the request, and accept it again.
fn is_salt_in_doubt(instance: &Instance) -> bool {
    instance.salt_replaced.is_cancelled() || instance.is_salt_doubtful.load(Ordering::Acquire)
}

/// Whether an accepted key had no record before.
struct IsNew(bool);

impl KeyTaker for DeliveryTaker<'_> {
    type Key = IsNew;

    async fn take(
        &mut self,
        store: &Store,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> Result<TakeResult<IsNew>, StoreError> {
        // Asked again: the limits of new keys may have taken as long as a call of the store.
        if is_salt_in_doubt(self.instance) {
            return Err(StoreError::Unavailable("the salt of the scopes is in doubt".into()));
        }
        let reserve_request = permit.mark(&guarded.reserve_request);
        let request = EnqueueRequest { reserve_request, sealed: self.sealed.clone() };
        Ok(match store.enqueue(EnqueueParams { request, from }).await? {
            EnqueueResult::Accepted => TakeResult::Mine(IsNew(from.is_none())),
            EnqueueResult::Taken(record) => TakeResult::Taken(record),
        })
    }

    fn context(&self) -> &ResponseContext {
        &self.context
    }
}

impl Gate {
    /// Accepts a key without a record, or with one that the next request may take over. This starts no attempt, so it needs
    /// no lease.
    pub(super) async fn enqueue(&self, mut guarded: Box<GuardedRequest>) -> RequestProgress {
        if guarded.is_provisional {
            return RequestProgress::refused(Refusal::StoreUnavailable);
        }
        let may_accept = match &guarded.broken_rule {
            Some(refusal) => Err(refusal.clone()),
            None if is_salt_in_doubt(&self.instance) => Err(Refusal::StoreUnavailable),
            None => self.check_same_body(&guarded),
        };
        let (instance, context) = (&*self.instance, ResponseContext::default());
        let mut taker = DeliveryTaker { instance, sealed: guarded.seal(), context };
        let claim = self.claim(&mut taker, &mut guarded, may_accept.clone().map(drop)).await;
        match (&claim, may_accept) {
            (Ok(Claim::Mine(_)), _) => self.note_same_body(&guarded),
            (_, Ok(check)) => self.drop_same_body(&guarded, check),
            (_, Err(_)) => {}
        }
        match claim {
            Ok(Claim::Mine(IsNew(is_new))) => {
                self.instance.last_seen.note(&guarded.queued_record());
                guarded.count_start(is_new, &self.instance);
                // Saves this instance's deliverer the time until its next look.
                self.instance.delivery_due.notify_one();
                let retry_after = guarded.rules().average_latency;
                RequestProgress::Waits(guarded, AwaitedEnd::OwnDelivery(retry_after))
            }
            Ok(Claim::Answered(answer)) => self.answer(guarded, answer),
            Err(failure) => RequestProgress::refused(failure.into_refusal()),
        }
    }
}
