//! The request made from a message, and the scope of its key.

use super::{acknowledged, consumer, consumer_world, consumer_world_with, route};
use harness::rabbitmq::{self, message};
use harness::{Answer, Store, World, on_both_stores};

on_both_stores!(a_message_is_one_request_under_its_key);
async fn a_message_is_one_request_under_its_key(store: Store) {
    let Some(consumer_world) = consumer_world(store, "", "key = \"header:x-idempotency-key\"\nprefetch = 7").await
    else {
        return;
    };
    let sent = message("order-1").header("X-Tenant", "shop").header("x-forwarded-for", "10.1.1.1");
    consumer_world.queue.publish([sent.header("oncegate-attempt", "9").body("{\"amount\":7}")]).await;
    acknowledged(&consumer_world.world.proxy, 1).await;
    let call = consumer_world.world.upstream.last();
    assert_eq!((&*call.method, &*call.target, &*call.body), ("POST", "/pay", &b"{\"amount\":7}"[..]));
    for (name, value) in [
        ("content-type", "application/json"),
        ("idempotency-key", "order-1"),
        ("x-idempotency-key", "order-1"),
        ("x-tenant", "shop"),
        ("x-forwarded-for", "127.0.0.1"),
        ("oncegate-attempt", "1"),
        ("content-length", "12"),
    ] {
        assert_eq!(call.field(name), Some(value), "{name}");
    }
    assert_eq!(call.field("host"), Some(&*consumer_world.world.upstream.address.to_string()));
    assert_eq!(consumer_world.left_after_drain().await, 0, "it is acknowledged");
    assert_eq!(consumer_world.world.store.states().await, ["completed"]);
    assert_eq!(consumer_world.world.upstream.calls(), 1);
}

#[tokio::test]
async fn a_message_and_its_copies_are_executed_once() {
    let Some(consumer_world) = consumer_world(Store::sqlite(), "", "key = \"message-id\"").await else { return };
    let copies = |number: usize| vec![message("unused").without_headers().id(&format!("m-{number}")); 3];
    consumer_world.queue.publish((0..20).flat_map(copies)).await;
    acknowledged(&consumer_world.world.proxy, 60).await;
    assert_eq!(consumer_world.left_after_drain().await, 0);
    assert_eq!(consumer_world.world.upstream.calls(), 20);
}

#[tokio::test]
async fn a_path_is_built_from_headers_and_escaping_values_are_refused() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let lines = "path = \"/orders/{X-Order}/pay\"\nscope = [\"none\"]";
    let world = World::with(Store::sqlite(), |setup| {
        let route = "name = \"pay\"\npath = \"/orders/{id}/pay\"\nmethods = [\"POST\"]";
        setup.route(route).consumer(&consumer(&broker.url(), &queue, lines))
    })
    .await;
    queue.publish([message("k-1").header("x-order", ".."), message("k-2").header("x-order", "a/7")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.upstream.last().target, "/orders/a%2F7/pay");
    let line = world.proxy.wait_for_log("is rejected").await;
    assert_eq!((&line["reason"], &line["level"]), (&"bad-request".into(), &"WARN".into()));
}

#[tokio::test]
async fn a_messages_path_cannot_reach_a_more_specific_route() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let world = World::with(Store::sqlite(), |setup| {
        let routes = setup
            .route("name = \"pay\"\npath = \"/orders/{id}\"\nmethods = [\"POST\"]")
            .route("name = \"special\"\npath = \"/orders/special\"\nmethods = [\"POST\"]\nmode = \"off\"");
        routes.consumer(&consumer(&broker.url(), &queue, "path = \"/orders/{x-order}\""))
    })
    .await;
    queue.publish([message("k-1").header("x-order", "special"), message("k-2").header("x-order", "7")]).await;
    acknowledged(&world.proxy, 1).await;
    world.proxy.wait_for_log("is rejected").await;
    assert_eq!(world.upstream.last().target, "/orders/7");
}

#[tokio::test]
async fn a_route_that_observes_takes_no_message_from_the_consumers_route() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let world = World::with(Store::sqlite(), |setup| {
        let routes = setup
            .route("name = \"pay\"\npath = \"/{*rest}\"\nmethods = [\"POST\"]")
            .route("name = \"seen\"\npath = \"/pay\"\nmethods = [\"POST\"]\nmode = \"observe\"\nspelling = \"same\"");
        routes.consumer(&consumer(&broker.url(), &queue, "path = \"/pay/\""))
    })
    .await;
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.upstream.last().target, "/pay/");
}

#[tokio::test]
async fn a_message_that_names_a_method_which_a_route_guards_is_executed_only_if_it_was_before() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let world = World::with(Store::sqlite(), |setup| {
        let routes = setup.route(&route("")).route("name = \"put\"\npath = \"/pay\"\nmethods = [\"PUT\"]");
        routes.consumer(&consumer(&broker.url(), &queue, ""))
    })
    .await;
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;
    let names_put = |key| message(key).header("x-http-method-override", "PUT");
    queue.publish([names_put("k-1")]).await;
    acknowledged(&world.proxy, 2).await;
    queue.publish([names_put("k-2")]).await;
    let line = world.proxy.wait_for_log("is rejected").await;
    assert_eq!(line["reason"], "bad-request");
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn the_same_key_of_two_tenants_is_two_keys() {
    let Some(consumer_world) = consumer_world(Store::sqlite(), "", "scope = [\"header:x-tenant\"]").await else {
        return;
    };
    let of = |tenant: &str| message("k-1").header("x-tenant", tenant);
    consumer_world.queue.publish([of("a"), of("b"), of("a"), of("b"), message("k-1")]).await;
    acknowledged(&consumer_world.world.proxy, 4).await;
    let line = consumer_world.world.proxy.wait_for_log("is rejected").await;
    assert_eq!(line["reason"], "scope-missing", "it says of no tenant");
    assert_eq!(consumer_world.left_after_drain().await, 0);
    assert_eq!(consumer_world.world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_message_and_a_request_share_a_key_only_with_equal_scopes() {
    let tenant = "scope = [\"header:x-tenant?\"]";
    for (about_route, oncegate_status, executed) in [(tenant, "replayed", 1), ("", "executed", 2)] {
        let Some(consumer_world) = consumer_world(Store::sqlite(), about_route, tenant).await else { return };
        let body = "{\"amount\":10}";
        consumer_world.queue.publish([message("k-1").header("x-tenant", "shop").body(body)]).await;
        acknowledged(&consumer_world.world.proxy, 1).await;
        let request = consumer_world.world.post("/pay").key("k-1").field("x-tenant", "shop").json(body);
        assert_eq!(request.send().await.oncegate_status(), Some(oncegate_status), "{about_route}");
        assert_eq!(consumer_world.world.upstream.calls(), executed, "{about_route}");
    }
}

#[tokio::test]
async fn unacknowledged_messages_do_not_exceed_the_prefetch() {
    let Some(consumer_world) = consumer_world(Store::sqlite(), "", "prefetch = 3").await else { return };
    let hold = harness::Hold::new();
    consumer_world.world.upstream.answer_all(Answer::status(201).hold(&hold));
    consumer_world.queue.publish((0..10).map(|number| message(&format!("k-{number}")))).await;
    consumer_world.world.upstream.wait_for_executed(3).await;
    consumer_world.queue.has_waiting(7).await;
    assert_eq!(consumer_world.world.upstream.calls(), 3);
    hold.release();
    acknowledged(&consumer_world.world.proxy, 10).await;
}

#[tokio::test]
async fn message_outcomes_are_logged_without_keys_bodies_or_passwords() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let url = broker.url().replace("guest:guest", "guest:${PASSWORD}");
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.environment("PASSWORD", "guest").top("drain_timeout = \"5s\"").route(&route(""));
        setup.consumer(&consumer(&url, &queue, ""))
    })
    .await;
    world.upstream.then(Answer::status(422));
    queue.publish([message("a-key-that-nobody-may-read").body("{\"secret-body\":1}")]).await;
    world.proxy.wait_for_log("is rejected").await;
    for line in world.proxy.logged() {
        let line = line.to_string();
        assert!(!["that-nobody", "secret-body", "guest:guest"].iter().any(|secret| line.contains(secret)), "{line}");
    }
}

#[tokio::test]
async fn a_refused_broker_login_is_logged_and_retried_while_requests_are_served() {
    let Some(consumer_world) = consumer_world_with(Store::sqlite(), "", "", |setup| setup).await else { return };
    let url = consumer_world.broker.url().replace("guest:guest", "guest:hunter2");
    let other = World::with(Store::sqlite(), |setup| {
        setup.route(&route("")).consumer(&consumer(&url, &consumer_world.queue, ""))
    })
    .await;
    let line = other.proxy.wait_for_log("not consumed at the moment").await;
    assert!(line["cause"].as_str().unwrap().contains("ACCESS_REFUSED"), "{line}");
    assert!(!line.to_string().contains("hunter2"));
    other.proxy.wait_for_logs("not consumed at the moment", 2).await;
    assert_eq!(other.pay("k-1").send().await.oncegate_status(), Some("executed"));
}

#[tokio::test]
async fn of_several_fields_for_the_key_the_service_gets_the_messages_key_in_the_first_and_no_other() {
    let names = "key = { from = [\"header:Idempotency-Key\", \"header:X-Idempotency-Key\"] }";
    let Some(consumer_world) = consumer_world(Store::sqlite(), names, "key = \"message-id\"").await else { return };
    consumer_world.queue.publish([message("another").id("m-1").body("{}")]).await;
    acknowledged(&consumer_world.world.proxy, 1).await;
    let call = consumer_world.world.upstream.last();
    assert_eq!((call.field("idempotency-key"), call.field("x-idempotency-key")), (Some("m-1"), None));
}
