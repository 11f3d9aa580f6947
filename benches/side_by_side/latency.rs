//! The latency of a first attempt compared with its floor: the way through the proxy and two durable commits.
//!
//! The floor is the p50 of the same request passed through, plus the p50 of pgbench's pair (two single-row commits) on one
//! connection. At a quarter of the load both are measured under that load, by one slow connection each.

use crate::load;
use crate::proxies::PASS;
use crate::report::Target::AtMost;
use crate::report::{BenchmarkReport, Column, summarize};
use crate::request::Load;
use crate::testbed::Testbed;
use crate::throughput::{FIRST, PAIR};

/// The connections of the paced load: enough that hardly any request finds its connection busy.
const CONNECTIONS: usize = 128;

/// The requests and the pairs per second that measure the floor under load.
const PROBES: u32 = 50;

const MEANING: &str =
    "The time that a first attempt takes, in units of its floor: the same request passed through, and two commits.";

/// The load beside which a latency is measured.
#[derive(Clone, Copy)]
enum Setting {
    Alone,
    Quarter,
}

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Quarter => "at a quarter of the load",
        }
    }

    /// Returns the name of the row that measures `name` in this setting.
    fn row(self, name: &str) -> String {
        format!("{name}, {}", self.name())
    }
}

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let rate_max = measure_rate_max(testbed, report)?;
    for round in 0..testbed.options.rounds() {
        eprintln!("latency: round {} of {}", round + 1, testbed.options.rounds());
        measure_alone(testbed, report)?;
        measure_at_quarter(testbed, report, rate_max / 4.0)?;
    }
    compare_with_floor(report, Setting::Alone, 1);
    compare_with_floor(report, Setting::Quarter, CONNECTIONS);
    Ok(())
}

/// Returns the first attempts per second at full load.
fn measure_rate_max(testbed: &Testbed, report: &BenchmarkReport) -> Result<f64, String> {
    let rates = [64, 256].iter().filter_map(|connections| summarize(&report.rounds(FIRST, *connections, Column::Rate)));
    match rates.map(|rate| rate.median).max_by(f64::total_cmp) {
        Some(rate) => Ok(rate),
        None => Ok(load::run_closed(&testbed.shared.addresses, Load::First, 256, testbed.options.length())?.rate),
    }
}

fn measure_alone(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let proxy = [testbed.shared.endpoint(0)];
    testbed.run_load(&proxy, Load::PassThrough, 1, report, &Setting::Alone.row(PASS))?;
    testbed.run_first_attempts(&proxy, 1, report, &Setting::Alone.row(FIRST))?;
    if let Some(pair) = &testbed.pair {
        report.add(&Setting::Alone.row(PAIR), 1, &quantiles(pair.latencies(None, testbed.options.length())?));
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
    report.add_round(&Setting::Quarter.row(FIRST), CONNECTIONS, &first?);
    report.add_round(&Setting::Quarter.row(PASS), 1, &pass?);
    if let Some(pair) = pair {
        report.add(&Setting::Quarter.row(PAIR), 1, &quantiles(pair?));
    }
    Ok(())
}

fn quantiles(mut latencies: Vec<f64>) -> [(Column, f64); 2] {
    latencies.sort_by(f64::total_cmp);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    [(Column::P50, quantile(0.5)), (Column::P99, quantile(0.99))]
}

fn compare_with_floor(report: &mut BenchmarkReport, setting: Setting, connections: usize) {
    let first = report.rounds(&setting.row(FIRST), connections, Column::P50);
    let [pass, pair] = [PASS, PAIR].map(|name| report.rounds(&setting.row(name), 1, Column::P50));
    let floors = pass.iter().zip(&pair).map(|(pass, pair)| pass + pair);
    let ratios = first.iter().zip(floors).map(|(first, floor)| first / floor).collect();
    let name = format!("p50 of a first attempt / (pass-through + two commits), {}", setting.name());
    report.add_check(name, ratios, AtMost(1.1), MEANING);
}
