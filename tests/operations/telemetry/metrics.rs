//! Each metric changes with the event that it counts, and with no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::Full;
use rustix::process::Signal;

use super::traces::{Collector, traced};
use super::{Metrics, scrape};
use harness::h2;
use harness::operator::{Operator, completed};
use harness::relay::remote;
use harness::{Answer, Hold, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

/// Waits until a series has this value.
async fn becomes(world: &World, series: &str, value: f64) {
    eventually(TEST_TIMEOUT, async || (Metrics::of(&world.proxy).await.get(series) == value).then_some(())).await;
}

fn requests(status: &str) -> String {
    format!("oncegate_requests_total{{route=\"pay\",status=\"{status}\"}}")
}

fn found(result: &str) -> String {
    format!("oncegate_reservations_total{{route=\"pay\",result=\"{result}\"}}")
}

on_both_stores!(accepted_requests_are_counted_by_their_key_state);
async fn accepted_requests_are_counted_by_their_key_state(store: Store) {
    let lines = "delivery = \"async\"\nretry = { base = \"50ms\", cap = \"200ms\" }";
    let world =
        World::with(store, |setup| setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))).await;
    world.upstream.then(Answer::status(503));
    assert_eq!(world.pay("k-1").send().await.status, 202);
    becomes(&world, &found("failed_retry"), 1.0).await;
    assert_eq!(Metrics::of(&world.proxy).await.get(&found("created")), 1.0);
}

on_both_stores!(every_answer_is_counted_by_its_route_and_its_status);
async fn every_answer_is_counted_by_its_route_and_its_status(store: Store) {
    let lines = "key = { required = true }\nmax_request_body = \"1KiB\"";
    let world = World::guarding(store, lines).await;
    let before = Metrics::of(&world.proxy).await;
    for (_, value) in before.0.iter().filter(|(series, _)| series.starts_with("oncegate_requests_total")) {
        assert_eq!(*value, 0.0, "each series is there from the start");
    }
    let mut expected = BTreeMap::new();
    let mut send = async |request: harness::Request| {
        let response = request.send().await;
        *expected.entry(response.oncegate_status().unwrap().to_owned()).or_insert(0.0) += 1.0;
        response
    };
    send(world.pay("k-1")).await;
    send(world.pay("k-1")).await;
    send(world.pay("k-1").body("else")).await;
    send(world.post("/pay").body("no key")).await;
    send(world.pay("k-2").body(vec![b'x'; 2_000])).await;
    world.upstream.then(Answer::status(500));
    send(world.pay("k-3")).await;
    send(world.pay("k-3")).await;
    world.upstream.then(Answer::close());
    send(world.pay("k-4")).await;
    send(world.pay("k-4")).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("k-5").spawn();
    world.upstream.wait_for_executed(5).await;
    becomes(&world, "oncegate_in_flight", 1.0).await;
    send(world.pay("k-5")).await;
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    *expected.entry("executed".to_owned()).or_insert(0.0) += 1.0;

    let after = Metrics::of(&world.proxy).await;
    assert_eq!(expected.len(), 7, "{expected:?}");
    for status in ["bypassed", "observed", "unstored"] {
        expected.insert(status.to_owned(), 0.0);
    }
    for (status, count) in &expected {
        assert_eq!(after.get(&requests(status)), *count, "{status}");
    }
    let all: f64 = expected.values().sum();
    assert_eq!(after.sum("oncegate_requests_total{"), all);
    assert_eq!(after.get("oncegate_request_duration_seconds_count"), all);
    assert_eq!(after.get("oncegate_request_duration_seconds_bucket{le=\"+Inf\"}"), all);
    assert_eq!(after.get("oncegate_upstream_duration_seconds_count"), world.upstream.calls() as f64);
    for (result, count) in [
        ("created", 4.0),
        ("replay", 1.0),
        ("in_flight", 1.0),
        ("key_misuse", 1.0),
        ("failed_retry", 1.0),
        ("unknown", 1.0),
        ("expired", 0.0),
    ] {
        assert_eq!(after.get(&found(result)), count, "{result}");
    }
    assert_eq!(after.get("oncegate_in_flight"), 0.0);
    assert_eq!(
        after.get("oncegate_cache_hits_total{tier=\"memory\"}"),
        2.0,
        "a replay and a misuse of what is completed"
    );
    for op in ["reserve", "settle", "take_over", "renew"] {
        assert!(after.get(&format!("oncegate_store_duration_seconds_count{{op=\"{op}\"}}")) > 0.0, "{op}");
        assert_eq!(after.get(&format!("oncegate_store_errors_total{{op=\"{op}\"}}")), 0.0);
    }
    assert_eq!(after.sum("oncegate_unguarded_total"), 0.0);
}

#[tokio::test]
async fn expired_and_reaped_keys_are_counted() {
    let world = World::with(Store::sqlite(), |setup| {
        let refusing = "ttl = \"1s\"\nafter_ttl = \"refuse\"\nremember = \"1h\"";
        setup.store("reap_every = \"100ms\"").route(&route("pay", refusing)).route(&route("brief", "ttl = \"1s\""))
    })
    .await;
    world.pay("k-1").send().await;
    world.post("/brief").key("k-1").body("x").send().await;
    becomes(&world, "oncegate_keys_reaped_total", 1.0).await;
    let late = eventually(TEST_TIMEOUT, async || Some(world.pay("k-1").send().await).filter(|late| late.status == 410));
    late.await;
    assert_eq!(Metrics::of(&world.proxy).await.get(&found("expired")), 1.0);
}

#[tokio::test]
async fn a_disconnected_clients_request_is_counted_by_its_intended_answer() {
    let world = World::guarding(Store::sqlite(), "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let exchange = world.pay("k-1").open().await.unwrap();
    world.upstream.wait_for_executed(1).await;
    drop(exchange);
    hold.release();
    becomes(&world, &requests("executed"), 1.0).await;
    let line = world.proxy.wait_for_log("request").await;
    assert_eq!((&line["oncegate_status"], &line["key"]), (&"executed".into(), &"k-1".into()));
}

#[tokio::test]
async fn unguarded_unsafe_requests_are_counted_by_method() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", ""))
            .route(&route("off", "mode = \"off\""))
            .route(&route("watched", "mode = \"observe\""))
    })
    .await;
    let client = world.proxy.client();
    for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PURGE", "X-SECRET-9"] {
        client.request(method, "/elsewhere").send().await;
    }
    world.post("/pay").body("no key").send().await;
    world.post("/off").key("k-1").body("x").send().await;
    assert_eq!(world.post("/watched").key("k-1").body("x").send().await.oncegate_status(), Some("observed"));
    let metrics = Metrics::of(&world.proxy).await;
    for (method, count) in [("POST", 3.0), ("PUT", 1.0), ("PATCH", 1.0), ("DELETE", 1.0), ("other", 2.0)] {
        assert_eq!(metrics.get(&format!("oncegate_unguarded_total{{method=\"{method}\"}}")), count, "{method}");
    }
    assert_eq!(metrics.sum("oncegate_unguarded_total"), 8.0);
    assert_eq!(metrics.sum("oncegate_requests_total"), 1.0);
    assert_eq!(metrics.get("oncegate_requests_total{route=\"watched\",status=\"observed\"}"), 1.0);
    let created = "oncegate_reservations_total{route=\"watched\",result=\"created\"}";
    becomes(&world, created, 1.0).await;
}

on_both_stores!(stored_keys_are_counted_by_state);
async fn stored_keys_are_counted_by_state(store: Store) {
    let world = World::guarding(store, "").await;
    world.pay("k-1").send().await;
    world.pay("k-2").send().await;
    world.upstream.then(Answer::close());
    world.pay("k-3").send().await;
    // The first scrape counts the keys.
    let metrics = Metrics::of(&world.proxy).await;
    for (state, count) in
        [("completed", 2.0), ("unknown", 1.0), ("dead", 0.0), ("expired", 0.0), ("in_flight", 0.0), ("retryable", 0.0)]
    {
        assert_eq!(metrics.get(&format!("oncegate_keys{{state=\"{state}\"}}")), count, "{state}");
    }
    assert_eq!(metrics.get("oncegate_jobs_dead"), 0.0);
    world.pay("k-4").send().await;
    let again = Metrics::of(&world.proxy).await;
    assert_eq!(again.get("oncegate_keys{state=\"completed\"}"), 2.0, "not counted again within ten seconds");
}

#[tokio::test]
async fn a_count_that_outlasts_its_scrape_is_shown_by_the_next() {
    let world = World::with(Store::postgres().await, |setup| setup.store("timeout = \"60s\"")).await;
    let Store::Postgres(database) = &world.store else { unreachable!("it is PostgreSQL") };
    let holder = database.client().await;
    holder.batch_execute("begin; lock table oncegate.keys in access exclusive mode").await.unwrap();
    // The store's time limit is longer than the client's: a scrape that waited for the count would not be read.
    assert!(!Metrics::of(&world.proxy).await.0.contains_key("oncegate_keys{state=\"completed\"}"));
    holder.batch_execute("rollback").await.unwrap();
    let counted = async || Metrics::of(&world.proxy).await.0.contains_key("oncegate_keys{state=\"completed\"}");
    eventually(TEST_TIMEOUT, async || counted().await.then_some(())).await;
}

on_both_stores!(a_dead_instances_keys_are_counted_when_they_are_swept);
async fn a_dead_instances_keys_are_counted_when_they_are_swept(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    world.upstream.then(Answer::never());
    let _first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.crash_and_restart().await;
    becomes(&world, "oncegate_zombie_keys_total", 1.0).await;
    becomes(&world, "oncegate_unknown_total{route=\"default\",cause=\"crashed\"}", 1.0).await;
    world.proxy.wait_for_logs("its outcome is unknown", 1).await;
    eventually(TEST_TIMEOUT, async || (world.pay("k-1").send().await.outcome().1 == "outcome-unknown").then_some(()))
        .await;
}

#[tokio::test]
async fn a_settlement_after_the_lease_is_counted() {
    let world = World::with(Store::postgres().await, |setup| setup.short_leases().route(&route("pay", ""))).await;
    let beside = world.setup.start().await;
    let (taken, dropped) =
        ("oncegate_late_completions_total{result=\"taken\"}", "oncegate_late_completions_total{result=\"dropped\"}");
    for (number, (key, series)) in [("k-1", taken), ("k-2", dropped)].into_iter().enumerate() {
        let hold = Hold::new();
        world.upstream.then(Answer::status(201).hold(&hold));
        let first = world.pay(key).spawn();
        world.upstream.wait_for_executed(number + 1).await;
        world.proxy.signal(Signal::STOP);
        let operator = Operator::of(&beside);
        let id = operator.id_when(key, "unknown").await;
        if series == dropped {
            assert_eq!(operator.resolve(&id, completed(200, "found in the ledger")).await.0, 200);
        }
        world.proxy.signal(Signal::CONT);
        hold.release();
        first.await.unwrap().unwrap();
        let is_counted = async || Metrics::of(&world.proxy).await.get(series) == 1.0;
        eventually(TEST_TIMEOUT, async || is_counted().await.then_some(())).await;
        // It may start nothing before its lease is back.
        eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.0 == 200).then_some(())).await;
    }
    assert_eq!(Metrics::of(&beside).await.sum("oncegate_zombie_keys_total"), 2.0);
}

#[tokio::test]
async fn inquiries_are_counted_by_their_result() {
    let lookup = Upstream::start().await;
    let url = format!("http://{}/lookup?key={{key}}", lookup.address);
    let lines = format!(
        "upstream_timeout = \"500ms\"\nreconcile = {{ url = \"{url}\", after = \"0s\", every = \"100ms\", max_attempts = 2 }}"
    );
    let world = World::with(Store::sqlite(), |setup| {
        setup.short_leases().store("timeout = \"500ms\"").route(&route("pay", &lines))
    })
    .await;
    let result = |result: &str| format!("oncegate_reconcile_total{{result=\"{result}\"}}");
    lookup.then(Answer::status(500)).then(Answer::status(200));
    world.upstream.then(Answer::close()).then(Answer::close());
    world.pay("k-1").send().await;
    becomes(&world, &result("resolved"), 1.0).await;
    let metrics = Metrics::of(&world.proxy).await;
    assert_eq!((metrics.get(&result("scheduled")), metrics.get(&result("failed"))), (2.0, 1.0));
    lookup.answer_all(Answer::status(500));
    world.pay("k-2").send().await;
    Operator::of(&world.proxy).id_when("k-2", "dead").await;
    becomes(&world, "oncegate_jobs_dead", 1.0).await;
    becomes(&world, "oncegate_keys{state=\"dead\"}", 1.0).await;
    let metrics = Metrics::of(&world.proxy).await;
    assert_eq!(metrics.get(&result("resolved")), 1.0);
    assert_eq!(metrics.get("oncegate_unknown_resolved_seconds_count"), 1.0, "a key that was given up is not resolved");
}

#[tokio::test]
async fn a_store_outage_shows_in_the_error_and_breaker_metrics() {
    let (world, relay) =
        remote(|setup| setup.route(&route("pay", "")).route(&route("bypassed", "store_down = \"bypass\""))).await;
    world.pay("k-1").send().await;
    Metrics::of(&world.proxy).await;
    relay.cut();
    let is_open = async || {
        world.pay("k-2").send().await;
        (Metrics::of(&world.proxy).await.get("oncegate_store_breaker_open") == 1.0).then_some(())
    };
    eventually(TEST_TIMEOUT, is_open).await;
    let metrics = Metrics::of(&world.proxy).await;
    assert!(metrics.get("oncegate_store_errors_total{op=\"reserve\"}") >= 5.0);
    let failed = |route: &str| format!("oncegate_failed_total{{route=\"{route}\"}}");
    assert_eq!(metrics.get(&failed("pay")), metrics.get(&requests("rejected")), "each of them got 503");
    assert_eq!(metrics.get(&failed("bypassed")), 0.0);
    assert_eq!(metrics.get("oncegate_keys{state=\"completed\"}"), 1.0, "the last count is still shown");
    assert_eq!(world.post("/bypassed").key("k-1").body("x").send().await.oncegate_status(), Some("bypassed"));
    let bypassed = "oncegate_requests_total{route=\"bypassed\",status=\"bypassed\"}";
    assert_eq!(Metrics::of(&world.proxy).await.get(bypassed), 1.0);
}

#[tokio::test]
async fn a_reload_shows_whether_the_newest_configuration_runs() {
    let world = World::guarding(Store::sqlite(), "").await;
    let (successful, failures, at) = (
        "oncegate_config_last_reload_successful",
        "oncegate_config_reload_failures_total",
        "oncegate_config_last_reload_success_timestamp_seconds",
    );
    becomes(&world, successful, 1.0).await;
    let started = Metrics::of(&world.proxy).await.get(at);
    let text = std::fs::read_to_string(world.proxy.file()).unwrap();
    std::fs::write(world.proxy.file(), "not TOML").unwrap();
    world.proxy.signal(Signal::HUP);
    becomes(&world, successful, 0.0).await;
    let broken = Metrics::of(&world.proxy).await;
    assert!(broken.get(failures) >= 1.0);
    assert_eq!(broken.get(at), started);
    // The timestamp has whole seconds.
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as f64;
    eventually(TEST_TIMEOUT, async || (now() > started).then_some(())).await;
    std::fs::write(world.proxy.file(), text).unwrap();
    world.proxy.signal(Signal::HUP);
    becomes(&world, successful, 1.0).await;
    assert!(Metrics::of(&world.proxy).await.get(at) > started);
}

#[tokio::test]
async fn every_label_value_is_fixed_or_a_route_name_and_no_token_is_needed() {
    let token = "token = \"c29tZXRoaW5nIHNlY3JldA==\"";
    let world = World::with(Store::sqlite(), |setup| setup.admin(token).route(&route("pay", ""))).await;
    world.pay("k-1").field("Authorization", "Bearer alice").send().await;
    let metrics = Metrics::of(&world.proxy).await;
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("route", &["pay"][..]),
        (
            "status",
            &[
                "attached",
                "bypassed",
                "executed",
                "in-flight",
                "key-reused",
                "observed",
                "queued",
                "rejected",
                "released",
                "replayed",
                "streaming",
                "unknown",
                "unstored",
            ],
        ),
        (
            "result",
            &[
                "created",
                "expired",
                "failed_retry",
                "in_flight",
                "key_misuse",
                "redelivery",
                "replay",
                "unknown",
                "failed",
                "scheduled",
                "resolved",
                "dropped",
                "taken",
                "hit",
                "invalid",
                "miss",
                "outdated",
                "unconnected",
                "written",
            ],
        ),
        (
            "op",
            &[
                "claim_inquiries",
                "count_live_keys",
                "enqueue",
                "extend_deadline",
                "find",
                "find_parts",
                "give_up",
                "list_in_flight",
                "list_settled_keys",
                "move_live_keys",
                "pick_up",
                "ping",
                "reap",
                "release_lease",
                "renew",
                "reserve",
                "resolve",
                "route_identities",
                "settle",
                "sweep",
                "take_over",
            ],
        ),
        ("direction", &["backward", "forward"]),
        // The parts of the default scope, as the configuration names them.
        ("part", &["authorization", "header:x-api-key"]),
        (
            "reason",
            &[
                "algorithm",
                "audience",
                "claim",
                "expired",
                "issuer",
                "malformed",
                "not_yet_valid",
                "required",
                "signature",
                "unknown_key",
            ],
        ),
        ("fault", &["missing", "stale", "wrong"]),
        ("state", &["completed", "dead", "expired", "in_flight", "queued", "retryable", "unknown"]),
        ("tier", &["memory", "shared"]),
        ("issuer", &["admin.oidc", "jwt"]),
        ("limit", &["connections", "connections_per_peer", "held_bodies", "upstream_connections"]),
        ("method", &["DELETE", "PATCH", "POST", "PUT", "other"]),
        ("version", &[env!("CARGO_PKG_VERSION")]),
        // A digest of the configuration.
        ("identity", &[]),
    ]);
    let mut seen = BTreeSet::new();
    for series in metrics.0.keys() {
        let Some((_, labels)) = series.split_once('{') else { continue };
        for label in labels.trim_end_matches('}').split(',') {
            let (name, value) = label.split_once('=').unwrap();
            if name == "le" {
                continue;
            }
            let value = value.trim_matches('"');
            let is_digest = name == "identity" && value.len() == 16 && u64::from_str_radix(value, 16).is_ok();
            assert!(is_digest || allowed[name].contains(&value), "{series}");
            seen.insert(name.to_owned());
        }
    }
    assert_eq!(seen.len(), allowed.len(), "{seen:?}");
}

#[tokio::test]
async fn metric_names_are_the_documented_ones_and_pass_promtool() {
    let world = World::guarding(Store::sqlite(), "").await;
    world.pay("k-1").send().await;
    let text = scrape(&world.proxy, "").await.text();
    let described: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let page = include_str!("../../../docs/metrics.md");
    let table = page.split("\n\n").find(|part| part.starts_with("| metric")).unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let names = cells.flat_map(|cell| cell.split('`').filter_map(|name| name.split('{').next()));
    let documented: BTreeSet<_> =
        names.filter(|name| name.starts_with("oncegate_") || name.starts_with("process_")).collect();
    assert_eq!(documented, described);
    let process = Metrics::of(&world.proxy).await;
    let now = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - process.get("process_start_time_seconds")).abs() < 600.0);
    assert!(process.get("process_resident_memory_bytes") > 1e6 && process.get("process_open_fds") > 5.0);
    assert!(process.get("process_cpu_seconds_total") < 600.0 && process.get("process_max_fds") > 10.0);

    let modern = scrape(&world.proxy, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert_eq!(modern.field("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(modern.text().ends_with("# EOF\n") && modern.text().contains("# TYPE oncegate_requests counter\n"));
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return harness::skip("promtool is not installed");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[tokio::test]
async fn a_recorded_traces_id_is_the_exemplar_of_its_durations_in_openmetrics() {
    let collector = Collector::start().await;
    let world = World::with(Store::sqlite(), |setup| {
        traced(setup.route(&route("pay", "")), &format!("http://{}", collector.address))
    })
    .await;
    let trace = |number: u8| format!("{:031}{number}", 0);
    for (number, sampled) in [(1, "01"), (2, "00")] {
        let traceparent = format!("00-{}-b7ad6b7169203331-{sampled}", trace(number));
        world.pay(&format!("k-{number}")).field("traceparent", &traceparent).send().await;
    }
    becomes(&world, &requests("executed"), 2.0).await;
    let classic = scrape(&world.proxy, "").await.text();
    assert!(!classic.contains(&trace(1)), "{classic}");
    let modern = scrape(&world.proxy, "application/openmetrics-text;version=1.0.0").await.text();
    let exemplars: Vec<_> = modern.lines().filter(|line| line.contains(" # {")).collect();
    assert_eq!(exemplars.len(), 2, "{exemplars:#?}");
    for (line, name) in exemplars.iter().zip(["request", "upstream"]) {
        let (bucket, exemplar) = line.split_once(" # ").unwrap();
        assert!(bucket.starts_with(&format!("oncegate_{name}_duration_seconds_bucket{{")), "{line}");
        let (labels, value) = exemplar.split_once("} ").unwrap();
        assert_eq!(labels, format!("{{trace_id=\"{}\"", trace(1)));
        let (took, at) = value.split_once(' ').unwrap();
        let le = bucket.split_once("le=\"").unwrap().1.split('"').next().unwrap();
        assert!(took.parse::<f64>().unwrap() <= le.replace("+Inf", "inf").parse().unwrap(), "{line}");
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((now - at.parse::<f64>().unwrap()).abs() < 600.0, "{line}");
    }
    // The reader of Prometheus' own client library, which refuses what is not OpenMetrics.
    let program = "import sys\n\
                   from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
                   for family in read(sys.stdin.read()):\n    \
                       for sample in family.samples:\n        \
                           if sample.exemplar: print(sample.name, sample.exemplar.labels['trace_id'])\n";
    let has_library =
        Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    if !has_library.is_ok_and(|status| status.success()) {
        return harness::skip("python3-prometheus-client is not installed");
    }
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = python.spawn().unwrap();
    reader.stdin.take().unwrap().write_all(modern.as_bytes()).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected =
        ["request", "upstream"].map(|name| format!("oncegate_{name}_duration_seconds_bucket {}\n", trace(1)));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.concat());
}

on_both_stores!(a_request_whose_client_has_left_is_counted_with_its_outcome);
async fn a_request_whose_client_has_left_is_counted_with_its_outcome(store: Store) {
    let world = World::guarding(store, "").await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let mut client = h2::connect::<Full<Bytes>>(&world).await;
    let request = http::Request::post("http://shop.example/pay")
        .header("idempotency-key", "k-1")
        .header("authorization", "Bearer a")
        .body(Full::from("10 EUR"))
        .unwrap();
    let response = tokio::spawn(client.send_request(request));
    world.upstream.wait_for_executed(1).await;
    // Dropping the response resets the stream, and the proxy drops the request's future.
    response.abort();
    drop(client);
    // Each worker has had something to do since, so the first request's worker has noticed the reset.
    for number in 0..8 {
        world.pay(&format!("other-{number}")).send().await;
    }
    hold.release();
    becomes(&world, &requests("executed"), 9.0).await;
}
