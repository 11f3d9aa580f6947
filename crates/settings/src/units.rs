//! Durations and sizes, parsed and shown.

use std::time::Duration;

use super::ParseResult;

/// The units of durations, from the largest, so that the first unit that fits gives the shortest text.
pub const DURATION_UNITS: [(&str, Duration); 5] = [
    ("d", Duration::from_secs(86_400)),
    ("h", Duration::from_secs(3600)),
    ("m", Duration::from_secs(60)),
    ("s", Duration::from_secs(1)),
    ("ms", Duration::from_millis(1)),
];

/// The units of sizes, in the same order.
pub const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Ten years: no setting needs more, and adding it to a clock overflows on no platform.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// With a shorter one, a retry would find its key forgotten.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A year and its leap day: a longer one only makes the store larger.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Parses `250ms`, `30s`, `5m`, `24h` or `30d`.
pub fn parse_duration(text: &str) -> ParseResult<Duration> {
    let (number, one) = parse_quantity(text, &DURATION_UNITS, "duration", "`250ms`, `30s`, `5m`, `24h` or `30d`")?;
    let duration = number.try_into().ok().and_then(|number| one.checked_mul(number));
    duration.filter(|duration| *duration <= DURATION_MAX).ok_or_else(|| "is longer than ten years".into())
}

/// Parses how long a key is remembered: from a second to a year.
pub fn parse_ttl(text: &str) -> ParseResult<Duration> {
    match parse_duration(text)? {
        ttl if ttl < TTL_MIN => Err("is too short: a retry would find its key forgotten; write `1s` at least".into()),
        ttl if ttl > TTL_MAX => Err("is too long: write `366d` at most".into()),
        ttl => Ok(ttl),
    }
}

/// Parses `500B`, `64KiB` or `1MiB`, in bytes.
pub fn parse_size(text: &str) -> ParseResult<u64> {
    let (number, one) = parse_quantity(text, &SIZE_UNITS, "size", "`500B`, `64KiB` or `1MiB`")?;
    number.checked_mul(one).ok_or_else(|| "is more than any computer has".into())
}

/// Parses a whole number and one of these units.
fn parse_quantity<T: Copy>(text: &str, units: &[(&str, T)], what: &str, examples: &str) -> ParseResult<(u64, T)> {
    let wrong = |why: &str| format!("{why}: write a whole number and its unit: {examples}");
    let (number, unit) = text.split_at(text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()));
    let number = number.parse().map_err(|_| wrong(&format!("is no {what}")))?;
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, one)) => Ok((number, *one)),
        None if unit.is_empty() => Err(wrong("has no unit")),
        None => Err(wrong("has an unknown unit")),
    }
}

/// The text of a duration.
pub fn show_duration(duration: Duration) -> String {
    let whole = |one: &Duration| duration.as_millis().is_multiple_of(one.as_millis());
    match DURATION_UNITS.iter().find(|(_, one)| duration >= *one && whole(one)) {
        Some((unit, one)) => format!("{}{unit}", duration.as_millis() / one.as_millis()),
        None => "0s".into(),
    }
}

/// The text of a size.
pub fn show_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, one)| bytes >= *one && bytes.is_multiple_of(*one)) {
        Some((unit, one)) => format!("{}{unit}", bytes / one),
        None => "0B".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_value_parses_to_the_same_value() {
        for text in ["250ms", "30s", "5m", "24h", "30d", "90s", "1500ms", "0s"] {
            let read = parse_duration(text).expect(text);
            assert_eq!(parse_duration(&show_duration(read)), Ok(read), "{text}");
        }
        assert_eq!(show_duration(Duration::from_secs(86_400)), "1d");
        assert_eq!(show_duration(Duration::from_secs(5400)), "90m");
        for (text, bytes) in [("500B", 500), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1536KiB", 1_572_864), ("0B", 0)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused() {
        assert!(parse_duration("30").is_err_and(|message| message.starts_with("has no unit")));
        assert!(parse_size("1024").is_err_and(|message| message.starts_with("has no unit")));
    }

    #[test]
    fn every_other_text_is_refused() {
        for text in ["", "s", "-1s", "1.5h", "1h30m", "30 s", " 30s", "30S", "1w", "99999999999d", "3651d"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        for text in ["", "B", "-1B", "1.5MiB", "1MB", "64kib", "1 MiB", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
