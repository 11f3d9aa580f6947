//! The pictures of a run: groups of bars that are figures of its rows and checks.

use crate::bar_chart::{Bar, BarChart, BarGroup, thousands};
use crate::report::{RoundsSummary, short};
use crate::results::{BenchmarkResults, RowResult};

/// A picture as data.
pub struct RunChart {
    /// The name of its file, without the ending.
    pub file: &'static str,
    pub title: &'static str,
    /// The line below the title, after the run.
    note: &'static str,
    /// Each group has a title, and bars with a label. Bars whose label begins with "Oncegate" are ours.
    groups: &'static [(&'static str, &'static [(&'static str, Figure)])],
}

/// The figure of a bar.
enum Figure {
    /// The rate of a row with so many connections.
    Rate(&'static str, usize),
    /// The processor time of a row's own program for a request.
    Processor(&'static str, usize),
    /// The result of a check.
    Check(&'static str),
}

use Figure::{Check, Processor, Rate};

static CHARTS: [RunChart; 4] = [
    RunChart {
        file: "proxies",
        title: "Requests without a key: Oncegate (blue) beside proxies that only forward (grey)",
        note: "64 connections.",
        groups: &[
            (
                "Requests a second",
                &[
                    ("Oncegate", Rate("pass-through", 64)),
                    ("Caddy", Rate("pass-through, Caddy", 64)),
                    ("nginx", Rate("pass-through, nginx", 64)),
                    ("HAProxy", Rate("pass-through, HAProxy", 64)),
                ],
            ),
            (
                "Processor time of the proxy for a request (less is better)",
                &[
                    ("Oncegate", Processor("pass-through", 64)),
                    ("Caddy", Processor("pass-through, Caddy", 64)),
                    ("nginx", Processor("pass-through, nginx", 64)),
                    ("HAProxy", Processor("pass-through, HAProxy", 64)),
                ],
            ),
        ],
    },
    RunChart {
        file: "in_service",
        title: "Requests a second: Oncegate (blue) beside the same thing written in the service (grey)",
        note: "Service: fastify.",
        groups: &[
            (
                "First attempts, 1 connection",
                &[
                    ("Oncegate before the service", Rate("first attempts, Oncegate and fastify", 1)),
                    ("two commits in the service", Rate("first attempts, two commits in fastify", 1)),
                    ("one transaction in the service", Rate("first attempts, one transaction in fastify", 1)),
                ],
            ),
            (
                "First attempts, 16 connections",
                &[
                    ("Oncegate before the service", Rate("first attempts, Oncegate and fastify", 16)),
                    ("two commits in the service", Rate("first attempts, two commits in fastify", 16)),
                    ("one transaction in the service", Rate("first attempts, one transaction in fastify", 16)),
                ],
            ),
            (
                "First attempts, 64 connections",
                &[
                    ("Oncegate before the service", Rate("first attempts, Oncegate and fastify", 64)),
                    ("two commits in the service", Rate("first attempts, two commits in fastify", 64)),
                    ("one transaction in the service", Rate("first attempts, one transaction in fastify", 64)),
                ],
            ),
            (
                "First attempts, 256 connections",
                &[
                    ("Oncegate before the service", Rate("first attempts, Oncegate and fastify", 256)),
                    ("two commits in the service", Rate("first attempts, two commits in fastify", 256)),
                    ("one transaction in the service", Rate("first attempts, one transaction in fastify", 256)),
                ],
            ),
            (
                "Replays of stored responses, 64 connections",
                &[
                    ("Oncegate before the service", Rate("replays, Oncegate and fastify", 64)),
                    ("two commits in the service", Rate("replays, two commits in fastify", 64)),
                    ("one transaction in the service", Rate("replays, one transaction in fastify", 64)),
                ],
            ),
        ],
    },
    RunChart {
        file: "steady",
        title: "What 1,000 requests a second take: Oncegate (blue) and other programs (grey)",
        note: "Less is better.",
        groups: &[
            (
                "Processor time, in cores (vCPU)",
                &[
                    ("Oncegate, requests without a key", Check("vCPU of Oncegate at 1,000 a second, pass-through")),
                    ("Caddy, the same", Check("vCPU of Caddy at 1,000 a second, pass-through")),
                    ("HAProxy, the same", Check("vCPU of HAProxy at 1,000 a second, pass-through")),
                    ("Oncegate, replays", Check("vCPU of Oncegate at 1,000 a second, replays")),
                    ("Oncegate, first attempts", Check("vCPU of Oncegate at 1,000 a second, first attempts")),
                    ("PostgreSQL for these", Check("vCPU of PostgreSQL at 1,000 a second, first attempts")),
                ],
            ),
            (
                "Memory, MiB",
                &[
                    ("Oncegate, requests without a key", Check("MiB of Oncegate at 1,000 a second, pass-through")),
                    ("Caddy, the same", Check("MiB of Caddy at 1,000 a second, pass-through")),
                    ("HAProxy, the same", Check("MiB of HAProxy at 1,000 a second, pass-through")),
                    ("Oncegate, replays", Check("MiB of Oncegate at 1,000 a second, replays")),
                    ("Oncegate, first attempts", Check("MiB of Oncegate at 1,000 a second, first attempts")),
                ],
            ),
        ],
    },
    RunChart {
        file: "side_by_side",
        title: "Requests a second: Oncegate (blue) beside other programs (grey)",
        note: "64 connections.",
        groups: &[
            (
                "First attempts: executed, with two durable commits",
                &[
                    ("Oncegate on PostgreSQL", Rate("first attempts, PostgreSQL", 64)),
                    ("Oncegate on SQLite", Rate("first attempts, SQLite", 64)),
                    ("its two commits alone (pgbench)", Rate("pgbench's pair", 64)),
                ],
            ),
            (
                "First attempts, service in Node.js",
                &[
                    ("Oncegate on PostgreSQL", Rate("first attempts, PostgreSQL, service in Node.js", 64)),
                    ("Oncegate on SQLite", Rate("first attempts, SQLite, service in Node.js", 64)),
                    ("Restate", Rate("first attempts, Restate", 64)),
                ],
            ),
            (
                "First attempts, service in fastify",
                &[
                    ("Oncegate on PostgreSQL", Rate("first attempts, PostgreSQL, fastify", 64)),
                    ("Oncegate on SQLite", Rate("first attempts, SQLite, fastify", 64)),
                    ("middleware in the service, Redis", Rate("first attempts, fastify with middleware and Redis", 64)),
                ],
            ),
            (
                "Replays of stored responses",
                &[
                    ("Oncegate on PostgreSQL", Rate("replays, PostgreSQL", 64)),
                    ("Oncegate on SQLite", Rate("replays, SQLite", 64)),
                    ("nginx's cache, files kept open", Rate("cache hits, nginx", 64)),
                    ("nginx's cache as it comes", Rate("cache hits, nginx as it comes", 64)),
                ],
            ),
        ],
    },
];

/// Draws the pictures of which at least two bars of a group were measured.
pub fn draw(results: &BenchmarkResults) -> Vec<(&'static RunChart, String)> {
    CHARTS.iter().filter_map(|chart| Some((chart, chart.draw(results)?))).collect()
}

impl RunChart {
    fn draw(&self, results: &BenchmarkResults) -> Option<String> {
        let groups = self.groups.iter().map(|(title, bars)| BarGroup {
            title: (*title).to_owned(),
            bars: bars.iter().filter_map(|(label, figure)| figure.bar(label, results)).collect(),
        });
        let groups: Vec<_> = groups.filter(|group| group.bars.len() > 1).collect();
        let run = format!(
            "{}, commit {}, one machine for all programs. {} Each group has its own scale.",
            results.run.date, results.run.commit, self.note
        );
        let reading = "A bar is the median of the rounds, a line their range.".to_owned();
        let chart = BarChart { title: self.title.to_owned(), notes: vec![run, reading], groups };
        (!chart.groups.is_empty()).then(|| chart.to_svg())
    }
}

impl Figure {
    /// Returns the bar of this figure; `None` if it was not measured.
    fn bar(&self, label: &str, results: &BenchmarkResults) -> Option<Bar> {
        let row = |name: &str, connections: usize| {
            let is_row = |row: &&RowResult| row.name == name && row.connections == connections;
            results.rows.iter().find(is_row)
        };
        let ranged = |RoundsSummary { median, least, most }| (median, Some((least, most)));
        let ((value, range), text) = match *self {
            Rate(name, connections) => {
                let rate = row(name, connections)?.per_second?;
                (ranged(rate), thousands(rate.median.round() as usize))
            }
            Processor(name, connections) => {
                let time = row(name, connections)?.program_us?;
                ((time, None), format!("{} µs", short(time)))
            }
            Check(name) => {
                let result = results.checks.iter().find(|check| check.name == name)?.result?;
                (ranged(result), short(result.median))
            }
        };
        Some(Bar { label: label.to_owned(), value, range, text, is_ours: label.starts_with("Oncegate") })
    }
}
