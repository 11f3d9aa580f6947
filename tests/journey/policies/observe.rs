//! Routes in observe mode: they refuse, delay and alter nothing, and log the decision that enforcement would make.

use harness::metrics::Metrics;
use harness::{
    Answer, Hold, Request, Response, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route,
};

/// Sends a request, and returns its answer and its log line.
pub async fn observed(world: &World, request: Request) -> (Response, String) {
    let before = words(world).len();
    let response = request.send().await;
    let seen = eventually(TEST_TIMEOUT, async || words(world).get(before).cloned()).await;
    (response, seen)
}

/// The logged decisions so far.
fn words(world: &World) -> Vec<String> {
    let lines = world.proxy.logged().into_iter().filter(|line| line["message"] == "observed");
    lines.map(|line| line["would"].as_str().unwrap().to_owned()).collect()
}

fn is_untouched(response: &Response) {
    assert_eq!(response.oncegate_status(), Some("observed"));
    let ours: Vec<_> = response
        .fields
        .iter()
        .filter(|(name, _)| {
            (name.starts_with("oncegate-") && name != "oncegate-status")
                || name.starts_with("idempotency-key")
                || name == "idempotent-replayed"
        })
        .collect();
    assert!(ours.is_empty(), "{ours:?}");
}

const OBSERVE: &str = "mode = \"observe\"";

on_both_stores!(in_observe_mode_every_request_passes_and_the_decision_is_logged);
async fn in_observe_mode_every_request_passes_and_the_decision_is_logged(store: Store) {
    let world = World::guarding(store, "mode = \"observe\"\nkey = { required = true }").await;
    let other = || world.pay("k-1").json(r#"{"amount":11}"#);
    for (number, (request, would)) in [
        (world.pay("k-1"), "executed"),
        (world.pay("k-1"), "replayed"),
        (other(), "key-reused"),
        (world.post("/pay").body("x"), "key-missing"),
        (world.pay("\"k-1"), "key-invalid"),
        (world.pay("k-2").anonymous(), "scope-missing"),
        (world.pay("k-3"), "executed"),
    ]
    .into_iter()
    .enumerate()
    {
        let (response, seen) = observed(&world, request).await;
        assert_eq!((&*seen, response.status), (would, 201));
        is_untouched(&response);
        assert_eq!(response.text(), format!("effect {}", number + 1), "each is executed");
    }
}

/// Sends a duplicate while the first attempt runs, and returns its log line's word.
async fn send_duplicate(world: &World) -> String {
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    // The first request's record is written beside the request. A duplicate that came before would be recorded itself.
    let created = "oncegate_reservations_total{route=\"pay\",result=\"created\"}";
    let is_recorded = async || Metrics::of(&world.proxy).await.get(created) == 1.0;
    eventually(TEST_TIMEOUT, async || is_recorded().await.then_some(())).await;
    let (response, seen) = observed(world, world.pay("k-1")).await;
    is_untouched(&response);
    hold.release();
    is_untouched(&first.await.unwrap().unwrap());
    seen
}

on_both_stores!(a_duplicate_passes_while_the_first_attempt_runs);
async fn a_duplicate_passes_while_the_first_attempt_runs(store: Store) {
    let world = World::guarding(store, "mode = \"observe\"\nin_flight = \"wait\"").await;
    assert_eq!(send_duplicate(&world).await, "in-flight");
    eventually(TEST_TIMEOUT, async || (observed(&world, world.pay("k-1")).await.1 == "replayed").then_some(())).await;
    assert!(world.proxy.logged().iter().all(|line| line["advice"].is_null()), "the route waits already");
}

#[tokio::test]
async fn a_duplicate_that_a_hedging_proxy_may_have_sent_is_told_so() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    assert_eq!(send_duplicate(&world).await, "in-flight");
    let advised = world.proxy.logged().into_iter().find(|line| line["advice"] == "in_flight = \"wait\"");
    assert_eq!(advised.map(|line| line["would"].clone()), Some("in-flight".into()));
}

#[tokio::test]
async fn a_request_that_enforcement_would_execute_again_is_logged_as_such() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    world.upstream.then(Answer::status(500)).then(Answer::status(502));
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-2")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed", "the first attempt was released");
    assert_eq!(observed(&world, world.pay("k-2")).await.1, "outcome-unknown");
}

#[tokio::test]
async fn in_observe_mode_a_body_over_the_limit_passes() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"\nmax_request_body = \"1KiB\"").await;
    let large = "x".repeat(1_000_000);
    let (response, seen) = observed(&world, world.pay("k-1").body(large.clone())).await;
    is_untouched(&response);
    assert_eq!(seen, "request-too-large");
    assert!(world.upstream.last().body == large.as_bytes());
}

#[tokio::test]
async fn in_observe_mode_requests_stream_unchanged() {
    const PIECE: usize = 128 * 1024;
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let upload = world.pay("k-1").field("Accept-Encoding", "gzip").body(vec![7; 4 * PIECE]);
    let mut exchange = upload.open_head().await;
    for pieces in 1..=4 {
        exchange.write(&[7; PIECE]).await;
        world.upstream.wait_until(|seen| seen.body_bytes > (pieces - 1) * PIECE).await;
    }
    is_untouched(&exchange.response().await);
    let call = world.upstream.last();
    assert_eq!((call.field("idempotency-key"), call.field("accept-encoding")), (Some("k-1"), Some("gzip")));
    assert_eq!((call.field("oncegate-reservation"), call.field("oncegate-attempt")), (None, None));
    assert_eq!(call.field("content-length"), Some("524288"));
}

#[tokio::test]
async fn in_observe_mode_a_chunked_body_with_trailers_is_compared() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    // The first trailer passes, the second is dropped.
    for (key, trailer) in [("passing", "X-Sum: 7"), ("dropped", "Host: a")] {
        for would in ["executed", "replayed"] {
            let before = words(&world).len();
            let head =
                format!("POST /pay HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nIdempotency-Key: {key}\r\n");
            let body = format!("Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{trailer}\r\n\r\n");
            let mut exchange = world.proxy.client().raw(format!("{head}{body}").as_bytes()).await;
            assert_eq!(exchange.response().await.status, 201);
            let seen = eventually(TEST_TIMEOUT, async || words(&world).get(before).cloned()).await;
            assert_eq!(seen, would, "{key}");
        }
    }
}

#[tokio::test]
async fn in_observe_mode_a_body_that_is_cut_short_is_not_compared() {
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("limits = { body_rate = \"512B\" }").route(&route("pay", OBSERVE))
    })
    .await;
    let mut exchange = world.pay("k-1").chunked().open_head().await;
    exchange.write(b"1\r\nx\r\n").await;
    let response = tokio::time::timeout(std::time::Duration::from_secs(25), exchange.response()).await.unwrap();
    assert_eq!(response.outcome(), (408, "request-timeout".to_owned()));
    let seen = eventually(TEST_TIMEOUT, async || words(&world).first().cloned()).await;
    assert!(seen.starts_with("not compared"), "{seen}");
}

#[tokio::test]
async fn in_observe_mode_responses_stream_unchanged() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let hold = Hold::new();
    let answer = Answer::status(418).field("Set-Cookie", "a=1").field("Age", "7").field("X-Request-Id", "x");
    world.upstream.then(answer.chunks(&["first", "second"]).hold_midway(&hold));
    let mut exchange = world.pay("k-1").open().await.unwrap();
    let head = exchange.any_head().await.unwrap();
    assert!(head.start.contains("418"));
    for (name, value) in [("set-cookie", "a=1"), ("age", "7"), ("oncegate-status", "observed")] {
        assert_eq!(head.all(name).collect::<Vec<_>>(), [value]);
    }
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
    hold.release();
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"second");
    assert_eq!(exchange.piece().await.unwrap(), None);
}

on_both_stores!(a_route_changed_to_enforce_starts_without_records);
async fn a_route_changed_to_enforce_starts_without_records(store: Store) {
    let mut world = World::guarding(store, OBSERVE).await;
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "replayed");
    world.restart_as(|setup| setup.route(&route("pay", "mode = \"enforce\""))).await;
    let first = world.pay("k-1").send().await;
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("executed"), "effect 3"));
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
}

#[tokio::test]
async fn in_observe_mode_the_services_directives_count() {
    let world = World::guarding(Store::sqlite(), OBSERVE).await;
    let says = |status: u16, decision: &str| Answer::status(status).field("Oncegate-Decision", decision);
    for (status, decision, would) in
        [(201, "release", "executed"), (500, "store", "replayed"), (200, "unknown", "outcome-unknown")]
    {
        world.upstream.then(says(status, decision));
        assert_eq!(observed(&world, world.pay(decision)).await.1, "executed");
        assert_eq!(observed(&world, world.pay(decision)).await.1, would, "{decision}");
    }
}

on_both_stores!(in_observe_mode_the_attempt_after_a_released_one_is_recorded);
async fn in_observe_mode_the_attempt_after_a_released_one_is_recorded(store: Store) {
    let world = World::guarding(store, OBSERVE).await;
    world.upstream.then(Answer::status(500));
    for would in ["executed", "executed", "replayed"] {
        assert_eq!(observed(&world, world.pay("k-1")).await.1, would);
    }
    assert_eq!(observed(&world, world.pay("k-1").body("other")).await.1, "key-reused");
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_has_executed_nothing() {
    let nowhere = Upstream::unused_address().await;
    let observing = route("pay", "mode = \"observe\"");
    let world = World::with(Store::sqlite(), |setup| setup.upstream(nowhere).route(&observing)).await;
    let empty = || world.post("/pay").key("k-1");
    for _ in 0..2 {
        let (response, seen) = observed(&world, empty()).await;
        assert_eq!((response.outcome(), &*seen), ((502, "upstream-unreachable".to_owned()), "executed"));
        is_untouched(&response);
        let (_, seen) = observed(&world, world.pay("k-2")).await;
        assert!(seen.starts_with("not compared"), "nobody has asked for the body: {seen}");
    }
    let _there = Upstream::start_at(nowhere).await;
    for would in ["executed", "replayed"] {
        assert_eq!(observed(&world, empty()).await.1, would);
        assert_eq!(observed(&world, world.pay("k-2")).await.1, would);
    }
}

#[tokio::test]
async fn in_observe_mode_late_retries_and_old_requests_are_logged() {
    let lines = "mode = \"observe\"\nttl = \"1s\"\nafter_ttl = \"refuse\"\nmax_age = \"1h\"";
    let world = World::guarding(Store::sqlite(), lines).await;
    let old = world.pay("k-1").field("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(observed(&world, old).await.1, "request-too-old");
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    let late = async || Some(observed(&world, world.pay("k-1")).await.1).filter(|would| would != "replayed");
    assert_eq!(eventually(TEST_TIMEOUT, late).await, "key-expired");
}

#[tokio::test]
async fn in_observe_mode_a_retry_is_compared_by_the_first_requests_recipe() {
    let mut world = World::guarding(Store::sqlite(), OBSERVE).await;
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    let raw = "mode = \"observe\"\nfingerprint = { body = \"raw\" }";
    world.restart_as(|setup| setup.route(&route("pay", raw))).await;
    let spaced = world.post("/pay").key("k-1").json(r#"{ "currency": "EUR", "amount": 10 }"#);
    assert_eq!(observed(&world, spaced).await.1, "replayed");
}

/// A sequence of requests to one route, with the answers of its service.
struct Sequence {
    name: &'static str,
    route: &'static str,
    answers: &'static [u16],
    requests: fn(&World) -> Vec<Request>,
}

const fn sequence(
    name: &'static str,
    route: &'static str,
    answers: &'static [u16],
    requests: fn(&World) -> Vec<Request>,
) -> Sequence {
    Sequence { name, route, answers, requests }
}

/// A request of this method and target with a key.
fn keyed(world: &World, method: &str, target: &str, key: &str) -> Request {
    world.proxy.client().request(method, target).key(key).json("{}")
}

/// All refusals and decisions that depend on the request and on earlier ones with its key.
const SEQUENCES: &[Sequence] = &[
    sequence("replay", "", &[], |world| vec![world.pay("k"), world.pay("k")]),
    sequence("key-reused", "", &[], |world| vec![world.pay("k"), world.pay("k").body("other"), world.pay("k")]),
    sequence("outcome-unknown", "", &[502], |world| vec![world.pay("k"), world.pay("k"), world.pay("k").body("other")]),
    sequence("released", "", &[500], |world| vec![world.pay("k"), world.pay("k"), world.pay("k")]),
    sequence("retried", "on_unknown = \"retry\"", &[502], |world| vec![world.pay("k"), world.pay("k"), world.pay("k")]),
    sequence("key-missing", "key = { required = true }", &[], |world| vec![world.post("/pay").body("x")]),
    sequence("unguarded", "", &[], |world| vec![world.post("/pay").body("x")]),
    sequence("key-invalid", "", &[], |world| vec![world.pay("\"k"), world.pay("k").key("l")]),
    sequence("key-invalid by length", "key = { max_length = 4 }", &[], |world| vec![world.pay("12345")]),
    sequence("scope-missing", "", &[], |world| vec![world.pay("k").anonymous()]),
    sequence("scope-missing beside a cookie", "", &[], |world| vec![world.pay("k").anonymous().field("Cookie", "a=1")]),
    sequence("path-ambiguous", "", &[], |world| {
        ["/pay/", "//pay", "/PAY", "/x/..%2fpay", "//x/pay"].map(|path| keyed(world, "POST", path, "k")).to_vec()
    }),
    sequence("path-ambiguous without a key", "", &[], |world| vec![world.post("/pay/").body("x")]),
    sequence("another spelling of the same path", "spelling = \"same\"", &[], |world| {
        ["/pay/", "/pay", "//x/pay"].map(|path| keyed(world, "POST", path, "k")).to_vec()
    }),
    sequence("bad-request by another method", "", &[], |world| {
        vec![
            keyed(world, "PUT", "/pay", "k").field("X-HTTP-Method-Override", "POST"),
            keyed(world, "PUT", "/pay?_method=post", "k"),
            keyed(world, "PUT", "/pay/", "k").field("X-HTTP-Method-Override", "POST"),
        ]
    }),
    sequence("bad-request by a nominated field", "", &[], |world| {
        vec![world.pay("k").field("Connection", "authorization"), world.pay("k").field("Connection", "idempotency-key")]
    }),
    sequence("request-too-large", "max_request_body = \"1KiB\"", &[], |world| {
        let large = || vec![b'x'; 2_000];
        vec![
            world.pay("k").body(large()),
            world.pay("k").chunked().body(large()),
            world.pay("k"),
            world.post("/pay").body(large()),
            world.pay("\"k").body(large()),
        ]
    }),
    sequence(
        "key-missing before request-too-large",
        "key = { required = true }\nmax_request_body = \"1KiB\"",
        &[],
        |world| vec![world.post("/pay").body(vec![b'x'; 2_000])],
    ),
    sequence("a key in the body", "key = { from = \"json:/id\", required = true }", &[], |world| {
        let body = |text| world.post("/pay").json(text);
        vec![body(r#"{"id":"k"}"#), body(r#"{"id":"k"}"#), body("{}"), body(r#"{"id":[]}"#), body("no JSON")]
    }),
    // Their end is in no field.
    sequence("chunked bodies", "", &[], |world| {
        vec![
            world.pay("k").chunked(),
            world.pay("k").chunked(),
            world.pay("k"),
            world.pay("k").chunked().body("other"),
            world.post("/pay").key("empty").chunked(),
            world.post("/pay").key("empty"),
            world.pay("long").chunked().body(vec![b'x'; 200_000]),
        ]
    }),
    sequence("chunked bodies with a key in them", "key = { from = \"json:/id\", required = true }", &[], |world| {
        let body = |text| world.post("/pay").json(text).chunked();
        vec![body(r#"{"id":"k"}"#), body(r#"{"id":"k"}"#), body(r#"{"id":"k","a":1}"#), body("{}")]
    }),
    sequence("chunked bodies of GraphQL", "dialect = \"graphql\"\noutcome = []", &[], |world| {
        let operation = |text| world.post("/pay").key("k").json(text).chunked();
        let pay = r#"{"query":"mutation Pay { pay { id } }"}"#;
        vec![operation(pay), operation(pay), operation(r#"{"query":"{ payments { id } }"}"#)]
    }),
    sequence("request-too-old", "max_age = \"1h\"", &[], |world| {
        vec![world.pay("k").field("Date", "Sun, 06 Nov 1994 08:49:37 GMT"), world.pay("k").field("Date", "yesterday")]
    }),
    sequence("repeatable requests", "dialect = \"repeatability\"", &[], |world| {
        let id = "b6f3a1f0-5f0e-4e0a-9d3b-0c1f2a3b4c5d";
        let sent = |at| world.post("/pay").field("Repeatability-First-Sent", at).body("x");
        vec![
            sent("Tue, 19 Jan 2038 03:14:07 GMT").field("Repeatability-Request-ID", id),
            sent("Sun, 06 Nov 1994 08:49:37 GMT").field("Repeatability-Request-ID", id),
            sent("Sun, 06 Nov 1994 08:49:37 GMT"),
            world.post("/pay").field("Repeatability-Request-ID", id).body("x"),
        ]
    }),
    sequence("too-many-keys", "limits = { live_keys = 1 }", &[], |world| {
        vec![world.pay("k-1"), world.pay("k-2"), world.pay("k-1"), world.pay("k-3")]
    }),
    sequence("queued", "delivery = \"async\"", &[], |world| {
        vec![world.pay("k-1"), world.pay("k-2"), world.post("/pay")]
    }),
];

/// The result of an enforced request in the words of the log: the problem's slug, or the status. A first attempt is
/// `executed` whatever its service has answered.
fn enforced_result(response: &Response) -> String {
    let (_, slug) = response.outcome();
    match (&*slug, response.oncegate_status()) {
        ("", Some("executed" | "released")) => "executed".to_owned(),
        ("", Some("unknown")) if response.status != 202 => "executed".to_owned(),
        ("", Some(status)) => status.to_owned(),
        ("", None) => "passed without a key".to_owned(),
        (slug, _) => slug.to_owned(),
    }
}

#[tokio::test]
async fn observe_mode_lets_each_request_pass_and_foretells_its_result() {
    for Sequence { name, route: lines, answers, requests } in SEQUENCES {
        let world = async |mode: &str| {
            let lines = format!("mode = \"{mode}\"\n{lines}");
            let top = "secret = \"a secret of some length\"";
            let world = World::with(Store::sqlite(), |setup| setup.top(top).route(&route("pay", &lines))).await;
            for status in *answers {
                world.upstream.then(Answer::status(*status));
            }
            world
        };
        let enforcing = world("enforce").await;
        let mut expected = Vec::new();
        for request in requests(&enforcing) {
            expected.push(enforced_result(&request.send().await));
        }
        let observing = world("observe").await;
        for (number, request) in requests(&observing).into_iter().enumerate() {
            let sent = request.clone();
            let (response, would) = observed(&observing, request).await;
            assert_eq!(would, expected[number], "{name}: {sent:?}");
            is_untouched(&response);
            let status = answers.get(number).copied().unwrap_or(201);
            assert_eq!((response.status, observing.upstream.calls()), (status, number + 1), "{name}: {sent:?}");
            assert_eq!(response.text(), format!("effect {}", number + 1), "{name}: {sent:?}");
        }
        assert_eq!(words(&observing), expected, "{name}: one line for each request");
    }
}

#[tokio::test]
async fn an_observed_request_is_logged_with_what_an_operator_finds_its_client_by() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"\nkey = { required = true }").await;
    let alice = |request: Request| request.field("Authorization", "Bearer alice");
    for request in [
        alice(world.pay("a-long-key-of-alice")),
        alice(world.pay("a-long-key-of-alice").body("other")),
        alice(world.post("/pay").body("x")),
        alice(world.pay("\"a-long-key-of-alice")),
        alice(keyed(&world, "POST", "/pay/", "a-long-key-of-alice")),
        alice(keyed(&world, "PUT", "/pay?_method=POST", "a-long-key-of-alice")),
        world.pay("a-long-key-of-bob").field("Authorization", "Bearer bob"),
        world.pay("a-long-key-of-none").anonymous(),
    ] {
        observed(&world, request).await;
    }
    let logged = world.proxy.logged();
    let lines: Vec<_> = logged.iter().filter(|line| line["message"] == "observed").collect();
    let texts = |name: &str| lines.iter().map(|line| line[name].as_str().unwrap_or("-")).collect::<Vec<_>>();
    let [refused, key, client] = ["refusal", "key", "client"].map(texts);
    let (ambiguous, method) = ("path-ambiguous", "bad-request");
    assert_eq!(
        refused,
        ["-", "key-reused", "key-missing", "key-invalid", ambiguous, method, "-", "scope-missing"],
        "{lines:?}"
    );
    let prefix = "a-long-k…";
    assert_eq!(key, [prefix, prefix, "-", "-", prefix, prefix, prefix, prefix]);
    assert!(client.iter().zip(&refused).all(|(client, refused)| (*client == "127.0.0.1") == (*refused != "-")));
    let (scope, record) = (texts("scope"), texts("record"));
    assert!(scope[..6].iter().all(|hash| hash.len() == 64 && *hash == scope[0]), "one caller: {scope:?}");
    assert!(scope[6].len() == 64 && scope[6] != scope[0] && scope[7] == "-", "{scope:?}");
    assert!(record[0].len() == 64 && record[0] == record[1] && record[0] != record[6], "{record:?}");
    assert_eq!([record[2], record[3], record[7]], ["-"; 3]);
    let whole = serde_json::to_string(&logged).unwrap();
    assert!(!whole.contains("a-long-key") && !whole.contains("alice"), "{whole}");
}

#[tokio::test]
async fn the_command_of_the_rollout_page_finds_the_clients_that_enforcement_would_refuse() {
    let world = World::guarding(Store::sqlite(), "mode = \"observe\"\nkey = { required = true }").await;
    let keyless = |who: &str| world.post("/pay").field("Authorization", &format!("Bearer {who}")).body("x");
    for request in [keyless("alice"), world.pay("k"), keyless("bob"), keyless("alice"), world.pay("k").anonymous()] {
        observed(&world, request).await;
    }
    let page = std::fs::read_to_string("docs/rollout.md").unwrap();
    let command =
        page.split("```sh\n").find_map(|block| block.split_once("\n```").filter(|(block, _)| block.contains("jq ")));
    let (_, command) = command.expect("the page has it").0.split_once(" | ").expect("it reads the log");
    let log: String = world.proxy.logged().iter().map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    std::fs::write(&file, format!("no JSON\n{log}")).unwrap();
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", command]).stdin(std::fs::File::open(file).unwrap()).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<_>> = found.lines().map(|line| line.split_whitespace().collect()).collect();
    let counted: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[2], row[4])).collect();
    assert_eq!(counted[0], ("2", "key-missing", "pay", "127.0.0.1"), "{found}");
    assert!(counted[1..].contains(&("1", "key-missing", "pay", "127.0.0.1")), "{found}");
    assert!(counted[1..].contains(&("1", "scope-missing", "pay", "127.0.0.1")), "{found}");
    assert_eq!(rows.len(), 3, "{found}");
    let hash = |at: usize| rows[at][3];
    assert_eq!(hash(0).len(), 64, "{found}");
}
