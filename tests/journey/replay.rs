//! Retries of completed requests: the stored response is replayed.

use std::time::{Duration, SystemTime};

use harness::{Answer, Store, World, on_both_stores};

on_both_stores!(a_replay_has_the_status_the_fields_and_the_bytes_of_the_original);
async fn a_replay_has_the_status_the_fields_and_the_bytes_of_the_original(store: Store) {
    let world = World::start(store).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    world.upstream.answer_all(
        Answer::status(207)
            .field("Content-Type", "application/octet-stream")
            .field("Warning", "199 - one")
            .field("X-Opaque", "caf\u{e9}")
            .field("Warning", "199 - two")
            .field("Link", "</a>; rel=next")
            .field("Warning", "199 - one")
            .body(every_byte.clone()),
    );
    let first = world.pay("k-1").send().await;
    let again = world.pay("k-1").send().await;
    assert_eq!((again.status, &again.body), (207, &every_byte));
    assert_eq!(again.all("warning"), ["199 - one", "199 - two", "199 - one"]);
    assert_eq!(again.field("x-opaque"), Some("caf\u{e9}"));
    assert_eq!(again.comparable(), first.replayed());
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn the_fields_come_in_the_services_order_on_the_first_answer_and_on_replays() {
    let world = World::start(Store::sqlite()).await;
    let names = ["x-zulu", "x-alpha", "x-mike", "x-bravo"];
    let mut answer = Answer::status(200).field("Connection", "X-Hop").field("X-Hop", "1").field("Keep-Alive", "5");
    for name in names {
        answer = answer.field(name, "1");
    }
    world.upstream.answer_all(answer.field("Server-Timing", "db;dur=53").field("X-Zulu", "2"));
    for oncegate_status in ["executed", "replayed"] {
        let response = world.pay("k-1").send().await;
        let order: Vec<_> =
            response.fields.iter().map(|(name, _)| &**name).filter(|name| names.contains(name)).collect();
        assert_eq!(response.oncegate_status(), Some(oncegate_status));
        let by_first_line: Vec<_> = names.into_iter().filter(|name| order.contains(name)).collect();
        let mut seen = order.clone();
        seen.dedup();
        assert_eq!(seen, by_first_line, "{oncegate_status}: {order:?}");
    }
}

on_both_stores!(trailers_are_replayed_to_clients_that_accept_them);
async fn trailers_are_replayed_to_clients_that_accept_them(store: Store) {
    let world = World::start(store).await;
    world
        .upstream
        .answer_all(Answer::status(200).chunks(&["pa", "id"]).trailer("X-Checksum", "7").trailer("X-Signed", "yes"));
    for oncegate_status in ["executed", "replayed"] {
        let response = world.pay("k-1").field("TE", "trailers").send().await;
        assert_eq!((response.oncegate_status(), &*response.text()), (Some(oncegate_status), "paid"));
        let mut trailers = response.trailers.clone();
        trailers.sort();
        assert_eq!(
            trailers,
            [("x-checksum".to_owned(), "7".to_owned()), ("x-signed".to_owned(), "yes".to_owned())],
            "{oncegate_status}"
        );
    }
    let without = world.pay("k-1").send().await;
    assert_eq!((without.oncegate_status(), &*without.text(), without.trailers.len()), (Some("replayed"), "paid", 0));
}

#[tokio::test]
async fn cookies_are_sent_with_the_first_answer_only() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).field("Set-Cookie", "a=1").field("Set-Cookie", "b=2"));
    assert_eq!(world.pay("k-1").send().await.all("set-cookie"), ["a=1", "b=2"]);
    let again = world.pay("k-1").send().await;
    assert!(again.is_replay() && again.all("set-cookie").is_empty());
}

#[tokio::test]
async fn dropped_response_fields_are_not_stored() {
    let world = World::guarding(Store::sqlite(), "replay = { drop_headers = [\"X-Once\"] }").await;
    world.upstream.answer_all(Answer::status(200).field("X-Once", "1").field("Set-Cookie", "a=1"));
    assert_eq!(world.pay("k-1").send().await.field("x-once"), Some("1"));
    let again = world.pay("k-1").send().await;
    assert_eq!((again.field("x-once"), again.field("set-cookie")), (None, Some("a=1")));
}

#[tokio::test]
async fn dropped_and_momentary_trailers_are_not_stored() {
    let world = World::guarding(Store::sqlite(), "replay = { drop_headers = [\"X-Once\"] }").await;
    let names = ["x-once", "server-timing", "x-kept"];
    let answer = names.iter().fold(Answer::status(200).chunks(&["pa", "id"]), |answer, name| answer.trailer(name, "1"));
    world.upstream.answer_all(answer);
    let trailers = async || {
        let response = world.pay("k-1").field("TE", "trailers").send().await;
        response.trailers.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!((trailers().await, trailers().await), (names.map(str::to_owned).to_vec(), vec!["x-kept".to_owned()]));
}

#[tokio::test]
async fn momentary_response_fields_are_not_replayed() {
    let world = World::start(Store::sqlite()).await;
    let passing = ["age", "alt-svc", "server-timing", "ratelimit", "ratelimit-remaining", "traceparent"];
    let answer = passing.iter().fold(Answer::status(200).field("X-Kept", "1"), |answer, name| answer.field(name, "1"));
    world.upstream.answer_all(answer);
    let first = world.pay("k-1").send().await;
    let again = world.pay("k-1").send().await;
    assert_eq!(again.field("x-kept"), Some("1"));
    for name in passing {
        assert_eq!((first.field(name), again.field(name)), (Some("1"), None), "{name}");
    }
}

#[tokio::test]
async fn the_key_is_echoed_as_it_was_received() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("\"k-1\"").send().await.field("idempotency-key"), Some("\"k-1\""));
    let again = world.pay("k-1").send().await;
    assert_eq!(
        (again.field("idempotency-key"), again.oncegate_status()),
        (Some("k-1"), Some("replayed")),
        "both spell the same key"
    );
    let other = world.pay("k-1").body("else").send().await;
    assert_eq!((other.field("idempotency-key"), other.oncegate_status()), (Some("k-1"), Some("key-reused")));
}

on_both_stores!(every_stored_answer_has_its_expiry_time);
async fn every_stored_answer_has_its_expiry_time(store: Store) {
    let world = World::guarding(store, "ttl = \"2h\"").await;
    let before = SystemTime::now();
    let first = world.pay("k-1").send().await;
    let expires = first.field("idempotency-key-expires").unwrap();
    let lives = httpdate::parse_http_date(expires).unwrap().duration_since(before).unwrap();
    assert!(lives.abs_diff(Duration::from_secs(2 * 60 * 60)) < Duration::from_secs(10), "{lives:?}");
    for _ in 0..2 {
        assert_eq!(world.pay("k-1").send().await.field("idempotency-key-expires"), Some(expires));
    }
}

#[tokio::test]
async fn a_replay_keeps_the_services_date_as_the_original_date() {
    let world = World::start(Store::sqlite()).await;
    let then = "Sun, 06 Nov 1994 08:49:37 GMT";
    world.upstream.then(Answer::status(200).field("Date", then));
    let first = world.pay("dated").send().await;
    assert_eq!((first.field("date"), first.field("oncegate-original-date")), (Some(then), None));
    let again = world.pay("dated").send().await;
    assert_eq!(again.field("oncegate-original-date"), Some(then));
    let now = httpdate::parse_http_date(again.field("date").unwrap()).unwrap();
    assert!(now.elapsed().unwrap_or_default() < Duration::from_secs(10), "Date is now");
    world.pay("undated").send().await;
    assert_eq!(world.pay("undated").send().await.field("oncegate-original-date"), None);
}

#[tokio::test]
async fn the_services_oncegate_fields_are_removed() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(
        Answer::status(200)
            .field("Idempotent-Replayed", "true")
            .field("Oncegate-Status", "bypassed")
            .field("Idempotency-Key-Expires", "never")
            .field("Oncegate-Original-Date", "never"),
    );
    let first = world.pay("k-1").send().await;
    assert_eq!((first.oncegate_status(), first.is_replay()), (Some("executed"), false));
    assert_ne!(first.field("idempotency-key-expires"), Some("never"));
    assert_eq!(first.field("oncegate-original-date"), None);
    let again = world.pay("k-1").send().await;
    assert_eq!(again.comparable(), first.replayed());
    let unguarded = world.get("/").send().await;
    assert_eq!((unguarded.oncegate_status(), unguarded.is_replay()), (None, false));
}

#[tokio::test]
async fn the_services_directives_are_not_passed_to_the_client() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).field("Oncegate-Decision", "store").field("Oncegate-TTL", "1h"));
    let first = world.pay("k-1").send().await;
    assert_eq!((first.field("oncegate-decision"), first.field("oncegate-ttl")), (None, None));
}

#[tokio::test]
async fn a_replay_of_a_chunked_response_has_a_content_length() {
    let world = World::start(Store::sqlite()).await;
    world.upstream.answer_all(Answer::status(200).chunks(&["pa", "id"]));
    world.pay("k-1").send().await;
    let again = world.pay("k-1").send().await;
    assert_eq!((again.field("content-length"), again.field("transfer-encoding")), (Some("4"), None));
    assert_eq!(again.text(), "paid");
}

on_both_stores!(an_empty_response_is_replayed_empty);
async fn an_empty_response_is_replayed_empty(store: Store) {
    let world = World::start(store).await;
    world.upstream.then(Answer::status(200).body(""));
    let first = world.pay("k-1").send().await;
    let again = world.pay("k-1").send().await;
    assert_eq!(again.comparable(), first.replayed());
    assert_eq!((again.field("content-length"), again.body.len()), (Some("0"), 0));
}

#[tokio::test]
async fn a_bodiless_status_is_replayed_without_a_body() {
    let world = World::start(Store::sqlite()).await;
    for status in [204, 304] {
        world.upstream.then(Answer::status(status).field("ETag", "\"1\""));
        let key = format!("k-{status}");
        let first = world.pay(&key).send().await;
        let again = world.pay(&key).send().await;
        assert_eq!((first.status, first.oncegate_status(), first.body.len()), (status, Some("executed"), 0));
        assert_eq!((again.status, again.oncegate_status(), again.body.len()), (status, Some("replayed"), 0));
        assert_eq!(again.field("etag"), Some("\"1\""));
        if status == 204 {
            assert_eq!((first.field("content-length"), again.field("content-length")), (None, None));
        }
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_replay_leaves_the_connection_open_for_the_next_request() {
    let world = World::start(Store::sqlite()).await;
    let request = world.pay("k-1");
    request.send().await;
    let mut connection = request.open().await.unwrap();
    assert!(connection.response().await.is_replay());
    connection.write(&request.bytes()).await;
    assert!(connection.response().await.is_replay());
}

#[tokio::test]
async fn pipelined_retries_are_answered_in_order() {
    let world = World::start(Store::sqlite()).await;
    let [first, second] = ["k-1", "k-2"].map(|key| world.pay(key).bytes());
    let mut connection = world.proxy.client().raw(&[&*first, &*second, &*first].concat()).await;
    let answers = [connection.response().await, connection.response().await, connection.response().await];
    assert_eq!(
        answers.each_ref().map(|answer| answer.oncegate_status().unwrap()),
        ["executed", "executed", "replayed"]
    );
    assert_eq!(answers[2].body, answers[0].body);
}

on_both_stores!(an_answer_echoes_its_own_requests_fields);
async fn an_answer_echoes_its_own_requests_fields(store: Store) {
    let lines = "replay = { echo = [\"X-Interaction-Id\", \"X-Request-Id\"] }";
    let world = World::guarding(store, lines).await;
    world.upstream.answer_all(Answer::status(201).field("X-Interaction-Id", "i-1").body("done"));
    let sent = async |interaction: &str, body: &str| {
        let request = world.post("/pay").key("k-1").field("X-Request-Id", "r-1");
        let request = if interaction.is_empty() { request } else { request.field("X-Interaction-Id", interaction) };
        request.json(body).send().await
    };
    let first = sent("i-1", "{}").await;
    assert_eq!((first.field("x-interaction-id"), first.field("x-request-id")), (Some("i-1"), None));
    let retry = sent("i-2", "{}").await;
    assert_eq!((retry.oncegate_status(), retry.all("x-interaction-id")), (Some("replayed"), vec!["i-2"]));
    assert_eq!((retry.field("x-request-id"), &retry.body), (None, &first.body), "the response has none");
    assert_eq!(sent("", "{}").await.field("x-interaction-id"), Some("i-1"), "the retry has none");
    let refused = sent("i-3", "{\"a\":1}").await;
    assert_eq!(refused.outcome(), (422, "key-reused".to_owned()));
    assert_eq!((refused.field("x-interaction-id"), refused.field("x-request-id")), (Some("i-3"), Some("r-1")));
}
