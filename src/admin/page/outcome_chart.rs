//! A chart of a route's outcomes in the last hour: one bar for each minute, its parts stacked.

use crate::instance::recent_outcomes::{MINUTES, MinuteCounts};
use crate::protocol::status::OncegateStatus;

/// The width of a minute, of which the bar leaves a gap, and the height of the highest bar, in units of the chart.
const MINUTE_WIDTH: usize = 10;
const BAR_WIDTH: usize = 8;
const HEIGHT: usize = 100;

/// Outcomes that mean the same to an operator, drawn in one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutcomeGroup {
    Executed,
    Replayed,
    Pending,
    Refused,
    Unknown,
    Unguarded,
}

impl OutcomeGroup {
    /// All groups, from the bottom of a bar to its top.
    const ALL: [Self; 6] =
        [Self::Executed, Self::Replayed, Self::Pending, Self::Refused, Self::Unknown, Self::Unguarded];

    fn from_status(status: OncegateStatus) -> Self {
        match status {
            OncegateStatus::Executed => Self::Executed,
            OncegateStatus::Replayed => Self::Replayed,
            OncegateStatus::InFlight | OncegateStatus::Queued => Self::Pending,
            OncegateStatus::KeyReused | OncegateStatus::Rejected | OncegateStatus::Released => Self::Refused,
            OncegateStatus::Unknown | OncegateStatus::Unstored => Self::Unknown,
            OncegateStatus::Bypassed | OncegateStatus::Observed => Self::Unguarded,
        }
    }

    /// The class of its colour in `page.css`, and its label.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Executed => ("executed", "executed"),
            Self::Replayed => ("replayed", "replayed"),
            Self::Pending => ("pending", "in flight or queued"),
            Self::Refused => ("refused", "refused or released"),
            Self::Unknown => ("unknown", "unknown or unstored"),
            Self::Unguarded => ("unguarded", "bypassed or observed"),
        }
    }
}

/// The chart, as its template draws it.
#[derive(Debug)]
pub struct OutcomeChart {
    pub bars: Vec<BarPart>,
    pub legend: Vec<LegendEntry>,
    /// The number of requests in the busiest minute.
    pub busiest: u64,
}

/// A part of a bar.
#[derive(Debug)]
pub struct BarPart {
    pub class: &'static str,
    pub x: usize,
    pub y: String,
    pub height: String,
}

/// A colour of the chart, with the number of requests that it stands for.
#[derive(Debug)]
pub struct LegendEntry {
    pub class: &'static str,
    pub label: &'static str,
    pub requests: u64,
}

impl OutcomeChart {
    /// The chart of these minutes; `None` where there were no requests.
    pub fn new(minutes: &[MinuteCounts; MINUTES]) -> Option<Self> {
        let grouped: Vec<_> = minutes.iter().map(group).collect();
        let busiest = grouped.iter().map(|groups| groups.iter().sum()).max().filter(|requests| *requests > 0)?;
        let bars = grouped.iter().enumerate().flat_map(|(minute, groups)| stack(minute, groups, busiest)).collect();
        let legend = OutcomeGroup::ALL.into_iter().enumerate().filter_map(|(index, group)| {
            let (requests, (class, label)) = (grouped.iter().map(|groups| groups[index]).sum(), group.words());
            (requests > 0).then_some(LegendEntry { class, label, requests })
        });
        Some(Self { bars, legend: legend.collect(), busiest })
    }

    pub fn width(&self) -> usize {
        MINUTES * MINUTE_WIDTH
    }

    pub fn height(&self) -> usize {
        HEIGHT
    }

    pub fn bar_width(&self) -> usize {
        BAR_WIDTH
    }

    /// The chart in words.
    pub fn text(&self) -> String {
        let parts: Vec<_> = self.legend.iter().map(|entry| format!("{} {}", entry.requests, entry.label)).collect();
        format!("Outcomes of the last hour by minute: {}; at most {} in a minute", parts.join(", "), self.busiest)
    }
}

/// The number of requests of each group, in the order of [`OutcomeGroup::ALL`].
fn group(counts: &MinuteCounts) -> [u64; OutcomeGroup::ALL.len()] {
    let mut groups = [0; OutcomeGroup::ALL.len()];
    for (status, count) in OncegateStatus::ALL.into_iter().zip(counts) {
        groups[OutcomeGroup::from_status(status) as usize] += u64::from(*count);
    }
    groups
}

fn stack(minute: usize, groups: &[u64], busiest: u64) -> Vec<BarPart> {
    let scale = |requests: u64| requests as f64 * HEIGHT as f64 / busiest as f64;
    let mut below = 0;
    let mut parts = Vec::new();
    for (group, requests) in OutcomeGroup::ALL.into_iter().zip(groups) {
        below += requests;
        if *requests > 0 {
            let (y, height) = (HEIGHT as f64 - scale(below), scale(*requests));
            let x = minute * MINUTE_WIDTH + (MINUTE_WIDTH - BAR_WIDTH) / 2;
            parts.push(BarPart { class: group.words().0, x, y: format!("{y:.2}"), height: format!("{height:.2}") });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let bars: Vec<_> = chart.bars.iter().map(|part| (part.class, part.x, &*part.y, &*part.height)).collect();
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
