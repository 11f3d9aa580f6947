use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;

use super::super::refusal::{DifferingParts, ReachedLimit, RetryAfter};
use super::*;
use oncegate_domain::fingerprint::{FingerprintInput, FingerprintRules, Recipe, Secrets};
use oncegate_domain::ids::RecordId;
use oncegate_domain::jsonrpc::RpcMessage;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::part_bits::PartKey;
use oncegate_domain::scope::Salt;
use oncegate_settings::{REFUSALS, Word};

const BASE: &str = "/.oncegate/problems/";

fn shape_of(dialect: Dialect) -> AnswerShape {
    AnswerShape::new(dialect, oncegate_config::dialect_refusals(dialect), RequestFormat::Json)
}

/// The answer to a refusal: its status, its fields and its document.
async fn answered(shape: Dialect, refusal: &Refusal) -> (u16, HeaderMap, Value) {
    answered_call(shape, refusal, None).await
}

async fn answered_call(shape: Dialect, refusal: &Refusal, id: Option<&RpcId>) -> (u16, HeaderMap, Value) {
    let request = RefusedRequest { rpc_id: id, ..RefusedRequest::default() };
    let (head, body) = shape_of(shape).render(refusal, BASE, request).into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), head.headers, serde_json::from_slice(&body).unwrap())
}

fn in_flight() -> Refusal {
    Refusal::InFlight(RetryAfter::new(Duration::from_secs(7)))
}

fn unknown() -> Refusal {
    Refusal::OutcomeUnknown(None)
}

#[tokio::test]
async fn acp_has_the_flat_errors_of_its_specification() {
    for (refusal, status, kind, code) in [
        (Refusal::KeyMissing("where".into()), 400, "invalid_request", "idempotency_key_required"),
        (Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION), 422, "invalid_request", "idempotency_conflict"),
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
        assert_eq!(headers.get("retry-after").is_some(), code == "idempotency_in_flight" || status == 503, "{code}");
    }
}

#[tokio::test]
async fn graphql_has_one_error_without_data_and_its_code_in_capitals() {
    for (refusal, status, code, retry) in [
        (Refusal::KeyMissing("where".into()), 400, "KEY_MISSING", "fix"),
        (Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION), 422, "KEY_REUSED", "new_key"),
        (in_flight(), 409, "IN_FLIGHT", "same_key"),
        (unknown(), 409, "OUTCOME_UNKNOWN", "reconcile"),
        (Refusal::StoreUnavailable, 503, "STORE_UNAVAILABLE", "same_key"),
    ] {
        let (answered, headers, document) = answered(Dialect::Graphql, &refusal).await;
        let extensions = serde_json::json!({ "code": code, "retry": retry });
        let error = serde_json::json!({ "message": refusal.detail(), "extensions": extensions });
        assert_eq!((answered, document), (status, serde_json::json!({ "errors": [error] })));
        assert_eq!(headers[CONTENT_TYPE], "application/json");
        assert_eq!(headers.get("retry-after").is_some(), code == "IN_FLIGHT" || status == 503, "{code}");
    }
}

#[tokio::test]
async fn an_unknown_outcome_says_when_to_ask_again_in_each_dialect_or_not_at_all() {
    let RpcMessage::Call(call) = RpcMessage::read(br#"{"id":"a-7","method":"pay"}"#, false, Vec::new) else { panic!() };
    for &dialect in Dialect::VALUES {
        for seconds in [None, Some(60)] {
            let refusal = Refusal::OutcomeUnknown(seconds.map(|seconds| RetryAfter::new(Duration::from_secs(seconds))));
            for id in [None, Some(&call.id)] {
                let (_, headers, document) = answered_call(dialect, &refusal, id).await;
                let field = headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
                assert_eq!(field, seconds.map(|seconds| seconds.to_string()), "{dialect:?} {document}");
                let data = document.pointer("/error/data").map(|data| data.get("retry_after").and_then(Value::as_u64));
                assert_eq!(data.unwrap_or(seconds), seconds, "{dialect:?} {document}");
            }
        }
    }
}

#[tokio::test]
async fn stripe_has_errors_that_its_sdks_raise_and_retries_what_was_not_executed() {
    for (refusal, status, kind, code, should_retry) in [
        (Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION), 400, "idempotency_error", "key_reused", "false"),
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
        (Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION), 400),
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
async fn json_rpc_has_the_calls_id_and_a_code_that_its_protocol_leaves_free() {
    let RpcMessage::Call(call) = RpcMessage::read(br#"{"id":"a-7","method":"pay"}"#, false, Vec::new) else { panic!() };
    let bad = Refusal::BadRequest(StatusCode::BAD_REQUEST, "why");
    let reused = Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION);
    // Each with the status and the code in JSON-RPC, the code in MCP and A2A, and both in UCP.
    for (refusal, plain, agents, commerce) in [
        (in_flight(), (200, -32_009), -31_009, (503, -32_000)),
        (reused.clone(), (200, -32_022), -31_022, (409, -32_000)),
        (unknown(), (200, -32_050), -31_050, (503, -32_000)),
        (Refusal::UpstreamBroken, (200, -32_050), -31_050, (502, -32_000)),
        (Refusal::ResponseNotKept, (200, -32_050), -31_050, (500, -32_000)),
        (Refusal::KeyExpired, (200, -32_000), -31_000, (410, -32_000)),
        (Refusal::KeyMissing("where".into()), (200, -32_602), -32_602, (400, -32_602)),
        (bad.clone(), (400, -32_600), -32_600, (400, -32_600)),
        (Refusal::StoreUnavailable, (503, -32_000), -31_000, (503, -32_000)),
        (Refusal::ScopeMissing("why".into(), None), (400, -32_000), -31_000, (400, -32_000)),
        (Refusal::ResponseCorrupt, (500, -32_603), -32_603, (500, -32_603)),
    ] {
        for (shape, (status, code)) in [
            (Dialect::Jsonrpc, plain),
            (Dialect::Mcp, (plain.0, agents)),
            (Dialect::A2a, (plain.0, agents)),
            (Dialect::Ucp, commerce),
        ] {
            let (answered, headers, document) = answered_call(shape, &refusal, Some(&call.id)).await;
            let mut data = serde_json::json!({ "code": refusal.slug(), "retry": refusal.client_action(),
                "type": format!("{BASE}{}", refusal.slug()) });
            if let Some(wait) = headers.get("retry-after") {
                data["retry_after"] = wait.to_str().unwrap().parse::<u64>().unwrap().into();
            }
            let error = serde_json::json!({ "code": code, "message": refusal.detail(), "data": data });
            let expected = serde_json::json!({ "jsonrpc": "2.0", "id": "a-7", "error": error });
            assert_eq!((answered, document), (status, expected), "{shape:?}");
            assert_eq!(headers[CONTENT_TYPE], "application/json");
        }
    }
    // A request that was not read has no id, and the problem's status.
    for (shape, id) in [(Dialect::Jsonrpc, Some(Value::Null)), (Dialect::A2a, Some(Value::Null)), (Dialect::Mcp, None)]
    {
        let (status, _, document) = answered(shape, &reused).await;
        assert_eq!((status, document.get("id")), (422, id.as_ref()), "{shape:?}");
    }
}

/// The parts in which two requests with these bodies differ.
fn differing(first: &[u8], second: &[u8]) -> DifferingParts {
    let (recipe, path) = (Recipe::new(FingerprintRules::default(), None), RequestPath::new("/pay"));
    let key = PartKey::new(&Salt::new([1; 32]), &RecordId::from_stored(&[2; 32]).unwrap());
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let (method, pattern, host, query) = ("POST", None, None, None);
    let [first, second] = [first, second].map(|body| FingerprintInput {
        method,
        path: &path,
        pattern,
        host,
        query,
        headers: &headers,
        body,
    });
    let (_, bits) = recipe.fingerprint_with_bits(&first, &Secrets::default(), &key, None).unwrap();
    bits.unwrap().compare(&key, recipe.parts(&second, &recipe.body(&second)), |_| false)
}

#[tokio::test]
async fn each_dialect_names_the_parts_that_differ_and_nothing_where_none_is_known() {
    let reused = Refusal::KeyReused(differing(br#"{"amount":1,"nonce":1}"#, br#"{"amount":2,"nonce":2}"#));
    for (dialect, place) in [
        (Dialect::Ietf, "/differs"),
        (Dialect::Repeatability, "/differs"),
        (Dialect::X402, "/differs"),
        (Dialect::Stripe, "/differs"),
        (Dialect::Stripe, "/error/differs"),
        (Dialect::Ucp, "/differs"),
        (Dialect::Graphql, "/errors/0/extensions/differs"),
        (Dialect::Jsonrpc, "/error/data/differs"),
        (Dialect::Mcp, "/error/data/differs"),
        (Dialect::A2a, "/error/data/differs"),
    ] {
        let (_, _, document) = answered(dialect, &reused).await;
        assert_eq!(document.pointer(place), Some(&serde_json::json!(["json:/amount", "json:/nonce"])), "{dialect:?}");
        let (_, _, document) = answered(dialect, &Refusal::KeyReused(DifferingParts::default())).await;
        assert_eq!(document.pointer(place), None, "{dialect:?}");
    }
}

#[tokio::test]
async fn in_the_protocols_of_machine_payments_only_another_request_is_a_conflict() {
    for (refusal, status, code) in [
        (Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION), 409, "key_reused"),
        (in_flight(), 503, "in_flight"),
        (unknown(), 503, "outcome_unknown"),
        (Refusal::ResponseNotKept, 500, "response_not_kept"),
        (Refusal::KeyMissing("where".into()), 400, "key_missing"),
        (Refusal::StoreUnavailable, 503, "store_unavailable"),
    ] {
        let (answered_ucp, headers, document) = answered(Dialect::Ucp, &refusal).await;
        let expected = serde_json::json!({ "code": code, "content": refusal.detail() });
        assert_eq!((answered_ucp, document), (status, expected));
        assert_eq!(headers.get("retry-after").is_some(), status == 503 && code != "outcome_unknown", "{code}");
        let (answered_x402, _, document) = answered(Dialect::X402, &refusal).await;
        assert_eq!((answered_x402, &document["code"]), (status, &refusal.slug().into()));
    }
}

#[tokio::test]
async fn no_dialect_makes_an_error_a_success_or_offers_a_retry_of_what_may_have_executed() {
    for refusal in Refusal::ALL {
        // Without the id of a call, also those of JSON-RPC.
        for &shape in Dialect::VALUES {
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
        shape_of(shape).add_fields((StatusCode::from_u16(code).unwrap(), &mut headers), status);
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

#[test]
fn the_table_of_the_settings_has_each_refusal_as_it_is() {
    let rows = Refusal::ALL.each_ref().map(|refusal| {
        let row = refusal.row();
        (row.slug, row.action.name(), row.status)
    });
    assert_eq!(rows, *REFUSALS);
}

#[tokio::test]
async fn a_problem_is_in_the_format_of_the_request() {
    for (content_type, accept, expected) in [
        ("", "", "application/problem+json"),
        ("application/json", "application/xml", "application/problem+json"),
        ("multipart/form-data; boundary=xml", "", "application/problem+json"),
        ("text/xmlish", "", "application/problem+json"),
        ("application/xml", "application/json", "application/problem+xml"),
        ("Text/XML; charset=utf-8", "", "application/problem+xml"),
        ("application/soap+xml", "", "application/problem+xml"),
        ("application/cbor", "", "application/cbor"),
        ("", "application/xml", "application/problem+xml"),
        ("", "application/xml, text/xml;q=0.5", "application/problem+xml"),
        ("", "text/html,application/xml;q=0.9,*/*;q=0.8", "application/problem+json"),
        ("", "application/xml, */*", "application/problem+json"),
        ("", "application/cbor", "application/cbor"),
    ] {
        let fields = [(CONTENT_TYPE, content_type), (ACCEPT, accept)];
        let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
        let headers = fields.map(|(name, text)| (name, HeaderValue::from_static(text))).collect();
        let shape = AnswerShape::of_no_route(RequestFormat::of(&headers));
        let answer = shape.render(&in_flight(), BASE, RefusedRequest::default());
        assert_eq!(answer.headers()[CONTENT_TYPE], expected, "{content_type} {accept}");
    }
}

#[tokio::test]
async fn an_iceberg_client_never_reads_that_a_commit_failed_which_may_have_been_made() {
    for (refusal, status, kind) in [
        (in_flight(), 504, "CommitStateUnknownException"),
        (unknown(), 500, "CommitStateUnknownException"),
        (Refusal::ResponseNotKept, 500, "CommitStateUnknownException"),
        (Refusal::UpstreamBroken, 500, "CommitStateUnknownException"),
        (Refusal::StoreUnavailable, 504, "CommitStateUnknownException"),
        (Refusal::DuplicateSuspected(None), 500, "CommitStateUnknownException"),
        (Refusal::KeyExpired, 500, "CommitStateUnknownException"),
        (Refusal::RequestTooOld, 500, "CommitStateUnknownException"),
        (Refusal::KeyReused(DifferingParts::default()), 422, "UnprocessableEntityException"),
        (Refusal::KeyInvalid("why"), 400, "BadRequestException"),
    ] {
        let (answered, _, document) = answered(Dialect::Iceberg, &refusal).await;
        let error = serde_json::json!({ "message": refusal.detail(), "type": kind, "code": status });
        assert_eq!((answered, document), (status, serde_json::json!({ "error": error })));
    }
    for refusal in Refusal::ALL {
        let (status, ..) = answered(Dialect::Iceberg, &refusal).await;
        assert!(status != 409 && status != 503, "{}", refusal.slug());
    }
}
