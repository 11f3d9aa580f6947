//! Reads and checks a route's `replay`: what is kept for replays, and the URL that is asked before each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;

use super::options::options;
use super::reader::ConfigReader;
use super::service_url;
use super::upstream::UpstreamTarget;
use super::value_parsers::header_name;

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

options! {
    /// The options of a route's `replay`.
    pub(super) struct ReplayOptions {
        /// response fields that are not kept for replays
        drop_headers: Texts = ["set-cookie"] as "not replayed" => Vec<HeaderName>, values(header_name);
        /// a URL that is asked before each replay whether the caller may read it
        authorize: Text = "" as "authorized by"
            => Option<(UpstreamTarget, PathAndQuery)>, optional_concealed(|text| service_url::parse(text, EXAMPLE));
        /// for how long its permission counts
        authorize_cache: Duration = "0s" as "authorized by" => Duration, duration();
    }
}

impl ReplayOptions {
    /// The service that is asked. `Some(None)` where none is.
    pub(super) fn authorize(&mut self, reader: &ConfigReader<'_>) -> Option<Option<Arc<AuthorizeConfig>>> {
        let (url, cache) = (self.authorize.take()?.value, self.authorize_cache.take()?);
        if url.is_none() && !cache.value.is_zero() {
            reader.problem(&cache.position, "needs `authorize`");
            return None;
        }
        Some(url.map(|(upstream, target)| {
            Arc::new(AuthorizeConfig { upstream: Arc::new(upstream), target, cache: cache.value })
        }))
    }
}
