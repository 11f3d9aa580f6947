//! `oncegate events`

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use http::{Method, Request};
use serde_json::Value;

use super::client::InstanceArguments;
use super::{CommandError, block_on, failed, print};
use oncegate_config as config;
use oncegate_domain::quantity::quantity;

/// The time for a response: the store's own limits are shorter.
const RESPONSE_MAX: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(super) struct EventsArguments {
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Subcommand)]
enum EventsCommand {
    /// Lists the places that events go to, with the events that wait or are dead
    List {
        #[command(flatten)]
        instance: InstanceArguments,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Publishes the dead events of a place again
    Requeue {
        #[command(flatten)]
        instance: InstanceArguments,
        /// The `name` of its `[[events]]`
        #[arg(value_name = "NAME", value_parser = config::parse_sink_name)]
        sink: Arc<str>,
    },
}

pub(super) fn run(arguments: &EventsArguments) -> Result<(), CommandError> {
    match &arguments.command {
        EventsCommand::List { instance, json } => {
            let answer = ask(instance, Method::GET, "/api/v1/events")?;
            print(&if *json { format!("{answer}\n") } else { table(&answer) })
        }
        EventsCommand::Requeue { instance, sink } => {
            let answer = ask(instance, Method::POST, &format!("/api/v1/events/{sink}/requeue"))?;
            let requeued = answer["requeued"].as_u64().unwrap_or_default();
            print(&format!("{} requeued\n", quantity(requeued, "event", "events")))
        }
    }
}

fn ask(arguments: &InstanceArguments, method: Method, path: &str) -> Result<Value, CommandError> {
    block_on(async {
        let instance = arguments.connect().await?.ok_or_else(|| arguments.nobody_listens())?;
        let request = Request::builder().method(method).uri(path);
        match instance.request(request, Bytes::new(), RESPONSE_MAX).await {
            Ok((status, answer)) if status.is_success() => Ok(answer),
            Ok((status, answer)) => {
                let detail = answer["detail"].as_str().or(answer["error"].as_str());
                Err(failed(detail.map_or_else(|| format!("the instance answers {status}"), str::to_owned)))
            }
            Err(error) => Err(failed(format!("{}: {error}", instance.address))),
        }
    })
}

fn table(answer: &Value) -> String {
    let mut text = String::new();
    for sink in answer["sinks"].as_array().into_iter().flatten() {
        let shown = |name: &str| sink[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| sink[name].as_u64().unwrap_or_default();
        let since = sink["oldest_at"].as_str().map(|at| format!(" since {at}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{}  to {}: {} waiting{since}, {} dead{}",
            shown("sink"),
            shown("target"),
            count("waiting"),
            count("dead"),
            sink["note"].as_str().map(|note| format!(" ({note})")).unwrap_or_default()
        );
    }
    if text.is_empty() { "no [[events]] are configured\n".into() } else { text }
}
