//! Messages: each is executed once despite duplicates and crashes, and none is lost.

use harness::consumer_world::{acknowledged, consumer, consumer_world, consumer_world_with, route};

mod connections;
mod dead_letters;
mod failures;
mod kafka;
mod kafka_faults;
mod kafka_producer;
mod kafka_rebalances;
mod kafka_security;
mod lifecycle;
mod messages;
mod soak;
mod unknown;
