//! A reload with another `service`: it is refused, and this process reads and writes nothing of the service that the
//! file names by now.

use harness::operator::Operator;
use harness::reload::{REFUSED, reload};
use harness::{Answer, Client, Hold, Proxy, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

/// A setup for this service, whose events go to the receiver through a sink of that name. Each route has its lines.
fn service(setup: Setup, name: &str, sink: &str, receiver: &Upstream, routes: &[(&str, &str)]) -> Setup {
    let setup = setup.top(&format!("service = {name:?}"));
    let setup = routes.iter().fold(setup, |setup, (name, lines)| setup.route(&route(name, lines)));
    setup.events(&format!("name = {sink:?}\nroutes = [\"pay\"]\nurl = \"http://{}/\"", receiver.address))
}

/// What the store keeps of a service's routes.
async fn kept(store: &Store, service: &str) -> Vec<String> {
    let Store::Postgres(database) = store else { panic!("two proxies need PostgreSQL") };
    let client = database.client().await;
    let mut kept = Vec::new();
    for table in ["event_routes", "route_identities", "route_retention"] {
        let sql = format!("select t::text from oncegate.{table} t where service = $1 order by 1");
        let rows = client.query(&sql, &[&service]).await.unwrap();
        kept.extend(rows.iter().map(|row| format!("{table} {}", row.get::<_, &str>(0))));
    }
    kept
}

#[tokio::test]
async fn a_reload_with_the_name_of_another_service_is_refused_and_touches_nothing_of_that_service() {
    let receiver = Upstream::start().await;
    let own_routes = [("pay", "")];
    let with_a = |setup| service(setup, "a", "bus-of-a", &receiver, &own_routes);
    let a = World::with(Store::postgres().await, with_a).await;
    let setup = || Proxy::on(&a.store.url()).upstream(a.upstream.address);
    let b = service(setup(), "b", "bus-of-b", &receiver, &[("pay", "ttl = \"9h\"")]).start().await;
    let pay_b = |key: &str| b.post("/pay").key(key).body("x");
    assert_eq!(a.pay("key-of-a").send().await.oncegate_status(), Some("executed"));
    let first = pay_b("key-of-b").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    receiver.wait_for_executed(2).await;
    let before = kept(&a.store, "b").await;
    assert_eq!(before.len(), 3, "{before:?}");

    let routes = [("pay", "ttl = \"7h\""), ("more", "")];
    let text = service(setup(), "b", "bus-of-a", &receiver, &routes).text();
    let of_a = kept(&a.store, "a").await;
    reload(&a, &text, REFUSED, 1).await;
    assert_eq!(a.proxy.wait_for_log(REFUSED).await["changed"], "service: a -> b");
    assert_eq!((kept(&a.store, "a").await, kept(&a.store, "b").await), (of_a, before));

    let (operator_a, operator_b) = (Operator::of(&a.proxy), Operator::of(&b));
    let listed: Vec<_> = operator_a.keys("").await.iter().map(|key| key["key"].clone()).collect();
    assert_eq!(listed, ["key-of-a"]);
    let id = operator_b.id("key-of-b").await;
    assert_eq!(operator_a.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0, 404);
    assert_eq!(operator_a.get(&format!("/api/v1/audit?id={id}")).await.1["entries"], serde_json::json!([]));
    assert_eq!(pay_b("key-of-b").send().await.comparable(), first.replayed());

    // Its next settlement still writes an event.
    assert_eq!(pay_b("key-2-of-b").send().await.oncegate_status(), Some("executed"));
    receiver.wait_for_executed(3).await;

    // Its own services still report about its own attempts, and its own keys are found.
    let hold = Hold::new();
    a.upstream.then(Answer::status(201).hold(&hold));
    let calls = a.upstream.calls();
    let held = a.pay("key-2-of-a").spawn();
    eventually(TEST_TIMEOUT, async || (a.upstream.calls() > calls).then_some(())).await;
    let reservation = a.upstream.last().field("oncegate-reservation").unwrap().to_owned();
    let admin = Client { address: a.proxy.admin };
    let report = admin.request("PUT", &format!("/app/v1/reservations/{reservation}/recovery-point"));
    let report = report.host(&a.proxy.admin.to_string()).json(r#"{"name":"charged"}"#).send().await;
    assert_eq!(report.status, 200, "{}", report.text());
    hold.release();
    assert_eq!(held.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(a.pay("key-of-a").send().await.oncegate_status(), Some("replayed"));
}
