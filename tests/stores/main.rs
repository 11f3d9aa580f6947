//! The proxy and its store: what each store keeps, and what happens when it, its clock or the proxy fails.
//! A test that depends on the store runs once on each store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod asynchronous;
mod bypass;
mod clock_jumps;
mod crash;
mod crash_at_start;
mod crash_points;
mod disk_errors;
mod encryption;
mod orphans;
mod reconcile;
mod restores;
mod salts;
mod several_stores;
mod start_without_store;
mod store_file;
mod store_outage;
mod store_postgres;
mod store_schema;
mod store_sqlite;
mod store_trouble;
