//! Reads and checks a route's `replay.authorize`: the URL that is asked before each replay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::reader::Section;
use super::service_url;
use super::upstream::UpstreamTarget;

const EXAMPLE: &str = "write it like `http://auth:9000/check`";

/// A service that says whether a caller may still read a response.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorizeConfig {
    /// The service.
    pub upstream: Arc<UpstreamTarget>,
    /// The path and query to ask.
    pub target: PathAndQuery,
    /// The time for which a permission counts; zero to ask each time.
    pub cache: Duration,
}

/// Without the path and the query, which may have a secret.
impl fmt::Debug for AuthorizeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/…", self.upstream)
    }
}

/// Reads `authorize` and `authorize_cache`. `Some(None)` where nobody is asked.
pub(super) fn read(section: &Section<'_>) -> Option<Option<Arc<AuthorizeConfig>>> {
    let (url, cache) = (section.text("authorize")?, section.duration("authorize_cache")?);
    if url.value.is_empty() {
        if !cache.value.is_zero() {
            section.reader().problem(&cache.position, "needs `authorize`");
            return None;
        }
        return Some(None);
    }
    match service_url::parse(&url.value, EXAMPLE) {
        Ok((upstream, target)) => {
            Some(Some(Arc::new(AuthorizeConfig { upstream: Arc::new(upstream), target, cache: cache.value })))
        }
        Err(problem) => {
            section.reader().problem(&url.position, problem);
            None
        }
    }
}
