//! Metrics, logs and traces of a running instance.

use harness::metrics::{Metrics, scrape};

mod canary;
mod logs;
mod metrics;
mod saved;
mod stats;
mod traces;
