//! `oncegate keys`

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args, Subcommand};
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::client::Instance;
use super::explain::field;
use super::{Ended, block_on, print};
use crate::admin::desk::Verb;
use crate::domain::fingerprint::form;
use crate::domain::phase::Phase;
use source::Source;

mod source;
mod table;

/// As many keys as a table shows where nothing is said.
const TABLE_ROWS: usize = 100;
/// As many keys as one answer brings.
const PAGE: usize = 500;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists keys: what is unknown or dead the oldest first, all else in the order of their ids
    List(List),
    /// Shows all about a key but what its response says
    Show(Show),
    /// Says how an unknown outcome ended: unknown or dead becomes completed, or retryable
    #[command(group = clap::ArgGroup::new("outcome").required(true))]
    Resolve(Resolve),
    /// Drops a stored response, so that the next request is executed: completed becomes retryable
    Release(Change),
    /// Has the service asked, or an accepted request delivered, again: dead becomes unknown or queued, as it was
    Requeue(Change),
    /// Forgets keys: completed, retryable and expired ones, others only with --accept-risk, never one in flight
    Purge(Change),
}

/// Which keys. An empty value, as a variable leaves it that is not set, is none of a condition's.
#[derive(Args)]
struct Filter {
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(Phase::ALL.map(Phase::name)))]
    state: Option<String>,
    /// Of the caller whose hash begins so, in hexadecimal
    #[arg(long, value_name = "HEX", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Of this route
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// With exactly this key
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Settled (or, in flight, made) so long ago, such as 5m or 24h
    #[arg(long, value_name = "DURATION", value_parser = NonEmptyStringValueParser::new())]
    older_than: Option<String>,
}

impl Filter {
    fn conditions(&self) -> Vec<(&'static str, &str)> {
        let said = [
            ("state", &self.state),
            ("scope", &self.scope),
            ("route", &self.route),
            ("key", &self.key),
            ("older_than", &self.older_than),
        ];
        said.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    instance: Instance,
    #[command(flatten)]
    filter: Filter,
    /// How many at most [default: 100; with --json all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// As a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    instance: Instance,
    /// The key's id, or the first 8 digits of it or more
    id: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Change {
    #[command(flatten)]
    instance: Instance,
    /// Ids of keys, or the first 8 digits of each or more
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// All keys that the change is for
    #[arg(long)]
    all: bool,
    /// Does not ask, though it is about several keys
    #[arg(short, long)]
    yes: bool,
    /// Does what may have a request executed twice, and says so in the audit log
    #[arg(long)]
    accept_risk: bool,
    /// On what grounds, for the audit log
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Resolve {
    /// It has executed, and its retries get a response with this status
    #[arg(long, value_name = "STATUS", group = "outcome")]
    completed: Option<u16>,
    /// It has not executed, and the next request is the next attempt
    #[arg(long, group = "outcome")]
    not_executed: bool,
    /// A field of the response; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = field, conflicts_with = "not_executed")]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The response's body, or @FILE
    #[arg(long, value_name = "BODY|@FILE", conflicts_with = "not_executed")]
    body: Option<String>,
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Ended> {
    block_on(async {
        match arguments.command {
            Command::List(list) => list.run().await,
            Command::Show(show) => show.run().await,
            Command::Resolve(resolve) => {
                let outcome = resolve.outcome()?;
                resolve.change.run(Verb::Resolve, "resolve", outcome).await
            }
            Command::Release(change) => change.run(Verb::Release, "release", Map::new()).await,
            Command::Requeue(change) => change.run(Verb::Requeue, "requeue", Map::new()).await,
            Command::Purge(change) => change.run(Verb::Purge, "purge", Map::new()).await,
        }
    })
}

impl List {
    async fn run(&self) -> Result<(), Ended> {
        let source = Source::open(&self.instance).await?;
        let limit = self.limit.unwrap_or(if self.json { usize::MAX } else { TABLE_ROWS });
        let mut listed = Listed { json: self.json, rows: Vec::new(), count: 0 };
        let mut cursor = None::<String>;
        while listed.count < limit {
            let page = PAGE.min(limit - listed.count).to_string();
            let mut query = self.filter.conditions();
            query.push(("limit", &page));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let mut answer = source.ask(Verb::List, "", &spelt(&query), None).await?;
            if let Value::Array(keys) = answer["keys"].take() {
                listed.add(keys)?;
            }
            cursor = answer["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        listed.end(&source)?;
        if cursor.is_some() {
            eprintln!("oncegate: there are more; say --limit");
        }
        Ok(())
    }
}

/// What a listing has printed, or is going to.
struct Listed {
    json: bool,
    rows: Vec<Value>,
    count: usize,
}

impl Listed {
    /// JSON goes out as it comes, a table is aligned when all of it is there.
    fn add(&mut self, keys: Vec<Value>) -> Result<(), Ended> {
        for key in keys {
            if self.json {
                print(&format!("{}{key}", if self.count == 0 { "[" } else { ",\n " }))?;
            } else {
                self.rows.push(key);
            }
            self.count += 1;
        }
        Ok(())
    }

    fn end(&self, source: &Source) -> Result<(), Ended> {
        match (self.json, self.count) {
            (true, 0) => print("[]\n"),
            (true, _) => print("]\n"),
            (false, 0) => {
                eprintln!("oncegate: no key fits; looked {source}");
                Ok(())
            }
            (false, _) => print(&table::of(&self.rows, table::Paint::for_output())),
        }
    }
}

impl Show {
    async fn run(&self) -> Result<(), Ended> {
        let source = Source::open(&self.instance).await?;
        let key = source.ask(Verb::Show, &self.id, "", None).await?;
        match self.json {
            true => print(&format!("{key:#}\n")),
            false => print(&table::one(&key, table::Paint::for_output())),
        }
    }
}

impl Resolve {
    fn outcome(&self) -> Result<Map<String, Value>, Ended> {
        let mut fields = Map::new();
        let Some(status) = self.completed else {
            fields.insert("outcome".into(), "not_executed".into());
            return Ok(fields);
        };
        fields.insert("outcome".into(), "completed".into());
        fields.insert("status".into(), status.into());
        let text = |value: &HeaderValue| {
            let text = value.to_str().map(str::to_owned);
            text.map_err(|_| Ended::Usage("--header has a value that is no visible ASCII".into()))
        };
        let headers = self.headers.iter().map(|(name, value)| Ok(json!([name.as_str(), text(value)?])));
        fields.insert("headers".into(), headers.collect::<Result<_, Ended>>()?);
        let body = match self.body.as_deref() {
            Some(body) => match body.strip_prefix('@') {
                Some(file) => std::fs::read(file).map_err(|error| Ended::Other(format!("{file}: {error}").into()))?,
                None => body.as_bytes().to_owned(),
            },
            None => Vec::new(),
        };
        match String::from_utf8(body) {
            Ok(text) => fields.insert("body".into(), text.into()),
            Err(bytes) => fields.insert("body_base64".into(), BASE64_STANDARD.encode(bytes.as_bytes()).into()),
        };
        Ok(fields)
    }
}

impl Change {
    async fn run(&self, verb: Verb, name: &str, mut fields: Map<String, Value>) -> Result<(), Ended> {
        if self.accept_risk {
            fields.insert("accept_risk".into(), true.into());
        }
        if let Some(note) = &self.note {
            fields.insert("note".into(), note.as_str().into());
        }
        let conditions = self.filter.conditions();
        let (by_id, by_filter) = (!self.ids.is_empty(), !conditions.is_empty());
        match &*self.ids {
            _ if u8::from(by_id) + u8::from(by_filter) + u8::from(self.all) > 1 => {
                Err(Ended::Usage("say ids, filters or --all, and not both".into()))
            }
            [] if !by_filter && !self.all => {
                let how = "by their ids, by --state, --route, --key and so on, or --all";
                Err(Ended::Usage(format!("say which keys: {how}")))
            }
            [id] => {
                let source = Source::open(&self.instance).await?;
                let told = source.ask(verb, id, "", Some(Value::Object(fields))).await?;
                self.tell(&told)
            }
            ids => {
                fields.insert("action".into(), name.into());
                if self.all {
                    fields.insert("all".into(), true.into());
                } else if ids.is_empty() {
                    let filter: BTreeMap<_, _> = conditions.into_iter().collect();
                    fields.insert("filter".into(), json!(filter));
                } else {
                    fields.insert("ids".into(), json!(ids));
                }
                self.run_on_many(name, fields).await
            }
        }
    }

    /// The count first; then, if somebody agrees, the change of so many and no more.
    async fn run_on_many(&self, name: &str, mut fields: Map<String, Value>) -> Result<(), Ended> {
        let source = Source::open(&self.instance).await?;
        let dry = source.ask(Verb::Act, "", "", Some(Value::Object(fields.clone()))).await?;
        let count = dry["count"].as_u64().unwrap_or(0);
        if count > 0 {
            let states: Vec<_> = dry["by_state"].as_object().into_iter().flatten().collect();
            let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let keys = if count == 1 { "key" } else { "keys" };
            eprintln!("{name}: {count} {keys} ({}) {source}", states.join(", "));
            if !self.yes && !agreed()? {
                return Err(Ended::Other("nothing was changed".into()));
            }
            fields.insert("expect".into(), count.into());
            let asked = source.ask(Verb::Act, "", "", Some(Value::Object(fields)));
            return self.tell(&patiently(name, asked).await?);
        }
        if dry["refused_count"].as_u64().unwrap_or(0) == 0 && !self.json {
            eprintln!("oncegate: no key fits; looked {source}");
            return Ok(());
        }
        self.tell(&dry)
    }

    fn tell(&self, told: &Value) -> Result<(), Ended> {
        if self.json {
            print(&format!("{told:#}\n"))?;
        } else {
            print(&table::change(told))?;
        }
        if let Some(behind @ 1..) = told["instances_behind"].as_u64() {
            eprintln!("oncegate: {behind} running instances have not said that they have forgotten it");
        }
        match told["refused_count"].as_u64() {
            Some(refused @ 1..) => Err(Ended::Other(format!("{refused} keys were not changed").into())),
            _ => Ok(()),
        }
    }
}

/// Shows whoever sits there that something still goes on: many keys are changed in many commits.
async fn patiently<T>(name: &str, asked: impl Future<Output = T>) -> T {
    let mut asked = std::pin::pin!(asked);
    let begun = tokio::time::Instant::now();
    loop {
        match tokio::time::timeout(Duration::from_secs(2), &mut asked).await {
            Ok(told) => return told,
            Err(_) if std::io::stderr().is_terminal() => {
                eprintln!("{name}: still at it, {} s; what is done is in the audit log", begun.elapsed().as_secs());
            }
            Err(_) => {}
        }
    }
}

/// Asks whoever sits there.
fn agreed() -> Result<bool, Ended> {
    let mut answers = std::io::stdin().lock();
    if !std::io::stdin().is_terminal() {
        return Err(Ended::Usage("nobody can be asked here: say --yes".into()));
    }
    eprint!("Go on? [y/N] ");
    let mut answer = String::new();
    let read = std::io::stderr().flush().and_then(|()| answers.read_line(&mut answer));
    read.map_err(|error| Ended::Other(error.into()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn spelt(query: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{name}={}", form::escape(value.as_bytes()));
    query.iter().map(pair).collect::<Vec<_>>().join("&")
}
