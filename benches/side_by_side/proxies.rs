//! Requests that pass through: Oncegate beside HAProxy, nginx and Caddy, with the processor time of each; and replays
//! beside hits of nginx's cache.

use crate::load;
use crate::peers;
use crate::programs::{start_caddy, start_haproxy, start_nginx, start_nginx_cache};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::Testbed;

const CONNECTIONS: [usize; 2] = [64, 256];

const PASS: &str = "pass-through";
const ALONE: &str = "the service alone";
const HAPROXY: &str = "pass-through, HAProxy";
const NGINX: &str = "pass-through, nginx";
const CADDY: &str = "pass-through, Caddy";
const REPLAYS: &str = "replays";
const CACHE_HITS: &str = "cache hits, nginx";

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
    let cache =
        start_nginx_cache(upstream).map_err(|reason| report.missing.push(format!("{CACHE_HITS}: {reason}"))).ok();
    for process in cache.iter().chain([&testbed.oncegate]) {
        load::seed_known_keys(process.address)?;
    }
    let others = others.iter().map(|(name, process)| (*name, process.endpoint()));
    let proxies: Vec<_> = [(PASS, testbed.oncegate.endpoint())].into_iter().chain(others).collect();
    for round in 0..testbed.options.rounds() {
        eprintln!("proxies: round {} of {}", round + 1, testbed.options.rounds());
        for connections in CONNECTIONS {
            let length = testbed.options.length();
            report.add_round(
                ALONE,
                connections,
                &load::run_closed(&[upstream], Load::PassThrough, connections, length)?,
            );
            for (name, proxy) in &proxies {
                testbed.run_load(proxy, Load::PassThrough, connections, report, name)?;
            }
            testbed.run_load(&testbed.oncegate.endpoint(), Load::Replay, connections, report, REPLAYS)?;
            if let Some(cache) = &cache {
                testbed.run_load(&cache.endpoint(), Load::PeerReplay, connections, report, CACHE_HITS)?;
            }
        }
    }
    for connections in CONNECTIONS {
        for (other, aim) in [(HAPROXY, Some(1.0)), (NGINX, None), (CADDY, None)] {
            report.compare((PASS, other), connections, Column::Rate, aim);
            report.compare((other, PASS), connections, Column::Program, aim);
        }
        report.compare((REPLAYS, CACHE_HITS), connections, Column::Rate, Some(1.2));
        report.compare((CACHE_HITS, REPLAYS), connections, Column::Program, None);
    }
    Ok(())
}
