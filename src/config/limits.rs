//! Reads and checks `[limits]`: the bounds on what strangers can hold.

use std::ops::RangeInclusive;

use super::LimitsConfig;
use super::reader::Section;
use super::units;

/// More connections than one process serves on any machine.
const CONNECTIONS_MAX: usize = 1_000_000;

/// With less, two requests of the default size could not be in memory side by side.
const HELD_BODIES_MIN: u64 = 4 << 20;

/// A higher rate would refuse people with slow phones.
const BODY_RATE: RangeInclusive<u64> = 1..=64 << 10;

/// Reads the whole table.
pub(super) fn read(section: &Section<'_>) -> Option<LimitsConfig> {
    let connections = section.integer("connections", 1..=CONNECTIONS_MAX, "without a connection nobody is served");
    let per_peer = section.integer("connections_per_peer", 0..=CONNECTIONS_MAX, "0 is no limit");
    let held_bodies = section.parsed("held_bodies", |text| match units::parse_size(text)? {
        bytes if bytes < HELD_BODIES_MIN => Err("must be at least 4MiB".into()),
        bytes => Ok(bytes),
    });
    let body_rate = section.parsed("body_rate", |text| match units::parse_size(text)? {
        bytes if !BODY_RATE.contains(&bytes) => Err("must be from 1B to 64KiB a second".into()),
        bytes => Ok(bytes),
    });
    let upstream = section.integer("upstream_connections", 1..=CONNECTIONS_MAX, "without one nothing is forwarded");
    Some(LimitsConfig {
        connections: connections?.value,
        connections_per_peer: per_peer?.value,
        held_bodies: held_bodies?.value,
        body_rate: body_rate?.value,
        upstream_connections: upstream?.value,
    })
}
