//! Settings from elsewhere in the file that routes depend on.

use std::sync::Arc;
use std::time::Duration;

use super::scope::ProofSources;
use super::upstream::UpstreamTarget;
use super::value_parsers::OwnListener;
use crate::domain::fingerprint::Secrets;

/// The settings from elsewhere in the file; `None` where one of them has a problem.
pub(super) struct RouteContext {
    pub upstream: Option<Arc<UpstreamTarget>>,
    /// Empty where they have problems.
    pub listeners: Vec<OwnListener>,
    pub secrets: Option<Secrets>,
    pub lease_expiry: Duration,
    pub proofs: ProofSources,
}
