//! `oncegate drain`

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, Request};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::{Instance, Met, Unanswered};
use super::{Ended, block_on, print};
use crate::config;

/// Both answers are made from memory.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Often enough that a hook is not what a shutdown waits for.
const ASK_EVERY: Duration = Duration::from_millis(100);

const PATH: &str = "/api/v1/drain";

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    instance: Instance,
    /// How long to wait until it has drained
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = config::duration)]
    wait: Duration,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    block_on(async {
        let instance = arguments.instance.meet().await?;
        drain(&instance, arguments.wait).await.map_err(|error| Ended::Other(error.into()))
    })?;
    print("drained\n")
}

async fn drain(instance: &Met, wait: Duration) -> Result<(), String> {
    let address = instance.address;
    let ask = async |method: Method| {
        instance.ask(Request::builder().method(method).uri(PATH), Bytes::new(), ANSWER_MAX).await
    };
    let deadline = Instant::now() + wait;
    let first = match ask(Method::POST).await.map_err(|error| format!("{address}: {error}"))? {
        (status, body) if status.is_success() => body["instance"].clone(),
        (status, body) => return Err(format!("{address} answers {status} {body}")),
    };
    let mut running = Value::Null;
    loop {
        match ask(Method::GET).await {
            Err(Unanswered::Gone) => return Ok(()),
            // Another one is there already: ours is gone.
            Ok((_, body)) if body["instance"].is_string() && body["instance"] != first => return Ok(()),
            Ok((_, body)) => running = body["attempts"].clone(),
            // It may be going just now; the next time it is gone.
            Err(Unanswered::Broken(_) | Unanswered::Stranger | Unanswered::TimedOut) => {}
        }
        if Instant::now() >= deadline {
            let attempts = running.as_u64().map_or(String::new(), |count| format!("; attempts running: {count}"));
            return Err(format!("{address} is still draining{attempts}"));
        }
        sleep(ASK_EVERY).await;
    }
}
