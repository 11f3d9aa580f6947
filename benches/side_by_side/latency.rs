//! The latency of a first attempt compared with its floor: the way through the proxy and two durable commits.
//!
//! The floor is the p50 of the same request passed through, plus the p50 of pgbench's pair (two single-row commits) on one
//! connection. At a quarter of the load both are measured under that load, by one slow connection each.

use crate::load;
use crate::report::Target::AtMost;
use crate::report::{BenchmarkReport, Column, median};
use crate::request::Load;
use crate::testbed::Testbed;
use crate::throughput::{FIRST, PAIR, PASS};

/// The connections of the paced load: enough that hardly any request finds its connection busy.
const CONNECTIONS: usize = 128;

/// The requests and the pairs per second that measure the floor under load.
const PROBES: u32 = 50;

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let rate_max = measure_rate_max(testbed, report)?;
    for round in 0..testbed.options.rounds() {
        eprintln!("latency: round {} of {}", round + 1, testbed.options.rounds());
        measure_alone(testbed, report)?;
        measure_at_quarter(testbed, report, rate_max / 4.0)?;
    }
    compare_with_floor(report, "alone", [FIRST, PASS, PAIR], [1, 1]);
    let names = [FIRST, PASS, PAIR].map(quarter_name);
    compare_with_floor(
        report,
        "at a quarter of the load",
        names.each_ref().map(|name| name.as_str()),
        [CONNECTIONS, 1],
    );
    Ok(())
}

/// Returns the first attempts per second at full load.
fn measure_rate_max(testbed: &Testbed, report: &BenchmarkReport) -> Result<f64, String> {
    let rates = [64, 256].iter().filter_map(|connections| median(&report.rounds(FIRST, *connections, Column::Rate)));
    match rates.max_by(f64::total_cmp) {
        Some(rate) => Ok(rate),
        None => Ok(load::run_closed(&testbed.shared.addresses, Load::First, 256, testbed.options.length())?.rate),
    }
}

fn measure_alone(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let length = testbed.options.length();
    report.add_round(PASS, 1, &load::run_closed(&testbed.shared.addresses, Load::PassThrough, 1, length)?);
    testbed.run_first_attempts(&testbed.shared.addresses, 1, report, FIRST)?;
    if let Some(pair) = &testbed.pair {
        report.add(PAIR, 1, &quantiles(pair.latencies(None, length)?));
    }
    Ok(())
}

fn measure_at_quarter(testbed: &Testbed, report: &mut BenchmarkReport, rate: f64) -> Result<(), String> {
    // Twice the time: 50 probes a second give few samples.
    let length = testbed.options.length() * 2;
    let proxy = testbed.shared.addresses[0];
    let (first, pass, pair) = std::thread::scope(|scope| {
        let first = scope.spawn(|| load::run_paced(proxy, Load::First, CONNECTIONS, rate, length));
        let pass = scope.spawn(|| load::run_paced(proxy, Load::PassThrough, 1, f64::from(PROBES), length));
        // pgbench has no warm-up: its time begins with its start.
        let pair = testbed.pair.as_ref().map(|pair| scope.spawn(|| pair.latencies(Some(PROBES), length)));
        (first.join().unwrap(), pass.join().unwrap(), pair.map(|pair| pair.join().unwrap()))
    });
    report.add_round(&quarter_name(FIRST), CONNECTIONS, &first?);
    report.add_round(&quarter_name(PASS), 1, &pass?);
    if let Some(pair) = pair {
        report.add(&quarter_name(PAIR), 1, &quantiles(pair?));
    }
    Ok(())
}

fn quarter_name(name: &str) -> String {
    format!("{name}, at a quarter")
}

fn quantiles(mut latencies: Vec<f64>) -> [(Column, f64); 2] {
    latencies.sort_by(f64::total_cmp);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    [(Column::P50, quantile(0.5)), (Column::P99, quantile(0.99))]
}

fn compare_with_floor(report: &mut BenchmarkReport, when: &str, names: [&str; 3], [ours, probes]: [usize; 2]) {
    let [first, pass, pair] = names;
    let first = report.rounds(first, ours, Column::P50);
    let [pass, pair] = [pass, pair].map(|name| report.rounds(name, probes, Column::P50));
    let floors = pass.iter().zip(&pair).map(|(pass, pair)| pass + pair);
    let ratios = first.iter().zip(floors).map(|(first, floor)| first / floor).collect();
    report.add_check(format!("p50 of a first attempt / (pass-through + two commits), {when}"), ratios, AtMost(1.1));
}
