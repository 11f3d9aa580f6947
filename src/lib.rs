//! Oncegate makes an HTTP service's state-changing requests safe to retry.
//!
//! The modules, roughly in the order in which a request meets them: `cli → app → admin · brokers · tasks → gate →
//! instance`. Each uses only the modules to its right, which `tests/tidy.rs` holds. They stand on `crates`. Start at
//! [`oncegate_domain`] for the terms and at [`gate`] for the journey of a request.

pub mod admin;
pub mod app;
pub mod brokers;
pub mod cli;
pub mod gate;
pub mod instance;
pub mod tasks;
