//! Stalled bodies. A guarded request is read completely before anything is forwarded; these tests are about streamed
//! ones.

use std::net::Ipv4Addr;
use std::time::Duration;

use framing_guard::FramingTimeouts;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use tokio::net::TcpListener;

use harness::h2::H2Upstream;
use harness::in_process::{self, InProcess};
use harness::wire::Wire;
use harness::{Answer, Exchange, Hold, Proxy, Request, Store, Upstream};

const SOON: Duration = Duration::from_millis(200);

/// A proxy that waits for a body much more briefly than any setting allows.
struct Impatient(InProcess);

impl Impatient {
    async fn before(upstream: &str) -> Self {
        let store = Store::sqlite();
        let route = |name: &str, mode: &str| format!("name = \"{name}\"\npath = \"/{name}\"\nmode = \"{mode}\"");
        let setup = Proxy::on(&store.url()).top(&format!("upstream = {upstream:?}"));
        let setup = setup.route(&route("off", "off")).route(&route("seen", "observe"));
        let instance = in_process::instance(&setup, UpstreamSlots::new).await;
        let timeouts = FramingTimeouts { body: SOON, ..FramingTimeouts::default() };
        Self(InProcess::serve(store, instance, timeouts).await)
    }

    /// Unguarded requests; the last is observed.
    fn requests(&self) -> [Request; 4] {
        let client = self.0.client;
        [
            client.post("/upload").body("all of it"),
            client.post("/upload").body("all of it").chunked(),
            client.post("/off").key("k-1").body("all of it"),
            client.post("/seen").key("k-1").body("all of it"),
        ]
    }

    /// Sends all but the last bytes of a request.
    async fn stall(&self, request: &Request) -> Exchange {
        let bytes = request.bytes();
        self.0.client.raw(&bytes[..bytes.len() - 7]).await
    }
}

#[tokio::test]
async fn a_stalled_body_is_refused_and_never_forwarded_as_complete() {
    let upstream = Upstream::start().await;
    let proxy = Impatient::before(&format!("http://{}", upstream.address)).await;
    for (number, request) in proxy.requests().iter().enumerate() {
        let mut exchange = proxy.stall(request).await;
        let refusal = exchange.response().await;
        assert_eq!(refusal.outcome(), (408, "request-timeout".to_owned()));
        assert_eq!(refusal.field("connection"), Some("close"));
        assert_eq!(refusal.oncegate_status(), [None, None, None, Some("observed")][number]);
        exchange.wait_until_closed().await;
        upstream.wait_until(|seen| seen.closed == number + 1).await;
    }
    assert_eq!((upstream.calls(), upstream.executed().len()), (4, 0));
}

#[tokio::test]
async fn a_stalled_body_to_an_http_2_service_is_refused() {
    let upstream = H2Upstream::start().await;
    let proxy = Impatient::before(&format!("h2c://{}", upstream.address)).await;
    for request in proxy.requests() {
        let refusal = proxy.stall(&request).await.response().await;
        assert_eq!(refusal.outcome(), (408, "request-timeout".to_owned()));
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn a_body_that_stalls_after_its_answer_began_closes_the_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Impatient::before(&format!("http://{}", listener.local_addr().unwrap())).await;
    let mut exchange = proxy.stall(&proxy.0.client.post("/both-ways").body("all of it").chunked()).await;
    let mut service = Wire::new(listener.accept().await.unwrap().0);
    service.head().await.unwrap().unwrap();
    service.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await.unwrap();
    assert!(exchange.any_head().await.unwrap().start.contains(" 200 "));
    assert_eq!(exchange.piece().await.unwrap().unwrap(), b"first");
    exchange.piece().await.expect_err("an incomplete body is an error");
    let rest = service.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a part has been passed for the whole");
}

#[tokio::test]
async fn a_slow_body_and_a_slow_service_are_waited_for() {
    let upstream = Upstream::start().await;
    let proxy = Impatient::before(&format!("http://{}", upstream.address)).await;
    let hold = Hold::new();
    upstream.then(Answer::status(200).hold(&hold));
    let mut exchange = proxy.0.client.post("/upload").body("12345678").open_head().await;
    for byte in b"12345678" {
        // Time and not an event: the pace of the client.
        tokio::time::sleep(SOON / 3).await;
        exchange.write(&[*byte]).await;
    }
    upstream.wait_for_executed(1).await;
    // Time and not an event: the service is slow.
    tokio::time::sleep(2 * SOON).await;
    hold.release();
    assert_eq!(exchange.response().await.status, 200);
}
