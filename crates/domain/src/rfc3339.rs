//! Times in the API and in logs: RFC 3339, in UTC.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

/// The last millisecond of the year 9999: RFC 3339 section 5.6 has years of four digits.
const MAX: Duration = Duration::from_millis(253_402_300_799_999);

/// Formats a time as `2026-11-21T19:15:26.042Z`. A time before 1970 is written as 1970: no time here is earlier. A time
/// after the year 9999 is written as the end of that year.
pub fn format(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(within_bounds(time)).to_string()
}

/// Serializes a time, or none, as [`format()`] does.
pub fn serialize<S: Serializer>(
    time: &(impl Copy + Into<Option<SystemTime>>),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (*time).into().map(format).serialize(serializer)
}

/// The schema of a time that [`serialize`] has written.
pub struct Written;

impl JsonSchema for Written {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Written".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Formats a time like [`format()`], to the microsecond, without an allocation of its own.
pub fn display_micros(time: SystemTime) -> impl fmt::Display {
    humantime::format_rfc3339_micros(within_bounds(time))
}

fn within_bounds(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + time.duration_since(UNIX_EPOCH).unwrap_or_default().min(MAX)
}

/// Parses a text of [`format()`]; `None` for any other.
pub fn parse(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok().filter(|&time| format(time) == text)
}

/// Parses a time as a person writes it, in UTC: `2026-11-29T12:03:00Z`, also with a space, without the `Z`, the seconds
/// or the whole time of the day.
pub fn parse_written(text: &str) -> Option<SystemTime> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let missing = match text.len() {
        10 => "T00:00:00",
        16 => ":00",
        _ => "",
    };
    humantime::parse_rfc3339_weak(&format!("{text}{missing}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(ms);
            assert_eq!(format(time), text);
            assert_eq!(parse(text), Some(time));
        }
        for written in ["2024-02-29 00:00", "2024-02-29T00:00:00.000", "2024-02-29", "2024-02-29T00:00Z"] {
            assert_eq!(parse_written(written), parse("2024-02-29T00:00:00.000Z"), "{written}");
        }
        assert_eq!(["", "12:03", "2024-02-30", "2024-02-29T0"].map(parse_written), [None; 4]);
        for wrong in ["", "2024-02-30T00:00:00.000Z", "2024-13-01T00:00:00.000Z", "2024-02-29 00:00:00.001Z", "x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_out_of_bounds_are_written_as_the_nearest_within() {
        assert_eq!(format(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        assert_eq!(format(UNIX_EPOCH + MAX + Duration::from_millis(1)), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_time_to_the_microsecond_has_six_digits_after_the_point() {
        let time = UNIX_EPOCH + Duration::from_micros(1_709_164_800_001_042);
        assert_eq!(display_micros(time).to_string(), "2024-02-29T00:00:00.001042Z");
    }
}
