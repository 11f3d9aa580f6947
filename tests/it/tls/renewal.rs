//! A certificate that changes while the proxy runs.

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;

use super::clients::{Secure, tls};
use crate::harness::tls::{Authority, Dial};
use crate::harness::{PATIENCE, Store, World, eventually};

const RELOADED: &str = "the configuration was reloaded";
const PAY: &str = r#"{"amount":10,"currency":"EUR"}"#;
const KEPT: &str = "the running one stays";

/// What a new connection is shown.
async fn shown(secure: &Secure) -> CertificateDer<'static> {
    let stream = secure.dial().connect().await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Waits until every worker shows another one.
async fn changes(secure: &Secure, from: &CertificateDer<'static>) {
    let mut in_a_row = 0;
    eventually(PATIENCE, async || {
        in_a_row = if shown(secure).await == *from { 0 } else { in_a_row + 1 };
        (in_a_row == 20).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_unasked_and_no_connection_is_dropped() {
    let secure = Secure::start(Store::sqlite()).await;
    let first = shown(&secure).await;
    let client = secure.client().await;
    let request = client.post("/pay").key("k-1").body("x");
    let mut kept = request.open().await.unwrap();
    assert_eq!(kept.response().await.told(), Some("executed"));
    secure.authority.issues(&["localhost"]).write(secure.folder.path());
    secure.world.proxy.logs(RELOADED).await;
    changes(&secure, &first).await;
    kept.write(&request.bytes()).await;
    assert_eq!(kept.response().await.told(), Some("replayed"));
}

#[tokio::test]
async fn tls_that_is_written_into_the_file_is_spoken_from_then_on() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").send().await.told(), Some("executed"));
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.issues(&["localhost"]).write(folder.path());
    std::fs::write(world.proxy.file(), world.setup.clone().top(&tls(&files)).text()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.logs(RELOADED).await;
    let dial = Dial::new(world.proxy.listen, &authority);
    eventually(PATIENCE, async || dial.connect().await.ok()).await;
    // Each worker takes it over by itself.
    let replay =
        eventually(PATIENCE, async || dial.tunnel().await.post("/pay").key("k-1").json(PAY).try_send().await.ok());
    assert_eq!(replay.await.told(), Some("replayed"));
}

#[tokio::test]
async fn a_broken_certificate_is_told_and_the_running_one_stays_until_it_is_whole() {
    let secure = Secure::start(Store::sqlite()).await;
    let first = shown(&secure).await;
    // The key is there already, the certificate that it belongs to is not.
    let next = secure.authority.issues(&["localhost"]);
    std::fs::write(secure.folder.path().join("tls.key"), &next.key).unwrap();
    secure.world.proxy.signal(Signal::HUP);
    let told = secure.world.proxy.logs(KEPT).await;
    assert!(told["problem"].as_str().unwrap().contains("tls.key"), "{told}");
    for _ in 0..20 {
        assert_eq!(shown(&secure).await, first);
    }
    // It comes by itself once both are there.
    next.write(secure.folder.path());
    changes(&secure, &first).await;
}
