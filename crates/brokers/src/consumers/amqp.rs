//! Messages of RabbitMQ.

mod acknowledge;
mod dead_letter;
mod places;
mod properties;
pub(super) mod session;
