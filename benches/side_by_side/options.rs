//! The command line: which parts are measured, how often and for how long.

use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::request::Load;

/// Oncegate side by side with proxies, with guards in the service, and with an earlier program on this machine
#[derive(Parser)]
#[command(name = "make bench BENCH=...")]
pub struct Options {
    /// Whether it runs, not what it says
    #[arg(long)]
    quick: bool,
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

/// The parts that can be measured separately, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Requests that pass through, beside HAProxy, nginx and Caddy
    Proxies,
    /// The same thing written in the service on PostgreSQL
    InService,
    /// First attempts with 10 million keys, 1,000 routes, 10,000 idle connections, or 64 instances
    Scale,
    /// This program in turn with an earlier one, by its name: ONCEGATE_BENCH_EARLIER has the earlier one's path
    Earlier,
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
        let is_included = |part: &Part| {
            if self.only.is_empty() { !matches!(part, Part::Scale | Part::Earlier) } else { self.only.contains(part) }
        };
        Part::value_variants().iter().copied().filter(is_included)
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

    /// Returns the length of a round.
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(if self.quick { 1 } else { 2 }).max(1))
    }
}
