//! The report of checks: a table in Markdown, which reads well in a terminal, a mail and an issue, and JSON.

use std::collections::BTreeMap;

use http::StatusCode;
use serde_json::{Value, json};

use super::badge;
use super::finding::{Conclusion, Finding, IdempotencyCheck};
use oncegate_telemetry::terminal::escape_invisible;

/// The document whose expectations are checked.
const DRAFT: &str = "draft-ietf-httpapi-idempotency-key-header-07";
/// The number of differing parts that the table names.
const DIFFERENCES_MAX: usize = 6;

pub struct CheckedExpectation {
    pub check: IdempotencyCheck,
    pub finding: Finding,
    pub statuses: Vec<StatusCode>,
    pub key: Option<String>,
    /// The key that the same body was sent with again, because it was refused with the first one.
    pub own_key: Option<String>,
    /// The field by which a response was marked as a replay.
    pub marker: Option<String>,
    pub sent: Option<String>,
}

/// The words in which the report on a server differs from that on a client.
pub struct ReportWords {
    /// The verdict that no check breaks, in the heading.
    holds: &'static str,
    broken: &'static str,
    unclear: &'static str,
    /// The titles of the last two columns.
    columns: [&'static str; 2],
    /// The title of the list below the table.
    list: &'static str,
    /// The left half of the badge.
    badge: &'static str,
}

impl ReportWords {
    pub(crate) const SERVER: Self = Self {
        holds: "it holds",
        broken: "it does not hold",
        unclear: "the responses do not show whether it holds",
        columns: ["the draft expects", "came back"],
        list: "Keys, to find the requests in the server's log",
        badge: "idempotency keys",
    };
    pub(crate) const CLIENT: Self = Self {
        holds: "the client holds",
        broken: "the client does not hold",
        unclear: "the requests do not show whether the client holds",
        columns: ["expected", "observed"],
        list: "Operations, and the answers that the client got",
        badge: "idempotent client",
    };
}

/// The results of all checks, and what they are about.
pub struct IdempotencyReport {
    pub words: ReportWords,
    /// The heading, such as `POST http://127.0.0.1/pay`.
    pub subject: String,
    pub procedure: String,
    pub comparison: String,
    /// The lines of the list below the table.
    pub list: Vec<String>,
    /// The members of the JSON object that only this kind of report has.
    pub facts: Value,
    /// The results, in the order of the table.
    pub checks: Vec<CheckedExpectation>,
}

impl CheckedExpectation {
    /// The meaning of the finding; nothing of an optional expectation can be broken.
    pub fn conclusion(&self) -> Conclusion {
        if self.check.is_optional { Conclusion::Info } else { self.finding.conclusion }
    }

    /// The statuses, each with its number where there are several: `201, 4 × 409`.
    fn statuses_text(&self) -> Option<String> {
        let mut counts = BTreeMap::<u16, usize>::new();
        self.statuses.iter().for_each(|status| *counts.entry(status.as_u16()).or_default() += 1);
        let text = |(status, count): (u16, usize)| match count {
            1 => status.to_string(),
            _ => format!("{count} × {status}"),
        };
        (!counts.is_empty()).then(|| counts.into_iter().map(text).collect::<Vec<_>>().join(", "))
    }

    fn observation(&self) -> String {
        let differences = &self.finding.differences;
        let more = differences.len().saturating_sub(DIFFERENCES_MAX);
        let named: Vec<_> = differences.iter().take(DIFFERENCES_MAX).map(|part| format!("`{part}`")).collect();
        let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let parts = [
            self.statuses_text(),
            Some(self.finding.text.to_string()),
            (!named.is_empty()).then(|| format!("differs at {}{and_more}", named.join(", "))),
            self.marker.as_ref().map(|marker| format!("`{marker}`")),
            self.finding.status_note(&self.statuses).map(str::to_owned),
            self.sent.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn to_json(&self) -> Value {
        let statuses: Vec<_> = self.statuses.iter().map(StatusCode::as_u16).collect();
        json!({
            "check": self.check.name,
            "verdict": self.conclusion().name(),
            "finding": self.finding.name,
            "expected": self.check.expected,
            "detail": self.observation(),
            "statuses": statuses,
            "differences": self.finding.differences.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "marker": self.marker,
            "key": self.key,
            "own_key": self.own_key,
        })
    }
}

impl IdempotencyReport {
    /// The worst conclusion of all checks.
    pub fn conclusion(&self) -> Conclusion {
        self.checks.iter().map(CheckedExpectation::conclusion).max().unwrap_or(Conclusion::Holds)
    }

    /// Returns the sentence for a report that is not all good.
    pub fn failure(&self) -> Option<String> {
        let count = |conclusion| self.checks.iter().filter(|check| check.conclusion() == conclusion).count();
        let (broken, open) = (count(Conclusion::Broken), count(Conclusion::CannotTell));
        match self.conclusion() {
            Conclusion::Broken => Some(format!("expectations that do not hold: {broken}")),
            Conclusion::CannotTell => Some(format!("expectations that cannot be judged: {open}")),
            Conclusion::Holds | Conclusion::Info => None,
        }
    }

    /// Returns the report as a text in Markdown.
    pub fn to_text(&self) -> String {
        let Self { words, procedure, comparison, .. } = self;
        let mut rows = vec![["check", "verdict", words.columns[0], words.columns[1]].map(str::to_owned)];
        rows.extend(self.checks.iter().map(|check| {
            let IdempotencyCheck { title, expected, .. } = check.check;
            let verdict = check.conclusion().name().replace('-', " ");
            [title.to_owned(), verdict, expected.to_owned(), check.observation()].map(|cell| to_cell(&cell))
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        // The last column is as long as its sentence: padding would wrap each row in a terminal.
        let widths = [width(0), width(1), width(2), 0];
        let line = |row: &[String; 4]| {
            let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut table = line(&rows[0]);
        table.push_str("|---|---|---|---|\n");
        table.extend(rows[1..].iter().map(line));
        let list: String = self.list.iter().map(|line| format!("- {}\n", escape_invisible(line))).collect();
        let verdict = match self.conclusion() {
            Conclusion::Holds | Conclusion::Info => words.holds,
            Conclusion::Broken => words.broken,
            Conclusion::CannotTell => words.unclear,
        };
        format!(
            "{}: {verdict}\n\n{procedure}\nExpectations: {DRAFT}.\n\n{table}\n{comparison}\n{}:\n\n{list}",
            escape_invisible(&self.subject),
            words.list,
        )
    }

    /// Returns the verdict as a picture in SVG, with a line break at its end.
    pub fn to_badge(&self) -> String {
        badge::draw(self.words.badge, self.conclusion())
    }

    /// Returns the report as JSON, with a line break at its end.
    pub fn to_json(&self) -> String {
        let mut document = self.facts.clone();
        document["draft"] = DRAFT.into();
        document["verdict"] = self.conclusion().name().into();
        document["checks"] = self.checks.iter().map(CheckedExpectation::to_json).collect();
        format!("{document:#}\n")
    }
}

/// A text, which may be the server's, as one cell of the table.
fn to_cell(text: &str) -> String {
    escape_invisible(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::finding::Difference;

    fn checked(finding: Finding, statuses: &[u16]) -> CheckedExpectation {
        CheckedExpectation {
            check: IdempotencyCheck::RETRY,
            finding,
            statuses: statuses.iter().map(|status| StatusCode::from_u16(*status).unwrap()).collect(),
            key: None,
            own_key: None,
            marker: None,
            sent: None,
        }
    }

    #[test]
    fn an_observation_counts_statuses_and_names_some_differences() {
        let differences: BTreeSet<_> = (0..8).map(|number| Difference::Json(format!("/{number}"))).collect();
        let text = checked(Finding::EXECUTED_AGAIN.with_differences(differences), &[409, 201, 409]).observation();
        assert!(text.starts_with("201, 2 × 409; another result"), "{text}");
        assert!(text.ends_with("differs at `/0`, `/1`, `/2`, `/3`, `/4`, `/5` and 2 more"), "{text}");
        let text = checked(Finding::REUSE_REFUSED, &[400]).observation();
        assert_eq!(text, "400; refused; accepted with a key of its own; not the draft's status");
        assert_eq!(
            checked(Finding::REUSE_REFUSED, &[422]).observation(),
            "422; refused; accepted with a key of its own"
        );
    }

    #[test]
    fn a_server_cannot_break_the_table_or_control_the_terminal() {
        assert_eq!(to_cell("a|b\u{1b}[2J\n\u{202e}"), "a\\|b\\u{1b}[2J\\n\\u{202e}");
        assert_eq!(to_cell("Zoë’s …"), "Zoë’s …");
    }
}
