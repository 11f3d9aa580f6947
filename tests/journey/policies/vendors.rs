//! Calls to other people's APIs: an unknown outcome ends by the vendor's own promise about keys.

use std::time::Duration;

use futures_util::future::join_all;
use harness::metrics::Metrics;
use harness::operator::Operator;
use harness::vendor::{VendorDouble, VendorFault, VendorRules};
use harness::{Response, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route, skip};
use oncegate_domain::rfc3339;

const DAY: Duration = Duration::from_secs(86_400);
const STRIPE: VendorRules = VendorRules { field: "idempotency-key", window: DAY };

/// A world before this vendor, with a route to it at `/pay` and these lines in it.
async fn calling(store: Store, vendor: &VendorDouble, lines: &str) -> World {
    World::with(store, |setup| {
        let setup = setup.upstream(vendor.address).top("secret = \"a secret of some length\"").short_leases();
        setup.route(&route("pay", lines))
    })
    .await
}

fn id(answer: &Response) -> Option<String> {
    Some(serde_json::from_slice::<serde_json::Value>(&answer.body).ok()?["id"].as_str()?.to_owned())
}

on_both_stores!(a_lost_answer_of_a_vendor_is_asked_for_again_while_the_client_waits);
async fn a_lost_answer_of_a_vendor_is_asked_for_again_while_the_client_waits(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let world = calling(store, &vendor, "vendor = \"stripe\"\nretry = { base = \"100ms\", cap = \"1s\" }").await;
    for (key, faults) in [
        ("k-1", vec![VendorFault::LosesAnswer]),
        ("k-2", vec![VendorFault::Refuses, VendorFault::LosesAnswerAtGateway, VendorFault::Limits]),
        ("k-3", vec![VendorFault::LosesAnswer, VendorFault::LosesAnswer, VendorFault::Limits]),
        ("k-4", vec![VendorFault::LosesAnswer, VendorFault::AsksForAnHour]),
    ] {
        vendor.then(faults);
        let answer = world.pay(key).send().await;
        assert_eq!((answer.status, answer.oncegate_status()), (201, Some("executed")), "{key}");
        let replay = world.pay(key).send().await;
        assert_eq!((replay.is_replay(), id(&replay)), (true, id(&answer)), "{key}");
    }
    assert_eq!(vendor.charges().len(), 4);
    let states: Vec<_> = Operator::of(&world.proxy).keys("state=unknown").await;
    assert!(states.is_empty(), "{states:?}");
}

on_both_stores!(a_repetition_at_a_vendor_is_shown_and_counts_as_no_answer_and_no_unknown_key);
async fn a_repetition_at_a_vendor_is_shown_and_counts_as_no_answer_and_no_unknown_key(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = "vendor = \"stripe\"\nwait_timeout = \"100ms\"\nretry = { base = \"1s\", cap = \"1s\" }";
    let world = calling(store, &vendor, lines).await;
    vendor.then(vec![VendorFault::LosesAnswer; 3]);
    let refused = world.pay("k-1").send().await;
    assert_eq!((refused.status, refused.oncegate_status()), (409, Some("unknown")));
    assert!(refused.text().contains("may be asking the service"), "{}", refused.text());
    let operator = Operator::of(&world.proxy);
    let path = format!("/api/v1/keys/{}", operator.id("k-1").await);
    let due = async || Some(operator.get(&path).await.1).filter(|shown| shown["next_try_at"].is_string());
    let shown = eventually(TEST_TIMEOUT, due).await;
    let time = |name: &str| rfc3339::parse(shown[name].as_str().unwrap()).unwrap();
    assert_eq!(time("repeats_until").duration_since(time("created_at")).unwrap(), DAY * 3 / 4, "{shown}");
    operator.id_when("k-1", "completed").await;
    let metrics = Metrics::of(&world.proxy).await;
    assert_eq!(metrics.get("oncegate_requests_total{route=\"pay\",status=\"unknown\"}"), 1.0);
    assert_eq!(metrics.get("oncegate_requests_total{route=\"pay\",status=\"executed\"}"), 0.0);
    assert_eq!(metrics.get("oncegate_unknown_total{route=\"pay\",cause=\"broken\"}"), 1.0);
    assert_eq!(vendor.charges().len(), 1);
}

on_both_stores!(the_sdk_of_a_vendor_reads_the_refusals_as_the_vendors_errors);
async fn the_sdk_of_a_vendor_reads_the_refusals_as_the_vendors_errors(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let world = calling(store, &vendor, "vendor = \"stripe\"").await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let other = world.post("/pay").key("k-1").json("{}").send().await;
    let error: serde_json::Value = serde_json::from_slice(&other.body).unwrap();
    assert_eq!((other.status, &error["error"]["type"]), (400, &"idempotency_error".into()), "{error}");
    // The vendor's own word about a status counts, and not that of its dialect.
    vendor.then([VendorFault::LosesAnswerAtGateway, VendorFault::Refuses]);
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"));
    assert_eq!(vendor.charges().len(), 2);
}

on_both_stores!(a_duplicate_waits_for_the_repetition_too);
async fn a_duplicate_waits_for_the_repetition_too(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let world = calling(store, &vendor, "vendor = \"stripe\"\nupstream_timeout = \"1s\"").await;
    vendor.then([VendorFault::Hangs(Duration::from_secs(2))]);
    let answers = join_all([world.pay("k-1").send(), world.pay("k-1").send()]).await;
    let told: Vec<_> = answers.iter().map(|answer| (answer.status, id(answer))).collect();
    assert_eq!(told, vec![(201, Some("ch_1".to_owned())); 2]);
    assert_eq!(answers.iter().filter(|answer| answer.is_replay()).count(), 1);
    assert_eq!(vendor.charges().len(), 1);
}

on_both_stores!(a_killed_proxy_repeats_what_it_had_sent_and_charges_once);
async fn a_killed_proxy_repeats_what_it_had_sent_and_charges_once(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let mut world = calling(store, &vendor, "vendor = \"stripe\"").await;
    vendor.then([VendorFault::Delays(Duration::from_millis(300))]);
    drop(world.pay("k-1").open().await.unwrap());
    eventually(TEST_TIMEOUT, async || (vendor.heads().len() == 1).then_some(())).await;
    world.crash_and_restart().await;
    // The worker that comes back waits too.
    let answer = world.pay("k-1").send().await;
    assert_eq!((answer.status, answer.is_replay()), (201, true));
    assert_eq!((vendor.charges().len(), id(&answer)), (1, Some("ch_1".to_owned())));
    assert!(vendor.heads().len() >= 2, "it was asked again");
}

on_both_stores!(a_vendor_is_not_asked_again_once_it_may_have_forgotten_the_key);
async fn a_vendor_is_not_asked_again_once_it_may_have_forgotten_the_key(store: Store) {
    let forgetful = VendorRules { window: Duration::from_millis(100), ..STRIPE };
    let vendor = VendorDouble::start(forgetful).await;
    let mut world = calling(store, &vendor, "vendor = \"stripe\"\nwait_timeout = \"1s\"").await;
    vendor.then([VendorFault::Hangs(Duration::from_secs(5))]);
    drop(world.pay("k-1").open().await.unwrap());
    eventually(TEST_TIMEOUT, async || (vendor.charges().len() == 1).then_some(())).await;
    world.proxy.kill9().await;
    // Three quarters of a day are over.
    world.store.tamper("update outbox set since = since - 64800001").await;
    world.crash_and_restart().await;
    Operator::of(&world.proxy).id_when("k-1", "unknown").await;
    // Each look of the deliverer for what is due would send it.
    let looks = "oncegate_store_duration_seconds_count{op=\"pick_up\"}";
    let picked = async || Metrics::of(&world.proxy).await.get(looks);
    let enough = picked().await + 3.0;
    eventually(TEST_TIMEOUT, async || (picked().await >= enough).then_some(())).await;
    Operator::of(&world.proxy).id_when("k-1", "unknown").await;
    assert_eq!(vendor.charges().len(), 1, "a person decides");
    let retry = world.pay("k-1").send().await;
    assert_eq!((retry.status, retry.oncegate_status()), (409, Some("unknown")));
}

on_both_stores!(a_vendor_gets_its_own_field_its_own_host_and_nothing_of_ours);
async fn a_vendor_gets_its_own_field_its_own_host_and_nothing_of_ours(store: Store) {
    let vendor = VendorDouble::start(VendorRules { field: "paypal-request-id", window: DAY }).await;
    let world = calling(store, &vendor, "vendor = \"paypal\"").await;
    let long = "k".repeat(200);
    for key in ["k-1", &long] {
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("executed"));
    }
    for key in ["k-3", &format!("k-4-{long}")] {
        let own = world.post("/pay").field("PayPal-Request-Id", key).json("{}").send().await;
        assert_eq!(own.oncegate_status(), Some("executed"));
    }
    let heads = vendor.heads();
    let keys: Vec<_> = heads.iter().map(|head| head.all("paypal-request-id").collect::<Vec<_>>().join(",")).collect();
    assert_eq!((keys[0].as_str(), keys[1].len(), keys[2].as_str(), keys[3].len()), ("k-1", 36, "k-3", 36));
    // The record says which. A key that is too long for its vendor is another one there in its own field too.
    let operator = Operator::of(&world.proxy);
    for (own, at_vendor) in [("k-1", &keys[0]), (&long, &keys[1]), ("k-3", &keys[2])] {
        let (_, shown) = operator.get(&format!("/api/v1/keys/{}", operator.id(own).await)).await;
        assert_eq!(shown["vendor_key"], at_vendor.as_str(), "{shown}");
    }
    for head in &heads {
        let host = vendor.address.to_string();
        assert_eq!(head.all("host").collect::<Vec<_>>(), [host.as_str()]);
        let ours =
            ["idempotency-key", "x-forwarded-for", "forwarded", "via", "oncegate-reservation", "oncegate-attempt"];
        assert!(ours.iter().all(|name| head.all(name).next().is_none()), "{head:?}");
    }
}

on_both_stores!(a_vendor_without_keys_is_not_asked_again);
async fn a_vendor_without_keys_is_not_asked_again(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = format!(
        "vendor = \"none\"\nupstream_timeout = \"1s\"\nkey = {{ from = \"json:/order\" }}\n\
         set_headers = {{ Authorization = \"Bearer sk_test_hunter2\" }}\n\
         reconcile = {{ url = \"http://{}/charges?order={{key}}\", after = \"1s\", every = \"1s\" }}",
        vendor.address
    );
    let world = calling(store, &vendor, &lines).await;
    vendor.then([VendorFault::LosesAnswer]);
    let order = || world.post("/pay").json(r#"{"order":"o-1"}"#);
    assert_eq!(order().send().await.oncegate_status(), Some("unknown"));
    assert!(vendor.heads()[0].all("idempotency-key").next().is_none());
    // Its search tells.
    let found = eventually(TEST_TIMEOUT, async || Some(order().send().await).filter(|answer| answer.is_replay())).await;
    assert_eq!((id(&found), vendor.charges().len()), (Some("ch_1".to_owned()), 1));
    for head in vendor.heads() {
        assert_eq!(head.all("authorization").collect::<Vec<_>>(), ["Bearer sk_test_hunter2"], "{}", head.start);
    }
}

on_both_stores!(callers_of_one_credential_share_no_key_at_the_vendor_and_hold_no_secret_of_it);
async fn callers_of_one_credential_share_no_key_at_the_vendor_and_hold_no_secret_of_it(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let world = calling(
        store,
        &vendor,
        "vendor = \"stripe\"\nset_headers = { Authorization = \"Bearer sk_test_hunter2\", Stripe-Version = \"2026\" }",
    )
    .await;
    vendor.then([VendorFault::LosesAnswer]);
    for caller in ["ann", "bob"] {
        let answer = world.pay("k-1").field("Authorization", caller).send().await;
        assert_eq!(answer.oncegate_status(), Some("executed"), "{caller}");
    }
    let heads = vendor.heads();
    let keys: Vec<_> = heads.iter().map(|head| head.all("idempotency-key").next().unwrap().to_owned()).collect();
    assert_eq!((heads.len(), keys[0] == keys[1], keys[0] == keys[2]), (3, true, false), "{keys:?}");
    for head in &heads {
        assert_eq!(head.all("authorization").collect::<Vec<_>>(), ["Bearer sk_test_hunter2"]);
        assert_eq!(head.all("stripe-version").collect::<Vec<_>>(), ["2026"]);
    }
}

on_both_stores!(a_vendor_gets_the_key_of_the_route_and_not_the_one_that_an_sdk_has_drawn);
async fn a_vendor_gets_the_key_of_the_route_and_not_the_one_that_an_sdk_has_drawn(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = "vendor = \"stripe\"\nkey = { from = \"json:/order\" }\nscope = [\"none\"]\nallow = [\"scope-none\"]";
    let world = calling(store, &vendor, lines).await;
    let operator = Operator::of(&world.proxy);
    for drawn in ["drawn-1", "drawn-2"] {
        let order = || world.post("/pay").field("Idempotency-Key", drawn).json(r#"{"order":"o-1"}"#);
        vendor.then([VendorFault::LosesAnswer]);
        assert_eq!(order().send().await.oncegate_status(), Some("executed"));
        // The record is lost, as in a failover.
        let id = operator.id("o-1").await;
        assert_eq!(operator.get(&format!("/api/v1/keys/{id}")).await.1["vendor_key"], "o-1");
        assert_eq!(operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0, 200);
    }
    let heads = vendor.heads();
    let keys: Vec<_> = heads.iter().map(|head| head.all("idempotency-key").collect::<Vec<_>>().join(",")).collect();
    assert_eq!((keys, vendor.charges().len()), (vec!["o-1".to_owned(); 4], 1));
}

#[tokio::test]
async fn callers_that_the_vendor_does_not_tell_apart_share_no_key_there() {
    for (scope, is_one) in [
        ("\"authorization\"", true),
        ("\"authorization\", \"header:stripe-account\"", true),
        ("\"authorization\", \"header:x-region\"", false),
        ("\"authorization\", \"json:/region\"", false),
    ] {
        let vendor = VendorDouble::start(STRIPE).await;
        let lines = format!("vendor = \"stripe\"\nscope = [{scope}]");
        let world = calling(Store::sqlite(), &vendor, &lines).await;
        let request = world.pay("k-1").field("Stripe-Account", "a").field("X-Region", "eu").json(r#"{"region":"eu"}"#);
        assert_eq!(request.send().await.oncegate_status(), Some("executed"));
        let key = vendor.heads()[0].all("idempotency-key").next().unwrap().to_owned();
        assert_eq!(key == "k-1", is_one, "{scope}: {key}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_spends_no_credential_of_a_route() {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = "vendor = \"stripe\"\nset_headers = { Authorization = \"Bearer sk_test_hunter2\" }\n\
                 cors = { origins = [\"https://ours.test\"] }";
    let world = calling(Store::sqlite(), &vendor, lines).await;
    for (method, name, value, passes) in [
        ("POST", "Origin", "https://theirs.test", false),
        ("POST", "Origin", "null", false),
        ("POST", "Sec-Fetch-Site", "cross-site", false),
        ("GET", "Sec-Fetch-Site", "same-site", false),
        ("DELETE", "Origin", "https://theirs.test", false),
        ("POST", "Origin", "https://ours.test", true),
        ("GET", "Sec-Fetch-Site", "none", true),
        ("POST", "User-Agent", "Stripe/v1", true),
    ] {
        let before = vendor.heads().len();
        let request = world.proxy.client().request(method, "/pay").key(&format!("{method} {name} {value}")).json("{}");
        let answer = request.field(name, value).send().await;
        let reached = vendor.heads().len() - before;
        assert_eq!((answer.status == 403, reached), (!passes, usize::from(passes)), "{method} {name}: {value}");
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_private_address_that_a_vendors_name_leads_to() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let resolved = tokio::net::lookup_host((name.as_str(), 443)).await.map(Iterator::collect::<Vec<_>>);
    if !resolved.is_ok_and(|found| found.iter().any(|found| found.ip().is_loopback())) {
        return skip("this machine's name does not lead to itself");
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (url, to_vendor) = (format!("https://{name}:{port}"), route("pay", "vendor = \"none\""));
    let world = World::with(Store::sqlite(), |setup| setup.upstream_url(&url).route(&to_vendor)).await;
    let refused = world.pay("k-1").send().await;
    assert_eq!(refused.outcome(), (502, "upstream-unreachable".to_owned()));
    let told = world.proxy.logged().iter().any(|line| line.to_string().contains("private address"));
    assert!(told, "the log says why");
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut sent = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut sent).await.unwrap();
    assert!(sent.is_empty());
}

#[tokio::test]
async fn what_is_meant_for_a_vendor_reaches_nobody_else() {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = "vendor = \"stripe\"\nset_headers = { Authorization = \"Bearer sk_test_hunter2\" }";
    let world = calling(Store::sqlite(), &vendor, lines).await;
    for method in ["GET", "DELETE", "PATCH"] {
        let answer = world.proxy.client().request(method, "/pay?order=o-1").field("Authorization", "ann").send().await;
        assert_eq!(answer.oncegate_status(), None, "{method} is not guarded");
    }
    assert_eq!((vendor.heads().len(), world.upstream.calls()), (3, 0));
    for head in vendor.heads() {
        assert_eq!(head.all("authorization").collect::<Vec<_>>(), ["Bearer sk_test_hunter2"]);
        assert!(["x-forwarded-for", "via"].iter().all(|name| head.all(name).next().is_none()), "{head:?}");
    }
}

on_both_stores!(a_route_that_observes_keeps_no_request);
async fn a_route_that_observes_keeps_no_request(store: Store) {
    let vendor = VendorDouble::start(STRIPE).await;
    let lines = "vendor = \"stripe\"\nmode = \"observe\"\nset_headers = { Authorization = \"Bearer sk_test_hunter2\" }";
    let world = calling(store, &vendor, lines).await;
    vendor.then([VendorFault::LosesAnswerAtGateway]);
    assert_eq!(world.pay("k-1").field("Authorization", "ann").send().await.status, 502);
    world.proxy.wait_for_log("observed").await;
    world.proxy.kill9().await;
    // Fails where a request is kept.
    let check = "create table kept (n bigint check (n = 0)); insert into kept select count(*) from outbox";
    world.store.tamper(check).await;
}
