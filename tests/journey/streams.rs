//! Responses that stream: the client reads while the response is being stored, and only its end says that it is.

use std::time::Duration;

use tokio::time::Instant;

use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::streams::{EVENTS, feed, open, pay};
use harness::wire::Head;
use harness::{Answer, Client, Exchange, Feed, Response, Store, TEST_TIMEOUT, World};
use harness::{eventually, on_both_stores};

pub fn status(head: &Head) -> Option<&str> {
    head.all("oncegate-status").next()
}

/// Reads a body of which some bytes have come already, and its trailers.
async fn rest(exchange: &mut Exchange, mut body: Vec<u8>) -> std::io::Result<(String, Vec<(String, String)>)> {
    while let Some(piece) = exchange.piece().await? {
        body.extend(piece);
    }
    Ok((String::from_utf8(body).unwrap(), exchange.trailers()))
}

pub fn trailer<'a>(trailers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    trailers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
}

/// The cause of the only unknown key with this name.
pub async fn cause_of(world: &World, key: &str) -> String {
    let keys = Operator::of(&world.proxy).keys("state=unknown").await;
    let found =
        keys.iter().find(|found| found["key"] == key).unwrap_or_else(|| panic!("{key} is not unknown: {keys:?}"));
    found["cause"].as_str().unwrap().to_owned()
}

async fn replay(world: &World, key: &str) -> Response {
    let replay = pay(world, key).send().await;
    assert_eq!(replay.oncegate_status(), Some("replayed"), "{replay:?}");
    replay
}

on_both_stores!(each_event_reaches_the_client_before_the_next_is_sent_and_the_end_says_that_all_is_stored);
async fn each_event_reaches_the_client_before_the_next_is_sent_and_the_end_says_that_all_is_stored(store: Store) {
    let world = World::guarding(store, "").await;
    let feed = feed(&world, EVENTS);
    let (mut first, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("streaming"), "before any event: {head:?}");
    let mut sent = String::new();
    for number in 0..5 {
        let event = format!("id: {number}\ndata: {number}\n\n");
        feed.send(&*event);
        assert_eq!(first.piece().await.unwrap().unwrap(), event.as_bytes());
        sent.push_str(&event);
    }
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    feed.end();
    let (body, trailers) = rest(&mut first, Vec::new()).await.unwrap();
    assert_eq!((&*body, trailer(&trailers, "oncegate-status")), ("", Some("executed")));
    assert!(trailer(&trailers, "idempotency-key-expires").is_some(), "{trailers:?}");
    let replay = replay(&world, "k-1").await;
    assert_eq!((replay.text(), replay.field("content-type")), (sent, Some(EVENTS)));
    assert_eq!(replay.field("content-length"), Some(&*replay.body.len().to_string()), "at once and whole");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn streams_are_those_by_type_and_slow_ones_without_a_length_unless_the_route_says_otherwise() {
    let world = World::with(Store::sqlite(), |setup| {
        ["auto", "always", "never"].iter().fold(setup, |setup, mode| {
            setup.route(&format!("name = \"{mode}\"\npath = \"/{mode}\"\nstream = \"{mode}\""))
        })
    })
    .await;
    let table = [
        (EVENTS, ["streaming", "streaming", "executed"]),
        ("Text/Event-Stream; charset=utf-8", ["streaming", "streaming", "executed"]),
        ("application/x-ndjson", ["streaming", "streaming", "executed"]),
        ("application/jsonl", ["streaming", "streaming", "executed"]),
        ("multipart/x-mixed-replace; boundary=x", ["streaming", "streaming", "executed"]),
        // Its first byte grows old.
        ("application/json", ["streaming", "streaming", "executed"]),
    ];
    for (row, (media_type, statuses)) in table.into_iter().enumerate() {
        for (mode, expected) in ["auto", "always", "never"].into_iter().zip(statuses) {
            let feed = feed(&world, media_type);
            feed.send("begin ");
            let mut first = world.proxy.post(&format!("/{mode}")).key(&format!("k-{row}")).open().await.unwrap();
            if expected == "executed" {
                feed.send("end");
                feed.end();
            }
            let head = first.any_head().await.unwrap();
            assert_eq!(status(&head), Some(expected), "{mode} {media_type}");
            if expected == "streaming" {
                assert_eq!(first.piece().await.unwrap().unwrap(), b"begin ");
                feed.send("end");
                feed.end();
            }
        }
    }
    for (mode, expected) in [("auto", "executed"), ("always", "executed"), ("never", "executed")] {
        let whole = Answer::status(200).field("Content-Type", EVENTS).body("data: 1\n\n");
        world.upstream.then(whole);
        let answer = world.proxy.post(&format!("/{mode}")).key("whole").send().await;
        assert_eq!((answer.oncegate_status(), &*answer.text()), (Some(expected), "data: 1\n\n"), "{mode}");
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_the_whole_response_because_it_could_not_see_a_cut() {
    let world = World::guarding(Store::sqlite(), "").await;
    let feed = feed(&world, EVENTS);
    feed.send("data: 1\n\n");
    let request = b"POST /pay HTTP/1.0\r\nHost: shop.example\r\nAuthorization: Bearer test\r\n\
                    Idempotency-Key: k-1\r\nContent-Length: 0\r\n\r\n";
    let mut exchange = world.proxy.client().raw(request).await;
    world.upstream.wait_for_executed(1).await;
    feed.end();
    let response = exchange.response().await;
    assert_eq!((response.oncegate_status(), &*response.text()), (Some("executed"), "data: 1\n\n"));
}

on_both_stores!(a_service_that_breaks_off_cuts_its_client_and_leaves_the_key_unknown_with_the_bytes_seen);
async fn a_service_that_breaks_off_cuts_its_client_and_leaves_the_key_unknown_with_the_bytes_seen(store: Store) {
    let world = World::guarding(store, "").await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "k-1")).await;
    feed.send("data: 123\n\n");
    assert_eq!(first.piece().await.unwrap().unwrap(), b"data: 123\n\n");
    feed.cut();
    rest(&mut first, Vec::new()).await.expect_err("a part is not taken for the whole");
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(cause_of(&world, "k-1").await, "broken:11");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_silent_service_and_one_that_does_not_end_are_stopped() {
    for (option, cause) in
        [("stream_idle_timeout = \"300ms\"", "timeout:4"), ("stream_timeout = \"300ms\"", "timeout:4")]
    {
        let world = World::guarding(Store::sqlite(), option).await;
        let feed = feed(&world, EVENTS);
        feed.send(":\n\n\n");
        let (mut first, _) = open(pay(&world, "k-1")).await;
        rest(&mut first, Vec::new()).await.expect_err("it is cut");
        assert_eq!(cause_of(&world, "k-1").await, cause, "{option}");
    }
}

#[tokio::test]
async fn upstream_timeout_counts_to_the_beginning_of_a_stream_and_the_stored_deadline_moves_with_it() {
    let lines = "upstream_timeout = \"500ms\"\non_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }";
    let world = World::with(Store::postgres().await, |setup| {
        setup.short_leases().store("timeout = \"500ms\"").route(&harness::route("pay", lines))
    })
    .await;
    let other = world.setup.start().await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "k-1")).await;
    let begun = Instant::now();
    // The reserved time limit is 2 s. A lease of 1 s later the sweeper would take the attempt for ended.
    while begun.elapsed() < Duration::from_secs(4) {
        feed.send(":\n\n");
        assert_eq!(first.piece().await.unwrap().unwrap(), b":\n\n");
        let duplicate = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!(duplicate.outcome(), (409, "in-flight".to_owned()), "{:?}", begun.elapsed());
    }
    feed.end();
    let (_, trailers) = rest(&mut first, Vec::new()).await.unwrap();
    assert_eq!(trailer(&trailers, "oncegate-status"), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_retry_joins_the_stream_from_its_beginning_and_all_get_identical_bytes);
async fn a_retry_joins_the_stream_from_its_beginning_and_all_get_identical_bytes(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"").await;
    let feed = feed(&world, EVENTS);
    feed.send("data: 1\n\n");
    let (mut first, _) = open(pay(&world, "k-1")).await;
    let mut readers = Vec::new();
    for _ in 0..100 {
        let (reader, head) = open(pay(&world, "k-1")).await;
        assert_eq!(status(&head), Some("attached"));
        readers.push(reader);
    }
    for number in 2..10 {
        feed.send(format!("data: {number}\n\n"));
    }
    feed.end();
    let own = rest(&mut first, Vec::new()).await.unwrap();
    assert_eq!((own.0.matches("data").count(), trailer(&own.1, "oncegate-status")), (9, Some("executed")));
    for mut reader in readers {
        assert_eq!(rest(&mut reader, Vec::new()).await.unwrap(), own);
    }
    assert_eq!(replay(&world, "k-1").await.text(), own.0);
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_joined_stream_lacks_the_trailers_that_a_replay_lacks() {
    let lines = "in_flight = \"wait\"\nreplay = { drop_headers = [\"X-Once\"] }";
    let world = World::guarding(Store::sqlite(), lines).await;
    let feed = Feed::new();
    let answer = Answer::fed(200, EVENTS, &feed).field("Trailer", "X-Once, X-Sum");
    world.upstream.then(answer.trailer("X-Once", "1").trailer("X-Sum", "2"));
    let (mut first, _) = open(pay(&world, "k-1")).await;
    let (mut joined, _) = open(pay(&world, "k-1")).await;
    feed.end();
    let own =
        |trailers: &[(String, String)]| ["x-once", "x-sum"].map(|name| trailer(trailers, name).map(str::to_owned));
    let [first, joined] = [&mut first, &mut joined].map(|reader| rest(reader, Vec::new()));
    assert_eq!(own(&first.await.unwrap().1), [Some("1".to_owned()), Some("2".to_owned())]);
    let dropped = own(&joined.await.unwrap().1);
    assert_eq!(dropped, [None, Some("2".to_owned())]);
    assert_eq!(own(&replay(&world, "k-1").await.trailers), dropped);
}

#[tokio::test]
async fn who_joins_depends_on_the_policy_and_on_what_the_client_prefers() {
    for (policy, field, expected) in [
        ("conflict", ("Accept", EVENTS), None),
        ("conflict", ("Prefer", "wait=5"), Some("attached")),
        ("accepted", ("Accept", EVENTS), Some("attached")),
        ("accepted", ("Accept", "application/json"), None),
        ("wait", ("Accept", "*/*"), Some("attached")),
    ] {
        let world = World::guarding(Store::sqlite(), &format!("in_flight = \"{policy}\"")).await;
        let feed = feed(&world, EVENTS);
        let (_first, _) = open(pay(&world, "k-1")).await;
        let (mut second, head) = open(pay(&world, "k-1").field(field.0, field.1)).await;
        assert_eq!(status(&head), expected.or(Some("in-flight")), "{policy} {field:?}");
        if expected.is_some() {
            feed.send("data: 1\n\n");
            assert_eq!(second.piece().await.unwrap().unwrap(), b"data: 1\n\n");
            let (_, other) = open(pay(&world, "k-1").field(field.0, field.1).body("else")).await;
            assert!(other.start.contains("422"), "another request gets nothing of it: {other:?}");
        }
    }
}

#[tokio::test]
async fn last_event_id_names_the_event_after_which_a_joined_or_replayed_stream_begins() {
    let world = World::guarding(Store::sqlite(), "in_flight = \"wait\"").await;
    let feed = feed(&world, EVENTS);
    let events = ["id: a\ndata: 1\n\n", "id: b\ndata: 2\n\n", "data: 3\n\n"];
    let (mut first, _) = open(pay(&world, "k-1")).await;
    for event in events {
        feed.send(event);
        first.piece().await.unwrap();
    }
    let last = "id: d\ndata: 4\n\n";
    let table = [("a", 1), ("b", 2), ("z", 0)];
    let mut joined = Vec::new();
    for (id, from) in table {
        let (reader, head) = open(pay(&world, "k-1").field("Last-Event-ID", id)).await;
        assert_eq!(status(&head), Some("attached"));
        joined.push((reader, from));
    }
    feed.send(last);
    feed.end();
    rest(&mut first, Vec::new()).await.unwrap();
    for (mut reader, from) in joined {
        let (body, _) = rest(&mut reader, Vec::new()).await.unwrap();
        assert_eq!(body, events[from..].concat() + last);
    }
    for (id, from) in table {
        let replay = pay(&world, "k-1").field("Last-Event-ID", id).send().await;
        assert_eq!((replay.oncegate_status(), replay.text()), (Some("replayed"), events[from..].concat() + last));
    }
}

on_both_stores!(a_client_that_leaves_changes_nothing_and_its_retry_gets_the_whole_response);
async fn a_client_that_leaves_changes_nothing_and_its_retry_gets_the_whole_response(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"").await;
    let feed = feed(&world, EVENTS);
    feed.send("data: 1\n\n");
    let (mut first, _) = open(pay(&world, "k-1")).await;
    first.piece().await.unwrap();
    drop(first);
    let (mut second, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("attached"));
    feed.send("data: 2\n\n");
    feed.end();
    assert_eq!(rest(&mut second, Vec::new()).await.unwrap().0, "data: 1\n\ndata: 2\n\n");
    assert_eq!(replay(&world, "k-1").await.text(), "data: 1\n\ndata: 2\n\n");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn on_client_gone_cancel_stops_the_service_and_makes_the_key_unknown() {
    let world = World::guarding(Store::sqlite(), "on_client_gone = \"cancel\"\nin_flight = \"wait\"").await;
    let in_body = feed(&world, EVENTS);
    in_body.send("data: 1\n\n");
    let (mut first, _) = open(pay(&world, "k-1")).await;
    first.piece().await.unwrap();
    let (second, _) = open(pay(&world, "k-1")).await;
    drop(first);
    in_body.send("data: 2\n\n");
    drop(second);
    world.upstream.wait_until(|seen| seen.closed == 1).await;
    // Until the cancellation is stored, a retry joins the stream, and is cut with it.
    eventually(TEST_TIMEOUT, async || world.pay("k-1").try_send().await.ok().filter(|retry| retry.status == 409)).await;
    let cause = cause_of(&world, "k-1").await;
    assert!(
        ["cancelled:9", "cancelled:18"].contains(&&*cause),
        "the client leaves while the second event comes: {cause}"
    );

    world.upstream.then(Answer::never());
    let before_head = pay(&world, "k-2").open().await.unwrap();
    world.upstream.wait_for_executed(2).await;
    drop(before_head);
    world.upstream.wait_until(|seen| seen.closed == 2).await;
    eventually(TEST_TIMEOUT, async || {
        let outcome = world.pay("k-2").field("Prefer", "wait=0").send().await.outcome();
        (outcome.1 == "outcome-unknown").then_some(())
    })
    .await;
    assert_eq!(cause_of(&world, "k-2").await, "cancelled");
}

#[tokio::test]
async fn a_route_that_cancels_goes_on_while_a_request_waits_that_cannot_join_the_stream() {
    let world = World::guarding(Store::sqlite(), "on_client_gone = \"cancel\"\nin_flight = \"wait\"").await;
    let feed = feed(&world, EVENTS);
    feed.send("data: 1\n\n");
    let (mut first, _) = open(pay(&world, "k-1")).await;
    first.piece().await.unwrap();
    // Over HTTP/1.0 it gets the whole response.
    let text = String::from_utf8(pay(&world, "k-1").bytes()).unwrap().replace("HTTP/1.1", "HTTP/1.0");
    let mut waiting = world.proxy.client().raw(text.as_bytes()).await;
    eventually(TEST_TIMEOUT, async || {
        let metrics = Metrics::of(&world.proxy).await;
        (metrics.get("oncegate_reservations_total{route=\"pay\",result=\"in_flight\"}") >= 1.0).then_some(())
    })
    .await;
    drop(first);
    world.proxy.wait_for_log("a client disconnected").await;
    feed.send("data: 2\n\n");
    feed.end();
    let whole = waiting.response().await;
    assert_eq!((whole.oncegate_status(), &*whole.text()), (Some("replayed"), "data: 1\n\ndata: 2\n\n"));
}

on_both_stores!(a_stream_over_the_limit_goes_on_and_is_not_kept);
async fn a_stream_over_the_limit_goes_on_and_is_not_kept(store: Store) {
    let world =
        World::guarding(store, "max_response_body = \"1KiB\"\nin_flight = \"wait\"\nwait_timeout = \"100ms\"").await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "k-1")).await;
    let (mut second, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("attached"));
    let piece = format!("data: {}\n\n", "x".repeat(500));
    for _ in 0..5 {
        feed.send(&*piece);
        assert_eq!(first.piece().await.unwrap().unwrap(), piece.as_bytes());
    }
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()), "its beginning is gone");
    feed.end();
    let (_, trailers) = rest(&mut first, Vec::new()).await.unwrap();
    assert_eq!(trailer(&trailers, "oncegate-status"), Some("executed"));
    assert_eq!(rest(&mut second, Vec::new()).await.unwrap().0, piece.repeat(5), "it had joined before");
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "response-not-kept".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn the_end_tells_what_the_response_means_for_the_key() {
    for (code, lines, expected) in [
        (200, "", "executed"),
        (500, "", "released"),
        (502, "", "unknown"),
        (200, "outcome = [{ pointer = \"/error\", equals = \"busy\", is = \"release\" }]", "released"),
    ] {
        let world = World::guarding(Store::sqlite(), lines).await;
        let feed = Feed::new();
        world.upstream.then(Answer::fed(code, "application/jsonl", &feed));
        let (mut first, head) = open(pay(&world, "k-1")).await;
        assert_eq!(status(&head), Some("streaming"));
        feed.send("{\"error\":\"busy\"}");
        feed.end();
        let (_, trailers) = rest(&mut first, Vec::new()).await.unwrap();
        assert_eq!(trailer(&trailers, "oncegate-status"), Some(expected), "{code} {lines}");
    }
}

#[tokio::test]
async fn a_stream_whose_key_is_completed_with_another_response_is_cut_before_its_end() {
    let world = World::guarding(Store::sqlite(), "").await;
    let feed = feed(&world, EVENTS);
    feed.send("data: 1\n\n");
    let (mut first, _) = open(pay(&world, "k-1")).await;
    first.piece().await.unwrap();
    let reservation = world.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    let report = Client { address: world.proxy.admin }.post(&format!("/app/v1/reservations/{reservation}/complete"));
    let report = report.host(&world.proxy.admin.to_string()).json(r#"{"status":201,"body":"reported"}"#);
    assert_eq!(report.send().await.status, 200);
    feed.end();
    rest(&mut first, Vec::new()).await.expect_err("retries get another response");
    assert_eq!(world.pay("k-1").send().await.text(), "reported");
}

#[tokio::test]
async fn a_drain_waits_for_a_stream_and_says_which_keys_it_leaves_unknown() {
    for (timeout, ends) in [("20s", true), ("300ms", false)] {
        let drain = format!("drain_delay = \"0s\"\ndrain_timeout = \"{timeout}\"");
        let world = World::with(Store::sqlite(), |setup| setup.top(&drain)).await;
        let feed = feed(&world, EVENTS);
        feed.send("data: 1\n\n");
        let (mut first, _) = open(pay(&world, "k-1")).await;
        first.piece().await.unwrap();
        let (stopped, body) = tokio::join!(world.proxy.stop(), async {
            world.proxy.wait_for_log("draining").await;
            if ends {
                feed.end();
            }
            rest(&mut first, Vec::new()).await
        });
        assert_eq!(stopped, Some(0));
        assert_eq!(body.is_ok(), ends);
        let named = world.proxy.logged().into_iter().find(|line| {
            line["message"].as_str().is_some_and(|text| text.contains("becomes unknown")) && line["record"].is_string()
        });
        assert_eq!(named.is_none(), ends);
    }
}

on_both_stores!(an_observed_route_streams_without_delay);
async fn an_observed_route_streams_without_delay(store: Store) {
    let world = World::guarding(store, "mode = \"observe\"").await;
    let feed = feed(&world, EVENTS);
    let (mut first, head) = open(pay(&world, "k-1")).await;
    assert_eq!(status(&head), Some("observed"));
    for _ in 0..3 {
        feed.send("data: 1\n\n");
        assert_eq!(first.piece().await.unwrap().unwrap(), b"data: 1\n\n");
    }
    feed.end();
    rest(&mut first, Vec::new()).await.unwrap();
}
