//! Requests that pass through: Oncegate beside HAProxy, nginx and Caddy, with the processor time of each.

use crate::process::{Endpoint, Process};
use crate::programs::start_caddy;
use crate::report::Target::{self, AtLeast};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::Testbed;
use crate::{load, peers};

const CONNECTIONS: [usize; 2] = [64, 256];

pub const PASS: &str = "pass-through";

const ALONE: &str = "the service alone";
const HAPROXY: &str = "pass-through, HAProxy";
const NGINX: &str = "pass-through, nginx";
const CADDY: &str = "pass-through, Caddy";

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let caddy = installed_caddy(testbed, report);
    let others = [(HAPROXY, &testbed.haproxy), (NGINX, &testbed.nginx), (CADDY, &caddy)];
    let others = others.iter().filter_map(|(name, process)| Some((*name, process.as_ref()?.endpoint(0))));
    let proxies: Vec<(&str, Endpoint)> = [(PASS, testbed.shared.endpoint(0))].into_iter().chain(others).collect();
    for round in 0..testbed.options.rounds() {
        eprintln!("proxies: round {} of {}", round + 1, testbed.options.rounds());
        for connections in CONNECTIONS {
            let length = testbed.options.length();
            let alone = load::run_closed(&[testbed.upstream], Load::PassThrough, connections, length)?;
            report.add_round(ALONE, connections, &alone);
            for (name, proxy) in &proxies {
                testbed.run_load(&[*proxy], Load::PassThrough, connections, report, name)?;
            }
        }
    }
    for connections in CONNECTIONS {
        for (other, target) in [(HAPROXY, AtLeast(1.0)), (NGINX, Target::None), (CADDY, Target::None)] {
            let meaning = "Requests without a key a second, beside a proxy that only forwards.";
            report.compare((PASS, other), connections, Column::Rate, target, meaning);
            let meaning = "The processor time that the other proxy takes to forward a request, in units of Oncegate's.";
            report.compare((other, PASS), connections, Column::Program, target, meaning);
        }
    }
    Ok(())
}

/// Starts Caddy; `None` with a notice if it cannot be installed.
pub fn installed_caddy(testbed: &Testbed, report: &mut BenchmarkReport) -> Option<Process> {
    let started = peers::install_program("caddy").and_then(|program| start_caddy(&program, testbed.upstream));
    let notice = started.as_ref().err().map(|reason| format!("the rows of Caddy: {reason}"));
    report.missing.extend(notice.filter(|notice| !report.missing.contains(notice)));
    started.ok()
}
