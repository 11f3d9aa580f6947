//! What a first attempt takes beyond what it cannot do without: the way through the proxy and two durable commits.
//!
//! The floor is the p50 of the same request passed through, and the p50 of pgbench's pair on one connection: two single-row
//! commits. At a quarter of the load both are measured under that load, by one slow connection each.

use crate::load;
use crate::request::Load;
use crate::sheet::Target::AtMost;
use crate::sheet::{Column, Sheet, median};
use crate::stage::Stage;
use crate::throughput::{FIRST, PAIR, PASS};

/// Over how many connections the paced load comes: so many that hardly one finds its connection busy.
const CONNECTIONS: usize = 128;

/// How many requests, and how many pairs, a second show what the floor is under load.
const PROBES: u32 = 50;

pub fn run(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let most = most(stage, sheet)?;
    for round in 0..stage.options.rounds() {
        eprintln!("latency: round {} of {}", round + 1, stage.options.rounds());
        alone(stage, sheet)?;
        at_a_quarter(stage, sheet, most / 4.0)?;
    }
    against_floor(sheet, "alone", [FIRST, PASS, PAIR], [1, 1]);
    let names = [FIRST, PASS, PAIR].map(at_quarter);
    against_floor(sheet, "at a quarter of the load", names.each_ref().map(|name| name.as_str()), [CONNECTIONS, 1]);
    Ok(())
}

/// First attempts per second when nothing holds them back.
fn most(stage: &Stage, sheet: &Sheet) -> Result<f64, String> {
    let seen = [64, 256].iter().filter_map(|connections| median(&sheet.rounds(FIRST, *connections, Column::Rate)));
    match seen.max_by(f64::total_cmp) {
        Some(most) => Ok(most),
        None => Ok(load::closed(&stage.shared.addresses, Load::First, 256, stage.options.length())?.rate),
    }
}

fn alone(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let length = stage.options.length();
    sheet.add_round(PASS, 1, &load::closed(&stage.shared.addresses, Load::PassThrough, 1, length)?);
    stage.first_attempts(&stage.shared.addresses, 1, sheet, FIRST)?;
    if let Some(pair) = &stage.pair {
        sheet.add(PAIR, 1, &quantiles(pair.latencies(None, length)?));
    }
    Ok(())
}

fn at_a_quarter(stage: &Stage, sheet: &mut Sheet, rate: f64) -> Result<(), String> {
    // Twice the time: a probe is a slow thing.
    let length = stage.options.length() * 2;
    let proxy = stage.shared.addresses[0];
    let (first, pass, pair) = std::thread::scope(|scope| {
        let first = scope.spawn(|| load::paced(proxy, Load::First, CONNECTIONS, rate, length));
        let pass = scope.spawn(|| load::paced(proxy, Load::PassThrough, 1, f64::from(PROBES), length));
        // Its time begins with its start, the others' after their warm-up.
        let pair = stage.pair.as_ref().map(|pair| scope.spawn(|| pair.latencies(Some(PROBES), length)));
        (first.join().unwrap(), pass.join().unwrap(), pair.map(|pair| pair.join().unwrap()))
    });
    sheet.add_round(&at_quarter(FIRST), CONNECTIONS, &first?);
    sheet.add_round(&at_quarter(PASS), 1, &pass?);
    if let Some(pair) = pair {
        sheet.add(&at_quarter(PAIR), 1, &quantiles(pair?));
    }
    Ok(())
}

fn at_quarter(name: &str) -> String {
    format!("{name}, at a quarter")
}

fn quantiles(mut latencies: Vec<f64>) -> [(Column, f64); 2] {
    latencies.sort_by(f64::total_cmp);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    [(Column::P50, quantile(0.5)), (Column::P99, quantile(0.99))]
}

fn against_floor(sheet: &mut Sheet, when: &str, names: [&str; 3], [ours, probes]: [usize; 2]) {
    let [first, pass, pair] = names;
    let first = sheet.rounds(first, ours, Column::P50);
    let [pass, pair] = [pass, pair].map(|name| sheet.rounds(name, probes, Column::P50));
    let floors = pass.iter().zip(&pair).map(|(pass, pair)| pass + pair);
    let ratios = first.iter().zip(floors).map(|(first, floor)| first / floor).collect();
    sheet.judge(format!("p50 of a first attempt / (pass-through + two commits), {when}"), ratios, AtMost(1.1));
}
