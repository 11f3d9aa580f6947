//! The contract of all stores, run against the cluster by the test program that has it.

use std::process::{Command, Stdio};
use std::time::Instant;

use harness::citus::CitusCluster;

/// Runs the suite. Returns the line that says how many of its tests passed, or the output of a failure.
pub fn run(cluster: &CitusCluster) -> Result<String, String> {
    let begun = Instant::now();
    let mut tests = Command::new(env!("CARGO"));
    tests.args(["test", "--locked", "-p", "store-contract", "--test", "given"]);
    tests.env("ONCEGATE_TEST_STORE_URL", &cluster.database.url).stderr(Stdio::inherit());
    let tested = tests.output().unwrap();
    let output = String::from_utf8_lossy(&tested.stdout);
    let line = output.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = line.and_then(|line| line.split(" passed").next()?.parse::<usize>().ok()).unwrap_or(0);
    match tested.status.success() && passed > 0 {
        true => Ok(format!("the contract of all stores: {passed} tests passed in {} s", begun.elapsed().as_secs())),
        false => Err(format!("the contract of all stores is broken:\n{output}")),
    }
}
