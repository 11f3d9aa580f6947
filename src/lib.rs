//! Oncegate makes an HTTP service's state-changing requests safe to retry.
//!
//! The modules, roughly in the order in which a request meets them. Each uses only the modules to its right:
//! `cli → app → events → admin · consumers · tasks → gate → instance · kafka`, which `tests/tidy.rs` holds. What they
//! stand on is in `crates`. Start at [`oncegate_domain`] for the terms and at [`gate`] for the journey of a request.

pub mod admin;
pub mod app;
pub mod cli;
pub mod consumers;
pub mod events;
pub mod gate;
pub mod instance;
pub mod kafka;
pub mod tasks;
