//! Messages of RabbitMQ.

mod acknowledge;
mod broker_error;
mod connector;
mod dead_letter;
mod places;
mod properties;
pub mod publish;
pub(super) mod session;
