//! Requests through the proxy, as clients and the service see them: with real sockets, stores, and a service that
//! counts. A test that depends on the store runs once on each store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod browser_streams;
mod client_faults;
mod connections;
mod duplicates;
mod early_hints;
mod early_http2_responses;
mod early_responses;
mod failed_writes;
mod fields;
mod first_attempt;
mod http2;
mod http2_floods;
mod large_responses;
mod lifetime;
mod memory;
mod orders;
mod panics;
mod pass_through;
mod policies;
mod refusals;
mod replay;
mod request_trailers;
mod same_request;
mod shared_cache;
mod stalls;
mod statuses;
mod stream_faults;
mod streams;
mod upstream_faults;
