//! Keys and changes as text for a terminal.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::source::name_flags;
use oncegate_domain::key::shorten_middle;
use oncegate_domain::quantity::quantity;
use oncegate_domain::rfc3339;
use oncegate_telemetry::terminal::escape_invisible;

const KEY_CHARS_MAX: usize = 40;
/// The number of digits of an id that a table shows: unique among more keys than fit on any disk.
const ID_DIGITS: usize = 16;

/// Colours a state, which may be padded.
fn paint(state: &str, padded: String, has_colours: bool) -> String {
    let colour = match state {
        "completed" => 32,
        "dead" => 31,
        "in_flight" => 36,
        "unknown" => 33,
        _ => return padded,
    };
    if has_colours { format!("\x1b[{colour}m{padded}\x1b[0m") } else { padded }
}

/// The state, and whether the key counts as forgotten, or as expired, although the reaper has not come yet.
fn shown_state(key: &Value) -> String {
    text(key, "state") + if key["lapsed"] == true { ", past its TTL" } else { "" }
}

pub(super) fn render_list(keys: &[Value], has_colours: bool) -> String {
    let now = SystemTime::now();
    let mut rows = vec![["STATE", "TRIES", "MADE", "SETTLED", "ROUTE", "KEY", "ID"].map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|key| {
        let id = text(key, "id");
        vec![
            shown_state(key),
            key["attempts"].to_string(),
            age(now, &key["created_at"]),
            age(now, &key["settled_at"]),
            text(key, "route"),
            shorten_middle(&text(key, "key"), KEY_CHARS_MAX),
            id.chars().take(ID_DIGITS).collect(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let padded = format!("{cell:<width$}");
            let state = cell.split(',').next().unwrap_or_default();
            if column == 0 { paint(state, padded, has_colours) } else { padded }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

pub(super) fn render_key(key: &Value, has_colours: bool) -> String {
    let mut rendered = String::new();
    let mut line = |name: &str, value: String| rendered.push_str(&format!("{name:<14}  {value}\n"));
    let state = paint(&text(key, "state"), shown_state(key), has_colours);
    for name in [
        "id",
        "key",
        "vendor_key",
        "state",
        "cause",
        "route",
        "path",
        "space",
        "scope",
        "client_address",
        "trace_id",
        "attempts",
        "instance",
    ] {
        match name {
            "cause" | "client_address" | "path" | "trace_id" | "vendor_key" if key[name].is_null() => {}
            "state" => line(name, state.clone()),
            _ => line(name, text(key, name)),
        }
    }
    let times = ["created_at", "reserved_at", "deadline", "settled_at", "expires_at", "quiet_at", "inquire_at"];
    for name in times.into_iter().chain(["next_try_at", "repeats_until"]) {
        if !key[name].is_null() {
            line(name, text(key, name));
        }
    }
    if key["inquiries"].as_u64().unwrap_or(0) > 0 {
        line("inquiries", format!("{}, of which the last {} got 404", key["inquiries"], key["absences"]));
    }
    if let Some(hash) = key["fingerprint"]["hash"].as_str() {
        line("fingerprint", format!("{}… by recipe {}", escape_invisible(hash), text(&key["fingerprint"], "recipe")));
    }
    let response = &key["response"];
    if let Some(corrupt) = response["corrupt"].as_str() {
        line("response", corrupt.to_owned());
    } else if response.is_object() {
        let names: Vec<_> = response["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let body = match response["body_kept"] == true {
            true => quantity(response["body_bytes"].as_u64().unwrap_or(0), "byte", "bytes"),
            false => "a body that was not kept".to_owned(),
        };
        let author = if key["by_hand"] == true { "; written by an operator" } else { "" };
        line("response", format!("{}, {body}; {}{author}", response["status"], names.join(", ")));
    }
    for event in key["timeline"].as_array().into_iter().flatten() {
        line("history", format!("{}  {}", text(event, "at"), render_event(event)));
    }
    rendered
}

fn render_event(event: &Value) -> String {
    if event["event"] == "decision" {
        let note = event["note"].as_str().map(|note| format!(" ({})", escape_invisible(note))).unwrap_or_default();
        let (before, after) = (text(event, "before"), text(event, "after"));
        return format!("{}: {before} -> {after}, {}{note}", text(event, "action"), text(event, "actor"));
    }
    let end = event["state"].as_str().map(|state| format!(": {}", escape_invisible(state))).unwrap_or_default();
    let took = event["duration_ms"].as_u64().map(|ms| format!(" after {ms} ms")).unwrap_or_default();
    let cause = event["cause"].as_str().map(|cause| format!(", cause {}", escape_invisible(cause))).unwrap_or_default();
    format!("attempt {} by instance {}{end}{took}{cause}", event["attempt"], text(event, "instance"))
}

pub(super) fn render_change(change: &Value) -> String {
    if change["id"].is_string() {
        return format!("{}  {} -> {}\n", text(change, "id"), text(change, "before"), text(change, "after"));
    }
    let mut lines = format!("{}: changed {} of {}\n", text(change, "action"), change["changed"], change["count"]);
    for refused in change["refused"].as_array().into_iter().flatten() {
        let why = name_flags(&text(refused, "detail"), refused["field"].as_str());
        lines.push_str(&format!("{}  not changed: {why}\n", text(refused, "id")));
    }
    lines
}

/// Returns a text that anybody may have written, without characters that a terminal would interpret.
fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::String(text) => escape_invisible(text),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn age(now: SystemTime, at: &Value) -> String {
    let at = at.as_str().and_then(rfc3339::parse);
    at.map_or_else(|| "-".to_owned(), |at| format_span(now.duration_since(at).unwrap_or_default()))
}

/// Formats a time span in its largest whole unit.
fn format_span(span: Duration) -> String {
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
    fn columns_are_aligned_and_a_key_cannot_control_the_terminal() {
        let key = |key: &str, state: &str| {
            json!({ "id": "ab".repeat(32), "key": key, "state": state, "attempts": 1, "route": "pay",
                    "created_at": "2020-01-01T00:00:00.000Z", "settled_at": null })
        };
        let keys = [key("k", "unknown"), key("\u{1b}[2J", "completed"), key(&"x".repeat(255), "in_flight")];
        let plain = render_list(&keys, false);
        let lines: Vec<_> = plain.lines().collect();
        let column = lines[0].find("ID").unwrap();
        assert!(
            lines[1..].iter().all(|line| line.chars().skip(column).collect::<String>() == "ab".repeat(8)),
            "{plain}"
        );
        assert!(plain.contains("\\u{1b}[2J") && plain.contains('…') && !plain.contains('\x1b'), "{plain}");
        assert!(render_list(&keys, true).contains("\x1b[33munknown"));
        let mut late = key("k", "completed");
        late["lapsed"] = json!(true);
        for text in [render_list(&[late.clone()], true), render_key(&late, true)] {
            assert!(text.contains("\x1b[32mcompleted, past its TTL"), "{text}");
        }
    }

    #[test]
    fn ages_are_in_their_largest_unit() {
        for (seconds, shown) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")] {
            assert_eq!(format_span(Duration::from_secs(seconds)), shown);
        }
    }
}
