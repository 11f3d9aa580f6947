//! Delivers an accepted request: one attempt, forwarded like any other, and the end of the delivery if no other attempt
//! follows.
//!
//! The time of the next attempt is part of the settlement, which `attempt_end` makes. The task `deliverer` picks
//! requests up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;

use super::admit::{GuardedRequest, ReceivedRequest};
use super::attempt_end::{is_final, not_sent};
use super::outcome::Outcome;
use super::settle::persist;
use super::state::Gate;
use crate::instance::boot_time::BootInstant;
use crate::instance::in_flight::InFlightEntry;
use oncegate_domain::attempt::AttemptLease;
use oncegate_domain::delivery::DeliveryJob;
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::quantity::quantity;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus};
use oncegate_domain::retry::{DeliveryAttempt, RetryPolicy};
use oncegate_domain::sealed::UnsealError;
use oncegate_domain::state::StateKind;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::{grpc, request_codec};
use oncegate_settings::Route;
use oncegate_store::GiveUpParams;
use oncegate_telemetry::logs::error_causes;

/// The state of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryProgress {
    /// The response is stored: the sealed request is not needed any more.
    Completed,
    /// The request is tried again, or an operator must decide.
    Open,
}

/// The meaning of an attempt without a stored response for the next attempt.
enum DeliveryResult {
    /// It was not executed, and the same request would get the same response.
    Final(String),
    /// Nothing was sent, or the outcome is still to be stored: nothing follows yet.
    Open,
    /// It was not executed, and another attempt may succeed.
    Retry(String),
    /// Nobody knows whether it was executed.
    Unknown(String),
}

impl Gate {
    /// Runs one attempt of a delivery under the lease that the pick-up reserved.
    pub async fn deliver(
        self: Arc<Self>,
        job: DeliveryJob,
        mut entry: InFlightEntry,
        reserving_since: BootInstant,
    ) -> DeliveryProgress {
        let DeliveryJob { lease, sealed } = job;
        let (id, token, attempt) = (lease.reserve_request.id, lease.reserve_request.token, lease.attempt);
        let live = self.live();
        let request = &lease.reserve_request;
        let active = live.router.named(&request.route).filter(|active| active.route.service.name == request.service);
        let Some((active, delivery)) = active.zip(lease.delivery) else {
            // A reload has removed the route, or given its name to another service. Another instance may have it, or
            // this one after the next reload.
            return self.postpone(lease, entry, &NO_ROUTE, Duration::ZERO).await;
        };
        let route = Arc::clone(&active.route);
        let opened = sealed.open(&live.config.secrets, id.as_bytes());
        if let Err(UnsealError::SecretGone) = opened {
            // While the secret is being rotated, another instance has it already, and this one will have it.
            if may_log_missing_secret() {
                tracing::warn!(record = %id, route = %route.name,
                    "a queued request was sealed under a secret that is not configured here; other instances may deliver it");
            }
            return self.postpone(lease, entry, &NO_SECRET, route.options.ttl).await;
        }
        let decode = |encoded| request_codec::decode(encoded).ok_or_else(|| "it is not an encoded request".to_owned());
        let (head, body, origin) = match opened.map_err(|error| error.to_string()).and_then(decode) {
            Ok(request) => request,
            Err(why) => {
                tracing::error!(record = %id, route = %route.name, why, "a queued request cannot be opened; it is not sent");
                self.give_up(id, token, &[StateKind::InFlight], format!("its request cannot be opened: {why}")).await;
                return DeliveryProgress::Open;
            }
        };
        // Accepted before, so it is not refused now.
        let received = ReceivedRequest { share: self.instance.bodies.share_of(body.len()), head, body, origin };
        let reserve_request = (*lease.reserve_request).clone();
        let guarded = Box::new(GuardedRequest {
            client_address: None,
            can_wait_for_store: true,
            ..GuardedRequest::new(&self.instance, reserve_request, received, active, &live.config)
        });
        if self.start_attempt(&guarded, &lease, &mut entry).await.is_err() {
            // An attempt of this key runs here, although the store says that it is over.
            return self.postpone(lease, entry, &route.options.retry, route.options.ttl).await;
        }
        let is_repetition = delivery.accepted_at.is_none();
        if delivery.number > 1 && !is_repetition {
            guarded.count_start(false, &self.instance);
        }
        let context = guarded.context_without_client(None, &self.instance.observability);
        context.note(|state| state.is_repetition = is_repetition);
        let outcome = self.forward(guarded, lease, entry, Some(reserving_since), &context).await;
        context.note_outcome(&outcome);
        match delivery_result(outcome, &route).await {
            None => {
                if is_repetition {
                    tracing::info!(record = %id, route = %route.name, attempt, "the vendor has told the outcome");
                } else {
                    tracing::info!(record = %id, route = %route.name, attempt, "delivered");
                }
                DeliveryProgress::Completed
            }
            Some(result) => {
                self.follow_up(id, token, &delivery, result, &route).await;
                DeliveryProgress::Open
            }
        }
    }

    /// Releases an attempt of which nothing was sent. The delivery is due again after a pause.
    async fn postpone(
        &self,
        lease: AttemptLease,
        entry: InFlightEntry,
        retry: &RetryPolicy,
        ttl: Duration,
    ) -> DeliveryProgress {
        let _ = persist(&self.instance, not_sent(&self.instance, lease, retry, ttl), entry).await;
        DeliveryProgress::Open
    }

    /// Gives the delivery up at once if no other attempt follows, with the reason. If that fails, the next pick-up does
    /// it.
    async fn follow_up(
        &self,
        id: RecordId,
        token: Token,
        delivery: &DeliveryAttempt,
        result: DeliveryResult,
        route: &Route,
    ) {
        let is_last = route.options.retry.is_last(delivery);
        let tries = delivery.number;
        let tried = |text: &str| format!("tried {}, last result: {text}", quantity(tries.into(), "time", "times"));
        let (states, note): (&'static [StateKind], _) = match result {
            DeliveryResult::Open => return,
            DeliveryResult::Retry(text) | DeliveryResult::Final(text) if is_last => {
                (&[StateKind::Queued], tried(&text))
            }
            DeliveryResult::Final(text) => {
                (&[StateKind::Queued], format!("another try cannot change the result: {text}"))
            }
            DeliveryResult::Unknown(text)
                if is_last && !matches!(route.options.on_unknown, OnUnknown::Hold | OnUnknown::Vendor) =>
            {
                (&[StateKind::Unknown], tried(&text))
            }
            DeliveryResult::Retry(text) | DeliveryResult::Unknown(text) => {
                if delivery.accepted_at.is_some() {
                    tracing::info!(record = %id, route = %route.name, tries, result = text, "not delivered yet");
                } else {
                    tracing::info!(record = %id, route = %route.name, tries, result = text,
                        "the vendor has not told the outcome yet; the same request is sent again");
                }
                return;
            }
        };
        if self.give_up(id, token, states, note.clone()).await {
            tracing::warn!(record = %id, route = %route.name, reason = note,
                "the delivery was given up; its key is dead until an operator decides");
            self.instance.wait_groups.wake(id);
        }
    }

    /// Marks the key dead if it is in one of the states, and returns whether it was.
    async fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> bool {
        self.instance.store.give_up(GiveUpParams { id, token, states, note }).await.unwrap_or_else(|error| {
            tracing::warn!(record = %id, cause = error_causes(&error), "{error}; the next pick-up gives the key up");
            false
        })
    }
}

/// Reads a large response to its end, as a client would: only then is its outcome stored. `None` if the response is
/// stored.
async fn delivery_result(outcome: Outcome, route: &Route) -> Option<DeliveryResult> {
    let by_verdict = |verdict, status: ServiceStatus, headers: &HeaderMap| {
        let answered = format!("answered {status}");
        match verdict {
            ResponseVerdict::Release if is_final(route, status, headers) => Some(DeliveryResult::Final(answered)),
            ResponseVerdict::Release => Some(DeliveryResult::Retry(answered)),
            ResponseVerdict::Store => None,
            ResponseVerdict::Unknown => Some(DeliveryResult::Unknown(answered)),
        }
    };
    match outcome {
        Outcome::ExecutedElsewhere(completed) | Outcome::Replayed(completed) => {
            completed.expires_at.is_none().then_some(DeliveryResult::Open)
        }
        Outcome::Answered { is_stored: false, .. } => Some(DeliveryResult::Open),
        Outcome::Answered { response, verdict, .. } => {
            by_verdict(verdict, grpc::answered_status(&response), &response.headers)
        }
        Outcome::Streamed(streamed) => {
            let (status, headers) = (streamed.status().into(), streamed.head.headers.clone());
            match streamed.drain().await {
                None => Some(DeliveryResult::Unknown("its response broke off".to_owned())),
                Some(verdict) => by_verdict(verdict, status, &headers),
            }
        }
        // Without a lease or a connection the attempt was not sent.
        Outcome::Refused(Refusal::Overloaded(_) | Refusal::StoreUnavailable) => Some(DeliveryResult::Open),
        Outcome::Refused(Refusal::UpstreamUnreachable(_)) => Some(DeliveryResult::Retry("not sent".to_owned())),
        Outcome::Refused(refusal) => Some(DeliveryResult::Unknown(refusal.slug().to_owned())),
        // Forwarding a reserved request comes to none of these.
        Outcome::Accepted { .. } | Outcome::Bypassed(_) | Outcome::InFlight(_) => Some(DeliveryResult::Open),
    }
}

/// The pauses of a delivery whose route this instance does not have.
const NO_ROUTE: RetryPolicy = RetryPolicy {
    max_attempts: u32::MAX,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
    give_up_after: Duration::MAX,
};

/// The pauses of a delivery whose secret this instance does not have. Each try takes an attempt's number and its token.
const NO_SECRET: RetryPolicy = RetryPolicy { base: Duration::from_secs(5), cap: Duration::from_secs(10), ..NO_ROUTE };

/// Whether to log a missing secret: one line a minute is enough for thousands of requests.
fn may_log_missing_secret() -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = BootInstant::now().millis();
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (now >= next).then_some(now + 60_000)).is_ok()
}
