//! Services' reports about their own attempts, beside their answers.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use harness::operator::Operator;
use harness::{
    Answer, Client, Hold, Proxy, Request, Response, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route,
};

/// The reservation header of the service's last request, which authorizes reports.
fn reservation(world: &World) -> String {
    world.upstream.last().field("oncegate-reservation").unwrap().to_owned()
}

fn saying(proxy: &Proxy, reservation: &str, what: &str) -> Request {
    let method = if what == "recovery-point" { "PUT" } else { "POST" };
    let path = format!("/app/v1/reservations/{reservation}/{what}");
    Client { address: proxy.admin }.request(method, &path).host(&proxy.admin.to_string())
}

async fn say(proxy: &Proxy, reservation: &str, what: &str, body: Value) -> (u16, Value) {
    let response = saying(proxy, reservation, what).json(&body.to_string()).send().await;
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    let is_problem = response.field("content-type") == Some("application/problem+json");
    assert_eq!(is_problem, response.status >= 400, "{body}");
    if is_problem {
        assert!(
            !body.to_string().contains(&reservation[..reservation.len().min(8)]) || reservation.is_empty(),
            "{body}"
        );
    }
    (response.status, if is_problem { body["code"].clone() } else { body })
}

async fn not_executed(proxy: &Proxy, reservation: &str) -> (u16, Value) {
    say(proxy, reservation, "not-executed", json!({})).await
}

fn paid() -> Value {
    json!({
        "status": 201,
        "headers": [["Content-Type", "text/plain"], ["X-A", "1"], ["Set-Cookie", "a=1"], ["X-A", "2"], ["Content-Length", "9"]],
        "body": "paid",
    })
}

/// A request that the service holds, and its reservation.
async fn taken(world: &World, key: &str, hold: &Hold) -> (tokio::task::JoinHandle<std::io::Result<Response>>, String) {
    let count = world.upstream.executed().len();
    world.upstream.then(Answer::status(200).body("answer").hold(hold));
    let first = world.pay(key).spawn();
    world.upstream.wait_for_executed(count + 1).await;
    (first, reservation(world))
}

/// The same for a key with an unknown outcome.
async fn lost(world: &World, key: &str) -> String {
    world.upstream.then(Answer::reset());
    assert_eq!(world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    reservation(world)
}

/// Has a service report a running attempt of a key of its own as not executed, and waits until the report is applied
/// after the attempt's end. The same pass would have applied all earlier reports that it may apply.
async fn a_later_report_is_applied(world: &World) {
    let hold = Hold::new();
    let count = world.upstream.executed().len();
    world.upstream.then(Answer::reset().hold(&hold));
    let running = world.pay("later").spawn();
    world.upstream.wait_for_executed(count + 1).await;
    assert_eq!(not_executed(&world.proxy, &reservation(world)).await.0, 202);
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().outcome(), (502, "upstream-broken".to_owned()));
    Operator::of(&world.proxy).id_when("later", "retryable").await;
}

on_both_stores!(a_response_reported_by_the_service_is_replayed_at_once_and_sent_to_the_first_client);
async fn a_response_reported_by_the_service_is_replayed_at_once_and_sent_to_the_first_client(store: Store) {
    let world = World::guarding(store, "in_flight = \"wait\"\nwait_timeout = \"60s\"\nttl = \"2h\"").await;
    let hold = Hold::new();
    let (first, by) = taken(&world, "k-1", &hold).await;
    let waiting = world.pay("k-1").spawn();
    for _ in 0..2 {
        assert_eq!(say(&world.proxy, &by, "complete", paid()).await, (200, json!({ "state": "completed" })));
    }
    let replays = [waiting.await.unwrap().unwrap(), world.pay("k-1").send().await];
    // The service has not answered yet.
    let mut other = paid();
    other["body"] = "else".into();
    assert_eq!(say(&world.proxy, &by, "complete", other).await, (409, "already-completed".into()));
    assert_eq!(not_executed(&world.proxy, &by).await, (409, "already-completed".into()));
    let point = json!({ "name": "late" });
    assert_eq!(say(&world.proxy, &by, "recovery-point", point).await, (409, "already-completed".into()));
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.oncegate_status(), &*first.text()), (201, Some("executed"), "paid"));
    assert_eq!((first.all("x-a"), first.field("set-cookie")), (vec!["1", "2"], None));
    let expires = httpdate::parse_http_date(first.field("idempotency-key-expires").unwrap()).unwrap();
    let lives = expires.duration_since(SystemTime::now()).unwrap();
    assert!(lives.abs_diff(Duration::from_secs(7_200)) < Duration::from_secs(30), "{lives:?}");
    for replay in replays.into_iter().chain([world.pay("k-1").send().await]) {
        assert_eq!(replay.comparable(), first.replayed());
    }
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(the_client_gets_the_reported_response_even_if_the_answer_differs);
async fn the_client_gets_the_reported_response_even_if_the_answer_differs(store: Store) {
    let world = World::with(store, |setup| setup.route(&route("pay", "upstream_timeout = \"2s\""))).await;
    for (key, answer) in [
        ("error", Answer::status(500)),
        ("gateway", Answer::status(502)),
        ("released", Answer::status(201).field("Oncegate-Decision", "release")),
        ("reset", Answer::reset()),
        ("never", Answer::never()),
    ] {
        let hold = Hold::new();
        let count = world.upstream.executed().len();
        world.upstream.then(answer.hold(&hold));
        let first = world.pay(key).spawn();
        world.upstream.wait_for_executed(count + 1).await;
        assert_eq!(say(&world.proxy, &reservation(&world), "complete", paid()).await.0, 200);
        hold.release();
        let first = first.await.unwrap().unwrap();
        assert_eq!((first.status, first.oncegate_status(), &*first.text()), (201, Some("executed"), "paid"), "{key}");
        assert_eq!(world.pay(key).send().await.comparable(), first.replayed());
    }
}

on_both_stores!(a_late_report_settles_an_unknown_outcome);
async fn a_late_report_settles_an_unknown_outcome(store: Store) {
    let world = World::guarding(store, "").await;
    let (done, undone) = (lost(&world, "done").await, lost(&world, "undone").await);
    assert_eq!(world.pay("done").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    let body = json!({ "status": 200, "headers": { "x-a": "1" }, "body_base64": "AP8=" });
    assert_eq!(say(&world.proxy, &done, "complete", body).await.0, 200);
    let replay = world.pay("done").send().await;
    assert_eq!((replay.status, replay.is_replay(), &*replay.body), (200, true, &b"\0\xff"[..]));

    for _ in 0..2 {
        // The reservation may be in upper case, and the body may be missing.
        let response = saying(&world.proxy, &undone.to_uppercase(), "not-executed").send().await;
        assert_eq!((response.status, response.text().trim()), (200, r#"{"state":"retryable"}"#));
    }
    let next = world.pay("undone").send().await;
    assert_eq!(
        (next.oncegate_status(), world.upstream.last().field("oncegate-attempt")),
        (Some("executed"), Some("2"))
    );
    assert_eq!(not_executed(&world.proxy, &undone).await, (410, "reservation-over".into()));
    assert_eq!(say(&world.proxy, &undone, "complete", paid()).await, (410, "reservation-over".into()));
    let log = Operator::of(&world.proxy).audit().await;
    assert_eq!(log, [["service", "not_executed", "unknown", "retryable"].map(str::to_owned)]);
}

on_both_stores!(a_running_attempt_reported_as_not_executed_is_retried_only_after_its_end);
async fn a_running_attempt_reported_as_not_executed_is_retried_only_after_its_end(store: Store) {
    let world = World::with(store, |setup| setup.short_leases()).await;
    let hold = Hold::new();
    world.upstream.then(Answer::reset().hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let by = reservation(&world);
    for _ in 0..2 {
        assert_eq!(not_executed(&world.proxy, &by).await, (202, json!({ "state": "in_flight" })));
    }
    // It is still so when reports are applied, here and at another instance.
    a_later_report_is_applied(&world).await;
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    if matches!(world.store, Store::Postgres(_)) {
        let other = world.setup.start().await;
        let retry = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#).send().await;
        assert_eq!(retry.outcome(), (409, "in-flight".to_owned()));
        assert_eq!(not_executed(&other, &by).await.0, 202);
    }
    assert_eq!(world.upstream.executed_for("k-1"), 1);
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().outcome(), (502, "upstream-broken".to_owned()));
    let next = eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|next| next.status != 409));
    assert_eq!((next.await.oncegate_status(), world.upstream.executed_for("k-1")), (Some("executed"), 2));
    let log = Operator::of(&world.proxy).audit().await;
    assert_eq!(log, vec![["service", "not_executed", "unknown", "retryable"].map(str::to_owned); 2]);
}

on_both_stores!(an_answer_counts_after_a_report_of_not_executed);
async fn an_answer_counts_after_a_report_of_not_executed(store: Store) {
    let world = World::with(store, |setup| setup.short_leases()).await;
    let hold = Hold::new();
    let (first, by) = taken(&world, "k-1", &hold).await;
    assert_eq!(not_executed(&world.proxy, &by).await.0, 202);
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    a_later_report_is_applied(&world).await;
    assert_eq!(world.pay("k-1").send().await.comparable(), first.replayed());
    let log = Operator::of(&world.proxy).audit().await;
    assert_eq!(log, [["service", "not_executed", "unknown", "retryable"].map(str::to_owned)], "of the later report");
}

#[tokio::test]
async fn an_attempt_running_past_its_lease_is_not_released() {
    let world = World::guarding(Store::postgres().await, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::reset().hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    let by = reservation(&world);
    // The state that another instance's sweeper leaves.
    world.store.tamper("update keys set state = 'unknown', settled_at = reserved_at").await;
    assert_eq!(not_executed(&world.proxy, &by).await, (409, "still-running".into()));
    assert_eq!(world.pay("k-1").send().await.outcome(), (409, "in-flight".to_owned()));
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().outcome(), (502, "upstream-broken".to_owned()));
    assert_eq!(not_executed(&world.proxy, &by).await, (200, json!({ "state": "retryable" })));
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(the_next_attempt_gets_the_previous_recovery_point);
async fn the_next_attempt_gets_the_previous_recovery_point(store: Store) {
    let world = World::guarding(store, "on_unknown = \"retry\"").await;
    let hold = Hold::new();
    let forged = |request: Request| {
        request
            .field("Oncegate-Recovery-Point", "forged")
            .field("Oncegate-Attempt", "9")
            .field("Oncegate-Reservation", "x")
    };
    world.upstream.then(Answer::reset().hold(&hold));
    let first = forged(world.pay("k-1")).spawn();
    world.upstream.wait_for_executed(1).await;
    let call = world.upstream.last();
    assert_eq!((call.field("oncegate-attempt"), call.field("oncegate-recovery-point")), (Some("1"), None));
    assert_eq!(call.field("oncegate-reservation").unwrap().len(), 96);
    for name in ["begun", "charge_created"] {
        let reply = say(&world.proxy, &reservation(&world), "recovery-point", json!({ "name": name })).await;
        assert_eq!(reply, (200, json!({ "recovery_point": name })));
    }
    let operator = Operator::of(&world.proxy);
    let key = operator.get(&format!("/api/v1/keys/{}", operator.id("k-1").await)).await.1;
    assert_eq!((&key["state"], &key["recovery_point"]), (&"in_flight".into(), &"charge_created".into()));
    hold.release();
    first.await.unwrap().unwrap();
    assert_eq!(forged(world.pay("k-1")).send().await.oncegate_status(), Some("executed"));
    let call = world.upstream.last();
    assert_eq!(call.field("oncegate-attempt"), Some("2"));
    assert_eq!(call.field("oncegate-recovery-point"), Some("charge_created"));
    // An unguarded request has no attempt, so the service gets no reservation and its report is refused.
    assert_eq!(forged(world.post("/free").json("{}")).send().await.status, 201);
    let call = world.upstream.last();
    for field in ["oncegate-reservation", "oncegate-attempt", "oncegate-recovery-point"] {
        assert_eq!(call.field(field), None);
    }
}

on_both_stores!(without_a_reservation_a_report_reveals_and_changes_nothing);
async fn without_a_reservation_a_report_reveals_and_changes_nothing(store: Store) {
    let token = "a-token-of-operators";
    let world = World::with(store, |setup| {
        setup.admin(&format!("token = \"{token}\"")).defaults("max_response_body = \"1KiB\"")
    })
    .await;
    let by = lost(&world, "secret-key").await;
    let (id, own) = by.split_at(64);
    let other = "0".repeat(32);
    for what in ["complete", "not-executed", "recovery-point"] {
        for malformed in ["x", &by[..95], &format!("{by}0"), id, own, &by.replace(&by[..1], "g")] {
            assert_eq!(say(&world.proxy, malformed, what, json!({})).await, (404, "no-such-reservation".into()));
        }
        // The refusal does not reveal whether the key exists.
        let documents =
            [format!("{id}{other}"), format!("{}{own}", "0".repeat(64)), "f".repeat(96)].map(async |wrong| {
                let response = saying(&world.proxy, &wrong, what).json(&"x".repeat(2 << 20)).try_send().await;
                response.map(|response| (response.status, response.text()))
            });
        for document in documents {
            // The server does not read the body, so the client may find the connection closed.
            if let Ok((status, document)) = document.await {
                assert_eq!(status, 410);
                assert!(document.contains("reservation-over") && !document.contains("unknown"), "{document}");
            }
        }
        let get = Client { address: world.proxy.admin }.get(&format!("/app/v1/reservations/{by}/{what}"));
        let refused = get.host(&world.proxy.admin.to_string()).send().await;
        assert_eq!(refused.status, 405, "{what}");
        assert_eq!(saying(&world.proxy, &by, what).host("evil.example").send().await.status, 403);
        let foreign = saying(&world.proxy, &by, what).field("Origin", "http://evil.example").send().await;
        assert_eq!(foreign.status, 403);
    }
    for (what, body) in [
        ("complete", json!({})),
        ("complete", json!({ "status": 199 })),
        ("complete", json!({ "status": 204, "body": "x" })),
        ("complete", json!({ "status": 200, "headers": [["a b", "1"]] })),
        ("complete", json!({ "status": 200, "headers": [["a", "1\r\nb: 2"]] })),
        ("complete", json!({ "status": 200, "headers": vec![["a", "1"]; 101] })),
        ("complete", json!({ "status": 200, "body": "a", "body_base64": "YQ==" })),
        ("complete", json!({ "status": 200, "colour": "red" })),
        ("not-executed", json!({ "reason": "x" })),
        ("recovery-point", json!({})),
        ("recovery-point", json!({ "name": "a b" })),
        ("recovery-point", json!({ "name": "x".repeat(129) })),
        ("recovery-point", json!([])),
    ] {
        assert_eq!(say(&world.proxy, &by, what, body.clone()).await, (400, "bad-request".into()), "{body}");
    }
    for large in
        [json!({ "status": 200, "body": "x".repeat(1_025) }), json!({ "status": 200, "body": "x".repeat(1 << 20) })]
    {
        assert_eq!(say(&world.proxy, &by, "complete", large).await, (413, "request-too-large".into()));
    }
    assert_eq!(world.pay("secret-key").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    // Reports do not need the admin token.
    assert_eq!(say(&world.proxy, &by, "complete", json!({ "status": 200, "body": "x".repeat(1_024) })).await.0, 200);
    let logged = format!("{:?}", world.proxy.logged());
    assert!(!logged.contains(own) && !logged.contains("secret-key"), "a token or a key is logged");
}

#[tokio::test]
async fn any_instance_accepts_a_report_and_duplicates_waiting_elsewhere_get_the_response() {
    let lines = route("pay", "in_flight = \"wait\"\nwait_timeout = \"60s\"");
    let world = World::with(Store::postgres().await, |setup| setup.route(&lines)).await;
    let other = world.setup.start().await;
    let hold = Hold::new();
    let (first, by) = taken(&world, "k-1", &hold).await;
    let pay = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    let waiting = pay.spawn();
    assert_eq!(say(&other, &by, "complete", paid()).await.0, 200);
    let replay = waiting.await.unwrap().unwrap();
    assert_eq!((replay.status, replay.is_replay(), &*replay.text()), (201, true, "paid"));
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(replay.comparable(), first.replayed());
    // A response that an operator then releases is in no cache.
    let operator = Operator::of(&world.proxy);
    let id = operator.id("k-1").await;
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0, 200);
    assert_eq!(pay.send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn route_retention_is_stored_for_services_at_start_and_reload() {
    let world = World::with(Store::postgres().await, |setup| setup.route(&route("pay", "ttl = \"1h\""))).await;
    let Store::Postgres(database) = &world.store else { unreachable!() };
    let client = database.client().await;
    let ttl = async || {
        let sql = "select ttl_ms from oncegate.route_retention where service = 'default' and route = 'pay'";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(ttl().await, 3_600_000);
    let text = std::fs::read_to_string(world.proxy.file()).unwrap();
    std::fs::write(world.proxy.file(), text.replace("\"1h\"", "\"3h\"")).unwrap();
    world.proxy.signal(rustix::process::Signal::HUP);
    eventually(TEST_TIMEOUT, async || (ttl().await == 3 * 3_600_000).then_some(())).await;
}
