//! Oncegate from the outside, with real parts: the binary, sockets, stores, and a service that counts.
//!
//! One module for each promise, in reading order. A test that depends on the store runs once on each store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod harness;

mod journey;
mod memory;
mod policies;
mod reconcile;
mod tls;

mod framing;

mod admin;
mod asynchronous;
mod bypass;
mod consumers;

mod start_without_store;
mod store_file;
mod store_outage;
mod store_postgres;
mod store_schema;
mod store_sqlite;
mod store_trouble;

mod clock_jumps;

mod conform;
mod crash;
mod crash_at_start;
mod crash_points;
mod disk_errors;
mod encryption;
mod events;
mod hand_over;
mod operators;
mod orders;
mod orphans;
mod overload;
mod page;
mod pod_end;
mod probe;
mod restores;
mod salts;
mod service_reports;
mod several_stores;
mod shared_cache;
mod shutdown;
mod socket_activation;
mod telemetry;
