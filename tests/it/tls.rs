//! TLS on every side: clients, services, the database.

mod clients;
mod database;
mod renewal;
mod services;
