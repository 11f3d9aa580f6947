//! Tasks that panic.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use framing_guard::FramingTimeouts;
use http::uri::Authority;
use oncegate_engine::instance::boot_time::BootInstant;
use oncegate_http::upstream::MemoryNetwork;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use tokio::io::DuplexStream;

use harness::in_process::{self, InProcess};
use harness::{Proxy, Store, TEST_TIMEOUT, eventually, route};

/// A network in which the task that connects panics.
#[derive(Debug)]
struct PanickingNetwork;

impl MemoryNetwork for PanickingNetwork {
    fn connect(&self, _: &Authority) -> Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>> {
        panic!("the network panics in this test")
    }
}

#[tokio::test]
async fn an_attempt_whose_task_panics_becomes_unknown() {
    let store = Store::sqlite();
    let setup = Proxy::on(&store.url()).top("upstream = \"http://service\"").route(&route("pay", ""));
    let slots = |limit| UpstreamSlots::new(limit).in_network(Arc::new(PanickingNetwork));
    let (instance, config) = in_process::instance(&setup, slots).await;
    instance.instance_lease.record_renewal(BootInstant::now());
    let proxy = InProcess::serve(store, (Arc::clone(&instance), config), FramingTimeouts::default()).await;
    let request = proxy.client.post("/pay").key("k-1").body("x");
    assert_eq!(request.send().await.outcome(), (409, "outcome-unknown".to_owned()));
    eventually(TEST_TIMEOUT, async || (instance.in_flight.count() == 0).then_some(())).await;
    assert_eq!(request.send().await.outcome(), (409, "outcome-unknown".to_owned()), "it is stored");
}
