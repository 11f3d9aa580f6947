//! Durations and sizes, parsed and shown.

use std::time::Duration;

use super::problem::ParseResult;

/// From the largest, so that the first unit that fits gives the shortest text.
const DURATIONS: [(&str, Duration); 5] = [
    ("d", Duration::from_secs(86_400)),
    ("h", Duration::from_secs(3600)),
    ("m", Duration::from_secs(60)),
    ("s", Duration::from_secs(1)),
    ("ms", Duration::from_millis(1)),
];

const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Ten years: no setting needs more, and adding it to a clock overflows on no platform.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// Parses `250ms`, `30s`, `5m`, `24h` or `30d`.
pub fn parse_duration(text: &str) -> ParseResult<Duration> {
    let right = "write a whole number and its unit: `250ms`, `30s`, `5m`, `24h` or `30d`";
    let (number, unit) = split(text).ok_or_else(|| format!("is no duration: {right}"))?;
    if unit.is_empty() {
        return Err(format!("has no unit: {right}"));
    }
    let Some((_, one)) = DURATIONS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("has an unknown unit: {right}"));
    };
    let duration = number.try_into().ok().and_then(|number| one.checked_mul(number));
    duration.filter(|duration| *duration <= DURATION_MAX).ok_or_else(|| "is longer than ten years".into())
}

/// Parses `500B`, `64KiB` or `1MiB`, in bytes.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let right = "write a whole number and its unit: `500B`, `64KiB` or `1MiB`";
    let (number, unit) = split(text).ok_or_else(|| format!("is no size: {right}"))?;
    if unit.is_empty() {
        return Err(format!("has no unit: {right}"));
    }
    let Some((_, one)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("has an unknown unit: {right}"));
    };
    number.checked_mul(*one).ok_or_else(|| "is more than any computer has".into())
}

/// The units of durations.
pub(super) fn duration_units() -> impl Iterator<Item = &'static str> {
    DURATIONS.iter().map(|(name, _)| *name)
}

/// The units of sizes.
pub(super) fn size_units() -> impl Iterator<Item = &'static str> {
    SIZES.iter().map(|(name, _)| *name)
}

/// The text of a duration.
pub(super) fn show_duration(duration: Duration) -> String {
    let whole = |one: &Duration| duration.as_millis().is_multiple_of(one.as_millis());
    match DURATIONS.iter().find(|(_, one)| duration >= *one && whole(one)) {
        Some((unit, one)) => format!("{}{unit}", duration.as_millis() / one.as_millis()),
        None => "0s".into(),
    }
}

/// The text of a size.
pub(super) fn show_size(bytes: u64) -> String {
    match SIZES.iter().find(|(_, one)| bytes >= *one && bytes.is_multiple_of(*one)) {
        Some((unit, one)) => format!("{}{unit}", bytes / one),
        None => "0B".into(),
    }
}

/// The number and the text behind it; `None` without digits or with more than fit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
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
