//! A chart of a route's outcomes in the last hour: one bar for each minute, its parts stacked.

use oncegate_engine::instance::recent_outcomes::{MINUTES, MinuteCounts};
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_telemetry::metrics::Label;

/// The width of a minute, of which the bar leaves a gap, and the height of the highest bar, in units of the chart.
const MINUTE_WIDTH: usize = 10;
pub const BAR_WIDTH: usize = 8;
pub const HEIGHT: usize = 100;
pub const WIDTH: usize = MINUTES * MINUTE_WIDTH;

/// Outcomes that mean the same to an operator, drawn in one colour, from the bottom of a bar to its top: the class of
/// the colour in `page.css`, the label, and the statuses.
const GROUPS: [(&str, &str, &[OncegateStatus]); 6] = [
    ("executed", "executed", &[OncegateStatus::Executed, OncegateStatus::Streaming]),
    ("replayed", "replayed", &[OncegateStatus::Attached, OncegateStatus::Replayed]),
    ("pending", "in flight or queued", &[OncegateStatus::InFlight, OncegateStatus::Queued]),
    (
        "refused",
        "refused or released",
        &[OncegateStatus::KeyReused, OncegateStatus::Rejected, OncegateStatus::Released],
    ),
    ("unknown", "unknown or unstored", &[OncegateStatus::Unknown, OncegateStatus::Unstored]),
    ("unguarded", "bypassed or observed", &[OncegateStatus::Bypassed, OncegateStatus::Observed]),
];

#[derive(Debug)]
pub struct OutcomeChart {
    /// The class, x, y and height of each part of a bar.
    pub bars: Vec<(&'static str, usize, String, String)>,
    /// The class and label of each colour, and the number of requests that it stands for.
    pub legend: Vec<(&'static str, &'static str, u64)>,
    pub busiest: u64,
}

impl OutcomeChart {
    /// The chart of these minutes; `None` where there were no requests.
    pub fn new(minutes: &[MinuteCounts; MINUTES]) -> Option<Self> {
        let grouped: Vec<_> = minutes.iter().map(group).collect();
        let busiest = grouped.iter().map(|groups| groups.iter().sum()).max().filter(|requests| *requests > 0)?;
        let bars = grouped.iter().enumerate().flat_map(|(minute, groups)| stack(minute, groups, busiest)).collect();
        let legend = GROUPS.into_iter().enumerate().filter_map(|(index, (class, label, _))| {
            let requests = grouped.iter().map(|groups| groups[index]).sum();
            (requests > 0).then_some((class, label, requests))
        });
        Some(Self { bars, legend: legend.collect(), busiest })
    }

    pub fn text(&self) -> String {
        let parts: Vec<_> = self.legend.iter().map(|(_, label, requests)| format!("{requests} {label}")).collect();
        format!("Outcomes of the last hour by minute: {}; at most {} in a minute", parts.join(", "), self.busiest)
    }
}

fn group(counts: &MinuteCounts) -> [u64; GROUPS.len()] {
    let count_of = |status: &OncegateStatus| status.index().map_or(0, |index| u64::from(counts[index]));
    GROUPS.map(|(.., statuses)| statuses.iter().map(count_of).sum())
}

fn stack(minute: usize, groups: &[u64], busiest: u64) -> Vec<(&'static str, usize, String, String)> {
    let scale = |requests: u64| requests as f64 * HEIGHT as f64 / busiest as f64;
    let mut below = 0;
    let mut parts = Vec::new();
    for ((class, ..), requests) in GROUPS.into_iter().zip(groups) {
        below += requests;
        if *requests > 0 {
            let (y, height) = (HEIGHT as f64 - scale(below), scale(*requests));
            let x = minute * MINUTE_WIDTH + (MINUTE_WIDTH - BAR_WIDTH) / 2;
            parts.push((class, x, format!("{y:.2}"), format!("{height:.2}")));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_in_one_group() {
        let groups = GROUPS.map(|(.., statuses)| statuses).concat();
        assert_eq!(groups.len(), OncegateStatus::ALL.len());
        assert!(OncegateStatus::ALL.iter().all(|status| groups.contains(status)), "{groups:?}");
    }

    #[test]
    fn bars_are_stacked_and_as_high_as_their_share_of_the_busiest_minute() {
        let mut minutes = [MinuteCounts::default(); MINUTES];
        assert!(OutcomeChart::new(&minutes).is_none());
        let index = |status| OncegateStatus::ALL.iter().position(|known| *known == status).unwrap();
        minutes[0][index(OncegateStatus::Executed)] = 3;
        minutes[0][index(OncegateStatus::Unknown)] = 1;
        minutes[59][index(OncegateStatus::Executed)] = 1;
        minutes[59][index(OncegateStatus::Unstored)] = 1;
        let chart = OutcomeChart::new(&minutes).unwrap();
        let bars: Vec<_> = chart.bars.iter().map(|(class, x, y, height)| (*class, *x, &**y, &**height)).collect();
        assert_eq!(
            bars,
            [
                ("executed", 1, "25.00", "75.00"),
                ("unknown", 1, "0.00", "25.00"),
                ("executed", 591, "75.00", "25.00"),
                ("unknown", 591, "50.00", "25.00"),
            ]
        );
        assert_eq!(
            chart.text(),
            "Outcomes of the last hour by minute: 4 executed, 2 unknown or unstored; at most 4 in a minute"
        );
    }
}
