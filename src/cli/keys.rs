//! `oncegate keys`

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args, Subcommand};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::client::InstanceArguments;
use super::request_arguments::{parse_field, parse_status, read_data};
use super::{CommandError, ask_to_confirm, block_on, failed, print};
use oncegate_admin::{self as admin, AdminMethod};
use oncegate_domain::quantity::quantity;
use oncegate_domain::state::StateKind;
use oncegate_domain::urlencoded;
use oncegate_telemetry::terminal;
use source::KeyAdminSource;

pub(super) mod source;
mod table;

const TABLE_ROWS: usize = 100;
const PAGE: usize = 1_000;

#[derive(Args)]
pub(super) struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// Lists keys, the newest first; with --state unknown or dead, those that have waited longest
    List(ListArguments),
    /// Shows all about a key but the content of its response
    Show(ShowArguments),
    /// Settles an unknown outcome: unknown or dead becomes completed, or retryable; with --replace it corrects a
    /// response that an operator has written
    #[command(group = clap::ArgGroup::new("outcome").required(true))]
    Resolve(ResolveArguments),
    /// Drops a stored response, so that the next request is executed: completed becomes retryable; only with
    /// --accept-risk while retries get that response, or are refused as late
    Release(ChangeArguments),
    /// Asks the service, or delivers an accepted request, again: dead becomes unknown or queued, as it was; only with
    /// --accept-risk where retries of unknown keys are executed
    Requeue(ChangeArguments),
    /// Erases what records have of their callers, and refuses their retries until the TTL ends; open outcomes are
    /// decided before
    Redact(ChangeArguments),
    /// Forgets keys, but never one in flight: those whose next retry is not executed now only with --accept-risk
    Purge(ChangeArguments),
}

/// The conditions of a filter. They refuse empty values, which shell variables that are not set leave behind.
#[derive(Args)]
struct FilterArguments {
    /// Keys in this state
    #[arg(long, value_parser = PossibleValuesParser::new(StateKind::ALL.map(StateKind::name)))]
    state: Option<String>,
    /// Keys of the caller whose hash begins with this, in hexadecimal
    #[arg(long, value_name = "HEX", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Keys of this route
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// Records of exactly this key
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Keys of this caller, as `PART=VALUE` with a part of the route's scope, such as jwt:sub=42; once for each part
    #[arg(long, value_name = "PART=VALUE", value_parser = NonEmptyStringValueParser::new())]
    caller: Vec<String>,
    /// Keys whose request had this value, as `PLACE=VALUE` with a place of the route's `index`
    #[arg(long = "where", value_name = "PLACE=VALUE", value_parser = NonEmptyStringValueParser::new())]
    lookup: Option<String>,
    /// Keys of requests whose path begins with this
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    path: Option<String>,
    /// Keys that were first seen from this time on, such as 2026-11-29T12:03 (UTC), or 2h for the last two hours
    #[arg(long, value_name = "TIME", value_parser = NonEmptyStringValueParser::new())]
    from: Option<String>,
    /// Keys that were first seen before this time
    #[arg(long, value_name = "TIME", value_parser = NonEmptyStringValueParser::new())]
    until: Option<String>,
    /// Keys that were settled (in flight: created) at least this long ago, such as 5m or 24h
    #[arg(long, value_name = "DURATION", value_parser = NonEmptyStringValueParser::new())]
    older_than: Option<String>,
}

impl FilterArguments {
    fn conditions(&self) -> Vec<(&'static str, String)> {
        let caller = (!self.caller.is_empty()).then(|| self.caller.join("\n"));
        let conditions = [
            ("state", &self.state),
            ("scope", &self.scope),
            ("route", &self.route),
            ("key", &self.key),
            ("caller", &caller),
            ("where", &self.lookup),
            ("path", &self.path),
            ("created_from", &self.from),
            ("created_until", &self.until),
            ("older_than", &self.older_than),
        ];
        conditions.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}

#[derive(Args)]
struct ListArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    #[command(flatten)]
    filter: FilterArguments,
    /// The number of keys, at most [default: 100; with --json all]
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Prints a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The key's id, or at least its first 8 digits
    id: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ChangeArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// Ids of keys, or at least the first 8 digits of each
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArguments,
    /// All keys that the change is for
    #[arg(long)]
    all: bool,
    /// Does not ask for confirmation: of a change of several keys, or of a response without a body
    #[arg(short, long)]
    yes: bool,
    /// Accepts that a request may be executed twice, or that a stored response is withdrawn; the audit log notes it
    #[arg(long)]
    accept_risk: bool,
    /// The grounds, for the audit log
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    note: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ResolveArguments {
    /// It was executed, and its retries get a response with this status
    #[arg(long, value_name = "STATUS", group = "outcome", value_parser = parse_status)]
    completed: Option<StatusCode>,
    /// It was not executed, and the next request is the next attempt
    #[arg(long, group = "outcome")]
    not_executed: bool,
    /// A field of the response; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_field, conflicts_with = "not_executed")]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The response's body, or @FILE
    #[arg(long, value_name = "BODY|@FILE", conflicts_with = "not_executed", allow_hyphen_values = true)]
    body: Option<String>,
    /// Replaces a response that an operator has written, never one of the service
    #[arg(long, conflicts_with = "not_executed")]
    replace: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

pub(super) fn run(arguments: KeysArguments) -> Result<(), CommandError> {
    block_on(async {
        match arguments.command {
            KeysCommand::List(list) => list.run().await,
            KeysCommand::Show(show) => show.run().await,
            KeysCommand::Resolve(resolve) => {
                let fields = resolve.to_fields()?;
                resolve.change.run(AdminMethod::Resolve, "resolve", fields).await
            }
            KeysCommand::Release(change) => change.run(AdminMethod::Release, "release", json!({})).await,
            KeysCommand::Requeue(change) => change.run(AdminMethod::Requeue, "requeue", json!({})).await,
            KeysCommand::Redact(change) => change.run(AdminMethod::Redact, "redact", json!({})).await,
            KeysCommand::Purge(change) => change.run(AdminMethod::Purge, "purge", json!({})).await,
        }
    })
}

impl ListArguments {
    async fn run(&self) -> Result<(), CommandError> {
        let source = KeyAdminSource::open(&self.instance).await?;
        let limit = self.limit.map_or(if self.json { usize::MAX } else { TABLE_ROWS }, NonZeroUsize::get);
        // JSON is printed at once; a table is aligned once all of it is there.
        let (mut rows, mut count) = (Vec::new(), 0);
        let mut cursor = None::<String>;
        while count < limit {
            let mut query = self.filter.conditions();
            query.push(("limit", PAGE.min(limit - count).to_string()));
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            let mut response = source.request(AdminMethod::List, "", &encode_query(&query), None).await?;
            for key in response["keys"].as_array_mut().into_iter().flatten() {
                match self.json {
                    true => print(&format!("{}{key}", if count == 0 { "[" } else { ",\n " }))?,
                    false => rows.push(key.take()),
                }
                count += 1;
            }
            cursor = response["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        match (self.json, count) {
            (true, 0) => print("[]\n")?,
            (true, _) => print("]\n")?,
            (false, 0) => eprintln!("oncegate: no key matches; looked {source}"),
            (false, _) => print(&table::render_list(&rows, has_colours()))?,
        }
        if cursor.is_some() {
            eprintln!("oncegate: there are more keys; use --limit");
        }
        Ok(())
    }
}

impl ShowArguments {
    async fn run(&self) -> Result<(), CommandError> {
        let source = KeyAdminSource::open(&self.instance).await?;
        let key = source.request(AdminMethod::Show, &self.id, "", None).await?;
        match self.json {
            true => print(&format!("{key:#}\n")),
            false => print(&table::render_key(&key, has_colours())),
        }
    }
}

impl ResolveArguments {
    fn to_fields(&self) -> Result<Value, CommandError> {
        let Some(status) = self.completed else { return Ok(json!({ "outcome": "not_executed" })) };
        let text = |value: &HeaderValue| {
            let text = value.to_str().map(str::to_owned);
            text.map_err(|_| CommandError::Usage("--header has a value that is not visible ASCII".into()))
        };
        let headers = self.headers.iter().map(|(name, value)| Ok(json!([name.as_str(), text(value)?])));
        let headers = headers.collect::<Result<Vec<_>, CommandError>>()?;
        let (status, replace) = (status.as_u16(), self.replace);
        let mut fields = json!({ "outcome": "completed", "status": status, "headers": headers, "replace": replace });
        // Without a body the instance may ask for one.
        if let Some(body) = self.body.clone().or_else(|| self.change.yes.then(String::new)) {
            match String::from_utf8(read_data(body)?) {
                Ok(text) => fields["body"] = text.into(),
                Err(bytes) => fields["body_base64"] = BASE64_STANDARD.encode(bytes.as_bytes()).into(),
            }
        }
        Ok(fields)
    }
}

impl ChangeArguments {
    async fn run(&self, method: AdminMethod, name: &str, mut fields: Value) -> Result<(), CommandError> {
        if self.accept_risk {
            fields["accept_risk"] = true.into();
        }
        if let Some(note) = &self.note {
            fields["note"] = note.as_str().into();
        }
        let conditions = self.filter.conditions();
        let (by_id, by_filter) = (!self.ids.is_empty(), !conditions.is_empty());
        match &*self.ids {
            _ if u8::from(by_id) + u8::from(by_filter) + u8::from(self.all) > 1 => {
                Err(CommandError::Usage("give ids, filters or --all, but only one of them".into()))
            }
            [] if !by_filter && !self.all => {
                let how = "by their ids, by --state, --route, --key and so on, or --all";
                Err(CommandError::Usage(format!("say which keys: {how}")))
            }
            [id] => {
                let source = KeyAdminSource::open(&self.instance).await?;
                self.ask_about_one(&source, name, &fields, id).await?;
                let (status, answer) = source.send(method, id, "", Some(fields.clone())).await?;
                if answer["code"] != admin::EMPTY_BODY {
                    return self.print_change(&source::check(status, answer)?);
                }
                eprintln!("{name}: {}", source::name_flags(answer["detail"].as_str().unwrap_or_default(), None));
                if !ask_to_confirm()? {
                    return Err(failed("nothing was changed"));
                }
                fields["body"] = "".into();
                self.print_change(&source.request(method, id, "", Some(fields)).await?)
            }
            ids => {
                fields["action"] = name.into();
                if self.all {
                    fields["all"] = true.into();
                } else if ids.is_empty() {
                    let filter: BTreeMap<_, _> = conditions.into_iter().collect();
                    fields["filter"] = json!(filter);
                } else {
                    fields["ids"] = json!(ids);
                }
                self.run_on_many(name, fields).await
            }
        }
    }

    /// On a terminal, says what each retry of the key will get, and asks.
    async fn ask_about_one(
        &self,
        source: &KeyAdminSource,
        name: &str,
        fields: &Value,
        id: &str,
    ) -> Result<(), CommandError> {
        if self.yes || !std::io::stdin().is_terminal() {
            return Ok(());
        }
        let mut question = fields.clone();
        (question["action"], question["ids"]) = (name.into(), json!([id]));
        let (status, counted) = source.send(AdminMethod::BulkChange, "", "", Some(question)).await?;
        // The change itself says why the key is refused.
        if !status.is_success() || counted["count"] == 0 {
            return Ok(());
        }
        eprintln!("{name}: retries of {id} {}", counted["retries"].as_str().unwrap_or_default());
        if ask_to_confirm()? { Ok(()) } else { Err(failed("nothing was changed")) }
    }

    /// Counts the keys first; then, if the operator agrees, changes so many and no more.
    async fn run_on_many(&self, name: &str, mut fields: Value) -> Result<(), CommandError> {
        let source = KeyAdminSource::open(&self.instance).await?;
        let counted = source.request(AdminMethod::BulkChange, "", "", Some(fields.clone())).await?;
        let count = counted["count"].as_u64().unwrap_or(0);
        if count > 0 {
            let states: Vec<_> = counted["by_state"].as_object().into_iter().flatten().collect();
            let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let (keys, retries) = (quantity(count, "key", "keys"), counted["retries"].as_str().unwrap_or_default());
            eprintln!("{name}: {keys} ({}) {source}; retries {retries}", states.join(", "));
            if !self.yes && !ask_to_confirm()? {
                return Err(failed("nothing was changed"));
            }
            fields["expect"] = count.into();
            let change = source.request(AdminMethod::BulkChange, "", "", Some(fields));
            return self.print_change(&await_with_progress(name, change).await?);
        }
        if name == "redact" && fields["filter"]["caller"].is_string() {
            // The weekly counts have the callers of keys that are gone.
            fields["expect"] = 0.into();
            source.request(AdminMethod::BulkChange, "", "", Some(fields)).await?;
        }
        if counted["refused_count"].as_u64().unwrap_or(0) == 0 && !self.json {
            eprintln!("oncegate: no key matches; looked {source}");
            return Ok(());
        }
        self.print_change(&counted)
    }

    fn print_change(&self, change: &Value) -> Result<(), CommandError> {
        if self.json {
            print(&format!("{change:#}\n"))?;
        } else {
            print(&table::render_change(change))?;
        }
        if let Some(behind @ 1..) = change["instances_behind"].as_u64() {
            let instances = quantity(behind, "running instance has", "running instances have");
            eprintln!("oncegate: {instances} not confirmed that it is forgotten");
        }
        match change["refused_count"].as_u64() {
            Some(refused @ 1..) => Err(failed(format!("{} not changed", quantity(refused, "key was", "keys were")))),
            _ => Ok(()),
        }
    }
}

/// Waits for a change, and shows on a terminal that it still goes on: many keys are changed in many commits.
async fn await_with_progress<T>(name: &str, change: impl Future<Output = T>) -> T {
    let mut change = std::pin::pin!(change);
    let begun = tokio::time::Instant::now();
    loop {
        match tokio::time::timeout(Duration::from_secs(2), &mut change).await {
            Ok(result) => return result,
            Err(_) if std::io::stderr().is_terminal() => {
                eprintln!(
                    "{name}: still running after {} s; the audit log has the changes that are done",
                    begun.elapsed().as_secs()
                );
            }
            Err(_) => {}
        }
    }
}

fn has_colours() -> bool {
    terminal::wants_colours(&std::io::stdout())
}

fn encode_query(query: &[(&str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| format!("{name}={}", urlencoded::escape(value.as_bytes()));
    query.iter().map(pair).collect::<Vec<_>>().join("&")
}
