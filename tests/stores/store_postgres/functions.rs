//! Reports in services' own transactions: the functions that the migrations create.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{join, join_all};
use http::{HeaderMap, HeaderName, HeaderValue};
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::service_report::{ReservationHandle, RouteRetention};
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::fields;
use oncegate_store::{
    self as store, ExpectedRecord, ReapParams, SettleResult, Store, StoreRouteRetentionParams, SweepParams,
};
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

use harness::postgres::{self, Cluster, TestDatabase};
use harness::store_fixture::UNKNOWN;
use harness::store_fixture::{
    DAY, StoreFixture, all_records, any_time, completion, new_reserve_request, next_attempt_request, settlement, token,
    unwrap_lease,
};

/// A service in the proxy's database, with the privileges of `oncegate_app` and a table of orders.
struct App(Client);

impl App {
    async fn of(world: &StoreFixture) -> Self {
        let database = world.database();
        let role = format!("app_of_{}", database.name);
        let make = format!(
            "create role {role} login in role oncegate_app;
             create table public.orders (id integer primary key);
             grant all on public.orders to {role}"
        );
        database.client().await.batch_execute(&make).await.unwrap();
        Self(connect_as(database, &role).await)
    }

    async fn sql(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    async fn complete(
        &self,
        reserve_request: &ReserveRequest,
        status: i32,
        headers: &str,
        body: &[u8],
    ) -> Result<(), String> {
        self.complete_as(&reservation(reserve_request), Some(status), Some(headers), Some(body)).await
    }

    async fn complete_as(
        &self,
        reservation: &str,
        status: Option<i32>,
        headers: Option<&str>,
        body: Option<&[u8]>,
    ) -> Result<(), String> {
        let sql = "select oncegate.complete($1, $2, $3::text::jsonb, $4)";
        self.0.execute(sql, &[&reservation, &status, &headers, &body]).await.map(drop).map_err(code)
    }

    async fn reached(&self, reserve_request: &ReserveRequest, name: &str) -> Result<(), String> {
        let sql = "select oncegate.recovery_point($1, $2)";
        self.0.execute(sql, &[&reservation(reserve_request), &name]).await.map(drop).map_err(code)
    }
}

async fn connect_as(database: &TestDatabase, role: &str) -> Client {
    let url = database.url.replace("postgres://postgres@", &format!("postgres://{role}@"));
    assert_ne!(url, database.url);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn code(error: Error) -> String {
    error.as_db_error().unwrap().code().code().to_owned()
}

fn fails<T>(code: &str) -> Result<T, String> {
    Err(code.to_owned())
}

fn reservation(reserve_request: &ReserveRequest) -> String {
    ReservationHandle { id: reserve_request.id, token: reserve_request.token }.to_hex()
}

async fn orders(world: &StoreFixture) -> i64 {
    world.database().client().await.query_one("select count(*) from public.orders", &[]).await.unwrap().get(0)
}

fn response_of(record: Record) -> Arc<StoredResponse> {
    match record.state {
        KeyState::Completed(completed) => completed.response,
        state => panic!("{state:?}"),
    }
}

const JSON: &str = r#"[["Content-Type", "application/json"]]"#;

#[tokio::test]
async fn a_key_is_completed_exactly_when_its_services_transaction_commits() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;

    app.sql("begin; insert into public.orders values (1)").await;
    app.complete(&reserve_request, 201, JSON, b"\0{\"order\":1}\xff").await.unwrap();
    app.reached(&reserve_request, "charged").await.unwrap_err();
    app.sql("rollback").await;
    assert_eq!((world.find(&reserve_request).await.state.name(), orders(&world).await), ("in_flight", 0));

    app.sql("begin; insert into public.orders values (1)").await;
    app.reached(&reserve_request, "charged").await.unwrap();
    app.complete(&reserve_request, 201, JSON, b"\0{\"order\":1}\xff").await.unwrap();
    assert_eq!((world.find(&reserve_request).await.state.name(), orders(&world).await), ("in_flight", 0));
    let before = SystemTime::now();
    app.sql("commit").await;
    assert_eq!(orders(&world).await, 1);
    let record = world.find(&reserve_request).await;
    let KeyState::Completed(completed) = &record.state else { panic!("{record:?}") };
    let lives = completed.expires_at.unwrap().duration_since(before).unwrap();
    assert!(lives.abs_diff(DAY) < Duration::from_secs(10), "the default TTL applies: {lives:?}");
    let response = response_of(record);
    assert_eq!((response.status.as_u16(), response.body.as_deref()), (201, Some(&b"\0{\"order\":1}\xff"[..])));
    let fields: Vec<_> = response.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(fields, [("content-type", &b"application/json"[..])]);
}

#[tokio::test]
async fn a_repeated_completion_succeeds_and_a_different_one_is_refused() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_requests = ["itself", "proxy"].map(new_reserve_request);
    for reserve_request in &reserve_requests {
        world.reserve(reserve_request).await;
    }
    let [reserve_request, answered] = &reserve_requests;
    for _ in 0..3 {
        app.complete(reserve_request, 201, r#"[["X-A", "1"], ["x-b", " 2"]]"#, b"paid").await.unwrap();
    }
    app.complete(reserve_request, 201, r#"[["x-a", "1"], ["X-B", "2\t"]]"#, b"paid").await.unwrap();
    for (status, headers, body) in [(200, "[]", "paid"), (201, "[]", "paid"), (201, JSON, "paid"), (201, "[]", "")] {
        assert_eq!(app.complete(reserve_request, status, headers, body.as_bytes()).await, fails("OG002"));
    }
    assert_eq!(app.reached(reserve_request, "late").await, fails("OG002"));
    // A response that the proxy has stored counts as well.
    let paid = harness::store_fixture::response(b"paid");
    let response = Arc::new(StoredResponse { trailers: HeaderMap::new(), ..(*paid).clone() });
    world.settle(settlement(answered, AttemptOutcome::Completed { response, ttl: DAY, remember: None })).await;
    assert_eq!(app.complete(answered, 201, JSON, b"else").await, fails("OG002"));
    assert_eq!(response_of(world.find(answered).await).body.as_deref(), Some(&b"paid"[..]));
    // A proxy that gets the answer afterwards finds the stored response.
    let record = world.settle_late(completion(reserve_request, b"answer")).await.unwrap();
    assert_eq!(response_of(record).body.as_deref(), Some(&b"paid"[..]));
}

#[tokio::test]
async fn a_superseded_attempts_transaction_rolls_back() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    world.settle(settlement(&first, UNKNOWN)).await;
    let second = next_attempt_request(&first);
    let seen = ExpectedRecord::from(&world.find(&first).await);
    unwrap_lease(world.take_over(second.clone(), seen).await);

    for say in ["complete", "recovery_point"] {
        app.sql("begin; insert into public.orders values (1)").await;
        let result = match say {
            "complete" => app.complete(&first, 201, JSON, b"stale").await,
            _ => app.reached(&first, "charged").await,
        };
        assert_eq!(result, fails("OG001"));
        // COMMIT of a failed transaction rolls it back.
        app.sql("commit").await;
        assert_eq!(orders(&world).await, 0);
    }
    for wrong in ["", "x", &"0".repeat(96), &reservation(&first)[..94], &format!("{} ", reservation(&second))] {
        assert_eq!(app.complete_as(wrong, Some(201), None, None).await, fails("OG001"), "{wrong:?}");
    }
    let stranger = ReserveRequest { token: token(), ..second.clone() };
    assert_eq!(app.complete(&stranger, 201, JSON, b"stolen").await, fails("OG001"));
    let record = world.find(&second).await;
    assert_eq!((record.state.name(), record.token, record.recovery_point), ("in_flight", second.token, None));
    app.complete(&second, 201, JSON, b"paid").await.unwrap();
}

#[tokio::test]
async fn a_late_completion_counts_in_every_uncompleted_state() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let client = world.database().client().await;
    for state in ["unknown", "dead", "retryable"] {
        let reserve_request = new_reserve_request(state);
        world.reserve(&reserve_request).await;
        let outcome = if state == "retryable" { AttemptOutcome::Retryable { ttl: DAY } } else { UNKNOWN };
        world.settle(settlement(&reserve_request, outcome)).await;
        if state == "dead" {
            client.batch_execute("update oncegate.keys set state = 'dead' where key = 'dead'").await.unwrap();
        }
        assert_eq!(world.find(&reserve_request).await.state.name(), state);
        app.reached(&reserve_request, "charged").await.unwrap();
        app.complete(&reserve_request, 200, "null", b"late").await.unwrap();
        assert_eq!(response_of(world.find(&reserve_request).await).body.as_deref(), Some(&b"late"[..]), "{state}");
    }
    // A lapsed key is gone.
    let lapsed = new_reserve_request("lapsed");
    world.reserve(&lapsed).await;
    let remember = Some(DAY);
    let response = harness::store_fixture::response(b"");
    world.settle(settlement(&lapsed, AttemptOutcome::Completed { response, ttl: Duration::ZERO, remember })).await;
    world.reap(100).await;
    assert_eq!(world.find(&lapsed).await.state.name(), "expired");
    assert_eq!(app.complete(&lapsed, 200, "null", b"").await, fails("OG001"));
}

#[tokio::test]
async fn an_invalid_response_is_refused_and_not_quoted() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let of = reservation(&reserve_request);
    let many = format!("[{}]", vec![r#"["a", "1"]"#; 101].join(", "));
    let large = format!(r#"[["a", "{}"]]"#, "x".repeat(70_000));
    for (status, headers, body) in [
        (None, "[]", &b""[..]),
        (Some(199), "[]", b""),
        (Some(600), "[]", b""),
        (Some(-1), "[]", b""),
        (Some(204), "[]", b"body"),
        (Some(304), "[]", b"body"),
        (Some(200), "{}", b""),
        (Some(200), "\"secret\"", b""),
        (Some(200), r#"[["secret"]]"#, b""),
        (Some(200), r#"[["secret", "1", "2"]]"#, b""),
        (Some(200), r#"[["secret", 1]]"#, b""),
        (Some(200), r#"["secret"]"#, b""),
        (Some(200), r#"[["", "secret"]]"#, b""),
        (Some(200), r#"[["a b", "secret"]]"#, b""),
        (Some(200), r#"[["a:", "secret"]]"#, b""),
        (Some(200), r#"[["ä", "secret"]]"#, b""),
        (Some(200), r#"[["a\n", "secret"]]"#, b""),
        (Some(200), r#"[["a", "secret\r\nset-cookie: b"]]"#, b""),
        (Some(200), r#"[["a", "secret\n"]]"#, b""),
        (Some(200), r#"[["a", "\u0001secret"]]"#, b""),
        (Some(200), r#"[["a", "secret\u007f"]]"#, b""),
        (Some(200), &many, b""),
        (Some(200), &large, b""),
        (Some(200), "[]", &[b'x'; (1 << 20) + 1]),
    ] {
        let sql = "select oncegate.complete($1, $2, $3::text::jsonb, $4)";
        let error = app.0.execute(sql, &[&of, &status, &Some(headers), &Some(body)]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        let message = format!("{:?} {:?} {:?}", error.message(), error.detail(), error.hint());
        assert_eq!(error.code().code(), "22023", "{headers:.60}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
    for name in ["", "a b", "a\nb", "ä", &"x".repeat(129)] {
        assert_eq!(app.reached(&reserve_request, name).await, fails("22023"), "{name:?}");
    }
    assert_eq!(world.find(&reserve_request).await.state.name(), "in_flight");
    // Nulls mean no fields and no body.
    app.complete_as(&of, Some(204), None, None).await.unwrap();
    let response = response_of(world.find(&reserve_request).await);
    assert_eq!((response.headers.len(), response.body.as_deref()), (0, Some(&b""[..])));
}

#[tokio::test]
async fn a_reported_responses_fields_are_filtered_as_in_an_answer() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let terms = RouteRetention {
        route: reserve_request.route.clone(),
        ttl: DAY * 2,
        remember: Some(DAY),
        body_max: 4,
        drop_headers: vec![HeaderName::from_static("x-dropped"), HeaderName::from_static("set-cookie")],
        encrypted: false,
    };
    world
        .store()
        .store_route_retention(StoreRouteRetentionParams {
            service: reserve_request.service.clone(),
            retention: vec![terms.clone()],
        })
        .await
        .unwrap();
    let pairs: &[(&str, &str)] = &[
        ("X-B", "2"),
        ("Content-Type", "text/plain; charset=utf-8"),
        ("X-A", "café: \u{fc}"),
        ("x-b", ""),
        ("Connection", "close, X-Hop ,keep-alive"),
        ("X-Hop", "1"),
        ("Keep-Alive", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "4"),
        ("Upgrade", "h2c"),
        ("TE", "trailers"),
        ("Trailer", "x"),
        ("Expect", "100-continue"),
        ("Proxy-Authenticate", "Basic"),
        ("Proxy-Authorization", "Basic"),
        ("Proxy-Connection", "close"),
        ("HTTP2-Settings", "x"),
        ("Idempotent-Replayed", "true"),
        ("Oncegate-Status", "executed"),
        ("Idempotency-Key-Expires", "never"),
        ("Oncegate-Original-Date", "x"),
        ("Oncegate-Decision", "release"),
        ("Oncegate-TTL", "1h"),
        ("Oncegate-Duplicate-Of", "x"),
        ("Oncegate-Sealed", "x"),
        ("Oncegate-Anything", "x"),
        ("oncegate_status", "executed"),
        ("Oncegate_Sealed", "x"),
        ("idempotent_replayed", "true"),
        ("idempotency-key_expires", "never"),
        ("Content_Length", "4"),
        ("Age", "1"),
        ("Alt-Svc", "h3"),
        ("Server-Timing", "x"),
        ("traceparent", "x"),
        ("RateLimit", "1"),
        ("RateLimit-Policy", "1"),
        ("Set-Cookie", "a=1"),
        ("X-Dropped", "1"),
        ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("X-B", "3\t "),
        ("X-Weird!#$%&'*+.^_`|~", "\"quoted\\\" 'and' \t more"),
    ];
    app.complete(&reserve_request, 201, &serde_json::to_string(pairs).unwrap(), b"paid").await.unwrap();

    let mut expected = HeaderMap::new();
    for (name, value) in pairs {
        let value = value.trim_matches([' ', '\t']).as_bytes();
        expected.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    fields::prepare_for_client(&mut expected);
    let dropped = |name: &HeaderName| fields::is_momentary(name) || terms.drop_headers.contains(name);
    fields::remove(&mut expected, dropped);
    assert_eq!(expected.len(), 7);
    let response = Arc::new(StoredResponse {
        status: http::StatusCode::CREATED,
        headers: expected,
        body: Some("paid".into()),
        trailers: HeaderMap::new(),
    });
    let client = world.database().client().await;
    let sql = "select fields, remember_ms, (expires_at - settled_at) / 1000 from oncegate.keys";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(String::from_utf8(row.get(0)), String::from_utf8(response.encode_fields()));
    assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (86_400_000, 2 * 86_400));
    assert_eq!(response_of(world.find(&reserve_request).await), response);
    // A settlement of the proxy stores the same.
    let next_attempt_request = settlement(
        &reserve_request,
        AttemptOutcome::Completed { response: response.clone(), ttl: DAY, remember: None },
    );
    assert_eq!(response_of(world.settle_late(next_attempt_request).await.unwrap()), response);
    // The routes' retention may change.
    let next = ReserveRequest { ..new_reserve_request("next") };
    world.reserve(&next).await;
    assert_eq!(app.complete(&next, 201, "[]", b"large").await, fails("22023"));
    let more = RouteRetention { body_max: 5, drop_headers: Vec::new(), remember: None, ttl: DAY, ..terms };
    world
        .store()
        .store_route_retention(StoreRouteRetentionParams { service: next.service.clone(), retention: vec![more] })
        .await
        .unwrap();
    app.complete(&next, 201, r#"[["Set-Cookie", "a=1"]]"#, b"large").await.unwrap();
    assert!(response_of(world.find(&next).await).headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn where_responses_are_encrypted_the_functions_refuse() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let publish = async |encrypted| {
        let route = reserve_request.route.clone();
        let retention =
            RouteRetention { route, ttl: DAY, remember: None, body_max: 4, drop_headers: Vec::new(), encrypted };
        let reports = world.store();
        reports
            .store_route_retention(StoreRouteRetentionParams {
                service: reserve_request.service.clone(),
                retention: vec![retention],
            })
            .await
            .unwrap();
    };
    publish(true).await;
    assert_eq!(app.complete(&reserve_request, 201, "[]", b"card").await, fails("OG003"));
    assert!(matches!(world.find(&reserve_request).await.state, KeyState::InFlight));
    publish(false).await;
    app.complete(&reserve_request, 201, "[]", b"card").await.unwrap();
}

#[tokio::test]
async fn a_services_role_may_call_two_functions_and_nothing_else() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let tables = "select relname from pg_class where relnamespace = 'oncegate'::regnamespace and relkind in ('r', 'S')";
    let client = world.database().client().await;
    let names: Vec<String> = client.query(tables, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(names.len() > 7, "{names:?}");
    for name in names {
        for sql in [format!("select from oncegate.{name}"), format!("delete from oncegate.{name}")] {
            assert_eq!(app.0.batch_execute(&sql).await.map_err(code), fails("42501"), "{sql}");
        }
    }
    for sql in [
        "select oncegate.response_fields('[]', '{}')",
        "select oncegate.reserved('')",
        "create table oncegate.mine (n integer)",
        "set role postgres",
    ] {
        assert_eq!(app.0.batch_execute(sql).await.map_err(code), fails("42501"), "{sql}");
    }
    // A role without privileges may not even call them.
    let nobody = format!("nobody_of_{}", world.database().name);
    client.batch_execute(&format!("create role {nobody} login")).await.unwrap();
    let nobody = App(connect_as(world.database(), &nobody).await);
    assert_eq!(nobody.complete(&reserve_request, 200, "[]", b"").await, fails("42501"));
    client.batch_execute("grant usage on schema oncegate to public").await.unwrap();
    assert_eq!(nobody.complete(&reserve_request, 200, "[]", b"").await, fails("42501"));
    assert_eq!(nobody.reached(&reserve_request, "a").await, fails("42501"));
    // The functions resolve no names in the caller's search_path.
    app.sql(
        "create function pg_temp.lower(text) returns text language sql as $$ select 'evil' $$;
         create temp table keys (id bytea); set search_path = pg_temp, pg_catalog",
    )
    .await;
    app.complete(&reserve_request, 200, r#"[["X-A", "1"]]"#, b"paid").await.unwrap();
    assert!(response_of(world.find(&reserve_request).await).headers.contains_key("x-a"));
}

#[tokio::test]
async fn a_services_long_transaction_delays_no_other_key() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let held: Vec<ReserveRequest> = (0..2).map(|i| new_reserve_request(&format!("held-{i}"))).collect();
    let lapsed = new_reserve_request("lapsed");
    for reserve_request in held.iter().chain([&lapsed]) {
        world.reserve(reserve_request).await;
    }
    app.sql("begin").await;
    for reserve_request in &held {
        app.complete(reserve_request, 201, JSON, b"by itself").await.unwrap();
    }
    let store: &Arc<Store> = world.store();
    // The proxy gets the answers meanwhile, and settles them.
    let answers =
        join_all(held.iter().map(|reserve_request| world.store().settle(completion(reserve_request, b"answer"))));
    let others = async {
        let mut longest = Duration::ZERO;
        for round_number in 0..12 {
            let round = Instant::now();
            let reserve_requests: Vec<ReserveRequest> =
                (0..40).map(|i| new_reserve_request(&format!("k-{round_number}-{i}"))).collect();
            join_all(reserve_requests.iter().map(|reserve_request| world.reserve(reserve_request))).await;
            join_all(reserve_requests.iter().map(|reserve_request| world.settle(completion(reserve_request, b"paid"))))
                .await;
            // These instances have no lease: every key in flight is swept unless its row is locked.
            let swept = store
                .sweep(SweepParams { expiry: Duration::from_secs(3_600), limit: 1_000, as_of: any_time() })
                .await
                .unwrap();
            assert!(swept.iter().all(|swept| swept.id == lapsed.id), "{swept:?}");
            store.reap(ReapParams { limit: 100, scope: all_records() }).await.unwrap();
            store.apply_deferred_reports(100).await.unwrap();
            longest = longest.max(round.elapsed());
        }
        // A call that waited for the transaction would take all of the time limit.
        assert!(longest < world.settings.timeout / 2, "{longest:?}");
        assert_eq!(world.find(&lapsed).await.state.name(), "unknown");
        for reserve_request in &held {
            assert_eq!(world.find(reserve_request).await.state.name(), "in_flight");
        }
        app.sql("commit").await;
    };
    let (answers, ()) = join(answers, others).await;
    for settled in answers {
        let SettleResult::Fenced(Some(record)) = settled.unwrap() else { panic!("the service was first") };
        assert_eq!(response_of(record).body.as_deref(), Some(&b"by itself"[..]));
    }
}

#[tokio::test]
async fn one_of_two_simultaneous_completions_by_service_and_proxy_counts() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let (mut by_itself, mut by_proxy) = (0, 0);
    for round in 0..40 {
        let reserve_request = new_reserve_request(&format!("k-{round}"));
        world.reserve(&reserve_request).await;
        let proxy = async {
            // The order varies: sometimes the service is faster, sometimes the proxy.
            for _ in 0..round % 4 {
                world.store().ping().await.unwrap();
            }
            world.store().settle(completion(&reserve_request, b"answer")).await.unwrap()
        };
        let (output, settled) = join(app.complete(&reserve_request, 201, JSON, b"by itself"), proxy).await;
        let stored = response_of(world.find(&reserve_request).await).body.clone().unwrap();
        match (output, settled) {
            (Ok(()), SettleResult::Fenced(Some(record))) => {
                assert_eq!(
                    (&stored[..], response_of(record).body.clone().unwrap()),
                    (&b"by itself"[..], stored.clone())
                );
                by_itself += 1;
            }
            (Err(code), SettleResult::Done { .. }) => {
                assert_eq!((&*code, &stored[..]), ("OG002", &b"answer"[..]));
                by_proxy += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(by_itself + by_proxy, 40);
}

#[tokio::test]
async fn a_services_completion_is_durable_whatever_its_session_settings() {
    let world = StoreFixture::postgres().await;
    let app = App::of(&world).await;
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    app.sql("set synchronous_commit = off; begin").await;
    app.complete(&reserve_request, 201, JSON, b"paid").await.unwrap();
    let set = async || app.0.query_one("show synchronous_commit", &[]).await.unwrap().get::<_, String>(0);
    assert_eq!(set().await, "on");
    app.sql("commit").await;
    assert_eq!(set().await, "off", "its other transactions are its own business");
}

/// The grants of docs/for-services.md for databases whose migrating role may not create roles.
const BY_HAND: &str = "
    grant usage on schema oncegate to oncegate_app;
    grant execute on function oncegate.complete(text, integer, jsonb, bytea) to oncegate_app;
    grant execute on function oncegate.recovery_point(text, text) to oncegate_app;";

#[tokio::test]
async fn a_role_without_createrole_migrates_and_gets_a_notice_of_the_missing_grants() {
    let page = include_str!("../../../docs/for-services.md");
    assert!(BY_HAND.lines().all(|line| page.contains(line.trim())), "docs/for-services.md shows them");
    let cluster = tokio::task::spawn_blocking(|| Cluster::start("")).await.unwrap();
    let root = cluster.empty_database().await;
    let client = root.client().await;
    let make = format!("create role plain login; alter database {} owner to plain", root.name);
    client.batch_execute(&make).await.unwrap();
    let url = root.url.replace("postgres://postgres@", "postgres://plain@");
    // Applied by hand, to read the notices.
    let (plain, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let (tell, mut reply) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message.unwrap() {
                tell.send(notice.message().to_owned()).unwrap();
            }
        }
    });
    for migration in store::pending(&postgres::settings(&url)).await.unwrap() {
        plain.batch_execute(&migration.sql).await.unwrap();
    }
    drop(plain);
    let mut notices = Vec::new();
    while let Some(notice) = reply.recv().await {
        notices.push(notice);
    }
    assert!(notices.iter().any(|notice| notice.contains("oncegate_app is missing")), "{notices:?}");

    client.batch_execute("create role oncegate_app nologin; create role app login in role oncegate_app").await.unwrap();
    connect_as(&root, "plain").await.batch_execute(BY_HAND).await.unwrap();
    let store = store::open(&postgres::settings(&url)).await.unwrap();
    let reserve_request = new_reserve_request("k");
    unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
    let app = App(connect_as(&root, "app").await);
    app.complete(&reserve_request, 201, JSON, b"paid").await.unwrap();
    assert_eq!(response_of(store.find(reserve_request.id).await.unwrap().unwrap()).body.as_deref(), Some(&b"paid"[..]));
}
