//! Reads and checks `[limits]`: the bounds on what strangers can hold.

use std::ops::RangeInclusive;

use super::LimitsConfig;
use super::reader::Section;
use super::units;
use crate::domain::key_rate::KeyRate;

/// More connections than one process serves on any machine.
const CONNECTIONS_MAX: usize = 1_000_000;

/// With less, two requests of the default size could not be in memory side by side.
const HELD_BODIES_MIN: u64 = 4 << 20;

/// A higher rate would refuse people with slow phones.
const BODY_RATE: RangeInclusive<u64> = 1..=64 << 10;

/// A caller that needs more at once needs a higher rate.
const BURST_MAX: usize = 100_000;

/// The count of more keys takes the store longer than a request can wait for it.
const LIVE_KEYS_MAX: usize = 100_000;

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

/// Reads a route's `limits`. `Some(None)` for a route without a limit.
pub(super) fn read_key_rate(section: &Section<'_>) -> Option<Option<KeyRate>> {
    let max = KeyRate::PER_SECOND_MAX as usize;
    let per_second = section.integer("new_keys_per_second", 0..=max, "0 is no limit, and 1000 the highest");
    let burst = section.integer("burst", 0..=BURST_MAX, "0 is as many as a second");
    let (per_second, burst) = (per_second?, burst?);
    if per_second.value == 0 && burst.value > 0 {
        section.reader().problem(&burst.position, "needs `new_keys_per_second`");
        return None;
    }
    let burst = if burst.value == 0 { per_second.value } else { burst.value };
    let small = |number: usize| u32::try_from(number).expect("its bound is far below");
    Some((per_second.value > 0).then(|| KeyRate::new(small(per_second.value), small(burst))))
}

/// Reads the most live keys of a route's callers. `Some(None)` for a route without a limit.
pub(super) fn read_live_keys(section: &Section<'_>) -> Option<Option<u32>> {
    let live_keys = section.integer("live_keys", 0..=LIVE_KEYS_MAX, "0 is no limit")?;
    Some(u32::try_from(live_keys.value).ok().filter(|limit| *limit > 0))
}
