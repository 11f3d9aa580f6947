//! Settings from elsewhere in the file that routes depend on.

use std::sync::Arc;
use std::time::Duration;

use super::upstream::UpstreamTarget;
use crate::domain::fingerprint::Secrets;

/// The settings from elsewhere in the file; `None` where one of them has a problem.
pub(super) struct RouteContext {
    pub upstream: Option<Arc<UpstreamTarget>>,
    pub secrets: Option<Secrets>,
    pub lease_expiry: Option<Duration>,
}
