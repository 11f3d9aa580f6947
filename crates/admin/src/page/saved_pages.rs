//! The page for the owner of an API: the second executions that were stopped, the requests without a key, and the
//! unknown outcomes, by week, route and caller.

use std::time::{Duration, SystemTime};

use askama::Template;
use http::StatusCode;

use super::format::{KeyTexts, Shown, ShownTime, format_duration};
use super::{Frame, PageAnswer, Visit, render_page};
use oncegate_domain::state::StateKind;
use oncegate_engine::instance::weekly_counts::WeeklyKind;
use oncegate_store::admin::KeyFilter;

/// The number of callers that are shown.
const CALLERS_SHOWN: usize = 50;

#[derive(Template)]
#[template(path = "saved.html")]
struct SavedPage {
    frame: Frame,
    weeks: Vec<CountRow>,
    callers: Vec<CountRow>,
    /// The week of the callers.
    week: String,
    /// Since when the oldest unknown outcome is that.
    oldest: Option<SystemTime>,
}

/// The counts of a week or of a caller, on one route.
struct CountRow {
    name: String,
    route: String,
    counts: [u64; WeeklyKind::ALL.len()],
}

impl CountRow {
    /// Makes rows of counts, those of one row together.
    fn rows(counts: impl Iterator<Item = (String, String, String, u64)>) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        for (name, route, kind, count) in counts {
            if rows.last().is_none_or(|last| last.name != name || last.route != route) {
                rows.push(Self { name, route, counts: Default::default() });
            }
            // A kind of a later version is left out.
            let place = WeeklyKind::ALL.iter().position(|known| known.name() == kind);
            if let (Some(place), Some(row)) = (place, rows.last_mut()) {
                row.counts[place] = count;
            }
        }
        rows
    }

    fn count(&self, kind: WeeklyKind) -> u64 {
        WeeklyKind::ALL.iter().zip(self.counts).find(|(known, _)| **known == kind).map_or(0, |(_, count)| count)
    }

    /// The second executions that were stopped.
    fn stopped(&self) -> u64 {
        WeeklyKind::STOPPED.into_iter().map(|kind| self.count(kind)).sum()
    }

    /// All that is counted of requests, without the unknown outcomes.
    fn by_client(&self) -> u64 {
        let others = [WeeklyKind::Observed, WeeklyKind::KeyReused, WeeklyKind::Unkeyed];
        self.stopped() + others.into_iter().map(|kind| self.count(kind)).sum::<u64>()
    }

    /// The average time for which the resolved outcomes were unknown.
    fn average(&self) -> String {
        let seconds = self.count(WeeklyKind::ResolvedSeconds).checked_div(self.count(WeeklyKind::Resolved));
        seconds.map_or_else(|| "–".into(), |seconds| format_duration(Duration::from_secs(seconds)))
    }

    fn route(&self) -> String {
        if self.route.is_empty() { "no route".into() } else { self.route.visible() }
    }

    /// Whether the name is the beginning of a scope.
    fn is_scope(&self) -> bool {
        self.name.len() == 16
    }

    fn caller(&self) -> &str {
        match &*self.name {
            "none" => "nobody is named",
            "others" => "all others",
            name if self.is_scope() => name,
            _ => "erased",
        }
    }
}

impl Visit<'_> {
    pub(super) async fn show_saved(&self) -> PageAnswer {
        let (chosen, key_admin) = (self.query.text("week"), self.key_admin());
        let unknown = KeyFilter { state: Some(StateKind::Unknown), ..KeyFilter::default() };
        let (saved, unknown) = tokio::try_join!(key_admin.show_saved(chosen), key_admin.list_keys(unknown, "", 1))?;
        let day = |week: SystemTime| week.iso().get(..10).unwrap_or_default().to_owned();
        let weeks = CountRow::rows(saved.weeks.into_iter().map(|it| (day(it.week), it.route, it.kind, it.count)));
        let mut callers = CountRow::rows(saved.callers.into_iter().map(|it| (it.caller, it.route, it.kind, it.count)));
        callers.retain(|row| row.by_client() > 0);
        callers.sort_by_key(|row| std::cmp::Reverse(row.by_client()));
        callers.truncate(CALLERS_SHOWN);
        let week =
            if chosen.is_empty() { "this week".to_owned() } else { format!("the week from {}", chosen.visible()) };
        let (frame, oldest) = (self.build_frame().await, unknown.keys.first().map(KeyTexts::since));
        Ok(render_page(StatusCode::OK, &SavedPage { frame, weeks, callers, week, oldest }))
    }
}
