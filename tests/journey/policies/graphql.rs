//! The dialect of GraphQL over HTTP: what a response means, queries that pass, and persisted queries.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::{Answer, Request, Response, Store, World, on_both_stores, route};

const MUTATION: &str = "mutation Pay { pay { id } }";

async fn world(store: Store, lines: &str) -> World {
    let world = World::guarding(store, &format!("dialect = \"graphql\"\n{lines}")).await;
    world.upstream.answer_all(answer(201, "application/json", json!({ "data": {} })));
    world
}

fn operation(world: &World, key: &str, body: &Value) -> Request {
    world.post("/pay").key(key).json(&body.to_string())
}

fn answer(status: u16, media_type: &str, body: Value) -> Answer {
    Answer::status(status).field("Content-Type", media_type).body(body.to_string())
}

/// The code of the only error, and the status.
fn refusal(response: &Response) -> (u16, String) {
    let mut document: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(document.as_object().unwrap().len(), 1, "{document}: there is no `data`");
    (response.status, document["errors"][0]["extensions"]["code"].take().as_str().unwrap().to_owned())
}

on_both_stores!(a_request_error_is_released_and_an_error_of_a_field_is_unknown);
async fn a_request_error_is_released_and_an_error_of_a_field_is_unknown(store: Store) {
    let world = world(store, "").await;
    let (old, new) = ("application/json", "application/graphql-response+json");
    let errors = || json!([{ "message": "could not connect to the database" }]);
    let stored = ["executed", "replayed"];
    let released = ["released", "executed"];
    let unknown = ["unknown", "unknown"];
    for (key, answer, seen) in [
        ("data", answer(200, old, json!({ "data": { "pay": { "id": 7 } } })), stored),
        ("no-errors", answer(200, old, json!({ "data": { "pay": null }, "errors": [] })), stored),
        ("request-error", answer(200, old, json!({ "errors": errors() })), released),
        ("request-error-400", answer(400, new, json!({ "errors": errors() })), released),
        ("request-error-500", answer(500, new, json!({ "errors": errors() })), released),
        ("field-error", answer(200, old, json!({ "data": { "pay": null }, "errors": errors() })), unknown),
        ("no-data", answer(200, old, json!({ "data": null, "errors": errors() })), unknown),
        ("no-data-new", answer(200, new, json!({ "errors": errors(), "data": null })), unknown),
        ("no-data-500", answer(500, new, json!({ "data": null, "errors": errors() })), unknown),
        // A router that has lost the answer of the service behind it.
        ("timeout", answer(504, new, json!({ "errors": errors() })), unknown),
        // Not every server writes its refusals in JSON.
        ("refused", Answer::status(400).field("Content-Type", "text/plain").body("No query found"), released),
        ("lost", Answer::status(499), unknown),
        ("batch", answer(200, old, json!([{ "data": {} }, { "data": null, "errors": errors() }])), unknown),
        ("batch-of-request-errors", answer(200, old, json!([{ "errors": errors() }])), released),
    ] {
        world.upstream.then(answer);
        for oncegate_status in seen {
            let response = operation(&world, key, &json!({ "query": MUTATION })).send().await;
            assert_eq!(response.oncegate_status(), Some(oncegate_status), "{key}");
        }
    }
    let lost = operation(&world, "no-data", &json!({ "query": MUTATION })).send().await;
    assert_eq!(refusal(&lost), (409, "OUTCOME_UNKNOWN".to_owned()));
    let key = Operator::of(&world.proxy).keys("state=unknown").await;
    assert_eq!(key.iter().find(|key| key["key"] == "no-data").unwrap()["cause"], "body");
}

#[tokio::test]
async fn a_route_says_itself_what_an_error_of_a_field_means() {
    let rules = "outcome = [{ pointer = \"/errors/0/extensions/code\", equals = \"SOLD_OUT\", is = \"store\" },\n\
                 { pointer = \"/errors/0\", is = \"unknown\" }]";
    let world = world(Store::sqlite(), rules).await;
    for (code, oncegate_status) in [("SOLD_OUT", "executed"), ("LOST", "unknown")] {
        let errors = json!([{ "message": "no", "extensions": { "code": code } }]);
        world.upstream.then(answer(200, "application/json", json!({ "data": null, "errors": errors })));
        let response = operation(&world, code, &json!({ "query": MUTATION })).send().await;
        assert_eq!(response.oncegate_status(), Some(oncegate_status), "{code}");
    }
}

on_both_stores!(queries_pass_with_and_without_a_key_and_all_else_is_guarded);
async fn queries_pass_with_and_without_a_key_and_all_else_is_guarded(store: Store) {
    let world = world(store, "key = { required = true }").await;
    let both = "query Read { a } mutation Pay { pay }";
    for (body, passes) in [
        (json!({ "query": "{ a }" }), true),
        (json!({ "query": "query Read { a }", "operationName": "Read", "variables": {} }), true),
        (json!({ "query": "subscription { a }" }), true),
        (json!({ "query": both, "operationName": "Read" }), true),
        (json!([{ "query": "{ a }" }, { "query": "{ b }" }]), true),
        (json!({ "query": both, "operationName": "Pay" }), false),
        (json!({ "query": both }), false),
        (json!({ "query": MUTATION }), false),
        (json!([{ "query": "{ a }" }, { "query": MUTATION }]), false),
        (json!({ "extensions": { "persistedQuery": { "version": 1, "sha256Hash": "ab" } } }), false),
        (json!({ "query": "{ a" }), false),
    ] {
        let key = format!("k-{:x}", Sha256::digest(body.to_string())[0]);
        let calls = world.upstream.calls();
        let keyless = world.post("/pay").json(&body.to_string()).send().await;
        let keyed = [(); 2].map(|()| operation(&world, &key, &body));
        let mut seen = Vec::new();
        for request in keyed {
            seen.push(request.send().await.oncegate_status().map(str::to_owned));
        }
        if passes {
            assert_eq!((keyless.status, seen), (201, vec![None, None]), "{body}");
            assert_eq!(world.upstream.calls(), calls + 3, "{body}");
        } else {
            assert_eq!(refusal(&keyless), (400, "KEY_MISSING".to_owned()), "{body}");
            assert_eq!(seen, [Some("executed".to_owned()), Some("replayed".to_owned())], "{body}");
            assert_eq!(world.upstream.calls(), calls + 1, "{body}");
        }
    }
    // A query with a wrong key passes too, whoever sends it.
    let query = json!({ "query": "{ a }" }).to_string();
    let passed = world.post("/pay").key("a,b").anonymous().json(&query).send().await;
    assert_eq!((passed.status, passed.oncegate_status()), (201, None));
    let of_urls = world.post("/pay?query=mutation%20%7Bpay%7D").json(&query).send().await;
    assert_eq!(refusal(&of_urls), (400, "KEY_MISSING".to_owned()), "a service may prefer the operation of the URL");
    let metrics = Metrics::of(&world.proxy).await;
    assert_eq!(metrics.sum("oncegate_unguarded_total"), 0.0, "a query changes nothing");
}

on_both_stores!(a_handshake_for_a_persisted_query_is_one_request);
async fn a_handshake_for_a_persisted_query_is_one_request(store: Store) {
    let world = world(store, "").await;
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(MUTATION));
    let extensions = json!({ "persistedQuery": { "version": 1, "sha256Hash": hash } });
    let variables = json!({ "amount": 5 });
    let short = json!({ "operationName": "Pay", "variables": variables, "extensions": extensions });
    let long = json!({ "operationName": "Pay", "variables": variables, "extensions": extensions, "query": MUTATION });
    let plain = json!({ "operationName": "Pay", "variables": variables, "query": MUTATION });
    let not_found = json!({ "errors": [{ "message": "PersistedQueryNotFound", "extensions": { "code": "PERSISTED_QUERY_NOT_FOUND" } }] });
    world.upstream.then(answer(200, "application/json", not_found));
    for (body, oncegate_status) in
        [(&short, "released"), (&long, "executed"), (&short, "replayed"), (&long, "replayed"), (&plain, "replayed")]
    {
        let response = operation(&world, "k-1", body).send().await;
        assert_eq!(response.oncegate_status(), Some(oncegate_status), "{body}");
    }
    assert_eq!(world.upstream.last().field("oncegate-attempt"), Some("2"));
    let mut other = short.clone();
    other["variables"]["amount"] = json!(6);
    let mut forged = long.clone();
    forged["query"] = json!("mutation { payTwice }");
    for reused in [other, forged] {
        let response = operation(&world, "k-1", &reused).send().await;
        assert_eq!(refusal(&response), (422, "KEY_REUSED".to_owned()), "{reused}");
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_accepted_mutation_is_tried_again_or_held_and_a_query_is_answered_at_once() {
    let lines = "dialect = \"graphql\"\ndelivery = \"async\"\n\
                 retry = { max_attempts = 5, base = \"50ms\", cap = \"200ms\", give_up_after = \"1h\" }";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))
    })
    .await;
    let operator = Operator::of(&world.proxy);
    world.upstream.answer_all(answer(201, "application/json", json!({ "data": {} })));
    let errors = json!([{ "message": "no" }]);
    world.upstream.then(answer(200, "application/json", json!({ "errors": errors })));
    assert_eq!(operation(&world, "again", &json!({ "query": MUTATION })).send().await.status, 202);
    operator.id_when("again", "completed").await;
    world.upstream.then(answer(200, "application/json", json!({ "errors": errors, "data": null })));
    assert_eq!(operation(&world, "held", &json!({ "query": MUTATION })).send().await.status, 202);
    operator.id_when("held", "unknown").await;
    assert_eq!((world.upstream.executed_for("again"), world.upstream.executed_for("held")), (2, 1));
    assert_eq!(operation(&world, "read", &json!({ "query": "{ a }" })).send().await.status, 201);
}

#[tokio::test]
async fn an_observed_query_would_pass_and_an_observed_mutation_be_executed() {
    let world = world(Store::sqlite(), "mode = \"observe\"\nkey = { required = true }").await;
    for (number, (document, would)) in
        [("{ a }", "passed without a key"), (MUTATION, "executed")].into_iter().enumerate()
    {
        operation(&world, "k-1", &json!({ "query": document })).send().await;
        world.proxy.wait_for_logs("observed", number + 1).await;
        let mut lines = world.proxy.logged().into_iter().filter(|line| line["message"] == "observed");
        assert_eq!(lines.next_back().unwrap()["would"], would, "{document}");
    }
}
