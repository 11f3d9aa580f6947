//! First attempts compared with middleware in the service: fastify with node-idempotency on Redis, beside Oncegate in front of
//! the same fastify service without the middleware.

use crate::load;
use crate::peers;
use crate::process::{Endpoint, Process};
use crate::programs::{start_node, start_oncegate, start_redis};
use crate::report::Target::AtLeast;
use crate::report::{BenchmarkReport, Column};
use crate::request::{Load, SERVICE_PATH};
use crate::testbed::{Testbed, create_database};

const CONNECTIONS: [usize; 2] = [64, 256];
const ALONE: &str = "fastify alone";
const MIDDLEWARE: &str = "first attempts, fastify with middleware and Redis";
const POSTGRESQL: &str = "first attempts, PostgreSQL, fastify";
const SQLITE: &str = "first attempts, SQLite, fastify";

/// The services with and without the middleware.
struct FastifyServices {
    with_middleware: Process,
    plain: Process,
    _redis: Process,
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let services = match FastifyServices::start() {
        Ok(services) => services,
        Err(reason) => {
            report.missing.push(format!("the rows of middleware in the service: {reason}"));
            return Ok(());
        }
    };
    peers::check_deduplication(services.with_middleware.addresses[0], SERVICE_PATH)?;
    let plain = services.plain.addresses[0];
    let database = create_database(&testbed.cluster).await;
    let shared = start_oncegate(plain, |_| database.url.clone());
    let embedded = start_oncegate(plain, |home| format!("sqlite:{}", home.join("bench.db").display()));
    let proxies = [shared.endpoint(0), embedded.endpoint(0)];
    // Not measured: Node.js compiles what runs often.
    measure_round(testbed, &mut BenchmarkReport::default(), &services, proxies)?;
    for round in 0..testbed.options.rounds() {
        eprintln!("middleware: round {} of {}", round + 1, testbed.options.rounds());
        measure_round(testbed, report, &services, proxies)?;
    }
    for connections in CONNECTIONS {
        let meaning = "First attempts a second, beside middleware in the service and a Redis that syncs every write.";
        for ours in [POSTGRESQL, SQLITE] {
            report.compare((ours, MIDDLEWARE), connections, Column::Rate, AtLeast(1.0), meaning);
        }
    }
    Ok(())
}

fn measure_round(
    testbed: &Testbed,
    report: &mut BenchmarkReport,
    services: &FastifyServices,
    [shared, embedded]: [Endpoint; 2],
) -> Result<(), String> {
    let length = testbed.options.length();
    for connections in CONNECTIONS {
        for (name, service, load) in
            [(ALONE, &services.plain, Load::PassThrough), (MIDDLEWARE, &services.with_middleware, Load::PeerFirst)]
        {
            report.add_round(name, connections, &load::run_closed(&service.addresses, load, connections, length)?);
        }
        testbed.run_first_attempts(&[shared], connections, report, POSTGRESQL)?;
        testbed.run_load(&[embedded], Load::First, connections, report, SQLITE)?;
    }
    Ok(())
}

impl FastifyServices {
    fn start() -> Result<Self, String> {
        let redis = start_redis()?;
        let script = peers::install("middleware")?.join("service.mjs");
        let port = redis.addresses[0].port().to_string();
        Ok(Self { with_middleware: start_node(&script, &[&port])?, plain: start_node(&script, &[])?, _redis: redis })
    }
}
