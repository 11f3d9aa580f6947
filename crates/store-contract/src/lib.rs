//! The contract of all stores: what each of them holds to, whatever database it is. The sentences are functions, so
//! that a test of any store can call them. With them come the real servers and the store for one test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(missing_docs, reason = "for tests alone: a name and its test say it")]

pub mod contract;
pub mod pgbouncer;
pub mod postgres;
pub mod programs;
pub mod store_fixture;
pub mod traps;
pub mod waiting;
