//! `oncegate drain`

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::{Connected, InstanceArguments, is_refused};
use super::{CommandError, block_on, failed, print};
use oncegate_settings as settings;

/// The time for a response, which the instance gives from memory.
const RESPONSE_MAX: Duration = Duration::from_secs(5);
/// The time between two requests: short enough that a shutdown does not wait for its hook.
const POLL_EVERY: Duration = Duration::from_millis(100);

const PATH: &str = "/api/v1/drain";

#[derive(Args)]
pub(super) struct DrainArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The longest wait for the instance to drain
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = settings::parse_duration)]
    wait: Duration,
}

pub(super) fn run(arguments: &DrainArguments) -> Result<(), CommandError> {
    block_on(async {
        let instance = arguments.instance.require_instance().await?;
        drain(&instance, arguments.wait).await.map_err(failed)
    })?;
    print("drained\n")
}

async fn drain(instance: &Connected, wait: Duration) -> Result<(), String> {
    let address = instance.address;
    let request = async |method| instance.request(method, PATH, Bytes::new(), RESPONSE_MAX).await;
    let deadline = Instant::now() + wait;
    let first = match request(Method::POST).await.map_err(|error| format!("{address}: {error}"))? {
        (status, body) if status.is_success() => body["instance"].clone(),
        (status, body) => return Err(format!("{address} answers {status} {body}")),
    };
    let mut running = Value::Null;
    loop {
        match request(Method::GET).await {
            Err(error) if is_refused(&error) => return Ok(()),
            // Another instance listens there already: the first one is gone.
            Ok((_, body)) if body["instance"].is_string() && body["instance"] != first => return Ok(()),
            Ok((_, body)) => running = body["attempts"].clone(),
            // It may be about to end; then the next request finds nobody.
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            let attempts = running.as_u64().map_or(String::new(), |count| format!("; attempts running: {count}"));
            return Err(format!("{address} is still draining{attempts}"));
        }
        sleep(POLL_EVERY).await;
    }
}
