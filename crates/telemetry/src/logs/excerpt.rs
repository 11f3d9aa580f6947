//! Lines of a log for a report to strangers. Of a line stays what only Oncegate or its configuration can have chosen:
//! the time, the level, its own messages without what they insert, and the fields of [`is_kept`]. All else is counted.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use oncegate_domain::state::StateKind;
use oncegate_domain::unknown_cause::UnknownCause;

/// The messages of all log lines and errors, with `{}` for inserted parts. `make docs-write` writes the file.
const MESSAGES: &str = include_str!("messages.txt");

/// The tasks that lines name.
const TASKS: &str = "deferred reports,deliverer,gone routes,heartbeat,orphans,reaper,reconciler,sweeper";

/// The fields that are named where they are left out. Others are not: in a line of another program, a name may be
/// anything.
const NAMED: &str = "actor admin attempt broker cause differs error key listen method new_route oncegate_status path peer \
                     record refusal route service state status store_ms total_ms trace_id upstream_ms";

/// The count of lines of no known form.
const LINES: &str = "whole lines";
const OTHER_FIELDS: &str = "other fields";

/// The lines that stay, and how often what was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogExcerpt {
    pub lines: Vec<String>,
    pub left_out: BTreeMap<&'static str, usize>,
}

impl LogExcerpt {
    /// Adds a line of either format, which may begin with what a journal has put before it. `is_name` says whether a
    /// text names a route or a service of the configuration.
    pub fn add(&mut self, line: &str, is_name: impl Fn(&str) -> bool) {
        let Some(([timestamp, level], message, fields)) = parse_json(line).or_else(|| parse_text(line)) else {
            *self.left_out.entry(LINES).or_default() += 1;
            return;
        };
        let message = find_message(&message).unwrap_or_else(|| {
            *self.left_out.entry("message").or_default() += 1;
            "…".to_owned()
        });
        let mut kept = format!("{timestamp} {level} {message}");
        for (name, value) in fields {
            if is_kept(&name, &value, &is_name) {
                kept.push_str(&format!(" {name}={value}"));
            } else {
                let named = NAMED.split(' ').find(|known| *known == name);
                *self.left_out.entry(named.unwrap_or(OTHER_FIELDS)).or_default() += 1;
            }
        }
        self.lines.push(kept);
    }
}

/// The timestamp and the level of a line, its message, and its fields.
type ParsedLine = ([String; 2], String, Vec<(String, String)>);

fn parse_json(line: &str) -> Option<ParsedLine> {
    let mut fields: Map<String, Value> = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
    let mut take = |name| fields.remove(name)?.as_str().map(str::to_owned);
    let (head, message) = (parse_head(&take("timestamp")?, &take("level")?)?, take("message")?);
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some((head, message, fields.into_iter().map(|(name, value)| (name, text(value))).collect()))
}

/// The message of a text line ends before its first field. A value without quotes may have blanks in it, and seem to be
/// several fields: each is judged for itself.
fn parse_text(line: &str) -> Option<ParsedLine> {
    let (timestamp, rest) = line.split_once(' ')?;
    let (level, rest) = rest.trim_start().split_once(' ')?;
    let is_field = |word: &str| word.find('=').is_some_and(|at| at > 0);
    let first = rest.split(' ').take_while(|word| !is_field(word)).map(|word| word.len() + 1).sum::<usize>();
    let (message, fields) = rest.split_at(first.saturating_sub(1).min(rest.len()));
    let fields = fields.split_whitespace().filter_map(|word| word.split_once('='));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
    Some((parse_head(timestamp, level)?, message.to_owned(), fields))
}

fn parse_head(timestamp: &str, level: &str) -> Option<[String; 2]> {
    const FORM: &[u8] = b"0000-00-00T00:00:00.000000Z";
    let fits = |(byte, form): (u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == *form };
    let is_time = timestamp.len() == FORM.len() && timestamp.bytes().zip(FORM).all(fits);
    let is_level = ["DEBUG", "ERROR", "INFO", "TRACE", "WARN"].contains(&level);
    (is_time && is_level).then(|| [timestamp.to_owned(), level.to_owned()])
}

/// Returns the message as the code has it, with dots for what the line has inserted.
fn find_message(text: &str) -> Option<String> {
    let fitting = MESSAGES.lines().filter(|message| fits_message(message, text));
    fitting.max_by_key(|message| message.len()).map(|message| message.replace("{}", "…"))
}

fn fits_message(message: &str, text: &str) -> bool {
    let mut parts = message.split("{}").peekable();
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    while let Some(part) = parts.next() {
        match rest.find(part) {
            _ if parts.peek().is_none() => return rest.ends_with(part),
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

/// Whether a field has one of the values that Oncegate or its configuration chooses. A cause may also be an error's,
/// which may have an address.
fn is_kept(name: &str, value: &str, is_name: impl Fn(&str) -> bool) -> bool {
    match name {
        "attempt" => value.parse::<u16>().is_ok(),
        "cause" => UnknownCause::parse(value).is_some(),
        "new_route" | "route" | "service" => is_name(value),
        "state" => StateKind::parse(value).is_some(),
        "status" => value.parse::<u16>().is_ok_and(|status| (100..=599).contains(&status)),
        "task" => TASKS.split(',').any(|task| task == value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_with_what_only_oncegate_can_have_chosen() {
        let time = "2026-11-27T10:00:00.000001Z";
        let mut excerpt = LogExcerpt::default();
        for line in [
            format!(
                r#"{{"timestamp":"{time}","level":"INFO","message":"request","route":"pay","status":201,"attempt":1,"key":"S","S":1}}"#
            ),
            format!(
                r#"pod S {{"timestamp":"{time}","level":"INFO","message":"stopped","route":"S","status":4111111}}"#
            ),
            format!(r#"{time}  INFO request route="pay" path="S" cause=S route=S status=409 attempt=2"#),
            format!("{time}  WARN S; the next pass tries again task=\"reaper\" cause=S S"),
            format!("{time}  WARN the admin listener has denied a request: S state=unknown"),
            format!(r#"{{"timestamp":"{time}","level":"INFO","message":"S","cause":"status:500"}}"#),
            format!(r#"{{"timestamp":"{time}","level":"S","message":"request"}}"#),
            r#"{"timestamp":"S","level":"INFO","message":"request"}"#.to_owned(),
            format!("{time} INFO request S"),
            "S".to_owned(),
            String::new(),
        ] {
            excerpt.add(&line, |name| name == "pay");
        }
        let lines = [
            "INFO request attempt=1 route=pay status=201",
            "INFO stopped",
            "INFO request route=pay status=409 attempt=2",
            "WARN …; the next pass tries again task=reaper",
            "WARN the admin listener has denied a request: … state=unknown",
            "INFO … cause=status:500",
            "INFO …",
        ];
        assert_eq!(excerpt.lines, lines.map(|line| format!("{time} {line}")));
        let left_out = [
            ("cause", 2),
            ("key", 1),
            ("message", 2),
            (OTHER_FIELDS, 1),
            ("path", 1),
            ("route", 2),
            ("status", 1),
            (LINES, 4),
        ];
        assert_eq!(excerpt.left_out, left_out.into());
    }
}
