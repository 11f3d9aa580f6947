//! The page of the routes: their policy, their outcomes and what a duplicate is told.

use std::sync::Arc;

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime, format_duration};
use super::outcome_chart::OutcomeChart;
use super::{Frame, Visit, render_page};
use crate::body::Body;
use crate::config::{Route, RouteSetting};
use crate::instance::Instance;
use crate::instance::boot_time::BootInstant;
use crate::protocol::refusal::RetryAfter;
use crate::protocol::status::OncegateStatus;

#[derive(Template)]
#[template(path = "routes.html")]
struct RoutesPage<'a> {
    frame: Frame,
    warnings: &'a [String],
    routes: Vec<RouteView<'a>>,
}

/// A route.
#[derive(Debug)]
struct RouteView<'a> {
    name: String,
    settings: Vec<RouteSetting<'a>>,
    counts: Vec<OutcomeCount>,
    chart: Option<OutcomeChart>,
    /// The average latency of its attempts; `None` before the first.
    average_latency: Option<String>,
    /// The seconds that a duplicate is told to wait if its first attempt begins now.
    retry_after: u64,
}

/// The number of responses with an `Oncegate-Status`.
#[derive(Debug)]
struct OutcomeCount {
    status: &'static str,
    last_hour: u64,
    since_start: u64,
}

impl RouteSetting<'_> {
    /// The place that its value comes from.
    fn origin(&self) -> String {
        let origins = self.origins.iter().map(|(origin, keys)| match &**keys {
            [] => origin.name().to_owned(),
            keys => format!("{}: {}", origin.name(), keys.join(", ")),
        });
        origins.collect::<Vec<_>>().join("; ")
    }
}

impl<'a> RouteView<'a> {
    fn new(route: &'a Route, instance: &Instance) -> Self {
        let metrics = instance.observability.metrics.route_metrics(&route.name, route.path.to_string().into());
        let minutes = metrics.recent.counts(BootInstant::now());
        let counts = OncegateStatus::ALL.into_iter().enumerate().filter_map(|(index, status)| {
            let since_start = metrics.requests.get(status);
            let last_hour = minutes.iter().map(|counts| u64::from(counts[index])).sum();
            (since_start > 0).then_some(OutcomeCount { status: status.name(), last_hour, since_start })
        });
        let average = instance.latencies.route(&route.name).average();
        Self {
            name: route.name.visible(),
            settings: route.settings(),
            counts: counts.collect(),
            chart: OutcomeChart::new(&minutes),
            average_latency: (!average.is_zero()).then(|| format_duration(average)),
            retry_after: RetryAfter::new(average.min(instance.attempt_time_limit(route))).seconds(),
        }
    }
}

impl Visit<'_> {
    /// Shows the routes of the running configuration, and its warnings.
    pub(super) async fn show_routes(&self) -> Response<Body> {
        let frame = self.build_frame().await;
        let config = Arc::clone(&self.admin.config.borrow());
        let routes = config.routes.iter().map(|route| RouteView::new(route, &self.admin.instance)).collect();
        render_page(StatusCode::OK, &RoutesPage { frame, warnings: &config.warnings, routes })
    }
}
