//! Asynchronous delivery: how fast requests are accepted, and how fast they are through.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::contestants::delivering;
use crate::load;
use crate::process::Process;
use crate::request::Load;
use crate::sheet::{Column, Sheet};
use crate::stage::{Stage, migrated};

const CONNECTIONS: usize = 64;

/// How long after the last accept all must be delivered.
const PATIENCE: Duration = Duration::from_secs(60);

/// Often enough for the length of a round, and seldom enough to take nothing from what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An answer of the operators' listener that takes longer than this never comes.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// An instance and its two rows.
struct Subject {
    accepted: &'static str,
    delivered: &'static str,
    proxy: Process,
}

pub async fn run(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let database = migrated(&stage.cluster).await;
    let subjects = [
        Subject {
            accepted: "accepted for delivery, PostgreSQL",
            delivered: "delivered, PostgreSQL",
            proxy: delivering(stage.upstream, |_| database.url.clone()),
        },
        Subject {
            accepted: "accepted for delivery, SQLite",
            delivered: "delivered, SQLite",
            proxy: delivering(stage.upstream, |home| format!("sqlite:{}", home.join("bench.db").display())),
        },
    ];
    for round in 0..stage.options.rounds() {
        eprintln!("outbox: round {} of {}", round + 1, stage.options.rounds());
        for subject in &subjects {
            subject.measure(stage.options.length(), sheet).await?;
        }
    }
    Ok(())
}

impl Subject {
    /// A load that is accepted, and then the wait until all of it is delivered: the next round finds an empty queue.
    async fn measure(&self, length: Duration, sheet: &mut Sheet) -> Result<(), String> {
        let before = self.settled()?;
        let begun = Instant::now();
        let round = load::closed(&self.proxy.addresses[..1], Load::Accepted, CONNECTIONS, length)?;
        sheet.add_round(self.accepted, CONNECTIONS, &round);
        let through = self.all_settled(before + round.answers).await?;
        let rate = round.answers as f64 / (through - begun).as_secs_f64();
        sheet.add(self.delivered, CONNECTIONS, &[(Column::Rate, rate)]);
        Ok(())
    }

    /// When so many ends were stored, and no key was left without one.
    async fn all_settled(&self, all: u64) -> Result<Instant, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (seen, settled) = (Instant::now(), self.settled()?);
            // The counter is cheap, the look into the store has the last word.
            if settled >= all && self.open()? == 0 {
                return Ok(seen);
            }
            if seen >= deadline {
                let (name, open) = (self.delivered, self.open()?);
                return Err(format!("{name}: {open} keys are not completed {PATIENCE:?} after the last was accepted"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// How many ends of attempts the instance has stored since its start.
    fn settled(&self) -> Result<u64, String> {
        const COUNTER: &str = "oncegate_store_duration_seconds_count{op=\"settle\"} ";
        let metrics = self.ask("/metrics")?;
        // It is not there before the first.
        let Some(count) = metrics.lines().find_map(|line| line.strip_prefix(COUNTER)) else { return Ok(0) };
        count.parse().map_err(|_| format!("{COUNTER}is no number: {count}"))
    }

    /// How many keys are in any state but `completed`; those that are still to be delivered are all counted.
    fn open(&self) -> Result<u64, String> {
        let said = self.ask("/api/v1/stats")?;
        let stats: Value = serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
        let counts = stats["counts"].as_array().ok_or_else(|| format!("no counts: {said}"))?;
        let open = counts.iter().filter(|count| count["state"] != "completed");
        open.map(|count| count["keys"].as_u64().ok_or_else(|| format!("no count: {said}"))).sum()
    }

    /// Asks the operators' listener.
    fn ask(&self, path: &str) -> Result<String, String> {
        let address = self.proxy.addresses[1];
        get(address, path).map_err(|error| format!("{address}{path}: {error}"))
    }
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(format!("not the right answer: {answer:?}"))),
    }
}
