//! A configuration that changes while the proxy runs.

use rustix::process::Signal;

use super::{Proxy, Setup, TEST_TIMEOUT, World, eventually, route};

pub const RELOADED: &str = "the configuration was reloaded";
pub const REFUSED: &str = "would not find their earlier keys any more";

/// The setup of this world's store and service, with these lines for `POST /pay` and these at the top.
pub fn with(world: &World, top: &str, lines: &str) -> Setup {
    Proxy::on(&world.store.url()).upstream(world.upstream.address).top(top).route(&route("pay", lines))
}

/// Replaces the file, as an editor does.
pub fn write(world: &World, text: &str) {
    let new = world.proxy.file().with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, world.proxy.file()).unwrap();
}

/// Replaces the file, sends SIGHUP, and waits until the message was logged this many times.
pub async fn reload(world: &World, text: &str, logged: &str, times: usize) {
    // The link is swapped atomically, so that the proxy's own check of the file finds no state in between.
    write(world, text);
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_logs(logged, times).await;
}

/// Waits until every worker has the new configuration, so that none answers by the old one.
pub async fn settles(mut look: impl AsyncFnMut() -> bool) {
    let mut in_a_row = 0;
    eventually(TEST_TIMEOUT, async || {
        in_a_row = if look().await { in_a_row + 1 } else { 0 };
        (in_a_row == 20).then_some(())
    })
    .await;
}

pub async fn requires_a_key(world: &World) -> bool {
    world.post("/pay").body("x").send().await.outcome() == (400, "key-missing".to_owned())
}
