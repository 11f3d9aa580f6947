//! The dialects of JSON-RPC, MCP and A2A: the operation in the body, the id of a replay, and
//! errors in the protocol's form.

use serde_json::{Value, json};

use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::{Answer, Hold, Request, Response, Store, World, on_both_stores, route};

const SHORT: &str = "upstream_timeout = \"300ms\"\nconnect_timeout = \"100ms\"";

async fn world(store: Store, dialect: &str, lines: &str) -> World {
    let world = World::guarding(store, &format!("dialect = \"{dialect}\"\n{lines}")).await;
    world.upstream.answer_all(Answer::status(201).body(r#"{"jsonrpc":"2.0","id":1,"result":1}"#));
    world
}

fn call(world: &World, body: &Value) -> Request {
    world.post("/pay").json(&body.to_string())
}

fn tool(id: Value, name: &str, key: Option<&str>, arguments: Value) -> Value {
    let mut body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": name, "arguments": arguments, "_meta": { "progressToken": id } } });
    if let Some(key) = key {
        body["params"]["_meta"]["idempotencyKey"] = key.into();
    }
    body
}

fn result(body: &str) -> Answer {
    Answer::status(200).field("Content-Type", "application/json").body(body)
}

fn document(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {response:?}"))
}

/// The status, the code, the slug and the id of a JSON-RPC error.
fn error(response: &Response) -> (u16, i64, String, Value) {
    let mut document = document(response);
    let error = &document["error"];
    let (code, slug) = (error["code"].as_i64().unwrap(), error["data"]["code"].as_str().unwrap().to_owned());
    (response.status, code, slug, document["id"].take())
}

on_both_stores!(a_retry_with_its_own_id_gets_the_stored_bytes_with_this_id);
async fn a_retry_with_its_own_id_gets_the_stored_bytes_with_this_id(store: Store) {
    let world = world(store, "mcp", "").await;
    let of = |id: &str| {
        format!(r#"{{ "result": {{"total": 1.10, "id": 7, "b": 1e2, "a": 0}}, "id":{id}, "jsonrpc": "2.0" }}"#)
    };
    let events = |id: &str| {
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"id":7}}"#;
        format!("id: 7\nevent: message\ndata: {progress}\n\nid: 8\ndata: {}\n\n", of(id))
    };
    let response = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
    let marked = |id: &str| format!("\u{feff}{}", response(id));
    let not_a_number = |id: &str| response(id).replace("\"result\":1", "\"result\":NaN");
    let lone_returns = |id: &str| format!("data: {}\r\r", response(id));
    let batch = |id: &str| format!(" [ {} ]", response(id));
    let batch_event = |id: &str| format!("data: [{{\"method\":\"ping\",\"id\":7}},{}]\n\n", response(id));
    for (number, (kind, answer)) in [
        ("application/json", &of as &dyn Fn(&str) -> String),
        ("text/event-stream", &events),
        ("application/json", &marked),
        ("application/json", &not_a_number),
        ("text/event-stream", &lone_returns),
        ("application/json", &batch),
        ("text/event-stream", &batch_event),
    ]
    .into_iter()
    .enumerate()
    {
        let first = Answer::status(200).field("Content-Type", kind).field("Content-Digest", "sha-256=:x:");
        // Whatever the rules say of a body that not all programs read.
        world.upstream.then(first.field("Oncegate-Decision", "store").body(answer("7")));
        let key = format!("k-{number}");
        let pay = |id: Value| call(&world, &tool(id, "pay", Some(&key), json!({ "amount": 5 })));
        let first = pay(json!(7)).send().await;
        assert_eq!((first.oncegate_status(), &first.body[..]), (Some("executed"), answer("7").as_bytes()));
        for (id, text) in [(json!(8), "8"), (json!("a\"\u{e9}"), "\"a\\\"\u{e9}\""), (json!(7), "7")] {
            let retry = pay(id).send().await;
            let seen = (retry.oncegate_status(), str::from_utf8(&retry.body).unwrap());
            assert_eq!(seen, (Some("replayed"), &*answer(text)), "{number}");
            assert_eq!(retry.field("content-digest").is_some(), text == "7", "the digest is of the stored bytes");
        }
    }
    assert_eq!(world.upstream.calls(), 7);
}

on_both_stores!(the_operation_is_a_part_of_the_space_and_the_parameters_are_the_fingerprint);
async fn the_operation_is_a_part_of_the_space_and_the_parameters_are_the_fingerprint(store: Store) {
    let world = world(store, "mcp", "").await;
    world.upstream.answer_all(result(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    for (name, arguments, status) in [
        ("pay", json!({ "amount": 5, "to": "a" }), "executed"),
        ("refund", json!({ "amount": 5, "to": "a" }), "executed"),
        ("pay", json!({ "to": "a", "amount": 5.0 }), "replayed"),
        ("refund", json!({ "to": "a", "amount": 5 }), "replayed"),
        ("pay", json!({ "amount": 6, "to": "a" }), "key-reused"),
    ] {
        let id = json!(world.upstream.calls() + 10);
        let response = call(&world, &tool(id, name, Some("k-1"), arguments)).field("Mcp-Session-Id", name).send().await;
        assert_eq!(response.oncegate_status(), Some(status), "{name}");
    }
    assert_eq!(world.upstream.calls(), 2);
    // The key of `params` counts too, and a field, and they must agree.
    let mut in_params = tool(json!(1), "pay", None, json!({}));
    in_params["params"]["idempotencyKey"] = "k-2".into();
    assert_eq!(call(&world, &in_params).send().await.oncegate_status(), Some("executed"));
    for (request, status) in [
        (call(&world, &tool(json!(2), "pay", Some("k-2"), json!({}))), "replayed"),
        (call(&world, &tool(json!(3), "pay", None, json!({}))).key("k-2"), "replayed"),
        (call(&world, &tool(json!(4), "pay", Some("k-2"), json!({}))).key("\"k-2\""), "replayed"),
        (call(&world, &tool(json!(5), "pay", Some("k-3"), json!({}))).key("k-2"), "rejected"),
    ] {
        assert_eq!(request.send().await.oncegate_status(), Some(status));
    }
}

on_both_stores!(refusals_are_errors_with_the_calls_id);
async fn refusals_are_errors_with_the_calls_id(store: Store) {
    let world =
        world(store, "jsonrpc", &format!("key = {{ from = \"json:/params/key\", required = true }}\n{SHORT}")).await;
    let pay = |id: Value, key: &str, amount: u32| {
        call(
            &world,
            &json!({ "jsonrpc": "2.0", "id": id, "method": "pay", "params": { "key": key, "amount": amount } }),
        )
    };
    world.upstream.answer_all(result(r#"{"jsonrpc":"2.0","id":1,"result":1}"#));
    pay(json!(1), "k-1", 5).send().await;
    let reused = pay(json!(2), "k-1", 6).send().await;
    assert_eq!(error(&reused), (200, -32_022, "key-reused".into(), json!(2)));
    assert_eq!(document(&reused)["error"]["data"]["retry"], "new_key");
    let hold = Hold::new();
    world.upstream.then(result(r#"{"jsonrpc":"2.0","id":3,"result":1}"#).hold(&hold));
    let first = pay(json!(3), "k-2", 5).spawn();
    world.upstream.wait_for_executed(2).await;
    let in_flight = pay(json!("3b"), "k-2", 5).send().await;
    assert_eq!(error(&in_flight), (200, -32_009, "in-flight".into(), json!("3b")));
    assert!(document(&in_flight)["error"]["data"]["retry_after"].is_u64() && in_flight.field("retry-after").is_some());
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    world.upstream.then(Answer::never());
    for id in [4, 5] {
        let unknown = pay(json!(id), "k-3", 5).send().await;
        let slug = if id == 4 { "upstream-timeout" } else { "outcome-unknown" };
        assert_eq!(error(&unknown), (200, -32_050, slug.into(), json!(id)));
        assert_eq!(unknown.oncegate_status(), Some("unknown"));
    }
    let missing = call(&world, &json!({ "jsonrpc": "2.0", "id": 6, "method": "pay" })).send().await;
    assert_eq!(error(&missing), (200, -32_602, "key-missing".into(), json!(6)));
    let nobody = pay(json!(7), "k-4", 5).anonymous().send().await;
    assert_eq!(error(&nobody), (400, -32_000, "scope-missing".into(), json!(7)));
    let unclear =
        world.post("/pay").json(r#"{"id":8,"method":"pay","method":"x","params":{"key":"k-5"}}"#).send().await;
    assert_eq!(error(&unclear), (400, -32_600, "bad-request".into(), Value::Null));
    assert_eq!(world.upstream.executed().len(), 3);
}

#[tokio::test]
async fn mcp_and_a2a_have_codes_that_their_specifications_do_not_use() {
    let of_tool = |amount: u32| tool(json!(1), "pay", Some("k-1"), json!({ "amount": amount }));
    let of_message = |amount: u32| {
        let params = json!({ "message": { "messageId": "k-1", "parts": [amount] } });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params })
    };
    for (dialect, body) in [("mcp", &of_tool as &dyn Fn(u32) -> Value), ("a2a", &of_message)] {
        let world = world(Store::sqlite(), dialect, "").await;
        world.upstream.answer_all(result(r#"{"jsonrpc":"2.0","id":1,"result":1}"#));
        assert_eq!(call(&world, &body(5)).send().await.oncegate_status(), Some("executed"));
        assert_eq!(call(&world, &body(5)).send().await.oncegate_status(), Some("replayed"));
        assert_eq!(error(&call(&world, &body(6)).send().await), (200, -31_022, "key-reused".into(), json!(1)));
    }
}

on_both_stores!(operations_that_need_no_guard_pass_and_a_batch_with_a_guarded_call_does_not);
async fn operations_that_need_no_guard_pass_and_a_batch_with_a_guarded_call_does_not(store: Store) {
    let world = world(store, "mcp", "").await;
    let keyed = |method: &str| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "_meta": { "idempotencyKey": "k" } } });
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let (guarded, keyless) = (tool(json!(1), "pay", Some("k"), json!({})), tool(json!(1), "pay", None, json!({})));
    for (body, passes) in [
        (keyed("initialize"), true),
        (keyed("tools/list"), true),
        (keyed("ping"), true),
        (initialized.clone(), true),
        (json!({ "jsonrpc": "2.0", "id": 1, "result": {} }), true),
        (json!([keyed("initialize"), keyed("tools/list"), initialized]), true),
        (json!([keyless]), true),
        (json!([]), true),
        (json!([keyed("initialize"), guarded]), false),
        (json!([{ "id": 1, "method": 5 }]), true),
    ] {
        let calls = world.upstream.calls();
        for _ in 0..2 {
            let response = call(&world, &body).send().await;
            if passes {
                assert_eq!((response.status, response.oncegate_status()), (201, None), "{body}");
            } else {
                let (status, code, slug, _) = error(&response);
                assert_eq!((status, code, &*slug), (400, -32_600, "bad-request"), "{body}");
                assert!(
                    document(&response)["error"]["message"].as_str().unwrap().contains("Send each guarded call alone")
                );
            }
        }
        assert_eq!(world.upstream.calls() - calls, if passes { 2 } else { 0 }, "{body}");
    }
    // A key in a field is for the whole batch.
    assert_eq!(error(&call(&world, &json!([keyless])).key("k").send().await).1, -32_600);
    let metrics = Metrics::of(&world.proxy).await;
    // The batches that may act, of two tries each; listings change nothing.
    assert_eq!(metrics.sum("oncegate_unguarded_total"), 6.0);
}

#[tokio::test]
async fn a_guarded_request_whose_answer_could_not_be_kept_is_refused() {
    let keyed = |method: &str, member: &str| {
        let params =
            r#"{"name":"pay","_meta":{"idempotencyKey":"k"},"idempotencyKey":"k","message":{"messageId":"k"}}"#;
        format!(r#"{{"jsonrpc":"2.0",{member}"method":"{method}","params":{params}}}"#)
    };
    let required = "key = { required = true }";
    for (dialect, lines, method) in [
        ("jsonrpc", "key = { from = \"json:/params/idempotencyKey\" }", "pay"),
        ("jsonrpc", required, "pay"),
        ("mcp", "", "tools/call"),
        ("mcp", required, "tools/call"),
        ("a2a", "", "message/send"),
        ("ucp", required, "tools/call"),
    ] {
        let world = world(Store::sqlite(), dialect, lines).await;
        for (member, says) in [
            ("", "no `id`"),
            (r#""id":true,"#, "The `id`"),
            (r#""id":false,"#, "The `id`"),
            (r#""id":[1],"#, "The `id`"),
            (r#""id":{},"#, "The `id`"),
        ] {
            let body = keyed(method, member);
            let request = || world.post("/pay").json(&body);
            for (request, in_batch) in
                [(request(), false), (request().key("k"), false), (world.post("/pay").json(&format!("[{body}]")), true)]
            {
                let refused = request.send().await;
                let says = if in_batch { "The batch" } else { says };
                let message = if dialect == "ucp" {
                    // It may be of the REST binding.
                    assert_eq!((refused.status, &document(&refused)["code"]), (400, &json!("bad_request")), "{body}");
                    document(&refused)["content"].clone()
                } else {
                    assert_eq!(error(&refused), (400, -32_600, "bad-request".into(), Value::Null), "{dialect} {body}");
                    assert_eq!(document(&refused)["error"]["data"]["retry"], "fix", "{dialect} {body}");
                    document(&refused)["error"]["message"].clone()
                };
                assert!(message.as_str().unwrap().contains(says), "{dialect} {body}: {message}");
            }
            // What is not guarded passes, as the notifications of MCP do.
            let passed = world.post("/pay").key("k").json(&keyed("notifications/progress", member)).send().await;
            let is_guarded = dialect == "jsonrpc";
            assert_eq!(passed.status, if is_guarded { 400 } else { 201 }, "{dialect} {member}");
        }
        assert!(
            world.upstream.executed().iter().all(|call| call.body.windows(13).any(|part| part == b"notifications"))
        );
        for id in ["7", "\"a\"", "null", "1.5"] {
            let mut body = keyed(method, &format!("\"id\":{id},"));
            body = body.replace("\"k\"", &format!("\"k-{}\"", id.replace('"', "")));
            let executed = world.post("/pay").key(&format!("k-{}", id.replace('"', ""))).json(&body).send().await;
            assert_eq!(executed.oncegate_status(), Some("executed"), "{dialect} {body}");
        }
    }
    // Without a key, where none is required, nothing is promised.
    let world = world(Store::sqlite(), "jsonrpc", "").await;
    for member in ["", r#""id":true,"#] {
        let passed = world.post("/pay").json(&keyed("pay", member)).send().await;
        assert_eq!((passed.status, passed.oncegate_status()), (201, None));
    }
}

/// The text of a call of the tool `pay` with these members beside those of a message, and this value in its parameters.
fn odd_call(id: u32, members: &str, to: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},{members}"method":"tools/call","params":{{"name":"pay","arguments":{{"to":{to}}},"_meta":{{"progressToken":{id}}}}}}}"#
    )
}

#[tokio::test]
async fn a_member_that_no_message_has_makes_no_other_call() {
    for (dialect, lines) in [
        ("jsonrpc", ""),
        ("mcp", ""),
        ("ucp", "key = { required = true }"),
        // A call that the route does not name is guarded because of the member, as its operation.
        ("mcp", "operations = [\"tools/call refund\"]"),
    ] {
        let world = world(Store::sqlite(), dialect, lines).await;
        let members = [r#""traceparent":"x","#, r#""retry":1,"#, r#""retry":2,"_trace":{"a":["b"]},"#, r#""":null,"#];
        let is_named = !lines.contains("operations");
        let plain = is_named.then_some("");
        for (number, first) in members.into_iter().chain(plain).enumerate() {
            let key = format!("k-{dialect}-{number}");
            let pay = |id: u32, members: &str, to: &str| world.post("/pay").key(&key).json(&odd_call(id, members, to));
            let calls = world.upstream.calls();
            assert_eq!(pay(1, first, "1").send().await.oncegate_status(), Some("executed"), "{dialect} {first}");
            for (id, members) in (2..).zip(members.into_iter().chain(plain)) {
                let retry = pay(id, members, "1").send().await;
                assert_eq!(retry.oncegate_status(), Some("replayed"), "{dialect} {first} {members}");
                assert_eq!(document(&retry)["id"], id, "{dialect} {first} {members}");
                assert_eq!(
                    pay(id, members, "2").send().await.oncegate_status(),
                    Some("key-reused"),
                    "{dialect} {members}"
                );
            }
            assert_eq!(world.upstream.calls() - calls, 1, "{dialect} {first}");
        }
    }
}

#[tokio::test]
async fn a_call_that_programs_read_in_different_ways_gets_no_space_of_its_own() {
    let plain = odd_call(1, "", "1");
    for dialect in ["jsonrpc", "mcp", "ucp"] {
        let world = world(Store::sqlite(), dialect, "key = { from = \"header:Idempotency-Key\" }").await;
        let post = |body: &str| world.post("/pay").key("k").json(body);
        assert_eq!(post(&plain).send().await.oncegate_status(), Some("executed"), "{dialect}");
        for members in [
            r#""id":1,"#,
            r#""Id":1,"#,
            r#""Method":"tools/list","#,
            r#""method":"tools/call","#,
            r#""params":{"name":"pay"},"#,
            r#""PARAMS":{"name":"pay"},"#,
        ] {
            let body = plain.replacen(r#""id":1,"#, &format!(r#""id":1,{members}"#), 1);
            let refused = post(&body).send().await;
            assert_eq!(refused.status, 400, "{dialect} {members}");
            assert!(refused.text().contains("in different ways"), "{dialect} {members} {}", refused.text());
        }
        assert_eq!(post(&plain).send().await.oncegate_status(), Some("replayed"), "{dialect}");
        assert_eq!(world.upstream.calls(), 1, "{dialect}");
    }
}

#[tokio::test]
async fn half_of_a_surrogate_pair_in_a_call_counts_and_its_id_does_not() {
    for dialect in ["jsonrpc", "mcp", "ucp"] {
        let world = world(Store::sqlite(), dialect, "key = { from = \"header:Idempotency-Key\" }").await;
        let pay = |id: u32, members: &str, to: &str| {
            world.post("/pay").key(&format!("k-{dialect}")).json(&odd_call(id, members, to))
        };
        for (id, members, to, status) in [
            (1, "", r#""\ud83d""#, "executed"),
            (2, "", r#""\ud83d""#, "replayed"),
            (3, r#""retry":1,"#, r#""\ud83d""#, "replayed"),
            (4, "", r#""\ud83e""#, "key-reused"),
        ] {
            assert_eq!(pay(id, members, to).send().await.oncegate_status(), Some(status), "{dialect} {id}");
        }
    }
    // Where a key may be in the body too, nobody can tell whether there is another one.
    let world = world(Store::sqlite(), "mcp", "").await;
    let refused = world.post("/pay").key("k-both").json(&odd_call(1, "", r#""\ud83d""#)).send().await;
    assert_eq!(error(&refused), (200, -32_602, "key-invalid".into(), json!(1)));
    let error = document(&refused)["error"].clone();
    assert_eq!(error["data"]["retry"], "fix");
    assert!(error["message"].as_str().unwrap().contains("is not JSON that all programs read alike"), "{error}");
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn only_the_operations_of_a_route_need_a_key() {
    let lines = "key = { required = true }\noperations = [\"tools/call pay\", \"tools/call refund\"]";
    let world = world(Store::sqlite(), "mcp", lines).await;
    for (name, key, status) in [
        ("pay", None, Some("rejected")),
        ("pay", Some("k-1"), Some("executed")),
        ("show", None, None),
        ("show", Some("k-1"), None),
    ] {
        let response = call(&world, &tool(json!(1), name, key, json!({}))).send().await;
        assert_eq!(response.oncegate_status(), status, "{name}");
    }
    // A server may take `Name` for `name`, or decode what this route cannot read.
    let doubtful =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "show", "Name": "pay" } });
    assert_eq!(call(&world, &doubtful).send().await.oncegate_status(), Some("rejected"));
    let encoded = call(&world, &tool(json!(1), "pay", None, json!({}))).key("k-9").field("Content-Encoding", "gzip");
    assert_eq!(encoded.send().await.oncegate_status(), Some("rejected"));
    assert_eq!(error(&call(&world, &json!([tool(json!(1), "pay", None, json!({}))])).send().await).1, -32_600);
    assert_eq!(call(&world, &json!([tool(json!(1), "show", None, json!({}))])).send().await.status, 201);
}

on_both_stores!(an_error_before_the_execution_is_stored_or_released_and_any_other_is_unknown);
async fn an_error_before_the_execution_is_stored_or_released_and_any_other_is_unknown(store: Store) {
    let world = world(store, "mcp", "").await;
    let failed = |code: i64| format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"no"}}}}"#);
    let stream = |body: String| Answer::status(200).field("Content-Type", "text/event-stream").body(body);
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;
    let (stored, released, unknown) = (["executed", "replayed"], ["released", "executed"], ["unknown", "unknown"]);
    for (number, (answer, seen)) in [
        (result(r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true}}"#), stored),
        (result(&failed(-32_602)), stored),
        (result(&failed(-32_022)), released),
        (result(&failed(-32_042)), released),
        (result(&failed(-32_603)), unknown),
        (stream(format!("data: {progress}\n\ndata: {}\n\n", failed(-32_603))), unknown),
        (stream(format!("data: {}\n\n", failed(-32_042))), released),
        (stream(format!("data: {progress}\n\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{}}}}\n\n")), stored),
        // The stream has ended without the answer.
        (stream(format!("data: {progress}\n\n")), unknown),
    ]
    .into_iter()
    .enumerate()
    {
        world.upstream.then(answer);
        for oncegate_status in seen {
            let response = call(&world, &tool(json!(1), "pay", Some(&format!("k-{number}")), json!({}))).send().await;
            assert_eq!(response.oncegate_status(), Some(oncegate_status), "{number}");
        }
    }
    let keys = Operator::of(&world.proxy).keys("state=unknown").await;
    assert!(!keys.is_empty() && keys.iter().all(|key| key["cause"] == "body"), "{keys:?}");
}

#[tokio::test]
async fn an_accepted_call_is_in_flight_until_it_has_its_result() {
    let lines = "dialect = \"mcp\"\ndelivery = \"async\"";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))
    })
    .await;
    let hold = Hold::new();
    world.upstream.then(result(r#"{"jsonrpc":"2.0","id":1,"result":5}"#).hold(&hold));
    let pay = |id: u32| call(&world, &tool(json!(id), "pay", Some("k-1"), json!({})));
    assert_eq!(error(&pay(1).send().await), (200, -31_009, "in-flight".into(), json!(1)));
    hold.release();
    Operator::of(&world.proxy).id_when("k-1", "completed").await;
    let replay = pay(2).send().await;
    assert_eq!(document(&replay), json!({ "jsonrpc": "2.0", "id": 2, "result": 5 }));
}

#[tokio::test]
async fn an_observed_call_is_found_by_its_operation() {
    let world = world(Store::sqlite(), "mcp", "mode = \"observe\"\nkey = { required = true }").await;
    let listing = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let pay = |name: &str| tool(json!(1), name, Some("k-1"), json!({}));
    for (number, (body, would)) in [
        (listing, "passed without a key"),
        (pay("pay"), "executed"),
        (pay("refund"), "executed"),
        (pay("pay"), "replayed"),
        (json!([pay("pay")]), "bad-request"),
    ]
    .into_iter()
    .enumerate()
    {
        call(&world, &body).send().await;
        world.proxy.wait_for_logs("observed", number + 1).await;
        let mut lines = world.proxy.logged().into_iter().filter(|line| line["message"] == "observed");
        assert_eq!(lines.next_back().unwrap()["would"], would, "{body}");
    }
}
