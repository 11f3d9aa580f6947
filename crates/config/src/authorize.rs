//! Reads and checks a route's `replay`: what is kept for replays, and the URL that is asked before each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;

use super::options::options;
use super::reader::Section;
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
    #[derive(Clone, Debug)]
    pub struct ReplayOptions {
        /// response fields that are not kept for replays
        drop_headers: Texts = ["set-cookie"] as "not replayed" => Vec<HeaderName>, values(header_name);
        /// a URL that is asked before each replay whether the caller may read it
        authorize: Text = "" as "authorized by" => Option<Arc<AuthorizeConfig>>, made(read_authorize);
        /// for how long its permission counts
        authorize_cache: Duration = "0s" as "authorized by";
    }
}

/// Reads the service that is asked; `None` where none is.
fn read_authorize(section: &Section<'_>) -> Option<Arc<AuthorizeConfig>> {
    let url = section.optional_concealed("authorize", |text| service_url::parse(text, EXAMPLE));
    let cache = section.duration("authorize_cache");
    if url.is_none() && !cache.is_zero() && section.is_right(&["authorize"]) {
        section.problem("authorize_cache", "needs `authorize`");
    }
    url.map(|(upstream, target)| Arc::new(AuthorizeConfig { upstream: Arc::new(upstream), target, cache }))
}
