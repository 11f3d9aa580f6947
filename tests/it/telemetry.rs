//! Metrics, logs and traces of a running instance.

use crate::harness::metrics::{Metrics, scrape};

mod canary;
mod logs;
mod metrics;
mod stats;
mod traces;
