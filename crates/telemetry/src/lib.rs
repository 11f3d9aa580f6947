//! Logs, metrics and traces of a running instance.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

#[doc(hidden)]
pub use oncegate_domain::named;

pub mod log_limiter;
mod log_writer;
pub mod logs;
pub mod metrics;
pub mod per_thread;
pub mod process;
pub mod terminal;
pub mod top_k;
pub mod traces;
