//! `make bench`: the cost of Oncegate compared with HAProxy, nginx and pgbench on this machine.
//!
//! Every row is measured in short rounds, in turn with the others of its part, and the result is the median: a machine that is
//! busy for some seconds then disturbs all rows alike. Ratios carry over to other machines, figures do not. Any wrong answer
//! ends the run.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod canonical;
mod growth;
mod instances;
mod latency;
mod load;
mod machine;
mod options;
mod outbox;
mod pgbench;
#[path = "../../tests/it/harness/postgres.rs"]
#[allow(dead_code)]
mod postgres;
mod process;
mod programs;
mod report;
mod request;
mod service;
mod testbed;
mod throughput;

use std::process::ExitCode;

use options::{Options, Part};
use report::BenchmarkReport;
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
    let (mut report, load) = (BenchmarkReport::default(), machine::load_average());
    let testbed = Testbed::start(options, &mut report).await;
    let (options, report) = (&testbed.options, &mut report);
    if let Some(load) = options.held_load() {
        return throughput::hold_load(&testbed, load);
    }
    if options.includes(Part::Throughput) {
        throughput::run(&testbed, report)?;
    }
    if options.includes(Part::Latency) {
        latency::run(&testbed, report)?;
    }
    if options.includes(Part::Throughput) {
        throughput::add_memory(&testbed, report);
    }
    if options.includes(Part::Growth) {
        growth::run(&testbed, report).await?;
    }
    if options.includes(Part::Outbox) {
        outbox::run(&testbed, report).await?;
    }
    // Last, because it counts the deadlocks of all parts.
    if options.includes(Part::Instances) {
        instances::run(&testbed, report).await?;
    }
    if options.includes(Part::Canonical) {
        canonical::run(options, report);
    }
    let machine = machine::describe(&testbed.version, &load);
    let (rounds, seconds) = (options.rounds(), options.length().as_secs());
    println!("{machine:#}\n{rounds} rounds of {seconds} s each, in turn; medians\n\n{}", report.to_table());
    println!("{}", report::save(&report.to_json(machine, rounds, seconds)).display());
    Ok(())
}
