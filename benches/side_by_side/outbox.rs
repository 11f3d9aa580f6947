//! Asynchronous delivery: the rates at which requests are accepted and delivered.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::Process;
use crate::programs::start_async_oncegate;
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::{Testbed, create_database};
use crate::{http_client, load};

const CONNECTIONS: usize = 64;

/// The time limit for delivering all requests after the last one was accepted.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval of looks at the counters: short for the length of a round, and long enough not to disturb the measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An instance, and the names of its two rows.
struct OutboxSubject {
    accepted: &'static str,
    delivered: &'static str,
    proxy: Process,
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let database = create_database(&testbed.cluster).await;
    let subjects = [
        OutboxSubject {
            accepted: "accepted for delivery, PostgreSQL",
            delivered: "delivered, PostgreSQL",
            proxy: start_async_oncegate(testbed.upstream, |_| database.url.clone()),
        },
        OutboxSubject {
            accepted: "accepted for delivery, SQLite",
            delivered: "delivered, SQLite",
            proxy: start_async_oncegate(testbed.upstream, |home| format!("sqlite:{}", home.join("bench.db").display())),
        },
    ];
    for round in 0..testbed.options.rounds() {
        eprintln!("outbox: round {} of {}", round + 1, testbed.options.rounds());
        for subject in &subjects {
            subject.measure(testbed.options.length(), report).await?;
        }
    }
    Ok(())
}

impl OutboxSubject {
    /// Measures a load that is accepted, then waits until all of it is delivered, so that the next round finds an empty queue.
    async fn measure(&self, length: Duration, report: &mut BenchmarkReport) -> Result<(), String> {
        let before = self.settled_count()?;
        let started = Instant::now();
        let round = load::run_closed(&self.proxy.addresses[..1], Load::Accepted, CONNECTIONS, length)?;
        report.add_round(self.accepted, CONNECTIONS, &round);
        let delivered = self.wait_until_settled(before + round.answers).await?;
        let rate = round.answers as f64 / (delivered - started).as_secs_f64();
        report.add(self.delivered, CONNECTIONS, &[(Column::Rate, rate)]);
        Ok(())
    }

    /// Waits until `all` attempts are settled and no key is open. Returns the time when that was so.
    async fn wait_until_settled(&self, all: u64) -> Result<Instant, String> {
        let deadline = Instant::now() + DELIVERY_TIMEOUT;
        loop {
            let (now, settled) = (Instant::now(), self.settled_count()?);
            // The counter is cheap; the store decides.
            if settled >= all && self.open_count()? == 0 {
                return Ok(now);
            }
            if now >= deadline {
                let (name, open) = (self.delivered, self.open_count()?);
                return Err(format!(
                    "{name}: {open} keys are not completed {DELIVERY_TIMEOUT:?} after the last was accepted"
                ));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the number of attempts that the instance has settled since its start.
    fn settled_count(&self) -> Result<u64, String> {
        const COUNTER: &str = "oncegate_store_duration_seconds_count{op=\"settle\"} ";
        let metrics = self.get("/metrics")?;
        // The counter is missing before the first settlement.
        let Some(count) = metrics.lines().find_map(|line| line.strip_prefix(COUNTER)) else { return Ok(0) };
        count.parse().map_err(|_| format!("{COUNTER}is no number: {count}"))
    }

    /// Returns the number of keys that are not `completed`, including all that wait for delivery.
    fn open_count(&self) -> Result<u64, String> {
        let text = self.get("/api/v1/stats")?;
        let stats: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let counts = stats["counts"].as_array().ok_or_else(|| format!("no counts: {text}"))?;
        let open = counts.iter().filter(|count| count["state"] != "completed");
        open.map(|count| count["keys"].as_u64().ok_or_else(|| format!("no count: {text}"))).sum()
    }

    /// Sends a GET to the admin listener.
    fn get(&self, path: &str) -> Result<String, String> {
        http_client::request(self.proxy.addresses[1], "GET", path, &[], "")
    }
}
