//! The floor on PostgreSQL: pgbench with the same two prepared statements, one row and one commit each, on an equal table of
//! the same server.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::find;
use store_contract::postgres::{self, TestDatabase};

/// pgbench with the pair of statements.
pub struct PgbenchPair {
    program: PathBuf,
    url: String,
    home: TempDir,
}

impl PgbenchPair {
    /// Creates the table and the script; `None` if pgbench is not installed.
    pub async fn prepare(database: &TestDatabase) -> Option<Self> {
        let beside = Some(postgres::binaries().join("pgbench")).filter(|program| program.is_file());
        let program = beside.or_else(|| find("pgbench"))?;
        database.client().await.batch_execute(include_str!("raw_table.sql")).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("pair.sql"), include_str!("pair.sql")).unwrap();
        Some(Self { program, url: database.url.clone(), home })
    }

    /// Measures the pairs per second of this many clients, and their number. pgbench's time begins before it connects, so the
    /// time that connecting took before is added.
    pub fn rate(&self, clients: usize, length: Duration, connecting: Duration) -> Result<(f64, u64), String> {
        let seconds = length.as_secs() + connecting.as_secs_f64().ceil() as u64;
        let output = self.run(clients, &["-T", &seconds.to_string()])?;
        Ok((
            parse_number(&output, "tps = ")?,
            parse_number(&output, "number of transactions actually processed: ")? as u64,
        ))
    }

    /// Connects this many clients and runs the pair once with each: the part to subtract in order to leave connecting out.
    /// Returns the time that it took.
    pub fn connect(&self, clients: usize) -> Result<Duration, String> {
        let started = Instant::now();
        self.run(clients, &["-t", "1"])?;
        Ok(started.elapsed())
    }

    /// Measures the latencies of one client's pairs in seconds, at `per_second` or at full speed.
    pub fn latencies(&self, per_second: Option<u32>, length: Duration) -> Result<Vec<f64>, String> {
        let rate = per_second.map(|rate| format!("--rate={rate}"));
        let length = length.as_secs().to_string();
        let log = ["-T", &length, "--log", "--log-prefix=pairs"];
        self.run(1, &log.into_iter().chain(rate.as_deref()).collect::<Vec<_>>())?;
        let mut latencies = Vec::new();
        for file in fs::read_dir(self.home.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pairs")) {
                latencies.extend(fs::read_to_string(&file).unwrap().lines().filter_map(parse_latency));
                fs::remove_file(file).unwrap();
            }
        }
        if latencies.is_empty() { Err("pgbench logged no transaction".to_owned()) } else { Ok(latencies) }
    }

    fn run(&self, clients: usize, arguments: &[&str]) -> Result<String, String> {
        let threads = clients.min(2);
        let Output { status, stdout, stderr } = Command::new(&self.program)
            .args(["-n", "-M", "prepared", "-f", "pair.sql", "-c", &clients.to_string(), "-j", &threads.to_string()])
            .args(arguments)
            .arg(&self.url)
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("pgbench: {error}"))?;
        let (output, failure) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        let succeeded = status.success() && !failure.contains("ERROR") && !failure.contains("aborted");
        if succeeded { Ok(output.into_owned()) } else { Err(format!("pgbench: {status}: {failure}")) }
    }
}

/// Parses the latency from a line of pgbench's log: client, number, microseconds, script, seconds, microseconds, and with a
/// rate the schedule lag, which the third field includes.
fn parse_latency(line: &str) -> Option<f64> {
    let fields: Vec<f64> = line.split(' ').filter_map(|field| field.parse().ok()).collect();
    Some((fields.get(2)? - fields.get(6).unwrap_or(&0.0)) / 1e6)
}

fn parse_number(output: &str, after: &str) -> Result<f64, String> {
    let rest = output.split_once(after).map(|(_, rest)| rest);
    let number = rest.and_then(|rest| rest.split([' ', '/', '\n']).next()?.parse().ok());
    number.ok_or_else(|| format!("pgbench does not print {after:?}: {output}"))
}
