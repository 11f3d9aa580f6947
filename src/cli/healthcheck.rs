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
    match block_on(async { Ok(ask(address).await) })? {
        HealthAnswer::Ready(reasons) if reasons.is_empty() => print("ready\n"),
        HealthAnswer::Ready(reasons) => {
            print(&format!("ready for the routes that bypass the store: {}\n", reasons.join("; ")))
        }
        HealthAnswer::NotReady(reasons) => {
            Err(CommandError::Other(format!("not ready: {}", reasons.join("; ")).into()))
        }
    }
}

/// The answer of an instance, with its reasons.
enum HealthAnswer {
    /// It should get requests. With reasons, it forwards those of some routes unguarded.
    Ready(Vec<String>),
    NotReady(Vec<String>),
}

async fn ask(address: SocketAddr) -> HealthAnswer {
    let (status, body) = match client::request_public(address, Method::GET, "/readyz", RESPONSE_MAX).await {
        Ok(response) => response,
        Err(error) => return HealthAnswer::NotReady(vec![format!("{address}: {error}")]),
    };
    let reasons: Vec<_> =
        body["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    match status {
        StatusCode::OK if body["ready"] == true => HealthAnswer::Ready(reasons),
        StatusCode::OK => HealthAnswer::NotReady(vec![format!(
            "the program that listens at {address} is not an instance of Oncegate"
        )]),
        _ if reasons.is_empty() => HealthAnswer::NotReady(vec![format!("{address} answers {status}")]),
        _ => HealthAnswer::NotReady(reasons),
    }
}
