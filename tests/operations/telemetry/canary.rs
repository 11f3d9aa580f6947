//! No output contains a secret: each secret is a unique value, and all of the proxy's output is searched for it.

use super::traces::{Collector, traced};
use super::{Metrics, scrape};
use harness::operator::{Operator, completed};
use harness::{Answer, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

/// A value whose first eight characters may be logged, as a key's may: the ninth begins the secret part.
const KEY: &str = "keyfirstCANARY-key-9f31c2";
const TOKEN: &str = "CANARY-admin-token-5b1d";
const SECRETS: [&str; 9] = [
    "CANARY-authorization-71aa",
    "CANARY-cookie-0c4e",
    "CANARY-request-body-4d88",
    "CANARY-query-b7d0",
    "CANARY-path-e29f",
    "CANARY-response-body-6a6a",
    "CANARY-response-field-1f0b",
    "CANARY-hmac-secret-c0de",
    "CANARY-operators-answer-8e8e",
];

fn look_for_canaries(operation_path: &str, text: &str) {
    if let Some(at) = text.find("CANARY") {
        let from = text[..at].char_indices().rev().nth(200).map_or(0, |(from, _)| from);
        panic!("{operation_path} tells a secret: …{}", &text[from..(at + 60).min(text.len())]);
    }
}

/// All outcomes of a request, with a secret in each of its parts.
async fn journeys(world: &World, password: &str) {
    let [authorization, cookie, body, query, path, response, field, ..] = SECRETS;
    let answer = || Answer::status(201).field("X-Secret", field).body(response);
    world.upstream.answer_all(answer());
    let ask = |route: &str, key: &str| {
        world
            .post(&format!("/{route}?q={query}"))
            .key(key)
            .field("Authorization", &format!("Bearer {authorization}"))
            .field("Cookie", &format!("sid={cookie}"))
            .field("X-Canary", password)
            .body(body)
    };
    let numbered = |number: u8| format!("{KEY}-{number}");
    for route in ["pay", "watched", "off"] {
        ask(route, KEY).send().await;
        ask(route, KEY).send().await;
        ask(route, KEY).body(format!("{body} else")).send().await;
    }
    for (number, trouble) in
        [Answer::close(), Answer::reset(), Answer::raw(response), answer().cut_after(3)].into_iter().enumerate()
    {
        world.upstream.then(trouble);
        ask("pay", &numbered(number as u8)).send().await;
        ask("pay", &numbered(number as u8)).send().await;
    }
    world.upstream.then(Answer::status(500).body(response));
    ask("pay", &numbered(5)).send().await;
    world.upstream.then(answer().field("Oncegate-Decision", response).field("Oncegate-TTL", field));
    ask("pay", &numbered(6)).send().await;
    world.upstream.then(answer().body(response.repeat(200)));
    ask("pay", &numbered(7)).send().await;
    ask("pay", &numbered(7)).send().await;
    world.upstream.then(Answer::never());
    ask("pay", &numbered(8)).send().await;
    ask("pay", &format!("\"{KEY}")).send().await;
    ask("pay", KEY).key(KEY).send().await;
    ask("pay", &numbered(9)).body(body.repeat(1_000)).send().await;
    ask("pay", KEY).field("Connection", "authorization").send().await;
    world.post("/pay").body(body).send().await;
    ask(&format!("elsewhere/{path}"), KEY).send().await;
    world.proxy.client().request(path, "/elsewhere").send().await;
    world.proxy.client().raw(format!("POST /{path} HTTP/1.1\r\nHost: {cookie}\r\n{body}\r\n\r\n").as_bytes()).await;
}

async fn run(format: &str, filter: &str, store: Store) {
    let collector = Collector::start().await;
    let [.., secret, decided] = SECRETS;
    let url = match &store {
        // The database asks for no password here, so any password works.
        Store::Postgres(_) => store.url().replacen('@', ":CANARY-password-2b2b@", 1),
        Store::Sqlite(_) => store.url(),
    };
    let knows_nothing = Upstream::start().await;
    knows_nothing.answer_all(Answer::status(500).body(SECRETS[5]));
    let lookup = format!("http://{}/lookup?key={{key}}", knows_nothing.address);
    let lines = format!(
        "upstream_timeout = \"500ms\"\nmax_request_body = \"4KiB\"\nmax_response_body = \"1KiB\"\nreconcile = {{ url = \"{lookup}\", after = \"0s\", every = \"200ms\" }}"
    );
    let world = World::with(store, |setup| {
        let setup = setup.through(&url).top(&format!("secret = \"{secret}\"")).admin(&format!("token = \"{TOKEN}\""));
        let setup = setup.short_leases().store("timeout = \"1s\"").log(filter, format);
        let setup = setup.route(&route("pay", &lines)).route(&route("watched", "mode = \"observe\""));
        traced(setup.route(&route("off", "mode = \"off\"")), &format!("http://{}", collector.address))
    })
    .await;
    journeys(&world, "CANARY-password-2b2b").await;
    let operator = Operator::of(&world.proxy);
    let admin = async |method: &str, path: &str, body: &str| {
        let request = operator.request(method, path).field("Authorization", &format!("Bearer {TOKEN}"));
        request.json(body).send().await.text()
    };
    look_for_canaries("refused operators' answers", &operator.request("GET", "/api/v1/stats").send().await.text());
    look_for_canaries("/api/v1/stats", &admin("GET", "/api/v1/stats", "").await);
    let unknown: serde_json::Value =
        serde_json::from_str(&admin("GET", "/api/v1/keys?state=unknown", "").await).unwrap();
    for key in unknown["keys"].as_array().unwrap() {
        let path = format!("/api/v1/keys/{}/resolve", key["id"].as_str().unwrap());
        admin("POST", &path, &completed(201, decided).to_string()).await;
    }
    assert!(!unknown["keys"].as_array().unwrap().is_empty());
    for accept in ["", "application/openmetrics-text"] {
        look_for_canaries("/metrics", &scrape(&world.proxy, accept).await.text());
    }
    let exported = async || {
        let metrics = Metrics::of(&world.proxy).await;
        (metrics.get("oncegate_spans_exported_total") > 50.0).then_some(())
    };
    eventually(TEST_TIMEOUT, exported).await;
    for spans in collector.seen().raw {
        look_for_canaries("a trace", &String::from_utf8_lossy(&spans));
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    let output = world.proxy.output();
    assert!(output.contains("keyfirst"), "the first characters of a key are logged: {output}");
    look_for_canaries("the log", &output);
}

#[tokio::test]
async fn no_secret_is_logged_as_json_at_debug() {
    run("json", "debug", Store::postgres().await).await;
}

#[tokio::test]
async fn no_secret_is_logged_as_json_at_info() {
    run("json", "info", Store::sqlite()).await;
}

#[tokio::test]
async fn no_secret_is_logged_as_text_at_debug() {
    run("text", "debug", Store::sqlite()).await;
}

#[tokio::test]
async fn no_secret_is_logged_as_text_at_info() {
    run("text", "info", Store::postgres().await).await;
}
