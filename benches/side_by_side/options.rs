//! How long and how much.

use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::request::Load;

/// Oncegate side by side with HAProxy, nginx and pgbench on this machine
#[derive(Parser)]
#[command(name = "make bench BENCH=...")]
pub struct Options {
    /// About a minute: whether it runs, not what it says
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Also with ten million rows in the table: some minutes and 20 GB more
    #[arg(long)]
    full: bool,
    /// How often each row is measured
    #[arg(long, env = "ONCEGATE_BENCH_ROUNDS")]
    rounds: Option<usize>,
    /// How long each time, in whole seconds
    #[arg(long, env = "ONCEGATE_BENCH_SECONDS")]
    seconds: Option<u64>,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Nothing but this load on Oncegate on PostgreSQL, over 64 connections, for a profiler to look at
    #[arg(long, value_enum)]
    hold: Option<Hold>,
    /// Given by `cargo bench`, not by `cargo test`, which must not run for minutes
    #[arg(long, hide = true)]
    bench: bool,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Requests per second, PostgreSQL's processor time, memory
    Throughput,
    /// One connection's first attempt against two commits, alone and at a quarter of the load
    Latency,
    /// A table of millions of rows against an empty one
    Growth,
    /// Requests that are accepted now and delivered later
    Outbox,
    /// Two instances on one PostgreSQL against one
    Instances,
    /// Canonical JSON and its hash
    Canonical,
}

/// What can be held for a profiler.
#[derive(Clone, Copy, ValueEnum)]
enum Hold {
    PassThrough,
    First,
    Replay,
}

impl Options {
    /// As the command line says; `None` where this is no benchmark at all.
    pub fn read() -> Option<Self> {
        let options = Self::parse();
        options.bench.then_some(options)
    }

    /// Whether this part is wanted.
    pub fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The one load that is wanted, for a profiler.
    pub fn hold(&self) -> Option<Load> {
        self.hold.map(|hold| match hold {
            Hold::PassThrough => Load::PassThrough,
            Hold::First => Load::First,
            Hold::Replay => Load::Replay,
        })
    }

    /// How often each row is measured.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 }).max(1)
    }

    /// How long each time. pgbench knows whole seconds only.
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(if self.quick { 1 } else { 2 }).max(1))
    }

    /// How many rows the larger tables have.
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
