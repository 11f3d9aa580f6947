//! The parts in which a refused request differs from the one that its key belongs to, and the advice that follows.

use serde_json::{Value, json};

use harness::proxy::Setup;
use harness::{Request, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A request: its path and query, the field `X-Tenant` (none if empty), the media type and the body.
type Sent = (&'static str, &'static str, &'static str, &'static str);

/// Two requests under one key, and what the second is told.
struct Mismatch {
    first: Sent,
    second: Sent,
    differs: &'static [&'static str],
    retry: &'static str,
    /// A part of the detail.
    detail: &'static str,
}

const NEW: &str = "A new operation needs a new key";
const UNCLEAR: &str = "If this is a retry of it, send it as it was sent first";

const fn is(
    first: Sent,
    second: Sent,
    differs: &'static [&'static str],
    retry: &'static str,
    detail: &'static str,
) -> Mismatch {
    Mismatch { first, second, differs, retry, detail }
}

const fn json_body(body: &'static str) -> Sent {
    ("/pay", "", JSON, body)
}

const fn form_body(body: &'static str) -> Sent {
    ("/pay", "", FORM, body)
}

const fn call(body: &'static str) -> Sent {
    ("/rpc", "", JSON, body)
}

const MISMATCHES: [Mismatch; 22] = [
    is(
        json_body(r#"{"amount":10,"currency":"EUR"}"#),
        json_body(r#"{"currency":"EUR","amount":11}"#),
        &["json:/amount"],
        "new_key",
        NEW,
    ),
    is(json_body(r#"{"a/b":{"c":1}}"#), json_body(r#"{"a/b":{"c":2}}"#), &["json:/a~1b"], "new_key", NEW),
    // A newer version of the client may have added it.
    is(json_body(r#"{"amount":10}"#), json_body(r#"{"amount":10,"note":"x"}"#), &["json:/note"], "fix", UNCLEAR),
    is(
        json_body(r#"{"amount":10,"meta":{"at":[{"ts":1}]}}"#),
        json_body(r#"{"amount":10,"meta":{"at":[{"ts":2}]}}"#),
        &["json:/meta"],
        "fix",
        UNCLEAR,
    ),
    // Two bookings may differ in it.
    is(json_body(r#"{"room":1,"date":"a"}"#), json_body(r#"{"room":1,"date":"b"}"#), &["json:/date"], "fix", UNCLEAR),
    // `curl -d` sends JSON as a form: its name is the whole body, and is not told.
    is(
        form_body(r#"{"card":"4111","n":1}"#),
        form_body(r#"{"card":"4111","n":2}"#),
        &["form", "missing"],
        "fix",
        UNCLEAR,
    ),
    is(json_body(r#"{"a@b.org":1}"#), json_body(r#"{"a@b.org":2}"#), &["json"], "new_key", NEW),
    is(
        ("/pay?to=a", "", JSON, r#"{"amount":10}"#),
        ("/pay?to=b", "", JSON, ""),
        &["query:to", "missing"],
        "fix",
        UNCLEAR,
    ),
    // Of a part that the first request had, and this one lacks, nobody knows the name.
    is(json_body(r#"{"amount":10,"note":"x"}"#), json_body(r#"{"amount":10}"#), &["missing"], "fix", UNCLEAR),
    is(
        json_body(r#"{"amount":10,"sent":{"timestamp":1},"nonce":"a"}"#),
        json_body(r#"{"amount":10,"sent":{"timestamp":1},"nonce":"b"}"#),
        &["json:/nonce"],
        "fix",
        r#"`fingerprint.exclude = ["json:/nonce"]`"#,
    ),
    is(
        form_body("amount=10&timestamp=1&signature=a"),
        form_body("amount=10&timestamp=2&signature=b"),
        &["form:signature", "form:timestamp"],
        "fix",
        r#"`fingerprint.exclude = ["form:signature", "form:timestamp"]`"#,
    ),
    is(
        form_body("amount=10&timestamp=1&signature=a"),
        form_body("amount=11&timestamp=2&signature=b"),
        &["form:amount", "form:signature", "form:timestamp"],
        "new_key",
        NEW,
    ),
    is(form_body("tag=a&tag=b"), form_body("tag=a&tag=c"), &["form:tag"], "new_key", NEW),
    is(("/pay?to=a&dry=1", "", JSON, "{}"), ("/pay?dry=1&to=b", "", JSON, "{}"), &["query:to"], "new_key", NEW),
    is(
        ("/pay?to=a&ts=1", "", JSON, "{}"),
        ("/pay?to=a&ts=2", "", JSON, "{}"),
        &["query:ts"],
        "fix",
        r#"`fingerprint.exclude = ["query:ts"]`"#,
    ),
    // Another spelling of the same query: no part differs.
    is(("/pay?to=a&dry=1", "", JSON, "{}"), ("/pay?dry=1&to=a", "", JSON, "{}"), &[], "fix", UNCLEAR),
    is(("/pay", "a", JSON, "{}"), ("/pay", "b", JSON, "{}"), &["header:x-tenant"], "new_key", NEW),
    is(
        call(r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"amount":10,"to":"a"}}"#),
        call(r#"{"jsonrpc":"2.0","id":2,"method":"pay","params":{"amount":11,"to":"a"}}"#),
        &["json:/params/amount"],
        "new_key",
        NEW,
    ),
    // Bytes have no parts.
    is(("/pay", "", "image/png", "\u{1}a"), ("/pay", "", "image/png", "\u{1}b"), &["body"], "fix", UNCLEAR),
    is(
        json_body(r#"{"amount":10}"#),
        ("/pay", "", "text/plain", r#"{"amount":10}"#),
        &["body", "missing"],
        "fix",
        UNCLEAR,
    ),
    is(json_body("[10]"), json_body("[11]"), &["body"], "fix", UNCLEAR),
    is(json_body(r#"{"amount":10}"#), ("/pay", "", JSON, ""), &["missing"], "fix", UNCLEAR),
];

fn setup(setup: Setup) -> Setup {
    setup
        .route(&route("pay", "fingerprint = { headers = [\"X-Tenant\"] }"))
        .route(&route("rpc", "fingerprint = { body = \"jsonrpc\" }"))
}

fn request(world: &World, key: &str, (target, tenant, media_type, body): Sent) -> Request {
    let request = world.post(target).key(key).field("Content-Type", media_type).body(body);
    if tenant.is_empty() { request } else { request.field("X-Tenant", tenant) }
}

/// The log line of this number that fits.
async fn logged(world: &World, number: usize, fits: impl Fn(&Value) -> bool) -> Value {
    eventually(TEST_TIMEOUT, async || world.proxy.logged().into_iter().filter(&fits).nth(number)).await
}

on_both_stores!(a_refused_request_is_told_which_parts_differ_and_what_to_do);
async fn a_refused_request_is_told_which_parts_differ_and_what_to_do(store: Store) {
    let world = World::with(store, setup).await;
    for (number, Mismatch { first, second, differs, retry, detail }) in MISMATCHES.into_iter().enumerate() {
        let key = format!("k-{number}");
        assert_eq!(request(&world, &key, first).send().await.oncegate_status(), Some("executed"), "{first:?}");
        let reused = request(&world, &key, second).send().await;
        assert_eq!(reused.oncegate_status(), Some("key-reused"), "{second:?}");
        let document: Value = serde_json::from_slice(&reused.body).unwrap();
        let named = if differs.is_empty() { Value::Null } else { json!(differs) };
        assert_eq!((&document["differs"], &document["retry"]), (&named, &json!(retry)), "{first:?} {second:?}");
        assert!(document["detail"].as_str().unwrap().contains(detail), "{second:?}: {document}");
        let line = logged(&world, number, |line| line["refusal"] == "key-reused").await;
        let logged = if differs.is_empty() { Value::Null } else { json!(differs.join(", ")) };
        assert_eq!(line["differs"], logged, "{second:?}");
        assert_eq!(request(&world, &key, first).send().await.oncegate_status(), Some("replayed"), "{first:?}");
    }
}

#[tokio::test]
async fn after_a_restart_a_mismatch_is_explained_only_with_a_secret() {
    for (lines, is_explained) in [("secret = \"a secret of some length\"", true), ("", false)] {
        let mut world = World::with(Store::sqlite(), |setup| setup.top(lines).route(&route("pay", ""))).await;
        let pay = |world: &World, amount: u32| world.post("/pay").key("k-1").json(&format!("{{\"amount\":{amount}}}"));
        assert_eq!(pay(&world, 1).send().await.status, 201);
        assert_eq!(pay(&world, 2).send().await.problem()["differs"], json!(["json:/amount"]), "{lines}");
        world.crash_and_restart().await;
        let told = pay(&world, 3).send().await.problem();
        let (differs, retry) = if is_explained { (json!(["json:/amount"]), "new_key") } else { (Value::Null, "fix") };
        assert_eq!((&told["differs"], &told["retry"]), (&differs, &json!(retry)), "{lines}");
    }
}

#[tokio::test]
async fn observing_foretells_which_parts_differ_and_the_advice() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"").await;
    for (number, (body, would, told)) in [
        ("amount=10&timestamp=1", "executed", [Value::Null, Value::Null]),
        ("amount=10&timestamp=2", "key-reused", [json!("form:timestamp"), json!("fix")]),
        ("amount=11&timestamp=3", "key-reused", [json!("form:amount, form:timestamp"), json!("new_key")]),
    ]
    .into_iter()
    .enumerate()
    {
        request(&world, "k-1", form_body(body)).send().await;
        let line = logged(&world, number, |line| line["message"] == "observed").await;
        assert_eq!((&line["would"], [&line["differs"], &line["retry"]]), (&json!(would), told.each_ref()), "{body}");
    }
}
