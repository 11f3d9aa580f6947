//! The pictures of a run: groups of bars that are figures of its rows.

use crate::bar_chart::{Bar, BarChart, BarGroup, thousands};
use crate::report::{BenchmarkReport, Column, short};
use crate::run_stamp::RunStamp;

/// A picture as data.
struct RunChart {
    file: &'static str,
    title: &'static str,
    /// The line below the title, after the run.
    note: &'static str,
    /// Each group has a title, the figure of its bars, their connections, and a row for each bar.
    groups: &'static [(&'static str, Column, usize, &'static [BarRow])],
}

/// The label of a bar and the name of its row. Bars whose label begins with "Oncegate" are ours.
type BarRow = (&'static str, &'static str);

const PROXIES: &[BarRow] = &[
    ("Oncegate", "pass-through"),
    ("Caddy", "pass-through, Caddy"),
    ("nginx", "pass-through, nginx"),
    ("HAProxy", "pass-through, HAProxy"),
];

const FIRST_ATTEMPTS: &[BarRow] = &[
    ("Oncegate before the service", "first attempts, Oncegate and fastify"),
    ("two commits in the service", "first attempts, two commits in fastify"),
    ("one transaction in the service", "first attempts, one transaction in fastify"),
];

const REPLAYS: &[BarRow] = &[
    ("Oncegate before the service", "replays, Oncegate and fastify"),
    ("two commits in the service", "replays, two commits in fastify"),
    ("one transaction in the service", "replays, one transaction in fastify"),
];

static CHARTS: [RunChart; 2] = [
    RunChart {
        file: "proxies.svg",
        title: "Requests without a key: Oncegate (blue) beside proxies that only forward (grey)",
        note: "64 connections.",
        groups: &[
            ("Requests a second", Column::Rate, 64, PROXIES),
            ("Processor time of the proxy for a request (less is better)", Column::Program, 64, PROXIES),
        ],
    },
    RunChart {
        file: "in_service.svg",
        title: "Requests a second: Oncegate (blue) beside the same thing written in the service (grey)",
        note: "Service: fastify.",
        groups: &[
            ("First attempts, 1 connection", Column::Rate, 1, FIRST_ATTEMPTS),
            ("First attempts, 16 connections", Column::Rate, 16, FIRST_ATTEMPTS),
            ("First attempts, 64 connections", Column::Rate, 64, FIRST_ATTEMPTS),
            ("First attempts, 256 connections", Column::Rate, 256, FIRST_ATTEMPTS),
            ("Replays of stored responses, 64 connections", Column::Rate, 64, REPLAYS),
        ],
    },
];

/// Draws the pictures of which at least two bars of a group were measured. Returns each with the name of its file.
pub fn draw(run: &RunStamp, report: &BenchmarkReport) -> Vec<(&'static str, String)> {
    CHARTS.iter().filter_map(|chart| Some((chart.file, chart.draw(run, report)?))).collect()
}

impl RunChart {
    fn draw(&self, run: &RunStamp, report: &BenchmarkReport) -> Option<String> {
        let groups = self.groups.iter().map(|&(title, column, connections, rows)| BarGroup {
            title: title.to_owned(),
            bars: rows.iter().filter_map(|row| bar(*row, column, connections, report)).collect(),
        });
        let groups: Vec<_> = groups.filter(|group| group.bars.len() > 1).collect();
        let run = format!(
            "{}, commit {}, one machine for all programs. {} Each group has its own scale.",
            run.date, run.commit, self.note
        );
        let reading = "A bar is the median of the rounds, a line their range.".to_owned();
        let chart = BarChart { title: self.title.to_owned(), notes: vec![run, reading], groups };
        (!chart.groups.is_empty()).then(|| chart.to_svg())
    }
}

/// Returns the bar of a row; `None` if it was not measured.
fn bar((label, name): BarRow, column: Column, connections: usize, report: &BenchmarkReport) -> Option<Bar> {
    let figure = report.row(name, connections)?.summary(column)?;
    let (value, range, text) = match column {
        Column::Rate => (figure.median, Some((figure.least, figure.most)), thousands(figure.median.round() as usize)),
        _ => (figure.median * 1e6, None, format!("{} µs", short(figure.median * 1e6))),
    };
    Some(Bar { label: label.to_owned(), value, range, text, is_ours: label.starts_with("Oncegate") })
}
