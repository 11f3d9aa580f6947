//! HTTP on both sides of the proxy: its vocabulary, bodies, client connections and connections to services.

pub mod body;
pub mod downstream;
pub mod http_connection;
pub mod lingering_stream;
pub mod protocol;
pub mod transport;
pub mod upstream;
