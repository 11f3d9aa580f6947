//! What clients and the service see of each journey through the proxy.

mod client_trouble;
mod connections;
mod duplicates;
mod fields;
mod first_attempt;
mod http2;
mod large_responses;
mod lifetime;
mod passing;
mod refusals;
mod replay;
mod same_request;
mod stalls;
mod statuses;
mod upstream_trouble;
