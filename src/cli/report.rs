//! `oncegate report`: all that helps others with a problem, and nothing of a request, a caller or a secret.
//!
//! Each part comes from a place that has no more than may be told: the described configuration, the metrics, counts,
//! and what the database says of itself. Problems of the command are printed on standard error alone, as they may quote
//! addresses and files.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use clap::Args;
use http::Method;
use serde_json::Value;

use super::client::{self, Connected, InstanceArguments};
use super::{CommandError, block_on, create, failed, load_without_secrets, load_without_service, print, require_file};
use oncegate_config as config;
use oncegate_domain::rfc3339;
use oncegate_settings::{Config, LoadedConfig, StoreLocation};
use oncegate_store::{self as store, StoreSettings};
use oncegate_telemetry::logs::LogExcerpt;

/// The time for a response: the counts read the store.
const RESPONSE_MAX: Duration = Duration::from_secs(30);
/// The most lines of a log.
const LINES_MAX: usize = 200;

#[derive(Args)]
pub(super) struct ReportArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// A log of the instance, whose last 200 lines the report gets without keys, paths, callers, causes and addresses;
    /// - is the standard input
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The file to write; an existing one is never changed [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &ReportArguments) -> Result<(), CommandError> {
    let ReportArguments { instance, log, output } = arguments;
    let (config, has_secrets) = match (load_without_service(&instance.file), instance.file.path()) {
        (Ok(config), _) => (config, true),
        // What is wrong with it otherwise is the problem to report.
        (Err(problems), Some(file)) => (load_without_secrets(&file).map_err(|_| problems)?, false),
        (Err(problems), None) => return Err(problems),
    };
    let log = log.as_deref().map(|log| describe_log(log, &config.live)).transpose()?;
    let text = block_on(async {
        let parts = [
            format!("# Oncegate's report of {}\n", rfc3339::format(SystemTime::now())),
            section("Versions", &versions()),
            section("Configuration", &describe_config(&config)),
            section("Instance", &describe_instance(instance).await),
            section("Store", &describe_store(&config, has_secrets, instance).await),
            log.map_or_else(String::new, |log| section("Log", &log)),
        ];
        Ok(parts.concat())
    })?;
    match output {
        Some(output) => create(output, 0o600, &text),
        None => print(&text),
    }
}

fn section(title: &str, text: &str) -> String {
    format!("\n## {title}\n\n{}\n", text.trim_end())
}

/// A text as it is.
fn block(text: &str) -> String {
    format!("```text\n{}\n```\n", text.trim_end())
}

fn versions() -> String {
    // The part of it that names the kernel and no host.
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    format!(
        "- oncegate {}\n- {} {}, {}, {}\n- SQLite {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        kernel.trim(),
        name.trim_matches('"'),
        std::env::consts::ARCH,
        store::sqlite_version()
    )
}

fn describe_config(config: &LoadedConfig) -> String {
    let warnings = config.live.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    block(&(config::describe(config) + &warnings.collect::<String>()))
}

async fn describe_instance(arguments: &InstanceArguments) -> String {
    let address = match arguments.find().await {
        Ok(Some(address)) => address,
        Ok(None) => return "No instance answers at the admin listener.".into(),
        Err(error) => return say_why("No instance answers at the admin listener", &error),
    };
    let mut text = String::new();
    for path in ["/readyz", "/metrics"] {
        let read = client::read_public(address, path, RESPONSE_MAX).await;
        let read =
            read.map_or_else(|error| say_why("It was not read", &failed(error.to_string())), |body| block(&body));
        text.push_str(&format!("### {path}\n\n{read}\n"));
    }
    let asked = match arguments.connect().await {
        Ok(Some(instance)) => describe_work(&instance).await,
        Ok(None) => Err(arguments.nobody_listens()),
        Err(error) => Err(error),
    };
    text + &asked.unwrap_or_else(|error| say_why("The keys were not counted", &error))
}

/// The drain state and the counts of the keys. The rest of the statistics is about callers.
async fn describe_work(instance: &Connected) -> Result<String, CommandError> {
    let ask = async |path| {
        let answer = instance.request(Method::GET, path, Bytes::new(), RESPONSE_MAX).await;
        match answer.map_err(|error| failed(error.to_string()))? {
            (status, answer) if status.is_success() => Ok(answer),
            (status, answer) => Err(failed(client::explain_refusal(status, &answer))),
        }
    };
    let (drain, stats) = (ask("/api/v1/drain").await?, ask("/api/v1/stats").await?);
    let row = |count: &Value| {
        let [route, state] = ["route", "state"].map(|name| count[name].as_str().unwrap_or_default());
        let about = if count["exact"] == true { "" } else { "about " };
        format!("{route:<24}{state:<12}{about}{}\n", count["keys"])
    };
    let counts: String = stats["counts"].as_array().into_iter().flatten().map(row).collect();
    let counts = if counts.is_empty() { "no keys" } else { &counts };
    let state = drain["state"].as_str().unwrap_or_default();
    let state = format!("It is {state}, and runs {} attempts.", drain["attempts"]);
    Ok(format!("### Keys\n\n{state}\n\n{}", block(counts)))
}

async fn describe_store(config: &LoadedConfig, has_secrets: bool, instance: &InstanceArguments) -> String {
    if !has_secrets {
        return "The store was not asked: a secret or a variable of the configuration is missing here.".into();
    }
    let location = &config.start.store.url;
    if let Err(error) = require_file(location, &instance.file) {
        return say_why("The store was not asked", &error);
    }
    if matches!(location, StoreLocation::Sqlite(_)) && matches!(instance.find().await, Ok(Some(_))) {
        return "A file, which the instance above has open: it alone can read it, and has counted its keys.".into();
    }
    let settings = StoreSettings { migrate: false, ..StoreSettings::from(config) };
    store::describe(&settings).await.unwrap_or_else(|error| {
        // The causes may quote.
        let what = format!("The store was not asked: {error}");
        say_why(&what, &CommandError::Store(location.clone(), error))
    })
}

fn describe_log(file: &Path, config: &Config) -> Result<String, CommandError> {
    let lines = last_lines(file).map_err(|error| failed(format!("{}: {error}", file.display())))?;
    let is_name = |text: &str| {
        config.routes.iter().any(|route| route.has_name(text)) || config.service_names().any(|name| **name == *text)
    };
    let mut excerpt = LogExcerpt::default();
    lines.iter().for_each(|line| excerpt.add(&String::from_utf8_lossy(line), is_name));
    let left_out = excerpt.left_out.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>();
    let left_out = if left_out.is_empty() { "nothing".to_owned() } else { left_out.join(", ") };
    Ok(format!("Left out of the last lines: {left_out}.\n\n{}", block(&excerpt.lines.join("\n"))))
}

fn last_lines(file: &Path) -> io::Result<VecDeque<Vec<u8>>> {
    let log: Box<dyn BufRead> = match file == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file)?)),
    };
    let mut last = VecDeque::with_capacity(LINES_MAX);
    for line in log.split(b'\n') {
        if last.len() == LINES_MAX {
            last.pop_front();
        }
        last.push_back(line?);
    }
    Ok(last)
}

/// Prints why a part is missing, and returns the part's sentence about it.
fn say_why(what: &str, error: &CommandError) -> String {
    error.print();
    format!("{what}; the standard error of the command says why.\n")
}
