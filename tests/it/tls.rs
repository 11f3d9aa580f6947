//! TLS on every side: clients, services, the database.

mod clients;
mod database;
mod http2_services;
mod mutual;
mod renewal;
mod services;
