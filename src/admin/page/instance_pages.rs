//! The page of the instances: this one with its load, the others with their leases.

use std::sync::atomic::Ordering;

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime};
use super::{Frame, Visit, render_page};
use crate::body::Body;
use crate::domain::ids::InstanceId;
use crate::instance::Instance;
use crate::store::admin::InstanceEntry;

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

impl Visit<'_> {
    /// Shows this instance's load, and the leases of all instances of the service. Without the store the load is there too.
    pub(super) async fn show_instances(&self) -> Response<Body> {
        let load = &*self.admin.instance;
        let (instances, trouble) = match self.key_admin().list_instances().await {
            Ok(entries) => (entries, None),
            Err(problem) => (Vec::new(), Some(problem.detail)),
        };
        let (frame, this) = (self.build_frame().await, load.instance_lease.id());
        render_page(StatusCode::OK, &InstancesPage { frame, load, this, trouble, instances })
    }
}
