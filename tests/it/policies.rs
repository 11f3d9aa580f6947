//! What an operator may say of a route, each word of it seen at work.

mod every_key;
mod explain;
mod fingerprints;
mod forwarded_key;
mod keys;
mod late;
mod observe;
mod protocols;
mod reload;
mod routes;
mod scopes;
mod service_says;
mod syntax_vectors;
mod waiting;
mod websocket;
