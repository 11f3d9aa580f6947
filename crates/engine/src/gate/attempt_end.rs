//! The ways in which an attempt can end: a function for each makes the settlement.
//!
//! An attempt of a delivery has a next one, so its settlement says when that is due. `settle` stores settlements, and
//! `deliver` gives deliveries up.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use http::HeaderMap;
use http::header::RETRY_AFTER;

use crate::instance::Instance;
use oncegate_domain::attempt::{AttemptLease, Settlement};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict, ServiceStatus};
use oncegate_domain::retry::{DeliveryAttempt, RetryPolicy};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_http::protocol::payment_challenge::is_payment_challenge;
use oncegate_http::protocol::retry_after::requested_pause;
use oncegate_machine::jitter::random_fraction;
use oncegate_settings::Route;

/// The pause before the next pick-up of a delivery that has no further attempt. The instance of the last attempt gives
/// the delivery up within this time, with the attempt's result as the reason. If that instance dies first, the next
/// pick-up gives the delivery up.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(60);

/// Completes the attempt with a response that is replayed for `ttl`.
pub(super) fn complete(
    lease: AttemptLease,
    route: &Route,
    ttl: Duration,
    response: impl Into<Arc<StoredResponse>>,
) -> Settlement {
    lease.complete(response, ttl).with_remember(route.options.remember)
}

/// Releases the attempt: it was not executed, or counts as such. A delivery is due again after a pause.
pub(super) fn release(
    lease: AttemptLease,
    route: &Route,
    ttl: Duration,
    response: Option<(ServiceStatus, &HeaderMap)>,
) -> Settlement {
    let is_final = response.is_some_and(|(status, headers)| is_final(route, status, headers));
    let retry_after = response.and_then(|(_, headers)| requested_pause(headers));
    let pause = lease.delivery.map(|delivery| pause(route, &delivery, is_final, retry_after));
    let ttl = response.map_or(ttl, |(status, _)| released_ttl(status, ttl, &lease));
    lease.release(ttl).with_retry_in(pause)
}

/// The time for which a key is remembered that a response with this status has released. A key whose first attempt the
/// service has refused to the caller is forgotten at once: otherwise anybody without credentials could fill the store
/// with keys. Earlier attempts are remembered: one of them may have executed.
pub(super) fn released_ttl(status: ServiceStatus, ttl: Duration, lease: &AttemptLease) -> Duration {
    if status.refuses_caller() && lease.attempt == 1 { Duration::ZERO } else { ttl }
}

/// Releases an attempt of which nothing was sent. For a delivery it does not count as a try, and the delivery is due
/// again after a pause, which grows with the attempts: other instances may be able to deliver it.
pub(super) fn not_sent(instance: &Instance, lease: AttemptLease, retry: &RetryPolicy, ttl: Duration) -> Settlement {
    let Some(delivery) = lease.delivery else { return lease.release(ttl) };
    instance.note_unsent_delivery(lease.reserve_request.id, lease.reserve_request.token);
    let attempts = DeliveryAttempt { number: lease.attempt.saturating_add(1), ..delivery };
    let pause = retry.pause(&attempts, random_fraction(), None);
    lease.release(ttl).with_retry_in(Some(pause))
}

/// Logs that an attempt's outcome is unknown, with what a person looks for elsewhere.
pub(super) fn log_unknown(lease: &AttemptLease, route: &Route, cause: UnknownCause, event: &str) {
    let request = &lease.reserve_request;
    let trace_id = request.trace_id.map(|trace| HEXLOWER.encode(&trace));
    tracing::warn!(record = %request.id, route = %route.name, attempt = lease.attempt, %cause,
        key = request.key.prefix().as_str(), trace_id, "{event}");
}

/// Makes the attempt unknown. A delivery is due again if the route's `on_unknown` retries, and not before the time that
/// the response asks for, if there is one.
pub(super) fn unknown(
    lease: AttemptLease,
    route: &Route,
    cause: UnknownCause,
    response: Option<&HeaderMap>,
) -> Settlement {
    let retries = route.options.on_unknown != OnUnknown::Hold;
    let retry_after = response.and_then(requested_pause);
    let pause = lease.delivery.filter(|_| retries).map(|delivery| pause(route, &delivery, false, retry_after));
    lease.unknown(cause).with_retry_in(pause)
}

/// Whether the same request would get the same response. If the route's status table does not release the status, the
/// service itself has said that the request was not executed.
pub(super) fn is_final(route: &Route, status: ServiceStatus, headers: &HeaderMap) -> bool {
    let by_status = route.statuses.verdict_on(status, is_payment_challenge(status, headers));
    !status.may_pass() && !headers.contains_key(RETRY_AFTER) && by_status == ResponseVerdict::Release
}

fn pause(route: &Route, delivery: &DeliveryAttempt, is_final: bool, retry_after: Option<Duration>) -> Duration {
    // A repetition ends with the vendor's window, and by nothing else.
    let ends = route.options.on_unknown != OnUnknown::Vendor && (is_final || route.options.retry.is_last(delivery));
    // A pause that outlasts the vendor's window would leave the outcome unknown.
    let longest = if route.options.on_unknown == OnUnknown::Vendor { route.options.retry.cap } else { Duration::MAX };
    let retry_after = retry_after.map(|asked_for| asked_for.min(longest));
    match ends {
        true => GIVE_UP_WITHIN,
        false => route.options.retry.pause(delivery, random_fraction(), retry_after),
    }
}
