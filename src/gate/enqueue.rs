//! Accepts a request for asynchronous delivery. A client that gets 202 has its key and its request durable in the store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::admit::GuardedRequest;
use super::decide::{AcceptedProgress, Decision};
use super::new_key::NewKeyPermit;
use super::outcome::Outcome;
use super::wait::{AwaitedEnd, WorkResult};
use super::{Gate, TAKE_OVERS_MAX, log_and_refuse};
use crate::config::{DeliveryMode, Route};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult};
use crate::domain::operation::OperationId;
use crate::domain::record::Record;
use crate::domain::sealed::SealedBytes;
use crate::domain::state::KeyState;
use crate::instance::Instance;
use crate::instance::metrics::ReservationResult;
use crate::machine::fill_random;
use crate::protocol::prefer;
use crate::protocol::refusal::{Refusal, RetryAfter};
use crate::protocol::request_codec;
use crate::store::EnqueueParams;

/// Whether a route delivers a request with these fields later.
pub(super) fn is_for_later(route: &Route, headers: &HeaderMap) -> bool {
    match route.delivery {
        DeliveryMode::Async => true,
        DeliveryMode::Prefer => prefer::prefers_async(headers),
        DeliveryMode::Sync => false,
    }
}

impl GuardedRequest {
    /// Whether the request is delivered later.
    pub(super) fn is_for_later(&self) -> bool {
        is_for_later(self.route(), &self.head.headers)
    }

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

    /// The sealed request, with its reservation.
    fn enqueue_request(&self, permit: Option<&NewKeyPermit>) -> EnqueueRequest {
        let secret = self.secrets.current().expect("the configuration requires a secret for asynchronous routes");
        let mut salt = [0; 32];
        fill_random(&mut salt).expect("the operating system has random numbers");
        let encoded = request_codec::encode(&self.head, &self.body, &self.origin);
        EnqueueRequest {
            reserve_request: permit
                .map_or_else(|| self.reserve_request.clone(), |permit| permit.mark(&self.reserve_request)),
            sealed: SealedBytes::seal(secret, self.reserve_request.id.as_bytes(), salt, &encoded),
        }
    }
}

impl Gate {
    /// Accepts a key without a record, or with one that the next request may take over. This starts no attempt, so it needs
    /// no lease.
    pub(super) async fn enqueue(&self, guarded: Box<GuardedRequest>) -> WorkResult {
        if guarded.is_provisional {
            return WorkResult::refused(Refusal::StoreUnavailable);
        }
        let mut may_use_key = guarded.use_new_key(&self.instance).await;
        let request = guarded.enqueue_request(may_use_key.as_ref().ok());
        let epoch = self.instance.cache.current_epoch();
        let mut replaces = None;
        // Under another salt than the store's, a retry elsewhere would not find the request, and accept it again.
        let Instance { salt_replaced, is_salt_doubtful, .. } = &*self.instance;
        let hindrance = match &guarded.broken_rule {
            Some(refusal) => Some(refusal.clone()),
            None => (salt_replaced.is_cancelled() || is_salt_doubtful.load(Ordering::Acquire))
                .then_some(Refusal::StoreUnavailable),
        };
        for _ in 0..=TAKE_OVERS_MAX {
            let is_refused = hindrance.is_some() || (may_use_key.is_err() && replaces.is_none());
            let enqueued = if is_refused {
                // The caller's earlier requests are answered as ever.
                match self.instance.store.find(request.reserve_request.id).await {
                    Ok(Some(record)) => Ok(EnqueueResult::Taken(record)),
                    Ok(None) => {
                        return WorkResult::refused(match (hindrance, may_use_key) {
                            (Some(refusal), _) => refusal,
                            (None, Err(wait)) => guarded.refuse_new_key(wait),
                            (None, Ok(_)) => Refusal::StoreUnavailable,
                        });
                    }
                    Err(error) => Err(error),
                }
            } else {
                self.instance.store.enqueue(EnqueueParams { request: request.clone(), from: replaces }).await
            };
            let record = match enqueued {
                Ok(EnqueueResult::Accepted) => {
                    self.instance.last_seen.note(&guarded.queued_record());
                    let is_new = replaces.is_none();
                    guarded.count(
                        if is_new { ReservationResult::Created } else { ReservationResult::FailedRetry },
                        &self.instance,
                    );
                    // Saves this instance's deliverer the time until its next look.
                    self.instance.delivery_due.notify_one();
                    let retry_after = RetryAfter::new(guarded.rules().average_latency);
                    return WorkResult::Waits(guarded, AwaitedEnd::OwnDelivery(retry_after));
                }
                Ok(EnqueueResult::Taken(record)) => record,
                Err(error) => return WorkResult::refused(log_and_refuse(error)),
            };
            if let Ok(permit) = std::mem::replace(&mut may_use_key, Ok(NewKeyPermit::default())) {
                permit.give_back();
            }
            self.instance.remember(&record, epoch);
            match self.decide(&guarded, record).await {
                Decision::TakeOver(_) if let Some(refusal) = hindrance => return WorkResult::refused(refusal),
                Decision::TakeOver(found) => replaces = Some(found),
                decision => return self.answer(guarded, decision),
            }
        }
        // Other requests keep taking the key over first, so one of them is running.
        WorkResult::refused(Refusal::InFlight(RetryAfter::new(guarded.rules().average_latency)))
    }

    /// The outcome of an accepted request: its operation, or the response if it comes within the time that the client
    /// prefers to wait.
    pub(super) async fn accepted(&self, guarded: &GuardedRequest, progress: AcceptedProgress) -> Outcome {
        let (id, route) = (guarded.reserve_request.id, guarded.route());
        let wait = prefer::wait_preference(&guarded.head.headers).unwrap_or(Duration::ZERO).min(route.wait_timeout);
        let operation = OperationId::derive(id, &guarded.reserve_request.scope, self.instance.salt.current().salt);
        match self.decide_by_end(guarded, Instant::now() + wait).await {
            Some(Decision::Replay(completed)) => Outcome::Replayed(completed),
            Some(Decision::Refuse(refusal)) => Outcome::Refused(refusal),
            Some(Decision::Accepted(progress)) => Outcome::Accepted { operation, progress },
            Some(Decision::Join(_) | Decision::TakeOver(_)) | None => Outcome::Accepted { operation, progress },
        }
    }
}
