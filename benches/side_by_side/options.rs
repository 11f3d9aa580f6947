//! The command line: which parts are measured, how often and for how long.

use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::request::Load;

/// Oncegate side by side with HAProxy, nginx, Caddy, pgbench, Restate, and guards in the service on this machine
#[derive(Parser)]
#[command(name = "make bench BENCH=...")]
pub struct Options {
    /// Some three minutes: whether it runs, not what it says
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Also the peers from npm, and ten million rows in the table: at most an hour, and 20 GB
    #[arg(long)]
    full: bool,
    /// The number of measurements of each row
    #[arg(long, env = "ONCEGATE_BENCH_ROUNDS")]
    rounds: Option<usize>,
    /// The length of a measurement, in whole seconds
    #[arg(long, env = "ONCEGATE_BENCH_SECONDS")]
    seconds: Option<u64>,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Nothing but this load on Oncegate on PostgreSQL, over 64 connections, for a profiler to look at
    #[arg(long, value_enum)]
    hold: Option<ProfiledLoad>,
    /// Given by `cargo bench`, not by `cargo test`, which must not run for minutes
    #[arg(long, hide = true)]
    bench: bool,
}

/// The parts that can be measured separately, in the order in which they run: instances come after all parts that use
/// PostgreSQL, because they count the deadlocks of all.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Requests that pass through, beside HAProxy, nginx and Caddy
    Proxies,
    /// Requests per second, PostgreSQL's processor time, memory
    Throughput,
    /// One connection's first attempt against two commits, alone and at a quarter of the load
    Latency,
    /// A table of millions of rows against an empty one
    Growth,
    /// Requests that are accepted now and delivered later
    Outbox,
    /// The same thing written in the service on PostgreSQL
    InService,
    /// Processor time and memory at 1,000 requests a second
    Steady,
    /// Restate's invocations with an idempotency key, with --full or by its name
    Restate,
    /// Middleware in the service with Redis, with --full or by its name
    Middleware,
    /// This program in turn with an earlier one, by its name: ONCEGATE_BENCH_EARLIER has the earlier one's path
    Earlier,
    /// A thousand event streams of 30 s beside HAProxy and nginx, with --full or by its name
    Streams,
    /// Two instances on one PostgreSQL against one
    Instances,
    /// Canonical JSON and its hash
    Canonical,
}

/// The loads that can be held for a profiler.
#[derive(Clone, Copy, ValueEnum)]
enum ProfiledLoad {
    PassThrough,
    First,
    Replay,
}

impl Options {
    /// Parses the command line; `None` if cargo runs this as a test and not as a benchmark.
    pub fn read() -> Option<Self> {
        let options = Self::parse();
        options.bench.then_some(options)
    }

    /// Returns the parts to be measured, in their order.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        Part::value_variants().iter().copied().filter(|part| self.includes(*part))
    }

    fn includes(&self, part: Part) -> bool {
        match part {
            _ if !self.only.is_empty() => self.only.contains(&part),
            Part::Restate | Part::Middleware | Part::Streams => self.full,
            Part::Earlier => false,
            _ => true,
        }
    }

    /// Returns the load to hold for a profiler, if there is one.
    pub fn held_load(&self) -> Option<Load> {
        self.hold.map(|hold| match hold {
            ProfiledLoad::PassThrough => Load::PassThrough,
            ProfiledLoad::First => Load::First,
            ProfiledLoad::Replay => Load::Replay,
        })
    }

    /// Returns the number of rounds of each row.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 }).max(1)
    }

    /// Returns the length of a round. pgbench accepts only whole seconds.
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(if self.quick { 1 } else { 2 }).max(1))
    }

    /// Returns the numbers of rows of the larger tables, with their labels.
    pub fn rows(&self) -> &'static [(i64, &'static str)] {
        const SMALL: (i64, &str) = (10_000, "10 thousand rows");
        const MILLION: (i64, &str) = (1_000_000, "1 million rows");
        const MILLIONS: (i64, &str) = (10_000_000, "10 million rows");
        match (self.quick, self.full) {
            (true, _) => &[SMALL],
            (false, false) => &[MILLION],
            (false, true) => &[MILLION, MILLIONS],
        }
    }
}
