//! Reads and checks `[limits]`: the bounds on what strangers can hold.

use std::ops::RangeInclusive;

use super::options::options;
use super::reader::Section;
use oncegate_domain::key_rate::KeyRate;
use oncegate_settings::{CallerLimits, LimitsConfig, parse_size};

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

options! {
    /// The options of `[limits]`: the bounds on what clients can hold. Beyond them, new work is refused; nothing that
    /// runs is.
    struct LimitsOptions for LimitsConfig {
        /// connections of clients; fewer where file descriptors are short
        connections: Integer = 8192 => integer(1..=CONNECTIONS_MAX, "without a connection nobody is served");
        /// connections of one peer address; 0 for no limit
        connections_per_peer: Integer = 0 => integer(0..=CONNECTIONS_MAX, "0 is no limit");
        /// bodies in memory, and as much again for responses that clients have not read; beyond it, requests get 503
        /// overloaded
        held_bodies: Size = "96MiB" => parsed(parse_held_bodies);
        /// a second, over any 10 s; a slower request body is refused
        body_rate: Size = "512B" => parsed(parse_body_rate);
        /// connections to one upstream; beyond, requests wait
        upstream_connections: Integer = 512 => integer(1..=CONNECTIONS_MAX, "without one nothing is forwarded");
    }
}

options! {
    /// The options of a route's `limits`.
    struct CallerLimitOptions for CallerLimits {
        /// new keys of one caller; 0 for no limit
        new_keys_per_second: Integer = 0 => made(read_key_rate);
        /// new keys of one caller at once; 0 for those of one second
        burst: Integer = 0;
        /// live keys of one caller; 0 for no limit
        live_keys: Integer = 0 => made(read_live_keys);
    }
}

fn parse_held_bodies(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < HELD_BODIES_MIN => Err("must be at least 4MiB".into()),
        bytes => Ok(bytes),
    }
}

fn parse_body_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if !BODY_RATE.contains(&bytes) => Err("must be from 1B to 64KiB a second".into()),
        bytes => Ok(bytes),
    }
}

/// Reads the rate of new keys; `None` for no limit.
fn read_key_rate(section: &Section<'_>) -> Option<KeyRate> {
    let highest = KeyRate::PER_SECOND_MAX as usize;
    let per_second = section.integer("new_keys_per_second", 0..=highest, "0 is no limit, and 1000 the highest");
    let burst = section.integer("burst", 0..=BURST_MAX, "0 is as many as a second");
    if per_second == 0 && burst > 0 && section.is_right(&["new_keys_per_second"]) {
        section.problem("burst", "needs `new_keys_per_second`");
    }
    (per_second > 0).then(|| KeyRate::new(per_second, if burst == 0 { per_second } else { burst }))
}

/// Reads the most live keys; `None` for no limit.
fn read_live_keys(section: &Section<'_>) -> Option<u32> {
    Some(section.integer("live_keys", 0..=LIVE_KEYS_MAX, "0 is no limit")).filter(|limit| *limit > 0)
}
