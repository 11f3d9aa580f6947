//! Reads and checks a route's `replay`: the content of a replay, and the URL that is asked before each.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::options::options;
use super::reader::Section;
use super::value_parsers::header_name;
use oncegate_settings::{AuthorizeConfig, ReplayPolicy, parse_service_url, parse_ttl};

const EXAMPLE: &str = "write it like `http://auth:9000/check`";

options! {
    struct ReplayOptions for ReplayPolicy {
        /// response fields that are not kept for replays
        drop_headers: Texts = ["set-cookie"] => values(header_name);
        /// fields of a request that its own refusals have, and that a replay has in the place of the first request's
        echo: Texts = [] => values(echoed_field);
        /// how long a key is replayed, where that is shorter than `ttl`: the same request after that is executed
        /// anew, as a person's redelivery, which is logged and counted
        until: Text = "" => optional(parse_ttl);
        /// a URL that is asked before each replay whether the caller may read it
        authorize: Concealed = "" => made(read_authorize);
        /// for how long its permission counts
        authorize_cache: Duration = "0s";
    }
}

/// The id of a request. Another field could be a credential, or change what the answer says.
fn echoed_field(text: &str) -> Result<HeaderName, String> {
    let name = header_name(text)?;
    match name.as_str().ends_with("id") && !name.as_str().starts_with("oncegate-") {
        true => Ok(name),
        false => Err("is no id of a request: write one like `x-request-id`".into()),
    }
}

/// Reads the service that is asked; `None` where none is.
fn read_authorize(section: &Section<'_>) -> Option<Arc<AuthorizeConfig>> {
    let url = section.optional("authorize", |text| parse_service_url(text, EXAMPLE));
    let cache = section.duration("authorize_cache");
    if url.is_none() && !cache.is_zero() && section.is_right(&["authorize"]) {
        section.problem("authorize_cache", "needs `authorize`");
    }
    url.map(|(upstream, target)| Arc::new(AuthorizeConfig { upstream: Arc::new(upstream), target, cache }))
}

/// Reads the end of replays of a route, from its `replay`. One of a preset gives way to a `ttl` that is written: that
/// was meant against duplicates.
pub(super) fn read_until(route: &Section<'_>) -> Option<Duration> {
    let replay = route.table("replay");
    let until = replay.optional("until", parse_ttl);
    let is_written = |name| route.position(name).is_written();
    until.filter(|_| replay.position("until").is_written() || !(is_written("ttl") || is_written("after_ttl")))
}
