//! The floor on PostgreSQL: what pgbench gets from the same two statements, one row and one commit each, prepared, on an
//! equal table of the same server.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::postgres::{self, Database};
use crate::process::find;

/// pgbench, ready to run the pair.
pub struct Pair {
    program: PathBuf,
    url: String,
    home: TempDir,
}

impl Pair {
    /// `None` where there is no pgbench.
    pub async fn prepare(database: &Database) -> Option<Self> {
        let beside = Some(postgres::binaries().join("pgbench")).filter(|program| program.is_file());
        let program = beside.or_else(|| find("pgbench"))?;
        database.client().await.batch_execute(include_str!("raw_table.sql")).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("pair.sql"), include_str!("pair.sql")).unwrap();
        Some(Self { program, url: database.url.clone(), home })
    }

    /// Pairs per second of that many clients, and how many there were. Its time begins before it connects, so that what
    /// connecting took the last time is added.
    pub fn rate(&self, clients: usize, length: Duration, connecting: Duration) -> Result<(f64, u64), String> {
        let seconds = length.as_secs() + connecting.as_secs_f64().ceil() as u64;
        let said = self.run(clients, &["-T", &seconds.to_string()])?;
        Ok((number(&said, "tps = ")?, number(&said, "number of transactions actually processed: ")? as u64))
    }

    /// Connects that many clients and runs the pair once with each: what has to be taken off to leave connecting out.
    /// Tells how long it took.
    pub fn connect(&self, clients: usize) -> Result<Duration, String> {
        let begun = Instant::now();
        self.run(clients, &["-t", "1"])?;
        Ok(begun.elapsed())
    }

    /// How long each pair took of one client alone, in seconds; so many a second, or as many as go.
    pub fn latencies(&self, per_second: Option<u32>, length: Duration) -> Result<Vec<f64>, String> {
        let pace = per_second.map(|rate| format!("--rate={rate}"));
        let length = length.as_secs().to_string();
        let log = ["-T", &length, "--log", "--log-prefix=pairs"];
        self.run(1, &log.into_iter().chain(pace.as_deref()).collect::<Vec<_>>())?;
        let mut latencies = Vec::new();
        for file in fs::read_dir(self.home.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pairs")) {
                latencies.extend(fs::read_to_string(&file).unwrap().lines().filter_map(latency));
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
        let (said, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        let right = status.success() && !wrong.contains("ERROR") && !wrong.contains("aborted");
        if right { Ok(said.into_owned()) } else { Err(format!("pgbench: {status}: {wrong}")) }
    }
}

/// A line of pgbench's log: client, number, microseconds, script, seconds, microseconds, and with a rate by how much it
/// came late, which is in the third field too.
fn latency(line: &str) -> Option<f64> {
    let fields: Vec<f64> = line.split(' ').filter_map(|field| field.parse().ok()).collect();
    Some((fields.get(2)? - fields.get(6).unwrap_or(&0.0)) / 1e6)
}

fn number(said: &str, after: &str) -> Result<f64, String> {
    let rest = said.split_once(after).map(|(_, rest)| rest);
    let word = rest.and_then(|rest| rest.split([' ', '/', '\n']).next()?.parse().ok());
    word.ok_or_else(|| format!("pgbench does not say {after:?}: {said}"))
}
