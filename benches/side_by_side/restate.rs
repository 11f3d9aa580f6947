//! First attempts compared with Restate, a durable-execution engine: one handler, invoked through Restate's ingress with an
//! idempotency key, beside Oncegate in front of the same service.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{Endpoint, Process};
use crate::programs::{start_node, start_oncegate, start_restate};
use crate::report::{BenchmarkReport, Column, Target};
use crate::request::{INVOCATION_PATH, Load};
use crate::testbed::{Testbed, create_database};
use crate::{http_client, peers};

const CONNECTIONS: [usize; 3] = [1, 64, 256];
const RESTATE: &str = "first attempts, Restate";
const POSTGRESQL: &str = "first attempts, PostgreSQL, service in Node.js";
const SQLITE: &str = "first attempts, SQLite, service in Node.js";

/// The time limit for Restate to accept the registration of its handler.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval of attempts at the registration.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Restate with the process of its handler.
struct Restate {
    server: Process,
    _handler: Process,
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let (restate, service) = match start_peer().await {
        Ok(programs) => programs,
        Err(reason) => {
            report.missing.push(format!("the rows of Restate: {reason}"));
            return Ok(());
        }
    };
    peers::check_deduplication(restate.server.addresses[0], INVOCATION_PATH)?;
    let database = create_database(&testbed.cluster).await;
    let shared = start_oncegate(service.addresses[0], |_| database.url.clone());
    let embedded = start_oncegate(service.addresses[0], |home| format!("sqlite:{}", home.join("bench.db").display()));
    let endpoints = [restate.server.endpoint(0), shared.endpoint(0), embedded.endpoint(0)];
    // Not measured: Node.js compiles what runs often.
    measure_round(testbed, &mut BenchmarkReport::default(), endpoints)?;
    for round in 0..testbed.options.rounds() {
        eprintln!("restate: round {} of {}", round + 1, testbed.options.rounds());
        measure_round(testbed, report, endpoints)?;
    }
    for connections in CONNECTIONS {
        let meaning = "First attempts a second, beside invocations with an idempotency key.";
        for ours in [POSTGRESQL, SQLITE] {
            report.compare((ours, RESTATE), connections, Column::Rate, Target::None, meaning);
        }
    }
    Ok(())
}

fn measure_round(
    testbed: &Testbed,
    report: &mut BenchmarkReport,
    [restate, shared, embedded]: [Endpoint; 3],
) -> Result<(), String> {
    for connections in CONNECTIONS {
        testbed.run_load(&[restate], Load::Invocation, connections, report, RESTATE)?;
        testbed.run_first_attempts(&[shared], connections, report, POSTGRESQL)?;
        testbed.run_load(&[embedded], Load::First, connections, report, SQLITE)?;
    }
    Ok(())
}

/// Starts Restate with its handler, and the service that does the same without it.
async fn start_peer() -> Result<(Restate, Process), String> {
    let folder = peers::install("restate")?;
    let server = start_restate(&folder.join("node_modules/.bin/restate-server"))?;
    let handler = start_script(&folder, "handler.mjs")?;
    register(server.addresses[1], handler.addresses[0]).await?;
    Ok((Restate { server, _handler: handler }, start_script(&folder, "service.mjs")?))
}

fn start_script(folder: &Path, name: &str) -> Result<Process, String> {
    start_node(&folder.join(name), &[])
}

/// Tells Restate where its handler is, as soon as it accepts that.
async fn register(admin: SocketAddr, handler: SocketAddr) -> Result<(), String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let deployment = format!(r#"{{"uri":"http://{handler}"}}"#);
    loop {
        match http_client::request(admin, "POST", "/deployments", &[], &deployment) {
            Ok(_) => return Ok(()),
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}
