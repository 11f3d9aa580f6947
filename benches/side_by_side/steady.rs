//! Processor time and memory at a steady rate of 1,000 requests a second, which is the unit in which service meshes publish theirs.
//!
//! At this rate the program sleeps between most requests, so that a request costs more than under full load.

use crate::load;
use crate::machine;
use crate::process::Process;
use crate::programs::{start_copied_oncegate, start_haproxy};
use crate::proxies::installed_caddy;
use crate::report::{BenchmarkReport, Column, Target};
use crate::request::Load;
use crate::testbed::{Testbed, create_database};

const RATE: f64 = 1_000.0;

/// Enough that hardly any request finds its connection busy.
const CONNECTIONS: usize = 32;

/// The rows: the program, what it does, and the load.
const ROWS: [(&str, &str, Load); 5] = [
    ("Oncegate", "pass-through", Load::PassThrough),
    ("Oncegate", "first attempts", Load::First),
    ("Oncegate", "replays", Load::Replay),
    ("HAProxy", "pass-through", Load::PassThrough),
    ("Caddy", "pass-through", Load::PassThrough),
];

const VCPU: &str = "The processor time that the program takes in a second, in cores.";
const VCPU_POSTGRESQL: &str = "The processor time that PostgreSQL takes in a second for these requests, in cores.";
const MEMORY: &str =
    "Memory of its own and its share of what it shares with others (PSS), at the end of the measurement.";

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let database = create_database(&testbed.cluster).await;
    // A measurement is ten times as long as elsewhere, so there are half as many.
    let rounds = testbed.options.rounds().div_ceil(2);
    let mut memory = vec![Vec::new(); ROWS.len()];
    for round in 0..rounds {
        for ((program, what, load), memory) in ROWS.iter().zip(&mut memory) {
            // A new process for each row: the memory of one load is not that of another.
            let process = match *program {
                "HAProxy" => start_haproxy(testbed.upstream),
                "Caddy" => installed_caddy(testbed, report),
                _ => Some(start_copied_oncegate(testbed.upstream, &database.url)),
            };
            let Some(process) = process else { continue };
            eprintln!("steady: round {} of {rounds}: {program}, {what}", round + 1);
            memory.push(measure(testbed, report, &row(program, what), &process, *load)?);
        }
    }
    for ((program, what, _), memory) in ROWS.iter().zip(memory) {
        let vcpu =
            |column| report.rounds(&row(program, what), CONNECTIONS, column).iter().map(|each| each * RATE).collect();
        let (own, server) = (vcpu(Column::Program), vcpu(Column::Server));
        let name = |unit: &str, program: &str| format!("{unit} of {program} at 1,000 a second, {what}");
        report.add_check(name("vCPU", program), own, Target::None, VCPU);
        if *program == "Oncegate" {
            report.add_check(name("vCPU", "PostgreSQL"), server, Target::None, VCPU_POSTGRESQL);
        }
        report.add_check(name("MiB", program), memory, Target::None, MEMORY);
    }
    Ok(())
}

fn row(program: &str, what: &str) -> String {
    format!("{what} at 1,000 a second, {program}")
}

/// Measures a row. Returns the memory at its end, in MiB.
fn measure(
    testbed: &Testbed,
    report: &mut BenchmarkReport,
    name: &str,
    process: &Process,
    load: Load,
) -> Result<f64, String> {
    let address = process.addresses[0];
    if load == Load::Replay {
        load::seed_known_keys(address)?;
    }
    let run = || load::run_paced(address, load, CONNECTIONS, RATE, testbed.options.length() * 10);
    let measured = testbed.measure_server(|| machine::measure_processor_time(&[process.pid], run))?;
    report.add_costs(name, CONNECTIONS, measured);
    Ok(machine::memory(process.pid) as f64 / f64::from(1 << 20))
}
