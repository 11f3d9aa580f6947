//! Requests that are accepted now and delivered later.

use std::time::Duration;

use serde_json::Value;

use harness::operations::{operation, operation_of, operation_path, operation_when};
use harness::proxy::Setup;
use harness::{Answer, Proxy, Response, Store, TEST_TIMEOUT, World, eventually, route};

mod crashes;
mod journey;
mod operator_actions;
mod retries;
mod secrecy;
mod soak;

const SECRET: &str = "a secret of some length";

/// One route for `POST /pay` with asynchronous delivery and short retry intervals.
fn later(setup: Setup, lines: &str) -> Setup {
    let retry = match lines.contains("retry =") {
        true => "",
        false => "retry = { max_attempts = 5, base = \"50ms\", cap = \"200ms\", give_up_after = \"1h\" }",
    };
    let delivery = if lines.contains("delivery =") { "" } else { "delivery = \"async\"" };
    let setup = setup.top(&format!("secret = \"{SECRET}\""));
    setup.route(&route("pay", &format!("{delivery}\n{retry}\n{lines}")))
}

async fn world(store: Store, lines: &str) -> World {
    World::with(store, |setup| later(setup, lines)).await
}

/// The same with short leases and a short upstream timeout, so that a dead instance's attempts are soon swept.
async fn hasty(store: Store, lines: &str) -> World {
    World::with(store, |setup| later(in_haste(setup), lines)).await
}

fn in_haste(setup: Setup) -> Setup {
    setup.short_leases().store("timeout = \"1s\"").defaults("upstream_timeout = \"1s\"")
}

/// The answer of a failing service.
fn trouble() -> Answer {
    Answer::status(503)
}
