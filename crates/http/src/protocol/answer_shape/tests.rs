use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;

use super::super::refusal::{KeyReuse, ReachedLimit, RetryAfter};
use super::*;

const BASE: &str = "/.oncegate/problems/";

/// The answer to a refusal: its status, its fields and its document.
async fn answered(shape: Dialect, refusal: &Refusal) -> (u16, HeaderMap, Value) {
    let (head, body) = AnswerShape(shape).render(refusal, BASE).into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), head.headers, serde_json::from_slice(&body).unwrap())
}

fn in_flight() -> Refusal {
    Refusal::InFlight(RetryAfter::new(Duration::from_secs(7)))
}

fn unknown() -> Refusal {
    Refusal::OutcomeUnknown(RetryAfter::new(Duration::from_secs(30)))
}

#[tokio::test]
async fn acp_has_the_flat_errors_of_its_specification() {
    for (refusal, status, kind, code) in [
        (Refusal::KeyMissing("where".into()), 400, "invalid_request", "idempotency_key_required"),
        (Refusal::KeyReused(KeyReuse::OtherRequest), 422, "invalid_request", "idempotency_conflict"),
        (in_flight(), 409, "invalid_request", "idempotency_in_flight"),
        (Refusal::KeyInvalid("why"), 400, "invalid_request", "key_invalid"),
        (Refusal::RequestTooLarge(9), 413, "invalid_request", "request_too_large"),
        (unknown(), 409, "processing_error", "outcome_unknown"),
        (Refusal::UpstreamBroken, 502, "processing_error", "upstream_broken"),
        (Refusal::StoreUnavailable, 503, "service_unavailable", "store_unavailable"),
    ] {
        let (answered, headers, document) = answered(Dialect::Acp, &refusal).await;
        let expected = serde_json::json!({ "type": kind, "code": code, "message": refusal.detail() });
        assert_eq!((answered, document), (status, expected));
        assert_eq!(headers[CONTENT_TYPE], "application/json");
        assert_eq!(headers.get("retry-after").is_some(), matches!(status, 409 | 503), "{code}");
    }
}

#[tokio::test]
async fn graphql_has_one_error_without_data_and_its_code_in_capitals() {
    for (refusal, status, code, retry) in [
        (Refusal::KeyMissing("where".into()), 400, "KEY_MISSING", "fix"),
        (Refusal::KeyReused(KeyReuse::OtherRequest), 422, "KEY_REUSED", "new_key"),
        (in_flight(), 409, "IN_FLIGHT", "same_key"),
        (unknown(), 409, "OUTCOME_UNKNOWN", "reconcile"),
        (Refusal::StoreUnavailable, 503, "STORE_UNAVAILABLE", "same_key"),
    ] {
        let (answered, headers, document) = answered(Dialect::Graphql, &refusal).await;
        let extensions = serde_json::json!({ "code": code, "retry": retry });
        let error = serde_json::json!({ "message": refusal.detail(), "extensions": extensions });
        assert_eq!((answered, document), (status, serde_json::json!({ "errors": [error] })));
        assert_eq!(headers[CONTENT_TYPE], "application/json");
        assert_eq!(headers.get("retry-after").is_some(), matches!(status, 409 | 503), "{code}");
    }
}

#[tokio::test]
async fn stripe_has_errors_that_its_sdks_raise_and_retries_what_was_not_executed() {
    for (refusal, status, kind, code, should_retry) in [
        (Refusal::KeyReused(KeyReuse::OtherRequest), 400, "idempotency_error", "key_reused", "false"),
        (Refusal::KeyExpired, 400, "idempotency_error", "key_expired", "false"),
        (in_flight(), 409, "invalid_request_error", "idempotency_key_in_use", "true"),
        (unknown(), 409, "api_error", "outcome_unknown", "false"),
        (Refusal::ResponseNotKept, 409, "api_error", "response_not_kept", "false"),
        (Refusal::KeyMissing("where".into()), 400, "invalid_request_error", "key_missing", "false"),
        (Refusal::RequestTooLarge(9), 400, "invalid_request_error", "request_too_large", "false"),
        (Refusal::TooManyKeys(RetryAfter::new(Duration::ZERO)), 429, "rate_limit_error", "too_many_keys", "true"),
        (Refusal::Unguarded, 403, "invalid_request_error", "unguarded", "false"),
        (Refusal::UpstreamUnreachable("".into()), 502, "api_error", "upstream_unreachable", "true"),
        (Refusal::UpstreamBroken, 502, "api_error", "upstream_broken", "false"),
        (Refusal::UpstreamTimeout, 504, "api_error", "upstream_timeout", "false"),
        (Refusal::StoreUnavailable, 503, "api_error", "store_unavailable", "true"),
        (Refusal::Overloaded(ReachedLimit::HeldBodies), 503, "api_error", "overloaded", "true"),
        (Refusal::Draining, 503, "api_error", "draining", "true"),
        (Refusal::ResponseCorrupt, 500, "api_error", "response_corrupt", "false"),
    ] {
        let (answered, headers, document) = answered(Dialect::Stripe, &refusal).await;
        let error = serde_json::json!({ "type": kind, "code": code, "message": refusal.detail() });
        assert_eq!((answered, &document["error"]), (status, &error));
        assert_eq!((document["status"].as_u64(), &document["code"]), (Some(status.into()), &refusal.slug().into()));
        assert_eq!(headers["stripe-should-retry"], should_retry, "{code}");
    }
}

#[tokio::test]
async fn repeatability_answers_412_outside_of_the_window_and_400_to_another_request() {
    for (refusal, status) in [
        (Refusal::KeyReused(KeyReuse::OtherRequest), 400),
        (Refusal::KeyInvalid("not a UUID"), 400),
        (Refusal::KeyMissing("where".into()), 400),
        (Refusal::RequestTooOld, 412),
        (Refusal::RequestFromFuture, 412),
        (Refusal::KeyExpired, 412),
        (in_flight(), 409),
        (unknown(), 409),
    ] {
        let (answered, headers, document) = answered(Dialect::Repeatability, &refusal).await;
        let error = serde_json::json!({ "code": refusal.slug(), "message": refusal.detail() });
        assert_eq!((answered, &document["error"]), (status, &error));
        assert_eq!(document["type"], format!("{BASE}{}", refusal.slug()));
        assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
    }
}

#[tokio::test]
async fn no_dialect_makes_an_error_a_success_or_offers_a_retry_of_what_may_have_executed() {
    for refusal in Refusal::ALL {
        for shape in [Dialect::Acp, Dialect::Ietf, Dialect::Repeatability, Dialect::Stripe] {
            let (status, headers, _) = answered(shape, &refusal).await;
            assert!((400..600).contains(&status), "{shape:?} {}", refusal.slug());
            let may_retry = headers.get(SHOULD_RETRY).is_some_and(|value| value == "true");
            assert!(!may_retry || refusal.client_action() == "same_key", "{}", refusal.slug());
            assert_eq!(headers.contains_key(SHOULD_RETRY), shape == Dialect::Stripe);
        }
    }
}

#[test]
fn the_dialects_fields_follow_the_meaning_of_an_answer() {
    let fields = |shape: Dialect, code: u16, status| {
        let mut headers = HeaderMap::new();
        AnswerShape(shape).add_fields((StatusCode::from_u16(code).unwrap(), &mut headers), status);
        let text = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        headers.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    for (shape, code, status, expected) in [
        (Dialect::Ietf, 500, OncegateStatus::Replayed, ""),
        (Dialect::Acp, 500, OncegateStatus::Replayed, ""),
        (Dialect::Stripe, 200, OncegateStatus::Replayed, ""),
        (Dialect::Stripe, 402, OncegateStatus::Replayed, "stripe-should-retry: false"),
        (Dialect::Stripe, 500, OncegateStatus::Executed, ""),
        (Dialect::Stripe, 503, OncegateStatus::Released, ""),
        (Dialect::Stripe, 502, OncegateStatus::Unknown, "stripe-should-retry: false"),
        (Dialect::Repeatability, 201, OncegateStatus::Executed, "repeatability-result: accepted"),
        (Dialect::Repeatability, 201, OncegateStatus::Replayed, "repeatability-result: accepted"),
        (Dialect::Repeatability, 409, OncegateStatus::InFlight, "repeatability-result: accepted"),
        (Dialect::Repeatability, 400, OncegateStatus::KeyReused, "repeatability-result: rejected"),
        (Dialect::Repeatability, 412, OncegateStatus::Rejected, "repeatability-result: rejected"),
        (Dialect::Repeatability, 201, OncegateStatus::Bypassed, ""),
    ] {
        assert_eq!(fields(shape, code, status), expected, "{shape:?} {code} {status:?}");
    }
}
