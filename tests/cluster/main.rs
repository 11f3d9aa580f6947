//! Oncegate on a Citus cluster: the contract of all stores, and nodes that are killed under load.
//!
//! The cluster is real: a coordinator and two workers, each a server of its own. Clients, service and checker are those
//! of `tests/faults`. No rule may be broken: no key is executed twice, and no acknowledged response is lost.
//!
//! It takes about eight minutes and needs the extension citus, so it is not part of `make test`: `make cluster` runs it
//! and prints the table.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod cluster_run;
mod contract_suite;
mod decisions;
mod node_failure;
mod result_row;
mod steady_keys;

#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/checker.rs"]
mod checker;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/clients.rs"]
mod clients;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/history.rs"]
mod history;
#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/seeded_random.rs"]
mod seeded_random;
#[path = "../faults/service.rs"]
mod service;

use harness::citus::CitusCluster;
use node_failure::NodeFailure;

/// Chooses runs: a part of the name of a failure, or `contract`.
const CHOICE: &str = "ONCEGATE_CLUSTER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes eight minutes, and needs the extension citus: make cluster"]
async fn killed_nodes_of_a_citus_cluster_lose_nothing_and_execute_nothing_twice() {
    if !CitusCluster::is_installed() {
        return harness::skip("this machine's PostgreSQL lacks the extension citus");
    }
    let choice = std::env::var(CHOICE).unwrap_or_default();
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
    if "contract".contains(&choice) {
        match contract_suite::run(&CitusCluster::start().await) {
            Ok(line) => {
                eprintln!("{line}");
                lines.push(line);
            }
            Err(failure) => failures.push(failure),
        }
    }
    let mut rows = Vec::new();
    for failure in NodeFailure::ALL.into_iter().filter(|failure| failure.name().contains(&choice)) {
        eprintln!("{} …", failure.name());
        let (row, breaches) = cluster_run::run(failure).await;
        eprintln!("{row}");
        rows.push(row);
        failures.extend(breaches.map(|breaches| format!("{}: {breaches}", failure.name())));
    }
    assert!(!lines.is_empty() || !rows.is_empty() || !failures.is_empty(), "{CHOICE} chooses no run");
    println!("\n{}\n{}", lines.join("\n"), result_row::table(&rows));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
