//! Oncegate makes an HTTP service's state-changing requests safe to retry.
//!
//! The modules, roughly in the order in which a request meets them; each uses only what stands further right in
//! `cli → app → admin · consumers · downstream · tasks → gate → cache · store · upstream → body · telemetry → config → domain`, which
//! `tests/tidy.rs` holds. Start at [`domain`] for the words and at [`gate`] for the story.

pub mod admin;
pub mod app;
pub mod body;
pub mod cache;
pub mod cli;
pub mod config;
pub mod consumers;
pub mod domain;
pub mod downstream;
pub mod gate;
pub mod gather;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod upstream;
