//! `oncegate healthcheck`

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;

use super::client::{self, InstanceArguments};
use super::{CommandError, block_on, print};

/// The time for the response. An instance answers within a second; one that takes longer than this is not ready.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

pub(super) fn run(instance: &InstanceArguments) -> Result<(), CommandError> {
    let address = instance.address()?;
    let reasons = block_on(async { Ok(find_reasons(address).await) })?;
    match reasons.is_empty() {
        true => print("ready\n"),
        false => Err(CommandError::Other(format!("not ready: {}", reasons.join("; ")).into())),
    }
}

/// Returns the reasons why it is not ready; none if it is.
async fn find_reasons(address: SocketAddr) -> Vec<String> {
    let (status, body) = match client::request_public(address, Method::GET, "/readyz", RESPONSE_MAX).await {
        Ok(response) => response,
        Err(error) => return vec![format!("{address}: {error}")],
    };
    match status {
        StatusCode::OK if body["ready"] == true => return Vec::new(),
        StatusCode::OK => return vec![format!("the program that listens at {address} is not an instance of Oncegate")],
        _ => {}
    }
    let reasons: Vec<_> =
        body["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if reasons.is_empty() { vec![format!("{address} answers {status}")] } else { reasons }
}
