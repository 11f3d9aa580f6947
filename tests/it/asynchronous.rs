//! Requests that are accepted now and delivered later.

use std::time::Duration;

use serde_json::Value;

use crate::harness::client::Request;
use crate::harness::proxy::Setup;
use crate::harness::{Answer, Proxy, Response, Store, TEST_TIMEOUT, World, eventually, route};

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

/// The path of an accepted request's operation.
fn operation_path(accepted: &Response) -> String {
    operation_of(accepted, "queued")
}

/// The path of the operation that a 202 with this `Oncegate-Status` names.
fn operation_of(accepted: &Response, status: &str) -> String {
    assert_eq!((accepted.status, accepted.oncegate_status()), (202, Some(status)), "{}", accepted.text());
    accepted.field("location").expect("it says where to ask").to_owned()
}

/// Reads an operation's state.
async fn operation(proxy: &Proxy, operation_path: &str) -> Value {
    let response = proxy.client().get(operation_path).send().await;
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// Waits until the operation is in that state, and returns it.
async fn operation_when(proxy: &Proxy, operation_path: &str, state: &str) -> Value {
    let found = async || Some(operation(proxy, operation_path).await).filter(|operation| operation["state"] == state);
    eventually(TEST_TIMEOUT, found).await
}

impl World {
    /// Sends a request that must be accepted, and returns its operation's path.
    async fn accepts(&self, key: &str) -> String {
        operation_path(&self.pay(key).send().await)
    }

    async fn operation_when(&self, operation_path: &str, state: &str) -> Value {
        operation_when(&self.proxy, operation_path, state).await
    }

    fn as_caller(&self, request: Request, who: &str) -> Request {
        request.field("Authorization", &format!("Bearer {who}"))
    }
}

/// The answer of a failing service.
fn trouble() -> Answer {
    Answer::status(503)
}
