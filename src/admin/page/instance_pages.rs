//! The page of the instances: this one with its load, the others with their leases.

use std::sync::atomic::Ordering;

use askama::Template;
use http::{Response, StatusCode};

use super::view_models::TimeView;
use super::{Frame, Visit, render_page};
use crate::body::Body;
use crate::domain::ids::InstanceId;
use crate::instance::Instance;
use crate::store::admin::InstanceEntry;

#[derive(Template)]
#[template(path = "instances.html")]
struct InstancesPage {
    frame: Frame,
    load: LoadView,
    trouble: Option<String>,
    instances: Vec<InstanceView>,
}

/// The load of this instance.
#[derive(Debug)]
struct LoadView {
    connections: i64,
    in_flight: usize,
    /// Kibibytes of bodies in memory, rounded up.
    held_bodies: u64,
    is_breaker_open: bool,
    is_lease_held: bool,
    bypassed: u64,
}

/// The lease of an instance.
#[derive(Debug)]
struct InstanceView {
    id: String,
    is_this: bool,
    is_leased: bool,
    started_at: TimeView,
    renewed_at: TimeView,
    lease_until: TimeView,
}

impl LoadView {
    fn new(instance: &Instance) -> Self {
        let Instance { observability, in_flight, store, instance_lease, bypassed, .. } = instance;
        Self {
            connections: observability.metrics.connections.get(),
            in_flight: in_flight.count(),
            held_bodies: instance.held_bytes().div_ceil(1024),
            is_breaker_open: store.health().is_open,
            is_lease_held: instance_lease.may_start(),
            bypassed: bypassed.load(Ordering::Relaxed),
        }
    }
}

impl InstanceView {
    fn new(entry: &InstanceEntry, this: InstanceId) -> Self {
        Self {
            id: entry.id.to_string(),
            is_this: entry.id == this,
            is_leased: entry.is_leased(),
            started_at: TimeView::at(entry.started_at),
            renewed_at: TimeView::at(entry.renewed_at),
            lease_until: TimeView::at(entry.lease_until),
        }
    }
}

impl Visit<'_> {
    /// Shows this instance's load, and the leases of all instances of the service. Without the store the load is there too.
    pub(super) async fn show_instances(&self) -> Response<Body> {
        let instance = &self.admin.instance;
        let (instances, trouble) = match self.key_admin().list_instances().await {
            Ok(entries) => {
                let this = instance.instance_lease.id();
                (entries.iter().map(|entry| InstanceView::new(entry, this)).collect(), None)
            }
            Err(problem) => (Vec::new(), Some(problem.detail)),
        };
        let (frame, load) = (self.build_frame().await, LoadView::new(instance));
        render_page(StatusCode::OK, &InstancesPage { frame, load, trouble, instances })
    }
}
