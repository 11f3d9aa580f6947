//! `oncegate audit`

use clap::Args;
use serde_json::Value;

use super::client::InstanceArguments;
use super::keys::source::KeyAdminSource;
use super::{CommandError, block_on, print};
use oncegate_admin::AdminMethod;
use oncegate_domain::urlencoded;
use oncegate_telemetry::terminal::escape_invisible;

/// The most entries that one request returns.
const PAGE: usize = 1_000;

#[derive(Args)]
pub(super) struct AuditArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The id of a key, or at least its first 8 digits while it is there; without it, the entries about all keys
    #[arg(default_value = "", hide_default_value = true)]
    id: String,
    /// The number of entries, at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Prints JSON, an entry in each line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &AuditArguments) -> Result<(), CommandError> {
    let AuditArguments { instance, id, limit, json } = arguments;
    block_on(async {
        let source = KeyAdminSource::open(instance).await?;
        let (mut left, mut cursor) = (*limit, String::new());
        while left > 0 {
            let query = format!("id={}&limit={}&cursor={cursor}", urlencoded::escape(id.as_bytes()), left.min(PAGE));
            let answer = source.request(AdminMethod::Audit, "", &query, None).await?;
            let entries = answer["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            let lines = entries.iter().map(|entry| if *json { format!("{entry}\n") } else { line(entry) });
            print(&lines.collect::<String>())?;
            left -= entries.len().min(left);
            cursor = answer["next_cursor"].as_str().unwrap_or_default().to_owned();
            if cursor.is_empty() {
                break;
            }
        }
        Ok(())
    })
}

fn line(entry: &Value) -> String {
    let text = |name: &str| escape_invisible(entry[name].as_str().unwrap_or_default());
    let note = if entry["note"].is_null() { String::new() } else { format!("  {}", text("note")) };
    let [at, action, before, after, id, actor] = ["at", "action", "before", "after", "id", "actor"].map(text);
    format!("{at}  {action}  {before} -> {after}  {id:.16}  {actor}{note}\n")
}
