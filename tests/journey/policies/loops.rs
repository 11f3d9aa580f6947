//! Requests that come back to the instance that has forwarded them.

use harness::reload::{RELOADED, reload};
use harness::{Proxy, Store, World};

const DETECTED: (u16, &str) = (508, "loop-detected");

#[tokio::test]
async fn a_request_that_this_instance_has_forwarded_before_is_refused_on_every_path() {
    let world = World::guarding(Store::sqlite(), "").await;
    world.pay("k-1").send().await;
    let own = world.upstream.last().field("via").unwrap().to_owned();
    let calls = world.upstream.calls();
    for request in [world.pay("k-2"), world.get("/anything"), world.post("/other").body("x")] {
        let refused = request.field("Via", &format!("1.1 edge, {own}, 1.1 edge")).send().await;
        assert_eq!(refused.outcome(), (DETECTED.0, DETECTED.1.to_owned()));
    }
    assert_eq!(world.upstream.calls(), calls);
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"), "nothing was reserved");
}

#[tokio::test]
async fn two_instances_in_a_row_are_no_loop_and_two_in_a_circle_are_one() {
    let world = World::guarding(Store::sqlite(), "").await;
    let second = Proxy::on("memory:").upstream(world.proxy.listen).start().await;
    let pay = |key: &str| second.post("/pay").key(key).json("{}");
    assert_eq!(pay("k-1").send().await.status, 201);
    let via = world.upstream.last().all("via").join(", ");
    let names: Vec<_> = via.split(", ").collect();
    assert!(names.len() == 2 && names[0] != names[1], "{via}");

    let circle = Proxy::on(&world.store.url()).upstream(second.listen);
    let circle = circle.route("name = \"pay\"\npath = \"/pay\"\nmethods = [\"POST\"]").text();
    reload(&world, &circle, RELOADED, 1).await;
    let mut number = 1;
    let answer = harness::eventually(harness::TEST_TIMEOUT, async || {
        number += 1;
        Some(pay(&format!("k-{number}")).send().await).filter(|answer| answer.status != 201)
    })
    .await;
    assert_eq!(answer.status, DETECTED.0, "{}", answer.text());
    assert!(answer.text().contains(DETECTED.1), "{}", answer.text());
}
