//! `make bench`: what Oncegate costs, side by side with HAProxy, nginx and pgbench on this machine.
//!
//! Every row is measured in short rounds, in turn with the others of its part, and the medians are what counts: a machine
//! that is busy for some seconds then disturbs all alike. Ratios carry over to other machines, figures do not. Any answer
//! that is not the right one ends the run.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod canonical;
mod contestants;
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
mod request;
mod service;
mod sheet;
mod stage;
mod throughput;

use std::process::ExitCode;

use options::{Options, Part};
use sheet::Sheet;
use stage::Stage;

fn main() -> ExitCode {
    let Some(options) = Options::read() else { return ExitCode::SUCCESS };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    match runtime.block_on(bench(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("the benchmark failed: {wrong}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: Options) -> Result<(), String> {
    let (mut sheet, load) = (Sheet::default(), machine::load_average());
    let stage = Stage::set(options, &mut sheet).await;
    let (options, sheet) = (&stage.options, &mut sheet);
    if let Some(load) = options.hold() {
        return throughput::hold(&stage, load);
    }
    if options.wants(Part::Throughput) {
        throughput::run(&stage, sheet)?;
    }
    if options.wants(Part::Latency) {
        latency::run(&stage, sheet)?;
    }
    if options.wants(Part::Throughput) {
        throughput::memory(&stage, sheet);
    }
    if options.wants(Part::Growth) {
        growth::run(&stage, sheet).await?;
    }
    if options.wants(Part::Outbox) {
        outbox::run(&stage, sheet).await?;
    }
    // After all others, because it counts the deadlocks of them all.
    if options.wants(Part::Instances) {
        instances::run(&stage, sheet).await?;
    }
    if options.wants(Part::Canonical) {
        canonical::run(options, sheet);
    }
    let machine = machine::describe(&stage.version, &load);
    let (rounds, seconds) = (options.rounds(), options.length().as_secs());
    println!("{machine:#}\n{rounds} rounds of {seconds} s each, in turn; medians\n\n{}", sheet.table());
    println!("{}", sheet::save(&sheet.json(machine, rounds, seconds)).display());
    Ok(())
}
