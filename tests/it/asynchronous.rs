//! Requests that are accepted now and delivered later.

use std::time::Duration;

use serde_json::Value;

use crate::harness::client::Request;
use crate::harness::proxy::Setup;
use crate::harness::{Answer, PATIENCE, Proxy, Response, Store, World, eventually, route};

mod crashes;
mod journey;
mod many;
mod operating;
mod secrecy;
mod trying;

const SECRET: &str = "a secret of some length";

/// One route for `POST /pay`, whose requests are delivered later and tried again soon.
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

/// The same with short leases and an upstream that must be quick, so that what a dead instance leaves is soon judged.
async fn hasty(store: Store, lines: &str) -> World {
    World::with(store, |setup| later(in_haste(setup), lines)).await
}

fn in_haste(setup: Setup) -> Setup {
    setup.short_leases().store("timeout = \"1s\"").defaults("upstream_timeout = \"1s\"")
}

/// Where the operation of an accepted request is.
fn place(accepted: &Response) -> String {
    assert_eq!((accepted.status, accepted.told()), (202, Some("queued")), "{}", accepted.text());
    accepted.field("location").expect("it says where to ask").to_owned()
}

/// How an operation stands.
async fn operation(proxy: &Proxy, place: &str) -> Value {
    let response = proxy.client().get(place).send().await;
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// The same, once it is in that state.
async fn operation_when(proxy: &Proxy, place: &str, state: &str) -> Value {
    let found = async || Some(operation(proxy, place).await).filter(|operation| operation["state"] == state);
    eventually(PATIENCE, found).await
}

impl World {
    /// A request is accepted, and this is where to ask after it.
    async fn accepts(&self, key: &str) -> String {
        place(&self.pay(key).send().await)
    }

    async fn operation_when(&self, place: &str, state: &str) -> Value {
        operation_when(&self.proxy, place, state).await
    }

    fn as_caller(&self, request: Request, who: &str) -> Request {
        request.field("Authorization", &format!("Bearer {who}"))
    }
}

/// Longer than it takes to look into the queue.
const LOOKS: Duration = Duration::from_millis(1_200);

/// What the service answers while it is in trouble.
fn trouble() -> Answer {
    Answer::status(503)
}
