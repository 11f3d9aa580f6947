//! Keys as people read them.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::domain::rfc3339;

/// As much of a key as a table shows.
const KEY_CHARS_MAX: usize = 40;
/// As much of an id: unique among more keys than fit on any disk.
const ID_DIGITS: usize = 16;

/// Whether states have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paint(bool);

impl Paint {
    /// On a terminal whose owner has not said `NO_COLOR`.
    pub fn for_output() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self(wanted && std::io::stdout().is_terminal())
    }

    fn state(self, state: &str, padded: &str) -> String {
        let colour = match state {
            "completed" => 32,
            "dead" => 31,
            "in_flight" => 36,
            "unknown" => 33,
            _ => return padded.to_owned(),
        };
        if self.0 { format!("\x1b[{colour}m{padded}\x1b[0m") } else { padded.to_owned() }
    }
}

/// A line for each key, in columns.
pub(super) fn of(keys: &[Value], paint: Paint) -> String {
    let now = SystemTime::now();
    let mut rows = vec![["STATE", "TRIES", "MADE", "SETTLED", "ROUTE", "KEY", "ID"].map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|key| {
        let id = text(key, "id");
        vec![
            text(key, "state"),
            key["attempts"].to_string(),
            age(now, &key["created_at"]),
            age(now, &key["settled_at"]),
            text(key, "route"),
            shortened(&text(key, "key")),
            id.chars().take(ID_DIGITS).collect(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let padded = format!("{cell:<width$}");
            if column == 0 { paint.state(cell, &padded) } else { padded }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// All about one key.
pub(super) fn one(key: &Value, paint: Paint) -> String {
    let mut told = String::new();
    let mut line = |name: &str, value: String| told.push_str(&format!("{name:<14}  {value}\n"));
    let state = text(key, "state");
    for name in ["id", "key", "state", "route", "space", "scope", "attempts", "instance"] {
        match name {
            "state" if key["lapsed"] == true => line(name, format!("{}, past its TTL", paint.state(&state, &state))),
            "state" => line(name, paint.state(&state, &state)),
            _ => line(name, text(key, name)),
        }
    }
    for name in ["created_at", "reserved_at", "deadline", "settled_at", "expires_at", "quiet_at", "probe_at"] {
        if !key[name].is_null() {
            line(name, text(key, name));
        }
    }
    if key["probes"].as_u64().unwrap_or(0) > 0 {
        line("probes", format!("{}, of which the last {} knew of nothing", key["probes"], key["absences"]));
    }
    if let Some(hash) = key["fingerprint"]["hash"].as_str() {
        line("fingerprint", format!("{}… by recipe {}", visible(hash), text(&key["fingerprint"], "recipe")));
    }
    let response = &key["response"];
    if let Some(corrupt) = response["corrupt"].as_str() {
        line("response", corrupt.to_owned());
    } else if response.is_object() {
        let names: Vec<_> = response["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let body = match response["body_kept"] == true {
            true => format!("{} bytes", response["body_bytes"]),
            false => "a body that was not kept".to_owned(),
        };
        line("response", format!("{}, {body}; {}", response["status"], names.join(", ")));
    }
    for note in key["audit"].as_array().into_iter().flatten() {
        let why = note["note"].as_str().map(|why| format!(" ({})", visible(why))).unwrap_or_default();
        let (before, after) = (text(note, "before"), text(note, "after"));
        let done = format!("{}: {before} -> {after}", text(note, "action"));
        line("audit", format!("{}  {done}, {}{why}", text(note, "at"), text(note, "actor")));
    }
    told
}

/// What a change came to.
pub(super) fn change(told: &Value) -> String {
    if told["id"].is_string() {
        return format!("{}  {} -> {}\n", text(told, "id"), text(told, "before"), text(told, "after"));
    }
    let mut lines = format!("{}: changed {} of {}\n", text(told, "action"), told["changed"], told["count"]);
    for refused in told["refused"].as_array().into_iter().flatten() {
        lines.push_str(&format!("{}  not changed: {}\n", text(refused, "id"), text(refused, "detail")));
    }
    lines
}

/// A text that may be anybody's, so that a terminal takes nothing of it for an order.
fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::String(text) => visible(text),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn visible(text: &str) -> String {
    let safe = |c: char| !c.is_control() && !matches!(c, '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().flat_map(|c| if safe(c) { vec![c] } else { c.escape_default().collect() }).collect()
}

fn shortened(key: &str) -> String {
    match key.chars().count() > KEY_CHARS_MAX {
        true => key.chars().take(KEY_CHARS_MAX - 1).chain(['…']).collect(),
        false => key.to_owned(),
    }
}

fn age(now: SystemTime, at: &Value) -> String {
    let at = at.as_str().and_then(rfc3339::parse);
    at.map_or_else(|| "-".to_owned(), |at| span(now.duration_since(at).unwrap_or_default()))
}

/// A time span in its largest whole unit.
fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_a_terminal_takes_no_orders_from_a_key() {
        let key = |key: &str, state: &str| {
            json!({ "id": "ab".repeat(32), "key": key, "state": state, "attempts": 1, "route": "pay",
                    "created_at": "2020-01-01T00:00:00.000Z", "settled_at": null })
        };
        let keys = [key("k", "unknown"), key("\u{1b}[2J", "completed"), key(&"x".repeat(255), "in_flight")];
        let plain = of(&keys, Paint(false));
        let lines: Vec<_> = plain.lines().collect();
        let column = lines[0].find("ID").unwrap();
        assert!(
            lines[1..].iter().all(|line| line.chars().skip(column).collect::<String>() == "ab".repeat(8)),
            "{plain}"
        );
        assert!(plain.contains("\\u{1b}[2J") && plain.contains('…') && !plain.contains('\x1b'), "{plain}");
        assert!(of(&keys, Paint(true)).contains("\x1b[33munknown"));
    }

    #[test]
    fn ages_are_in_their_largest_unit() {
        for (seconds, told) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")] {
            assert_eq!(span(Duration::from_secs(seconds)), told);
        }
    }
}
