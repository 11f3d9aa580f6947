//! gRPC calls: replays with trailers, the meaning of a call's status, streams of messages, and refusals that a client's
//! retry policy reads.

use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Frame;

use serde_json::json;

use harness::grpc::{CallAnswer, CallService, Caller, message};
use harness::operator::Operator;
use harness::{Answer, Hold, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

/// A world whose route `/pay` leads to the service, with these lines. On a busy machine the end of a unary call may
/// come so long after its head that its response streams.
async fn world(store: Store, service: &CallService, lines: &str) -> World {
    let lines = format!("stream = \"never\"\n{lines}");
    World::with(store, |setup| setup.upstream_url(&service.url()).route(&route("pay", &lines))).await
}

on_both_stores!(a_call_is_replayed_with_its_message_and_its_trailers);
async fn a_call_is_replayed_with_its_message_and_its_trailers(store: Store) {
    let service = CallService::start().await;
    let world = world(store, &service, "").await;
    let mut caller = Caller::new(&world).await;
    service.then(CallAnswer::message("paid", 0).head("x-shard", "7").trailer("x-cost", "3"));
    let refused = CallAnswer::status(9).trailer("grpc-message", "no%20funds").trailer("grpc-status-details-bin", "CAk");
    service.then(refused);
    service.then(CallAnswer::trailers_only(5).head("grpc-message", "no such account"));
    for (key, code) in [("paid", 0), ("refused", 9), ("absent", 5)] {
        let first = caller.pay(key, "100 EUR").await;
        let again = caller.pay(key, "100 EUR").await;
        assert_eq!((first.code(), again.code()), (code, code), "{key}");
        assert_eq!((first.oncegate_status(), again.oncegate_status()), ("executed", "replayed"), "{key}");
        assert_eq!((&again.message, &again.trailers), (&first.message, &first.trailers), "{key}");
        assert_eq!(again.is_trailers_only, first.is_trailers_only, "{key}");
        for name in ["grpc-status", "grpc-message", "x-shard"] {
            assert_eq!(again.field(name), first.field(name), "{key} {name}");
        }
    }
    let paid = caller.pay("paid", "100 EUR").await;
    assert_eq!((paid.message.clone(), paid.field("x-shard")), (message("paid"), Some("7")));
    assert_eq!(paid.trailers["x-cost"], "3");
    let mut call = Caller::request(Some("refused"), "100 EUR");
    call.headers_mut().remove("te");
    let refused = caller.call(call).await.unwrap();
    assert_eq!(refused.trailers["grpc-status-details-bin"], "CAk", "without `te` too");
    assert_eq!(service.calls().len(), 3);
}

#[tokio::test]
async fn each_message_of_a_streaming_call_comes_before_the_next_and_its_status_once_it_is_stored() {
    for (code, status, retry) in [("0", "executed", "replayed"), ("14", "unknown", "unknown")] {
        let service = CallService::start().await;
        let to_service = |setup: Setup| setup.upstream_url(&service.url()).route(&route("pay", ""));
        let world = World::with(Store::sqlite(), to_service).await;
        let mut caller = Caller::new(&world).await;
        let (answer, frames) = CallAnswer::fed();
        service.then(answer);
        let mut first = caller.open(Caller::request(Some("k-1"), "100 EUR")).await;
        assert_eq!(first.headers()["oncegate-status"], "streaming", "with the head, before any message");
        for text in ["one", "two", "three"] {
            frames.send(Frame::data(message(text))).unwrap();
            let next = tokio::time::timeout(TEST_TIMEOUT, first.frame()).await.unwrap().unwrap().unwrap();
            assert_eq!(next.into_data().unwrap(), message(text));
        }
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
        frames.send(Frame::trailers(trailers)).unwrap();
        drop(frames);
        let whole = first.into_body().collect().await.unwrap();
        let trailers = whole.trailers().unwrap();
        assert_eq!([&trailers["grpc-status"], &trailers["oncegate-status"]], [code, status]);
        let again = caller.pay("k-1", "100 EUR").await;
        if retry == "replayed" {
            assert_eq!(again.oncegate_status(), "replayed");
            assert_eq!(again.message, [message("one"), message("two"), message("three")].concat());
        }
        assert_eq!((again.code(), service.calls().len()), (if retry == "replayed" { 0 } else { 2 }, 1));
    }
}

#[tokio::test]
async fn a_retry_with_another_deadline_and_other_encodings_is_the_same_call() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "").await;
    let mut caller = Caller::new(&world).await;
    for (deadline, encodings, status) in [("5S", "gzip", "executed"), ("900m", "identity,deflate", "replayed")] {
        let mut call = Caller::request(Some("k-1"), "100 EUR");
        call.headers_mut().insert("grpc-timeout", deadline.parse().unwrap());
        call.headers_mut().insert("grpc-accept-encoding", encodings.parse().unwrap());
        assert_eq!(caller.call(call).await.unwrap().oncegate_status(), status);
    }
    let calls = service.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!((&calls[0]["grpc-timeout"], &calls[0]["te"]), (&"5S".parse().unwrap(), &"trailers".parse().unwrap()));
    assert_eq!(
        calls[0]["grpc-accept-encoding"], "identity",
        "a later client reads the replay, whatever this one accepts"
    );
}

on_both_stores!(each_status_of_a_call_has_its_verdict);
async fn each_status_of_a_call_has_its_verdict(store: Store) {
    let service = CallService::start().await;
    let world = world(store, &service, "").await;
    let mut caller = Caller::new(&world).await;
    let verdicts: [(&[u8], &str, (u8, &str)); 3] = [
        (&[0, 3, 5, 6, 9, 10, 11, 12], "executed", (0, "replayed")),
        (&[7, 14, 16], "released", (0, "executed")),
        (&[1, 2, 4, 8, 13, 15, 17], "unknown", (2, "unknown")),
    ];
    for (codes, first_status, (second_code, second_status)) in verdicts {
        for code in codes {
            let mut answers = vec![CallAnswer::trailers_only(*code), CallAnswer::status(*code)];
            // After a message nothing is released.
            if first_status != "released" {
                answers.push(CallAnswer::message("m", *code));
            }
            for (form, answer) in answers.into_iter().enumerate() {
                let key = format!("{code}-{form}");
                service.then(answer);
                let first = caller.pay(&key, "100 EUR").await;
                assert_eq!((first.code(), first.oncegate_status()), (*code, first_status), "{key}");
                let second = caller.pay(&key, "100 EUR").await;
                // The same status again, if it is stored.
                let second_code = if second_status == "replayed" { *code } else { second_code };
                assert_eq!((second.code(), second.oncegate_status()), (second_code, second_status), "{key}");
            }
        }
    }
    assert_eq!(service.calls().len(), 3 * 8 + 2 * 2 * 3 + 3 * 7);
}

#[tokio::test]
async fn a_call_without_a_status_is_unknown_and_a_gateways_status_has_its_http_meaning() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "").await;
    let mut caller = Caller::new(&world).await;
    for (key, answer) in [
        ("message", CallAnswer::message("paid", 0).without_status()),
        ("status-before-message", CallAnswer::message("paid", 0).without_status().head("grpc-status", "0")),
        ("nothing", CallAnswer::status(0).without_status()),
        ("no-number", CallAnswer::status(0).without_status().trailer("grpc-status", "OK")),
    ] {
        service.then(answer);
        assert_eq!(caller.pay(key, "100 EUR").await.oncegate_status(), "unknown", "{key}");
        assert_eq!(caller.pay(key, "100 EUR").await.refusal(), (2, "outcome-unknown", Some("-1")), "{key}");
    }
    for (http_status, oncegate_status) in [(404, "executed"), (503, "released"), (504, "unknown")] {
        let page = CallAnswer::message("<html>", 0).without_status().head("content-type", "text/html");
        service.then(page.http_status(http_status));
        let answer = caller.pay(&http_status.to_string(), "100 EUR").await;
        assert_eq!((answer.http_status.as_u16(), answer.oncegate_status()), (http_status, oncegate_status));
    }
    let operator = Operator::of(&world.proxy);
    let causes: Vec<_> = operator.keys("state=unknown").await.iter().map(|key| key["cause"].to_string()).collect();
    assert_eq!(causes.iter().filter(|cause| *cause == "\"broken\"").count(), 4, "{causes:?}");
}

#[tokio::test]
async fn a_call_is_released_only_without_a_message_and_where_all_statuses_agree() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "").await;
    let mut caller = Caller::new(&world).await;
    let twice = |first: u8, second: u8| CallAnswer::status(first).trailer("grpc-status", &second.to_string());
    let page = |status| CallAnswer::status(0).without_status().head("content-type", "text/html").http_status(status);
    for (key, answer, is_released) in [
        ("message-14", CallAnswer::message("m", 14), false),
        ("messages-16", CallAnswer::message("mmm", 16), false),
        ("message-7", CallAnswer::message("m", 7), false),
        ("14-0", twice(14, 0), false),
        ("0-14", twice(0, 14), false),
        ("16-14", twice(16, 14), false),
        ("head-0-trailers-14", CallAnswer::status(14).head("grpc-status", "0"), false),
        ("head-14-message-0", CallAnswer::message("m", 0).head("grpc-status", "14"), false),
        ("head-14-message", CallAnswer::message("m", 0).without_status().head("grpc-status", "14"), false),
        ("503-message-0", CallAnswer::message("m", 0).http_status(503), false),
        ("401-message-0", CallAnswer::message("m", 0).http_status(401), false),
        ("503-message-14", CallAnswer::message("m", 14).http_status(503), false),
        ("503-message", CallAnswer::message("m", 14).without_status().http_status(503), false),
        ("503-0", CallAnswer::trailers_only(0).http_status(503), false),
        ("401-14", CallAnswer::trailers_only(14).http_status(401), false),
        ("list-14-0", CallAnswer::status(0).without_status().trailer("grpc-status", "14, 0"), false),
        ("signed-14", CallAnswer::status(0).without_status().trailer("grpc-status", "+14"), false),
        ("99", CallAnswer::status(99), false),
        ("14", CallAnswer::status(14), true),
        ("14-14", twice(14, 14), true),
        ("trailers-only-14", CallAnswer::trailers_only(14), true),
        ("503-trailers-only-14", CallAnswer::trailers_only(14).http_status(503), true),
        ("503-page", page(503), true),
        ("decided", CallAnswer::message("m", 14).trailer("oncegate-decision", "release"), true),
    ] {
        let calls = service.calls().len();
        service.then(answer);
        let first = caller.pay(key, "100 EUR").await;
        assert_eq!(first.oncegate_status(), if is_released { "released" } else { "unknown" }, "{key}");
        caller.pay(key, "100 EUR").await;
        assert_eq!(service.calls().len() - calls, if is_released { 2 } else { 1 }, "{key}");
    }
}

on_both_stores!(a_response_that_a_person_enters_has_its_status_behind_its_message);
async fn a_response_that_a_person_enters_has_its_status_behind_its_message(store: Store) {
    let service = CallService::start().await;
    let world = world(store, &service, "").await;
    let mut caller = Caller::new(&world).await;
    service.then(CallAnswer::status(2));
    assert_eq!(caller.pay("k-1", "100 EUR").await.oncegate_status(), "unknown");
    let operator = Operator::of(&world.proxy);
    let fields = [["content-type", "application/grpc"], ["grpc-status", "0"], ["x-found", "yes"]];
    let entered = json!({
        "outcome": "completed", "status": 200, "headers": fields, "body": str::from_utf8(&message("paid")).unwrap(),
    });
    let (status, answer) = operator.resolve(&operator.id("k-1").await, entered).await;
    assert_eq!(status, 200, "{answer}");
    let replay = caller.pay("k-1", "100 EUR").await;
    assert_eq!((replay.code(), &replay.message, replay.field("x-found")), (0, &message("paid"), Some("yes")));
    assert_eq!((replay.oncegate_status(), replay.field("grpc-status")), ("replayed", None));
}

#[tokio::test]
async fn a_list_of_a_route_may_name_statuses_of_calls() {
    let service = CallService::start().await;
    let lines = "store_statuses = [\"2xx\", \"grpc:INTERNAL\"]\nrelease_statuses = [\"grpc:ABORTED\"]\n\
                 unknown_statuses = [\"5xx\", \"grpc:UNAVAILABLE\"]";
    let world = world(Store::sqlite(), &service, lines).await;
    let mut caller = Caller::new(&world).await;
    for (code, oncegate_status) in
        [(13, "executed"), (10, "released"), (14, "unknown"), (0, "executed"), (3, "executed"), (2, "unknown")]
    {
        service.then(CallAnswer::trailers_only(code));
        assert_eq!(caller.pay(&format!("k-{code}"), "100 EUR").await.oncegate_status(), oncegate_status, "{code}");
    }
    let key = Operator::of(&world.proxy).keys("state=unknown").await;
    let causes: Vec<_> = key.iter().map(|key| key["cause"].as_str().unwrap().to_owned()).collect();
    assert!(
        causes.contains(&"grpc:UNAVAILABLE".to_owned()) && causes.contains(&"grpc:UNKNOWN".to_owned()),
        "{causes:?}"
    );
}

#[tokio::test]
async fn the_service_decides_about_a_call_in_its_head_or_in_its_trailers() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "").await;
    let mut caller = Caller::new(&world).await;
    for (key, answer, oncegate_status) in [
        ("head", CallAnswer::trailers_only(13).head("oncegate-decision", "release"), "released"),
        ("trailers", CallAnswer::status(13).trailer("oncegate-decision", "release"), "released"),
        (
            "both",
            CallAnswer::status(13).head("oncegate-decision", "store").trailer("oncegate-decision", "store"),
            "executed",
        ),
        // The one may be a middleware's and the other the handler's.
        (
            "contradiction",
            CallAnswer::status(13).head("oncegate-decision", "store").trailer("oncegate-decision", "release"),
            "unknown",
        ),
    ] {
        service.then(answer);
        let first = caller.pay(key, "100 EUR").await;
        assert_eq!(first.oncegate_status(), oncegate_status, "{key}");
        assert!(!first.head.contains_key("oncegate-decision") && !first.trailers.contains_key("oncegate-decision"));
    }
}

#[tokio::test]
async fn a_call_that_the_service_refuses_to_its_caller_leaves_no_key() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "").await;
    let mut caller = Caller::new(&world).await;
    for code in [7, 16] {
        service.then(CallAnswer::trailers_only(code));
        assert_eq!(caller.pay("k-1", "a first guess").await.oncegate_status(), "released");
        assert_eq!(Operator::of(&world.proxy).keys("").await.len(), 0, "{code}");
    }
    assert_eq!(caller.pay("k-1", "another call").await.oncegate_status(), "executed");
}

on_both_stores!(a_refusal_of_a_call_has_a_status_and_tells_whether_to_retry);
async fn a_refusal_of_a_call_has_a_status_and_tells_whether_to_retry(store: Store) {
    let service = CallService::start().await;
    let world = world(store, &service, "key = { required = true }\nupstream_timeout = \"3s\"").await;
    let mut caller = Caller::new(&world).await;
    let missing = caller.call(Caller::request(None, "100 EUR")).await.unwrap();
    assert_eq!(missing.refusal(), (3, "key-missing", Some("-1")));
    assert_eq!(missing.oncegate_status(), "rejected");
    let invalid = caller.pay("a,b", "100 EUR").await;
    assert_eq!(invalid.refusal(), (3, "key-invalid", Some("-1")));

    let hold = Hold::new();
    service.then(CallAnswer::message("paid", 0).hold(&hold));
    let mut first = Caller::new(&world).await;
    let first = tokio::spawn(async move { first.pay("k-1", "100 EUR").await });
    service.wait_for_calls(1).await;
    let duplicate = caller.pay("k-1", "100 EUR").await;
    assert_eq!((duplicate.code(), duplicate.oncegate_status()), (14, "in-flight"));
    let pushback: u64 = duplicate.field("grpc-retry-pushback-ms").unwrap().parse().unwrap();
    assert_eq!(pushback, 1_000 * duplicate.field("retry-after").unwrap().parse::<u64>().unwrap());
    let reused = caller.pay("k-1", "200 EUR").await;
    assert_eq!((reused.refusal(), reused.oncegate_status()), ((9, "key-reused", Some("-1")), "key-reused"));
    hold.release();
    assert_eq!(first.await.unwrap().message, message("paid"));

    service.then(CallAnswer::status(0).hold(&Hold::new()));
    let timeout = caller.pay("k-2", "100 EUR").await;
    assert_eq!((timeout.refusal(), timeout.oncegate_status()), ((4, "upstream-timeout", Some("-1")), "unknown"));
    let unknown = caller.pay("k-2", "100 EUR").await;
    assert_eq!((unknown.refusal(), unknown.oncegate_status()), ((2, "outcome-unknown", Some("-1")), "unknown"));
    assert_eq!(unknown.field("idempotency-key"), Some("k-2"));

    assert_eq!(service.calls().len(), 2);
}

#[tokio::test]
async fn a_call_that_was_not_sent_leaves_the_pause_to_the_clients_policy() {
    let unused = Upstream::unused_address().await;
    let url = format!("h2c://{unused}");
    let world = World::with(Store::sqlite(), |setup| setup.upstream_url(&url).route(&route("pay", ""))).await;
    let unreachable = Caller::new(&world).await.pay("k-1", "100 EUR").await;
    assert_eq!(unreachable.refusal(), (14, "upstream-unreachable", None));
    assert_eq!(unreachable.oncegate_status(), "released");
}

#[tokio::test]
async fn a_refusal_before_any_route_has_a_status_too() {
    let world =
        World::with(Store::sqlite(), |setup| setup.top("unguarded = \"refuse\"").route(&route("pay", ""))).await;
    let mut call = Caller::request(Some("k-1"), "100 EUR");
    *call.uri_mut() = "http://shop.example/else".parse().unwrap();
    let refused = Caller::new(&world).await.call(call).await.unwrap();
    assert_eq!((refused.refusal(), refused.field("oncegate-status")), ((7, "unguarded", Some("-1")), None));
    let mut web = Caller::request(None, "100 EUR");
    *web.uri_mut() = "http://shop.example/else".parse().unwrap();
    web.headers_mut().insert("content-type", "application/grpc-web+proto".parse().unwrap());
    assert_eq!(Caller::new(&world).await.call(web).await.unwrap().http_status, 403, "gRPC-Web is no gRPC");
}

#[tokio::test]
async fn a_duplicate_that_would_be_accepted_is_asked_to_come_again() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "in_flight = \"accepted\"").await;
    let hold = Hold::new();
    service.then(CallAnswer::message("paid", 0).hold(&hold));
    let mut first = Caller::new(&world).await;
    let first = tokio::spawn(async move { first.pay("k-1", "100 EUR").await });
    service.wait_for_calls(1).await;
    let mut caller = Caller::new(&world).await;
    assert_eq!(caller.pay("k-1", "100 EUR").await.refusal(), (14, "in-flight", Some("1000")));
    hold.release();
    first.await.unwrap();
    assert_eq!(caller.pay("k-1", "100 EUR").await.message, message("paid"));
}

on_both_stores!(the_status_at_the_end_of_a_large_call_decides);
async fn the_status_at_the_end_of_a_large_call_decides(store: Store) {
    let service = CallService::start().await;
    let world = world(store, &service, "max_response_body = \"4KiB\"").await;
    let mut caller = Caller::new(&world).await;
    let large = "x".repeat(10_000);
    service.then(CallAnswer::message(&large, 0));
    let whole = caller.pay("whole", "100 EUR").await;
    assert_eq!((whole.code(), whole.oncegate_status(), &whole.message), (0, "executed", &message(&large)));
    assert_eq!(caller.pay("whole", "100 EUR").await.refusal(), (6, "response-not-kept", Some("-1")));
    for (key, answer, code) in [
        ("internal", CallAnswer::message(&large, 13), 2),
        ("cut", CallAnswer::message(&large, 0).without_status(), 2),
        ("unavailable", CallAnswer::message(&large, 14), 2),
        ("decided", CallAnswer::message(&large, 14).trailer("oncegate-decision", "unknown"), 2),
        ("not-found", CallAnswer::message(&large, 5), 6),
    ] {
        service.then(answer);
        let cut = caller.call(Caller::request(Some(key), "100 EUR")).await;
        cut.expect_err("its head says that it is stored");
        let again = eventually(TEST_TIMEOUT, async || {
            Some(caller.pay(key, "100 EUR").await).filter(|again| again.oncegate_status() != "in-flight")
        });
        assert_eq!(again.await.code(), code, "{key}");
    }
    assert_eq!(service.calls().len(), 6);
}

on_both_stores!(an_accepted_call_is_asked_to_come_again_until_its_response_is_there);
async fn an_accepted_call_is_asked_to_come_again_until_its_response_is_there(store: Store) {
    let service = CallService::start().await;
    let pay = route("pay", "delivery = \"async\"\nretry = { base = \"10ms\" }");
    let secret = "secret = \"0123456789abcdef0123456789abcdef\"";
    let world = World::with(store, |setup| setup.upstream_url(&service.url()).top(secret).route(&pay)).await;
    let mut caller = Caller::new(&world).await;
    // The first delivery counts as not executed, and the next one brings an error that stays.
    service.then(CallAnswer::status(14)).then(CallAnswer::status(9).trailer("grpc-message", "no funds"));
    let accepted = caller.pay("k-1", "100 EUR").await;
    assert_eq!((accepted.refusal().0, accepted.oncegate_status()), (14, "queued"));
    let done = eventually(TEST_TIMEOUT, async || {
        Some(caller.pay("k-1", "100 EUR").await).filter(|again| again.oncegate_status() == "replayed")
    });
    let done = done.await;
    assert_eq!((done.code(), &done.trailers["grpc-message"]), (9, &"no funds".parse().unwrap()));
    assert_eq!(service.calls().len(), 2);
    // No other delivery would change this one.
    service.then(CallAnswer::trailers_only(7));
    caller.pay("k-2", "100 EUR").await;
    let given_up = world.proxy.wait_for_log("the delivery was given up").await;
    assert_eq!(given_up["reason"], "another try cannot change the result: answered grpc:PERMISSION_DENIED");
}

#[tokio::test]
async fn an_observed_call_counts_by_the_status_in_its_head() {
    let service = CallService::start().await;
    let world = world(Store::sqlite(), &service, "mode = \"observe\"").await;
    let mut caller = Caller::new(&world).await;
    for (code, would) in [(5, "replayed"), (14, "executed"), (13, "outcome-unknown")] {
        let key = format!("k-{code}");
        for expected in ["executed", would] {
            service.then(CallAnswer::trailers_only(code));
            let before = world.proxy.logged().iter().filter(|line| line["message"] == "observed").count();
            let answer = caller.pay(&key, "100 EUR").await;
            assert_eq!((answer.code(), answer.oncegate_status()), (code, "observed"));
            let line = eventually(TEST_TIMEOUT, async || {
                world.proxy.logged().into_iter().filter(|line| line["message"] == "observed").nth(before)
            });
            assert_eq!(line.await["would"], expected, "{code}");
        }
    }
}

/// The body of a gRPC-Web response: a message, if there is one, and the trailers.
fn web_body(message: Option<&str>, trailers: &str) -> Vec<u8> {
    let frame = |flag: u8, data: &str| [&[flag][..], &(data.len() as u32).to_be_bytes(), data.as_bytes()].concat();
    [message.map(|message| frame(0, message)).unwrap_or_default(), frame(0x80, trailers)].concat()
}

on_both_stores!(a_call_over_grpc_web_has_the_status_in_the_last_frame_of_its_body);
async fn a_call_over_grpc_web_has_the_status_in_the_last_frame_of_its_body(store: Store) {
    let lines = "max_response_body = \"4KiB\"\nstore_statuses = [\"2xx\", \"4xx\", \"grpc:INTERNAL\"]";
    let world = World::guarding(store, lines).await;
    let (proto, text) = ("application/grpc-web+proto", "application/grpc-web-text");
    let answer = |media_type: &str, body: &[u8]| Answer::status(200).field("Content-Type", media_type).body(body);
    let in_base64 = |body: &[u8]| data_encoding::BASE64.encode(body).into_bytes();
    let (paid, refused) = (web_body(Some("paid"), "grpc-status:0\r\n"), web_body(None, "grpc-status: 14\r\n"));
    let stored = ["executed", "replayed"];
    let released = ["released", "executed"];
    let unknown = ["unknown", "unknown"];
    for (key, media_type, answer, seen) in [
        ("paid", proto, answer(proto, &paid), stored),
        ("unavailable", proto, answer(proto, &refused), released),
        ("in-base64", text, answer(text, &in_base64(&refused)), released),
        ("deadline", proto, answer(proto, &web_body(Some("x"), "grpc-status:4\r\n")), unknown),
        ("listed", proto, answer(proto, &web_body(None, "grpc-status:13\r\n")), stored),
        ("trailers-only", proto, answer(proto, b"").field("grpc-status", "14"), released),
        ("message-unavailable", proto, answer(proto, &web_body(Some("x"), "grpc-status: 14\r\n")), unknown),
        ("two-statuses", proto, answer(proto, &web_body(None, "grpc-status: 14\r\ngrpc-status: 0\r\n")), unknown),
        ("head-and-frame", proto, answer(proto, &refused).field("grpc-status", "0"), unknown),
        ("without-status", proto, answer(proto, &web_body(Some("paid"), "x:y\r\n")), unknown),
        ("cut", proto, answer(proto, &paid[..paid.len() - 3]), unknown),
        ("no-call", proto, answer("text/html", b"<html>"), unknown),
        ("a-gateways", proto, Answer::status(503).field("Content-Type", "text/html").body("<html>"), released),
        ("large", proto, answer(proto, &web_body(Some(&"x".repeat(5_000)), "grpc-status:0\r\n")), unknown),
        (
            "decided",
            proto,
            answer(proto, &web_body(None, "grpc-status:13\r\noncegate-decision: release\r\n")),
            released,
        ),
        // Any other request has an HTTP status alone.
        ("plain", "application/octet-stream", answer("application/octet-stream", &refused), stored),
    ] {
        world.upstream.then(answer);
        for oncegate_status in seen {
            let call = world.post("/pay").key(key).field("Content-Type", media_type).body("a call");
            assert_eq!(call.send().await.oncegate_status(), Some(oncegate_status), "{key}");
            world.upstream.answer_all(Answer::status(200).field("Content-Type", proto).body(paid.clone()));
        }
    }
    let call =
        world.upstream.executed().into_iter().find(|call| call.field("idempotency-key") == Some("paid")).unwrap();
    assert_eq!(call.field("grpc-accept-encoding"), Some("identity"));
}
