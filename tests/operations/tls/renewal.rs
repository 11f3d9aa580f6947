//! Certificate changes while the proxy runs.

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;

use super::clients::{Secure, tls};
use harness::tls::{Authority, TlsClient};
use harness::{Store, TEST_TIMEOUT, World, eventually};

const RELOADED: &str = "the configuration was reloaded";
const PAY: &str = r#"{"amount":10,"currency":"EUR"}"#;
const KEPT: &str = "the running one stays";

/// The certificate that a new connection gets.
async fn shown(secure: &Secure) -> CertificateDer<'static> {
    let stream = secure.dial().connect().await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Waits until every worker presents another certificate.
async fn changes(secure: &Secure, from: &CertificateDer<'static>) {
    let mut in_a_row = 0;
    eventually(TEST_TIMEOUT, async || {
        in_a_row = if shown(secure).await == *from { 0 } else { in_a_row + 1 };
        (in_a_row == 20).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_signal_and_drops_no_connection() {
    let secure = Secure::start(Store::sqlite()).await;
    let first = shown(&secure).await;
    let client = secure.client().await;
    let request = client.post("/pay").key("k-1").body("x");
    let mut kept = request.open().await.unwrap();
    assert_eq!(kept.response().await.oncegate_status(), Some("executed"));
    secure.authority.issue(&["localhost"]).write(secure.folder.path());
    secure.world.proxy.wait_for_log(RELOADED).await;
    changes(&secure, &first).await;
    kept.write(&request.bytes()).await;
    assert_eq!(kept.response().await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn tls_added_by_a_reload_applies_to_new_connections() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").send().await.oncegate_status(), Some("executed"));
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.issue(&["localhost"]).write(folder.path());
    std::fs::write(world.proxy.file(), world.setup.clone().top(&tls(&files)).text()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log(RELOADED).await;
    let dial = TlsClient::new(world.proxy.listen, &authority);
    eventually(TEST_TIMEOUT, async || dial.connect().await.ok()).await;
    // Each worker applies it independently.
    let replay =
        eventually(TEST_TIMEOUT, async || dial.tunnel().await.post("/pay").key("k-1").json(PAY).try_send().await.ok());
    assert_eq!(replay.await.oncegate_status(), Some("replayed"));
}

#[tokio::test]
async fn a_broken_certificate_is_logged_and_the_running_one_stays() {
    let secure = Secure::start(Store::sqlite()).await;
    let first = shown(&secure).await;
    // The new key is there already, its certificate is not.
    let next = secure.authority.issue(&["localhost"]);
    std::fs::write(secure.folder.path().join("tls.key"), &next.key).unwrap();
    secure.world.proxy.signal(Signal::HUP);
    let reported = secure.world.proxy.wait_for_log(KEPT).await;
    assert!(reported["problem"].as_str().unwrap().contains("tls.key"), "{reported}");
    for _ in 0..20 {
        assert_eq!(shown(&secure).await, first);
    }
    // The proxy reloads them without a signal once both are there.
    next.write(secure.folder.path());
    changes(&secure, &first).await;
}
