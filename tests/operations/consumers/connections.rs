//! Connections to the broker.

use super::{acknowledged, consumer, route};
use harness::rabbitmq::{self, Queue, message};
use harness::reload::{RELOADED, reload};
use harness::tls::{Authority, CertifiedKeyFiles, FrontMode, TlsFront};
use harness::{Store, TEST_TIMEOUT, World, eventually};

/// A proxy whose consumer refuses this broker's certificate: it trusts the other authority.
async fn distrusting(front: &TlsFront, authority: &Authority, queue: &Queue) -> World {
    let url = format!("amqps://guest:guest@localhost:{}", front.address.port());
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.environment("SSL_CERT_FILE", authority.file().to_str().unwrap());
        setup.route(&route("")).consumer(&consumer(&url, queue, ""))
    })
    .await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    assert!(line["cause"].as_str().unwrap().contains("no trusted authority"), "{line}");
    world
}

#[tokio::test]
async fn a_tls_broker_must_present_a_trusted_certificate_for_its_name() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let authority = Authority::new();
    let front =
        TlsFront::before(broker.address(), FrontMode::Tls(CertifiedKeyFiles::self_signed(&["localhost"]).server()))
            .await;
    let world = distrusting(&front, &authority, &queue).await;
    assert_eq!(front.opened(), 0);
    front.set(FrontMode::Tls(authority.issue(&["localhost"]).server()));
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.upstream.last().field("x-forwarded-proto"), Some("https"));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!((queue.waiting().await, front.opened()), (0, 1));
}

#[tokio::test]
async fn a_reload_gives_consumers_the_authorities_of_the_changed_file() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let (old, new) = (Authority::new(), Authority::new());
    let front = TlsFront::before(broker.address(), FrontMode::Tls(new.issue(&["localhost"]).server())).await;
    let world = distrusting(&front, &old, &queue).await;
    std::fs::copy(new.file(), old.file()).unwrap();
    reload(&world, &world.setup.text(), RELOADED, 1).await;
    queue.publish([message("k-1")]).await;
    acknowledged(&world.proxy, 1).await;
    assert_eq!(world.proxy.stop().await, Some(0));
}

#[tokio::test]
async fn a_silent_broker_is_abandoned_and_leaks_nothing() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.queue().await;
    let front = TlsFront::before(broker.address(), FrontMode::Silent).await;
    let url = format!("amqp://guest:guest@{}", front.address);
    let world =
        World::with(Store::sqlite(), |setup| setup.route(&route("")).consumer(&consumer(&url, &queue, ""))).await;
    let line = world.proxy.wait_for_log("not consumed at the moment").await;
    assert_eq!(line["cause"], "no answer in 15 s");
    // The next attempt has its own thread, and the abandoned one has ended its thread.
    eventually(TEST_TIMEOUT, async || (world.proxy.threads("lapin").len() <= 1).then_some(())).await;
    assert_eq!(world.proxy.stop().await, Some(0));
}
