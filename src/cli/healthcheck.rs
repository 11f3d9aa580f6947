//! `oncegate healthcheck`

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;

use super::client::{self, Instance};
use super::{Ended, block_on, print};

/// Readiness is told within a second; who takes longer than this is not ready.
const ANSWER_MAX: Duration = Duration::from_secs(5);

pub(super) fn run(instance: &Instance) -> Result<(), Ended> {
    let address = instance.address()?;
    let reasons = block_on(async { Ok(reasons_against(address).await) })?;
    match reasons.is_empty() {
        true => print("ready\n"),
        false => Err(Ended::Other(format!("not ready: {}", reasons.join("; ")).into())),
    }
}

/// Why it is not ready; nothing if it is.
async fn reasons_against(address: SocketAddr) -> Vec<String> {
    let (status, body) = match client::ask(address, Method::GET, "/readyz", ANSWER_MAX).await {
        Ok(answer) => answer,
        Err(error) => return vec![format!("{address}: {error}")],
    };
    match status {
        StatusCode::OK if body["ready"] == true => return Vec::new(),
        StatusCode::OK => return vec![format!("what listens at {address} is no instance of Oncegate")],
        _ => {}
    }
    let told: Vec<_> =
        body["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if told.is_empty() { vec![format!("{address} answers {status}")] } else { told }
}
