//! The effect of every route setting.

mod authorize;
mod changed_routes;
mod cors;
mod dialects;
mod directives;
mod every_key;
mod explain;
mod fingerprints;
mod forwarded_key;
mod grpc;
mod key_limits;
mod keys;
mod late_retries;
mod live_keys;
mod loops;
mod many_waiters;
mod misspelled_fields;
mod observe;
mod protocols;
pub mod reload;
mod routes;
mod scopes;
mod spellings;
mod syntax_vectors;
mod tokens;
mod waiting;
mod websocket;
