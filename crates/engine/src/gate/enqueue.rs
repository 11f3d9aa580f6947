//! Accepts a request for asynchronous delivery. A client that gets 202 has its key and its request durable in the
//! store.
//!
//! `claim` decides whether the key may be accepted, and `deliver` sends the request later.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::admit::GuardedRequest;
use super::claim::KeyTaker;
use super::forwarded_key;
use super::new_key::NewKeyPermit;
use super::progress::{AwaitedEnd, RequestProgress};
use super::response_context::ResponseContext;
use super::state::Gate;
use crate::instance::Instance;
use oncegate_domain::delivery::{EnqueueRequest, EnqueueResult};
use oncegate_domain::record::{ExpectedRecord, Record};
use oncegate_domain::sealed::SealedBytes;
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::request_codec;
use oncegate_machine::fill_random;
use oncegate_store::{EnqueueParams, StoreError};

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

    /// The request to keep it with its key, sealed.
    pub(super) fn keep(&self, permit: &NewKeyPermit, from: Option<ExpectedRecord>) -> EnqueueParams {
        let reserve_request = permit.mark(&self.reserve_request);
        EnqueueParams { request: EnqueueRequest { reserve_request, sealed: self.seal() }, from }
    }

    /// The request, sealed for the time until its delivery.
    fn seal(&self) -> SealedBytes {
        let secret = self.secrets.current().expect("the configuration requires a secret for routes that keep requests");
        let mut salt = [0; 32];
        fill_random(&mut salt).expect("the operating system has random numbers");
        let mut head = self.head.clone();
        if self.route().vendor.is_some() {
            let named = (&self.reserve_request.key, self.reserve_request.id);
            forwarded_key::set_key_field(&mut head.headers, self.route(), named);
        }
        // What the route sets on the way out is read anew then.
        for (name, _) in self.route().options.set_headers.iter() {
            head.headers.remove(name);
        }
        let encoded = request_codec::encode(&head, &self.body, &self.origin);
        SealedBytes::seal(secret, self.reserve_request.id.as_bytes(), salt, &encoded)
    }
}

struct DeliveryTaker<'a> {
    instance: &'a Instance,
    sealed: SealedBytes,
}

/// Whether the store may have another salt. Under another one, a retry elsewhere would not find the request, and accept
/// it again.
fn is_salt_in_doubt(instance: &Instance) -> bool {
    instance.salt_replaced.is_cancelled() || instance.is_salt_doubtful.load(Ordering::Acquire)
}

impl KeyTaker for DeliveryTaker<'_> {
    /// Whether the key had no record before.
    type Key = bool;

    async fn take(
        &mut self,
        guarded: &mut GuardedRequest,
        permit: &NewKeyPermit,
        from: Option<ExpectedRecord>,
    ) -> Result<Result<bool, Record>, StoreError> {
        // Asked again: the limits of new keys may have taken as long as a call of the store.
        if is_salt_in_doubt(self.instance) {
            return Err(StoreError::Unavailable("the salt of the scopes is in doubt".into()));
        }
        let reserve_request = permit.mark(&guarded.reserve_request);
        let request = EnqueueRequest { reserve_request, sealed: self.sealed.clone() };
        Ok(match self.instance.store.enqueue(EnqueueParams { request, from }).await? {
            EnqueueResult::Accepted => Ok(from.is_none()),
            EnqueueResult::Taken(record) => Err(record),
        })
    }
}

impl Gate {
    /// Accepts a key without a record, or with one that the next request may take over. This starts no attempt, so it
    /// needs no lease.
    pub(super) async fn enqueue(&self, mut guarded: Box<GuardedRequest>) -> RequestProgress {
        if guarded.is_provisional {
            return RequestProgress::refused(Refusal::StoreUnavailable);
        }
        let instance = &*self.instance;
        let may_accept = match is_salt_in_doubt(instance) {
            true => guarded.check_rules().and(Err(Refusal::StoreUnavailable)),
            false => guarded.check_rules(),
        };
        let mut taker = DeliveryTaker { instance, sealed: guarded.seal() };
        match self.claim(&mut taker, &mut guarded, may_accept, &ResponseContext::default()).await {
            Ok(is_new) => {
                instance.last_seen.note(&guarded.queued_record());
                guarded.count_start(is_new, instance);
                // Saves this instance's deliverer the time until its next look.
                instance.delivery_due.notify_one();
                let retry_after = guarded.rules().average_latency;
                RequestProgress::Waits(guarded, AwaitedEnd::OwnDelivery(retry_after))
            }
            Err(unclaimed) => RequestProgress::unclaimed(guarded, unclaimed, instance),
        }
    }
}
