//! Requests through the proxy, as clients and the service see them.

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
mod panics;
mod pass_through;
mod refusals;
mod replay;
mod request_trailers;
mod same_request;
mod stalls;
mod statuses;
mod stream_faults;
pub mod streams;
mod upstream_faults;
