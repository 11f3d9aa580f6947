//! The content of a replay, and the service that is asked before each.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;

use super::UpstreamTarget;

/// The content of a replay, and who may read it.
#[derive(Clone, Debug)]
pub struct ReplayPolicy {
    /// The response fields that are not kept for replays.
    pub drop_headers: Vec<HeaderName>,
    /// The fields that a replay, and a refusal, has from its own request.
    pub echo: Vec<HeaderName>,
    /// The time from a key's completion after which the same request is a redelivery, which executes anew; `None` where
    /// that counts as a late retry.
    pub until: Option<Duration>,
    /// The service that is asked before each replay.
    pub authorize: Option<Arc<AuthorizeConfig>>,
}

/// A service that says whether a caller may still read a response. Its path and query may have a secret.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{upstream}/…")]
pub struct AuthorizeConfig {
    /// The service.
    pub upstream: Arc<UpstreamTarget>,
    /// The path and query to ask.
    pub target: PathAndQuery,
    /// The time for which a permission counts; zero to ask each time.
    pub cache: Duration,
}
