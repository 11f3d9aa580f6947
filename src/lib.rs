//! Oncegate makes an HTTP service's state-changing requests safe to retry.
//!
//! The modules, roughly in the order in which a request meets them. Each uses only the modules to its right:
//! `cli → app → admin · consumers · downstream · tasks → gate → instance → cache · store · upstream → protocol →
//! body · telemetry → config → jitter · jwt · lingering_stream · tls · transport → machine → domain`, which `tests/tidy.rs`
//! holds. Start at [`domain`] for the terms and at [`gate`] for the journey of a request.

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
pub mod instance;
pub mod jitter;
pub mod jwt;
pub mod lingering_stream;
pub mod machine;
pub mod protocol;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod transport;
pub mod upstream;
