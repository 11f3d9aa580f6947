//! Everything breaks, under load, and a checker reads what happened: nothing is executed twice, nothing that was
//! acknowledged is lost, and soon after the last fault each key is completed, free or unknown.
//!
//! The real binary, a real PostgreSQL, a service that writes each effect to the disk before it answers. Short runs here;
//! `make soak` and `make torture` make the long ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod checker;
mod checker_can_fail;
mod clients;
mod dice;
mod fault;
mod history;
mod leaks;
mod runs;
mod service;
mod site;
mod storm;

#[path = "../it"]
mod it {
    #[allow(dead_code, unused_imports, unused_macros, reason = "the other tests need more of it")]
    pub mod harness;
}
use it::harness;
