//! Runs under load with injected faults, and a checker of the resulting history: nothing is executed twice, nothing
//! acknowledged is lost, and soon after the last fault each key is completed, free or unknown.
//!
//! The runs use the real binary, a real PostgreSQL, and a service that writes each effect to the disk before it
//! answers. They are short here; `make soak` and `make torture` run them for longer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod checker;
mod checker_can_fail;
mod clients;
mod deployment;
mod events;
mod fault;
mod fault_run;
mod history;
mod history_file;
mod independent_checker;
mod leaks;
mod scenarios;
mod seeded_random;
mod service;
mod torture_row;
mod vendor_orders;

#[path = "../figures/bar_chart.rs"]
mod bar_chart;
#[path = "../figures/run_stamp.rs"]
mod run_stamp;
#[path = "../figures/torture_results.rs"]
mod torture_results;
