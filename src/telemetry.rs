//! What operators see of a running instance.

pub mod heavy;
pub mod logs;
pub mod metrics;
pub mod process;
mod stderr;
pub mod traces;
