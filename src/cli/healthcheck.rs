//! `oncegate healthcheck`

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::client::{self, InstanceArguments};
use super::{CommandError, block_on, failed, print};

/// The time for the response. An instance answers within a second; one that takes longer than this is not ready.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

pub(super) fn run(instance: &InstanceArguments) -> Result<(), CommandError> {
    let address = instance.address()?;
    let response = block_on(async { Ok(client::request_public(address, "/readyz", RESPONSE_MAX).await) })?;
    let (status, body) = response.map_err(|error| failed(format!("not ready: {address}: {error}")))?;
    let reasons: Vec<_> = body["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let problem = match status {
        StatusCode::OK if body["ready"] == true && reasons.is_empty() => return print("ready\n"),
        // The others forward their requests unguarded, or refuse them.
        StatusCode::OK if body["ready"] == true => {
            return print(&format!("ready for some routes: {}\n", reasons.join("; ")));
        }
        StatusCode::OK => format!("the program that listens at {address} is not an instance of Oncegate"),
        _ if reasons.is_empty() => format!("{address} answers {status}"),
        _ => reasons.join("; "),
    };
    Err(failed(format!("not ready: {problem}")))
}
