//! The pages of the instances, with this one's load, and of the routes, with what this instance has answered for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime, format_duration};
use super::outcome_chart::{BAR_WIDTH, HEIGHT, OutcomeChart, WIDTH};
use super::{Frame, Visit, render_page};
use oncegate_domain::ids::InstanceId;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::boot_time::BootInstant;
use oncegate_http::body::Body;
use oncegate_http::protocol::refusal::RetryAfter;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::{Route, RouteSetting};
use oncegate_store::admin::InstanceEntry;

#[derive(Template)]
#[template(path = "instances.html")]
struct InstancesPage<'a> {
    frame: Frame,
    /// This instance, for its load.
    load: &'a Instance,
    this: InstanceId,
    trouble: Option<String>,
    instances: Vec<InstanceEntry>,
}

#[derive(Template)]
#[template(path = "routes.html")]
struct RoutesPage<'a> {
    frame: Frame,
    warnings: &'a [String],
    routes: Vec<RouteView<'a>>,
}

struct RouteView<'a> {
    name: String,
    settings: Vec<RouteSetting<'a>>,
    /// The numbers of responses by `Oncegate-Status`: in the last hour, and since the start.
    counts: Vec<(&'static str, u64, u64)>,
    chart: Option<OutcomeChart>,
    /// The average latency of its attempts; `None` before the first.
    average_latency: Option<String>,
    /// The seconds that a duplicate is told to wait if its first attempt begins now.
    retry_after: u64,
}

trait SettingOrigin {
    fn origin(&self) -> String;
}

impl SettingOrigin for RouteSetting<'_> {
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
        let metrics = instance.observability.metrics.route_metrics(route);
        let minutes = metrics.recent.counts(BootInstant::now());
        let counts = OncegateStatus::ALL.into_iter().enumerate().filter_map(|(index, status)| {
            let since_start = metrics.requests.get(status);
            let last_hour = minutes.iter().map(|counts| u64::from(counts[index])).sum();
            (since_start > 0).then_some((status.name(), last_hour, since_start))
        });
        let average = instance.latencies.of(&route.full_name()).average();
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
    /// Shows this instance's load, and the leases of all instances of the service. Without the store the load is there
    /// too.
    pub(super) async fn show_instances(&self) -> Response<Body> {
        let load = &*self.admin.instance;
        let (instances, trouble) = match self.key_admin().list_instances().await {
            Ok(entries) => (entries, None),
            Err(problem) => (Vec::new(), Some(problem.detail)),
        };
        let (frame, this) = (self.build_frame().await, load.instance_lease.id());
        render_page(StatusCode::OK, &InstancesPage { frame, load, this, trouble, instances })
    }

    pub(super) async fn show_routes(&self) -> Response<Body> {
        let frame = self.build_frame().await;
        let config = Arc::clone(&self.admin.config.borrow());
        let routes = config.routes_of(&self.service).map(|route| RouteView::new(route, &self.admin.instance)).collect();
        // They are about the routes of all services.
        let warnings = if self.visitor.service.is_some() { &[][..] } else { &config.warnings };
        render_page(StatusCode::OK, &RoutesPage { frame, warnings, routes })
    }
}
