//! Requests that pass through: Oncegate beside HAProxy, nginx and Caddy, with the processor time of each.

use crate::load;
use crate::peers;
use crate::programs::{start_caddy, start_haproxy, start_nginx};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::Testbed;

const CONNECTIONS: [usize; 2] = [64, 256];

const PASS: &str = "pass-through";
const ALONE: &str = "the service alone";
const HAPROXY: &str = "pass-through, HAProxy";
const NGINX: &str = "pass-through, nginx";
const CADDY: &str = "pass-through, Caddy";

pub fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let upstream = testbed.upstream;
    let caddy = peers::install_program("caddy").and_then(|program| start_caddy(&program, upstream));
    let mut others = Vec::new();
    for (name, started) in [(HAPROXY, start_haproxy(upstream)), (NGINX, start_nginx(upstream)), (CADDY, caddy)] {
        match started {
            Ok(process) => others.push((name, process)),
            Err(reason) => report.missing.push(format!("{name}: {reason}")),
        }
    }
    let others = others.iter().map(|(name, process)| (*name, process.endpoint()));
    let proxies: Vec<_> = [(PASS, testbed.oncegate.endpoint())].into_iter().chain(others).collect();
    for round in 0..testbed.options.rounds() {
        eprintln!("proxies: round {} of {}", round + 1, testbed.options.rounds());
        for connections in CONNECTIONS {
            let length = testbed.options.length();
            report.add_round(ALONE, connections, &load::run_closed(upstream, Load::PassThrough, connections, length)?);
            for (name, proxy) in &proxies {
                testbed.run_load(proxy, Load::PassThrough, connections, report, name)?;
            }
        }
    }
    for connections in CONNECTIONS {
        for (other, aim) in [(HAPROXY, Some(1.0)), (NGINX, None), (CADDY, None)] {
            report.compare((PASS, other), connections, Column::Rate, aim);
            report.compare((other, PASS), connections, Column::Program, aim);
        }
    }
    Ok(())
}
