//! The route's own form of Oncegate's errors, and their format where it says nothing.

use serde_json::{Value, json};

use harness::{Answer, Hold, Response, Store, World, on_both_stores};

const FORMS: &str = r#"upstream_timeout = "300ms"
connect_timeout = "100ms"
[routes.refusals]
in-flight = { status = 503, body = '{"error":"{code}","wait":"{retry_after}","key":"{key}","differs":"{differs}"}' }
"retry:reconcile" = { status = 500, media_type = "application/xml", body = "<e xmlns='http://e'><c>{code}</c><r>{record}</r></e>" }
"4xx" = { media_type = "text/plain", body = "{status} {key}", headers = ["X-Should-Retry: false"] }
key-missing = { media_type = "image/png", body = "base64:iVBORw==" }
key-invalid = { status = 403, body = "" }"#;

fn shown(response: &Response) -> (u16, Option<&str>, String) {
    (response.status, response.field("content-type"), String::from_utf8_lossy(&response.body).into_owned())
}

on_both_stores!(a_route_refuses_in_its_own_form);
async fn a_route_refuses_in_its_own_form(store: Store) {
    let world = World::guarding(store, FORMS).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-\"1").spawn();
    world.upstream.wait_for_executed(1).await;
    let duplicate = world.pay("k-\"1").send().await;
    let wait = duplicate.field("retry-after").unwrap().parse::<u64>().unwrap();
    let document = json!({ "error": "in-flight", "wait": wait, "key": "k-\"1" });
    assert_eq!((duplicate.status, duplicate.oncegate_status()), (503, Some("in-flight")));
    assert_eq!(serde_json::from_slice::<Value>(&duplicate.body).unwrap(), document);
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));

    let reused = world.post("/pay").key("k-\"1").json("{}").send().await;
    assert_eq!(shown(&reused), (422, Some("text/plain"), "422 k-\"1".into()));
    assert_eq!(reused.field("x-should-retry"), Some("false"));
    let missing = world.post("/pay").json("{}").send().await;
    assert_eq!((missing.status, missing.field("content-type"), &missing.body[..]), (400, Some("image/png"), &b"\x89PNG"[..]));
    let invalid = world.post("/pay").key("a,b").json("{}").send().await;
    assert_eq!(shown(&invalid), (403, Some("application/json"), String::new()));

    world.upstream.then(Answer::never());
    let lost = world.pay("k-2").send().await;
    let unknown = world.pay("k-2").send().await;
    for (response, code) in [(&lost, "upstream-timeout"), (&unknown, "outcome-unknown")] {
        let (status, kind, body) = shown(response);
        assert_eq!((status, kind), (500, Some("application/xml")));
        let record = body.strip_prefix(&format!("<e xmlns='http://e'><c>{code}</c><r>")).and_then(|rest| rest.strip_suffix("</r></e>"));
        assert_eq!(record.map(str::len), Some(64), "{body}");
    }
    assert_eq!(world.upstream.executed_for("k-2"), 1);
}

#[tokio::test]
async fn a_secret_key_is_in_no_refusal() {
    let forms = "key = { from = \"form:refresh_token\", hash = true }\n\
                 refusals = { '*' = { media_type = 'text/plain', body = '{code} <{key}>' } }";
    let world = World::guarding(Store::sqlite(), forms).await;
    let refresh = |rest: &str| {
        let form = "application/x-www-form-urlencoded";
        world.post("/pay").field("Content-Type", form).body(&format!("refresh_token=secret-token{rest}"))
    };
    assert_eq!(refresh("").send().await.status, 201);
    assert_eq!(shown(&refresh("&a=1").send().await).2, "key-reused <>");
}

#[tokio::test]
async fn a_refusal_is_in_the_format_of_its_request() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    let refused = async |content_type: &str, body: &str| {
        world.post("/pay").field("Content-Type", content_type).body(body).send().await
    };
    let xml = refused("application/xml; charset=utf-8", "<pay/>").await;
    assert_eq!((xml.status, xml.field("content-type")), (400, Some("application/problem+xml")));
    let text = String::from_utf8_lossy(&xml.body).into_owned();
    assert!(text.contains("<status>400</status>") && text.contains("<code>key-missing</code>"), "{text}");
    let cbor = refused("application/cbor", "\u{60}").await;
    assert_eq!((cbor.status, cbor.field("content-type")), (400, Some("application/cbor")));
    assert!(cbor.body.windows(11).any(|part| part == b"key-missing") && cbor.body[0] >> 5 == 5, "{:?}", cbor.body);
    let unrouted = world.post("/el\\sewhere").field("Content-Type", "text/xml").body("<a/>").send().await;
    assert_eq!((unrouted.status, unrouted.field("content-type")), (400, Some("application/problem+xml")));
}

#[tokio::test]
async fn no_commit_that_may_have_been_made_is_called_failed_on_an_iceberg_route() {
    let world = World::guarding(Store::sqlite(), "dialect = \"iceberg\"\nupstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"").await;
    let keys = ["0194f1a2-0000-7000-8000-000000000001", "0194f1a2-0000-7000-8000-000000000002"];
    let hold = Hold::new();
    world.upstream.then(Answer::status(200).hold(&hold));
    let first = world.pay(keys[0]).spawn();
    world.upstream.wait_for_executed(1).await;
    let error = |response: &Response| {
        let mut document: Value = serde_json::from_slice(&response.body).unwrap();
        (response.status, document["error"]["code"].as_u64(), document["error"]["type"].take())
    };
    let unknown = json!("CommitStateUnknownException");
    assert_eq!(error(&world.pay(keys[0]).send().await), (504, Some(504), unknown.clone()));
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().status, 200);
    for status in [500, 502, 504] {
        let key = format!("0194f1a2-0000-7000-8000-000000000{status}");
        world.upstream.then(Answer::status(status));
        assert_eq!(world.pay(&key).send().await.oncegate_status(), Some("unknown"));
        assert_eq!(error(&world.pay(&key).send().await), (500, Some(500), unknown.clone()));
    }
    // The catalog's own 409 is a failed commit, and is replayed as one.
    world.upstream.then(Answer::status(409));
    assert_eq!(world.pay(keys[1]).send().await.status, 409);
    assert_eq!(world.pay(keys[1]).send().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn a_call_of_json_rpc_has_its_own_form_and_the_dialect_says_the_rest() {
    let forms = r#"dialect = "jsonrpc"
key = { required = true }
[routes.refusals]
key-reused = { error_type = "reuse", error_code = 7, call_status = 422, call_body = '{"id":"{id}","error":["{error_type}","{error_code}"]}' }"#;
    let world = World::guarding(Store::sqlite(), forms).await;
    world.upstream.answer_all(Answer::status(200).json(r#"{"jsonrpc":"2.0","id":1,"result":1}"#));
    let call = |id: &str, key: &str, amount: u8| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"pay","params":{{"amount":{amount}}}}}"#);
        let request = world.post("/pay").json(&body);
        if key.is_empty() { request } else { request.key(key) }
    };
    assert_eq!(call("1", "k-1", 1).send().await.status, 200);
    let reused = call("2.0", "k-1", 2).send().await;
    let expected = r#"{"id":2.0,"error":["reuse",7]}"#;
    assert_eq!(shown(&reused), (422, Some("application/json"), expected.into()), "the id as it was sent");
    let missing: Value = serde_json::from_slice(&call("3", "", 1).send().await.body).unwrap();
    assert_eq!((&missing["id"], &missing["error"]["code"]), (&json!(3), &json!(-32_602)));
}
