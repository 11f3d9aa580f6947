//! The proxy as its operators see it: listeners, pages, commands, metrics, brokers and its own end.
//! A test that depends on the store runs once on each store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod admin;
mod conform;
mod consumers;
mod events;
mod framing;
mod hand_over;
mod openapi;
mod operators;
mod overload;
mod page;
mod pod_end;
mod probe;
mod service_reports;
mod shutdown;
mod socket_activation;
mod telemetry;
mod tls;
