//! `oncegate events`

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::client::{InstanceArguments, explain_refusal};
use super::{CommandError, ask_to_confirm, block_on, failed, print};
use oncegate_config as config;
use oncegate_domain::quantity::quantity;
use oncegate_telemetry::terminal::escape_invisible;

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
    Requeue(DeadEventsArguments),
    /// Deletes the dead events of a place, which are then told to nobody; the audit log has each
    Discard(DeadEventsArguments),
}

#[derive(Args)]
struct DeadEventsArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The `name` of its `[[events]]`
    #[arg(value_name = "NAME", value_parser = config::parse_sink_name)]
    sink: Arc<str>,
    /// Does not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(arguments: &EventsArguments) -> Result<(), CommandError> {
    match &arguments.command {
        EventsCommand::List { instance, json } => {
            let answer = ask(instance, Method::GET, "/api/v1/events")?;
            print(&if *json { format!("{answer}\n") } else { table(&answer) })
        }
        EventsCommand::Requeue(dead) => dead.change("requeue", "requeued"),
        EventsCommand::Discard(dead) => dead.change("discard", "discarded"),
    }
}

impl DeadEventsArguments {
    fn change(&self, verb: &str, done: &str) -> Result<(), CommandError> {
        let Self { instance, sink, yes } = self;
        if !yes {
            let answer = ask(instance, Method::GET, "/api/v1/events")?;
            let mut sinks = answer["sinks"].as_array().into_iter().flatten();
            let dead = sinks.find(|listed| listed["sink"] == **sink).and_then(|listed| listed["dead"].as_u64());
            if dead != Some(0) {
                let events =
                    dead.map_or("all dead events".to_owned(), |dead| quantity(dead, "dead event", "dead events"));
                eprintln!("{verb}: {events} of {sink}");
                if !ask_to_confirm()? {
                    return Err(failed("nothing was changed"));
                }
            }
        }
        let answer = ask(instance, Method::POST, &format!("/api/v1/events/{sink}/{verb}"))?;
        print(&format!("{} {done}\n", quantity(answer[done].as_u64().unwrap_or_default(), "event", "events")))
    }
}

fn ask(arguments: &InstanceArguments, method: Method, path: &str) -> Result<Value, CommandError> {
    block_on(async {
        let instance = arguments.require_instance().await?;
        match instance.request(method, path, Bytes::new(), RESPONSE_MAX).await {
            Ok((status, answer)) if status.is_success() => Ok(answer),
            Ok((status, answer)) => Err(failed(explain_refusal(status, &answer))),
            Err(error) => Err(failed(format!("{}: {error}", instance.address))),
        }
    })
}

fn table(answer: &Value) -> String {
    let line = |sink: &Value| {
        let shown = |name: &str| sink[name].as_str().unwrap_or_default().to_owned();
        let reason = |name: &str| sink[name].as_str().map(|note| format!(" ({})", escape_invisible(note)));
        let count = |name: &str| sink[name].as_u64().unwrap_or_default();
        let since = sink["oldest_at"].as_str().map(|at| format!(" since {at}")).unwrap_or_default();
        format!(
            "{}  to {}: {} waiting{since}{}, {} dead{}\n",
            shown("sink"),
            shown("target"),
            count("waiting"),
            reason("waiting_note").unwrap_or_default(),
            count("dead"),
            reason("note").unwrap_or_default(),
        )
    };
    let text: String = answer["sinks"].as_array().into_iter().flatten().map(line).collect();
    if text.is_empty() { "no [[events]] are configured\n".into() } else { text }
}
