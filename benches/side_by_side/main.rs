//! `make bench`: the cost of Oncegate compared with HAProxy, nginx, pgbench, and peers from npm and PyPI on this machine.
//!
//! Every row is measured in short rounds, in turn with the others of its part, and the result is the median: a machine that is
//! busy for some seconds then disturbs all rows alike. Ratios carry over to other machines, figures do not. A wrong answer
//! ends its part and fails the run.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod canonical;
mod charts;
mod earlier;
mod growth;
mod http_client;
mod in_service;
mod instances;
mod latency;
mod load;
mod machine;
mod middleware;
mod options;
mod outbox;
mod output;
mod peers;
mod pgbench;
mod process;
mod programs;
mod proxies;
mod report;
mod request;
mod restate;
mod results;
mod service;
mod steady;
mod streams;
mod testbed;
mod throughput;

#[path = "../../tests/figures/bar_chart.rs"]
mod bar_chart;
#[path = "../../tests/figures/run_stamp.rs"]
mod run_stamp;

use std::process::ExitCode;
use std::time::Instant;

use options::{Options, Part};
use report::BenchmarkReport;
use results::BenchmarkResults;
use testbed::Testbed;

fn main() -> ExitCode {
    let Some(options) = Options::read() else { return ExitCode::SUCCESS };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    match runtime.block_on(bench(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("the benchmark failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: Options) -> Result<(), String> {
    let started = Instant::now();
    let (mut report, load) = (BenchmarkReport::default(), machine::load_average());
    let testbed = Testbed::start(options, &mut report).await;
    let (options, report) = (&testbed.options, &mut report);
    if let Some(load) = options.held_load() {
        return throughput::hold_load(&testbed, load);
    }
    let mut failures = Vec::new();
    for part in options.parts() {
        if let Err(failure) = run_part(part, &testbed, report).await {
            failures.push(failure);
        }
    }
    let machine = machine::describe(&testbed.version, &load);
    let (rounds, seconds, minutes) = (options.rounds(), options.length().as_secs(), started.elapsed().as_secs() / 60);
    let results = BenchmarkResults::new(report, machine, rounds, seconds, minutes);
    let folder = output::folder();
    output::save(&folder, "side_by_side", &results);
    let page = output::page("side_by_side", &results);
    println!("{page}\nthe same with its pictures: {}", folder.join("side_by_side.md").display());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

async fn run_part(part: Part, testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    match part {
        Part::Proxies => proxies::run(testbed, report),
        Part::Throughput => throughput::run(testbed, report),
        Part::Latency => latency::run(testbed, report),
        Part::Growth => growth::run(testbed, report).await,
        Part::Outbox => outbox::run(testbed, report).await,
        Part::InService => in_service::run(testbed, report).await,
        Part::Steady => steady::run(testbed, report).await,
        Part::Restate => restate::run(testbed, report).await,
        Part::Middleware => middleware::run(testbed, report).await,
        Part::Earlier => earlier::run(testbed, report).await,
        Part::Streams => streams::run(testbed, report).await,
        Part::Instances => instances::run(testbed, report).await,
        Part::Canonical => {
            canonical::run(&testbed.options, report);
            Ok(())
        }
    }
}
