//! Times in the API: RFC 3339, in UTC, to the millisecond.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Formats a time as `2026-11-21T19:15:26.042Z`. A time before 1970 is written as 1970: no time here is earlier.
pub fn format(time: SystemTime) -> String {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let since_1970 = u64::try_from(since_1970).unwrap_or(u64::MAX);
    let (days, ms) = (since_1970 / DAY_MS, since_1970 % DAY_MS);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Parses a text of [`format()`]; `None` for any other.
pub fn parse(text: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    let ms = (((days_since_1970(year, month, day)? * 24 + hour) * 60 + minute) * 60 + second) * 1000 + digits(20, 23)?;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms))?;
    (format(time) == text).then_some(time)
}

/// The date that is `days` after 1970-01-01. Years are counted from March, so that the leap day is their last.
fn date(days: u64) -> (u64, u64, u64) {
    let since_march_0000 = days + 719_468;
    let (era, of_era) = (since_march_0000 / 146_097, since_march_0000 % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day.checked_sub(1)?;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
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
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(ms);
            assert_eq!(format(time), text);
            assert_eq!(parse(text), Some(time));
        }
        for wrong in ["", "2024-02-30T00:00:00.000Z", "2024-13-01T00:00:00.000Z", "2024-02-29 00:00:00.001Z", "x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
