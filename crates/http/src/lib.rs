//! HTTP on both sides of the proxy: its vocabulary, bodies, client connections and connections to services.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod body;
pub mod downstream;
pub mod http_connection;
pub mod lingering_stream;
pub mod protocol;
pub mod transport;
pub mod upstream;
