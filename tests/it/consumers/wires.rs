//! The way to the broker.

use super::{acknowledged, consumer, route};
use crate::harness::rabbitmq::{self, message};
use crate::harness::tls::{Authority, Door, Front, Pair};
use crate::harness::{PATIENCE, Store, World, eventually};

#[tokio::test]
async fn over_tls_a_broker_must_show_a_certificate_for_its_name_by_somebody_who_is_trusted() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let authority = Authority::new();
    let front = Front::before(broker.address(), Door::Tls(Pair::of_nobody(&["localhost"]).server())).await;
    let url = format!("amqps://guest:guest@localhost:{}", front.address.port());
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.environment("SSL_CERT_FILE", authority.file().to_str().unwrap());
        setup.route(&route("")).consumer(&consumer(&url, &queue, ""))
    })
    .await;
    let line = world.proxy.logs("not consumed at the moment").await;
    assert!(line["cause"].as_str().unwrap().contains("nobody who is trusted here"), "{line}");
    assert_eq!(front.opened(), 0);
    front.set(Door::Tls(authority.issues(&["localhost"]).server()));
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.upstream.last().field("x-forwarded-proto"), Some("https"));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, front.opened()), (0, 1));
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up_and_leaves_nothing_behind() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let front = Front::before(broker.address(), Door::Silent).await;
    let url = format!("amqp://guest:guest@{}", front.address);
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&url, &queue, ""))).await;
    let line = world.proxy.logs("not consumed at the moment").await;
    assert_eq!(line["cause"], "no answer in 15 s");
    // The next try has a thread of its own, and the one before has none any more.
    eventually(PATIENCE, async || (world.proxy.threads("lapin").len() <= 1).then_some(())).await;
    assert_eq!(world.proxy.stop().await, Some(0));
}
