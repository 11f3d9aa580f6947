//! A PostgreSQL cluster under Patroni with two instances of Oncegate, and the events that end or replace its primary.
//!
//! The cluster is real: three servers with their agents, etcd, and HAProxy with Patroni's health checks. One instance
//! has all hosts in its URL, the other one is behind HAProxy. Clients, service and checker are those of `tests/faults`.
//! With synchronous replication no rule may be broken; with asynchronous replication the run counts what is lost.
//!
//! It takes ten minutes, so it is not part of `make test`: `make ha` runs it and prints the table.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod ha_run;
mod result_row;

#[allow(dead_code, reason = "tests/faults needs more of it")]
#[path = "../faults/checker.rs"]
mod checker;
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

use harness::failover::FailoverEvent;
use harness::patroni::Replication;

/// Chooses runs: a part of the name of an event, of a replication, or of both as in `killed-agent/asynchronous`.
const CHOICE: &str = "ONCEGATE_HA";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes ten minutes, and needs Patroni, etcd and HAProxy: make ha"]
async fn events_of_a_patroni_cluster_lose_nothing_with_synchronous_replication() {
    let choice = std::env::var(CHOICE).unwrap_or_default();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for replication in [Replication::Synchronous, Replication::Asynchronous] {
        for event in FailoverEvent::ALL {
            let name = format!("{}/{}", event.name(), replication.name());
            if !name.contains(&choice) {
                continue;
            }
            eprintln!("{name} …");
            let (row, breaches) = ha_run::run(event, replication).await;
            eprintln!("{row}");
            rows.push(row);
            failures.extend(breaches.map(|breaches| format!("{name}: {breaches}")));
        }
    }
    assert!(!rows.is_empty(), "{CHOICE} chooses no run");
    println!("\n{}", result_row::table(&rows));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
