//! Oncegate makes an HTTP service's state-changing requests safe to retry.
//!
//! This crate has the command line (`cli`) and what builds, starts and stops all parts (`app`). The parts are in
//! `crates`. Start at [`oncegate_domain`] for the terms and at [`oncegate_engine::gate`] for the journey of a request.

pub mod app;
pub mod cli;
