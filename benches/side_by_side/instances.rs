//! Two instances on one PostgreSQL: they must not be slower than one, and must cause no deadlocks.

use crate::programs::start_oncegate;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{BenchmarkReport, Column};
use crate::request::Load;
use crate::testbed::{Testbed, create_database};

const CONNECTIONS: usize = 128;
const ONE: &str = "first attempts, one instance";
const TWO: &str = "first attempts, two instances";
const SAME: &str = "the same keys at two instances";

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let database = create_database(&testbed.cluster).await;
    let two = [(); 2].map(|()| start_oncegate(testbed.upstream, |_| database.url.clone()));
    let both = two.each_ref().map(|process| process.endpoint(0));
    for round in 0..testbed.options.rounds() {
        eprintln!("instances: round {} of {}", round + 1, testbed.options.rounds());
        testbed.run_first_attempts(&both[..1], CONNECTIONS, report, ONE)?;
        testbed.run_first_attempts(&both, CONNECTIONS, report, TWO)?;
        testbed.run_load(&both, Load::Contended, CONNECTIONS, report, SAME)?;
    }
    report.compare((TWO, ONE), CONNECTIONS, Column::Rate, AtLeast(1.0), "Whether a second instance costs throughput.");
    report.add_check(
        "deadlocks, in all parts".to_owned(),
        vec![count_deadlocks(testbed, &database).await],
        AtMost(0.0),
        "Transactions that PostgreSQL ended because two waited for each other.",
    );
    Ok(())
}

/// Returns the deadlocks of the whole server since its start, after a pause in which the last ones are reported.
async fn count_deadlocks(testbed: &Testbed, database: &store_contract::postgres::TestDatabase) -> f64 {
    let client = database.client().await;
    let count = "select sum(deadlocks)::float8 from pg_stat_database";
    // PostgreSQL's processes report their statistics at most once a second.
    tokio::time::sleep(testbed.options.length().max(std::time::Duration::from_secs(2))).await;
    client.query_one(count, &[]).await.unwrap().get(0)
}
