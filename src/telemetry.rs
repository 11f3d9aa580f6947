//! What operators see of a running instance.

pub mod logs;
