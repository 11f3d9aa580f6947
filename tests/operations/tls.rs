//! TLS on every side: clients, services, the database.

mod client_certificates;
mod clients;
mod database;
mod http2_services;
mod mutual;
mod renewal;
mod services;
