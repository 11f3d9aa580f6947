//! This program in turn with an earlier one (`ONCEGATE_BENCH_EARLIER`): whether a change costs speed, without a standby
//! and with one.

use std::time::Instant;

use store_contract::postgres::Cluster;

use crate::load;
use crate::process::Process;
use crate::programs::{start_uncached_oncegate, this_program};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::{Testbed, first_process};

/// The environment variable with the path of the earlier program.
const EARLIER: &str = "ONCEGATE_BENCH_EARLIER";

/// The loads, each over so many connections.
const LOADS: [(Load, usize); 5] =
    [(Load::PassThrough, 64), (Load::First, 1), (Load::First, 64), (Load::First, 256), (Load::Replay, 64)];

/// The aim for the median: single rounds of a machine whose disk others use differ by a fifth.
const AIM: f64 = 0.97;

/// One server, with a database for each program.
struct Server {
    /// The words after the names of its rows.
    suffix: &'static str,
    /// Two instances of each program, so that both have the same company on their databases.
    earlier: [Process; 2],
    now: [Process; 2],
    /// After the programs, because fields are dropped in order.
    _standby: Option<Cluster>,
    _primary: Cluster,
    /// The primary's first process.
    server: u32,
}

impl Server {
    async fn start(testbed: &Testbed, earlier: &str, has_standby: bool) -> Result<Self, String> {
        let primary = Cluster::start("-c max_wal_size=16GB");
        let standby = has_standby.then(|| primary.standby());
        if standby.is_some() {
            primary.configure("synchronous_standby_names = '*'").await;
        }
        let databases = [primary.empty_database().await, primary.empty_database().await];
        let server = first_process(&databases[1]).await;
        let start = |program: &str, url: &str| {
            let start = || start_uncached_oncegate(program, testbed.upstream, url, ("", ""));
            Ok::<_, String>([start()?, start()?])
        };
        let earlier = start(earlier, &databases[0].url)?;
        let now = start(&this_program(), &databases[1].url)?;
        for process in [&earlier[0], &now[0]] {
            load::seed_known_keys(process.address)?;
        }
        let suffix = if has_standby { ", synchronous standby" } else { "" };
        Ok(Self { suffix, earlier, now, _standby: standby, _primary: primary, server })
    }

    fn name(&self, load: Load, is_earlier: bool) -> String {
        let load = match load {
            Load::PassThrough => "pass-through",
            Load::First => "first attempts",
            _ => "replays",
        };
        format!("{load}{}{}", if is_earlier { ", earlier program" } else { ", this program" }, self.suffix)
    }

    /// Measures each load of both programs, the one right after the other, and the first of them in turn.
    fn measure(&self, testbed: &Testbed, report: &mut BenchmarkReport, round: usize) -> Result<(), String> {
        for (load, connections) in LOADS {
            for is_earlier in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
                let process = if is_earlier { &self.earlier[0] } else { &self.now[0] };
                let endpoint = process.endpoint_on(self.server);
                testbed.run_load(&endpoint, load, connections, report, &self.name(load, is_earlier))?;
            }
        }
        let [one, other] = self.now.each_ref().map(|process| process.address);
        let name = format!("replays of what another instance has just stored{}", self.suffix);
        report.add_round(&name, 1, &load::run_young_replays(one, other, testbed.options.length())?);
        Ok(())
    }

    fn compare(&self, report: &mut BenchmarkReport) {
        for (load, connections) in LOADS {
            let (now, earlier) = (self.name(load, false), self.name(load, true));
            report.compare((&now, &earlier), connections, Column::Rate, Some(AIM));
            report.compare((&earlier, &now), connections, Column::Program, Some(AIM));
            if load == Load::First {
                report.compare((&earlier, &now), connections, Column::Server, Some(AIM));
            }
        }
    }
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let Ok(earlier) = std::env::var(EARLIER) else {
        report.missing.push(format!("{EARLIER} names no earlier program, its rows"));
        return Ok(());
    };
    let started = Instant::now();
    let servers = [Server::start(testbed, &earlier, false).await?, Server::start(testbed, &earlier, true).await?];
    for round in 0..testbed.options.rounds() {
        eprintln!("earlier program: round {} of {}, {:?}", round + 1, testbed.options.rounds(), started.elapsed());
        for server in &servers {
            server.measure(testbed, report, round)?;
        }
    }
    servers.iter().for_each(|server| server.compare(report));
    let [plain, standby] =
        ["", ", synchronous standby"].map(|suffix| format!("replays of what another instance has just stored{suffix}"));
    report.compare((&standby, &plain), 1, Column::P50, None);
    Ok(())
}
