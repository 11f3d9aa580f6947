//! `make bench`: the cost of Oncegate compared with proxies that only forward, with the same thing written in the
//! service, and with an earlier program.
//!
//! Every row is measured in short rounds, in turn with the others of its part, and the result is the median: a machine
//! that is busy for some seconds then disturbs all rows alike. Ratios carry over to other machines, figures do not. A
//! wrong answer ends its part and fails the run.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod charts;
mod earlier;
mod in_service;
mod load;
mod machine;
mod options;
mod output;
mod peers;
mod process;
mod programs;
mod proxies;
mod report;
mod request;
mod scale;
mod service;
mod testbed;

#[path = "../../tests/figures/bar_chart.rs"]
mod bar_chart;
#[path = "../../tests/figures/run_stamp.rs"]
mod run_stamp;

use std::process::ExitCode;

use options::{Options, Part};
use output::RunConditions;
use report::BenchmarkReport;
use request::Load;
use run_stamp::RunStamp;
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
    let (mut report, load_before) = (BenchmarkReport::default(), machine::load_average());
    let testbed = Testbed::start(options).await?;
    let options = &testbed.options;
    if let Some(load) = options.held_load() {
        return hold_load(&testbed, load);
    }
    let mut failures = Vec::new();
    for part in options.parts() {
        let measured = match part {
            Part::Proxies => proxies::run(&testbed, &mut report),
            Part::InService => in_service::run(&testbed, &mut report).await,
            Part::Scale => scale::run(&testbed, &mut report).await,
            Part::Earlier => earlier::run(&testbed, &mut report).await,
        };
        failures.extend(measured.err());
    }
    let conditions = RunConditions {
        run: RunStamp::now(),
        machine: machine::describe(&testbed.version, &load_before),
        rounds: options.rounds(),
        seconds: options.length().as_secs(),
    };
    let folder = output::folder();
    let page = output::save(&folder, &conditions, &report);
    println!("{page}\nits pictures are in {}", folder.display());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Runs one load for a while, and prints the processes to profile.
fn hold_load(testbed: &Testbed, load: Load) -> Result<(), String> {
    load::seed_known_keys(testbed.oncegate.address)?;
    println!("Oncegate is process {}, its database {}", testbed.oncegate.pid, testbed.database.url);
    let round = load::run_closed(&[testbed.oncegate.address], load, 64, testbed.options.length())?;
    println!("{:.0} requests/s", round.rate);
    Ok(())
}
