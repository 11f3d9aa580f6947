//! `challenge`: clients that send credentials only when they are asked for them.

use std::process::{Command, Output};

use harness::{Answer, Hold, Response, Store, World, find_program, on_both_stores, route, skip};

const CHALLENGE: &str = "challenge = 'Basic realm=\"payments\"'";

#[tokio::test]
async fn a_keyed_request_without_credentials_is_asked_for_them_and_never_forwarded() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", CHALLENGE))
            .route(&route("plain", ""))
            .route(&route("both", &format!("{CHALLENGE}\nscope = [\"authorization\", \"cookie:sid\"]")))
            .route(&route("observed", &format!("{CHALLENGE}\nmode = \"observe\"")))
    })
    .await;
    // The path, its fields, and the status of the refusal.
    for (path, fields, status) in [
        ("/pay", &[][..], 401),
        ("/pay", &[("Authorization", "")], 401),
        ("/pay", &[("Authorization", "Basic")], 401),
        ("/pay", &[("Cookie", "sid=a")], 401),
        ("/both", &[("Cookie", "sid=a")], 401),
        // With credentials, another challenge would not help.
        ("/pay", &[("Authorization", "Digest username=\"a\", nonce=\"n\"")], 400),
        ("/pay", &[("Authorization", "Bearer a"), ("Authorization", "Bearer b")], 400),
        ("/both", &[("Authorization", "Bearer a")], 400),
        ("/plain", &[], 400),
    ] {
        let request = world.post(path).key("k-1").anonymous().body("x");
        let refusal = fields.iter().fold(request, |request, (name, value)| request.field(name, value)).send().await;
        assert_eq!(refusal.outcome(), (status, "scope-missing".to_owned()), "{path} {fields:?}");
        let asked = refusal.field("www-authenticate");
        assert_eq!(asked, (status == 401).then_some("Basic realm=\"payments\""), "{path} {fields:?}");
        assert_eq!(refusal.oncegate_status(), Some("rejected"), "{path} {fields:?}");
    }
    assert_eq!(world.upstream.calls(), 0);
    let pay = || world.post("/pay").key("k-1").field("Authorization", "Basic dTpw").body("x");
    assert_eq!(pay().send().await.oncegate_status(), Some("executed"));
    assert_eq!(pay().send().await.oncegate_status(), Some("replayed"));
    let keyless = world.post("/pay").anonymous().body("x").send().await;
    assert_eq!((keyless.status, keyless.oncegate_status()), (201, None), "without a key, the service asks itself");
    let observed = world.post("/observed").key("k-1").anonymous().body("x").send().await;
    assert_eq!((observed.status, observed.oncegate_status()), (201, Some("observed")));
}

/// Runs a client, if it is installed.
async fn run(programs: &[&str], arguments: Vec<String>) -> Option<Output> {
    let Some(program) = find_program(programs) else {
        skip(format_args!("{} is not installed", programs[0]));
        return None;
    };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("http_proxy").env_remove("HTTP_PROXY");
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[tokio::test]
async fn curl_and_python_answer_the_challenge_and_their_retries_are_replayed() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", CHALLENGE))).await;
    let url = format!("http://{}/pay", world.proxy.listen);
    let curl = ["-s", "-i", "--anyauth", "--user", "u:p", "-H", "Idempotency-Key: k-curl", "--json", "{\"a\":1}", &url];
    // curl may send no body with the request that it expects to be refused.
    let python = "
import sys, urllib.request
passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
passwords.add_password(None, sys.argv[1], 'u', 'p')
opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
request = urllib.request.Request(sys.argv[1], b'{\"a\":1}', {'Idempotency-Key': 'k-python', 'Content-Type': 'application/json'})
with opener.open(request) as answer:
    print(answer.status, answer.headers['Oncegate-Status'])
";
    let mut calls = 0;
    for (programs, arguments) in [(&["curl"][..], &curl[..]), (&["python3"], &["-c", python, &url])] {
        for expected in ["executed", "replayed"] {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let Some(output) = run(programs, arguments).await else { break };
            let said = String::from_utf8(output.stdout).unwrap().to_ascii_lowercase();
            assert!(said.contains("201") && said.contains(expected), "{programs:?}: {said} {:?}", output.stderr);
            calls += usize::from(expected == "executed");
        }
    }
    assert_eq!(world.upstream.calls(), calls);
}

/// The status, the code and the advice of a refusal.
fn advice(response: &Response) -> (u16, String, String) {
    let (status, code) = response.outcome();
    (status, code, response.problem()["retry"].as_str().unwrap_or_default().to_owned())
}

on_both_stores!(a_request_without_a_body_is_never_told_to_take_a_new_key_for_a_retry);
async fn a_request_without_a_body_is_never_told_to_take_a_new_key_for_a_retry(store: Store) {
    let world = World::with(store, |setup| {
        setup
            .route(&route("pay", "in_flight = \"wait\""))
            .route(&route("accepted", "in_flight = \"accepted\""))
            .route(&route("retrying", "on_unknown = \"retry\""))
    })
    .await;
    let pay = |path: &str, key: &str| world.post(path).key(key).json(r#"{"amount":10}"#);
    let probe = |path: &str, key: &str| world.post(path).key(key);
    let is = |status: u16, code: &str, retry: &str| (status, code.to_owned(), retry.to_owned());
    for path in ["/pay", "/accepted"] {
        let hold = Hold::new();
        world.upstream.then(Answer::status(201).hold(&hold));
        let calls = world.upstream.calls();
        let first = pay(path, "running").spawn();
        world.upstream.wait_for_executed(calls + 1).await;
        let refused = probe(path, "running").send().await;
        assert_eq!(advice(&refused), is(409, "in-flight", "same_key"), "{path}");
        assert_eq!((refused.oncegate_status(), refused.field("retry-after").is_some()), (Some("in-flight"), true));
        hold.release();
        assert_eq!(first.await.unwrap().unwrap().status, 201);
    }
    for (path, key, status, expected, then) in [
        ("/pay", "completed", 201, is(422, "key-reused", "fix"), "replayed"),
        ("/pay", "unknown", 502, is(409, "outcome-unknown", "reconcile"), "unknown"),
        ("/retrying", "retried", 502, is(409, "outcome-unknown", "reconcile"), "executed"),
        ("/pay", "released", 500, is(422, "key-reused", "fix"), "executed"),
    ] {
        world.upstream.then(Answer::status(status));
        assert_eq!(pay(path, key).send().await.status, status, "{key}");
        let calls = world.upstream.calls();
        for _ in 0..2 {
            let refused = probe(path, key).send().await;
            assert_eq!(advice(&refused), expected, "{key}");
            assert!(!refused.is_replay() && refused.field("idempotency-key-expires").is_none(), "{key}");
        }
        assert_eq!(world.upstream.calls(), calls, "{key}: it is not executed");
        assert_eq!(pay(path, key).send().await.oncegate_status(), Some(then), "{key}: the retry is as before");
    }
    let other = world.post("/pay").key("completed").json(r#"{"amount":11}"#).send().await;
    assert_eq!(advice(&other), is(422, "key-reused", "new_key"), "a request with another amount is another one");
}

#[tokio::test]
async fn a_request_without_a_body_is_not_taken_for_the_accepted_one() {
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", "delivery = \"async\""))
    })
    .await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    assert_eq!(world.pay("k-1").send().await.status, 202);
    let refused = world.post("/pay").key("k-1").send().await;
    assert_eq!(advice(&refused), (409, "in-flight".to_owned(), "same_key".to_owned()));
    assert_eq!(refused.field("location"), None);
    hold.release();
}

#[tokio::test]
async fn curl_with_digest_executes_once_and_its_retry_is_not_told_to_take_a_new_key() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", "scope = [\"none\"]"))).await;
    let challenge = "Digest realm=\"payments\", qop=\"auth\", nonce=\"n\"";
    world.upstream.then(Answer::status(401).field("WWW-Authenticate", challenge));
    let url = format!("http://{}/pay", world.proxy.listen);
    let curl = ["-s", "-i", "--digest", "--user", "u:p", "-H", "Idempotency-Key: k-curl", "--json", "{\"a\":1}", &url];
    for expected in ["oncegate-status: executed", "\"retry\":\"fix\""] {
        let arguments = curl.iter().map(|argument| (*argument).to_owned()).collect();
        let Some(output) = run(&["curl"], arguments).await else { return };
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let lengths: Vec<_> = world.upstream.executed().iter().map(|call| call.body.len()).collect();
    assert_eq!(lengths.last(), Some(&7), "{lengths:?}");
    assert_eq!(world.upstream.calls(), 2);
}
