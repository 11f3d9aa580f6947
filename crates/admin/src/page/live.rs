//! Keeps a page current without a script, where a visitor asks for it.
//!
//! The link "Keep current" leads to the same address with `live`, the time at which that ends. Such a page has the
//! header field `Refresh`: the browser loads the same address again, and keeps its place as for every reload. It has no
//! fields, because a reload would empty them, and no checkboxes. Rejected: a frame (a part of the page would scroll by
//! itself, and the policy forbids frames), and a response that never ends, whose parts replace one another (the page
//! only grows, focus is lost with the part that had it, and each open page holds a connection).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{HeaderValue, REFRESH};
use http::{Response, StatusCode};

use super::PagePath;
use oncegate_http::body::Body;

/// The seconds between two refreshes. Each costs the store what the page costs, at most six calls (the overview: two
/// lists of ten keys, a count of at most 10,000 rows, eight audit entries, a ping); a search of the list ends after a
/// second.
const REFRESH_SECONDS: u16 = 10;

/// The time for which a page stays current, at most: a page that somebody has left open costs the store nothing after
/// it.
const LIVE_MAX: Duration = Duration::from_secs(60 * 60);

const PARAMETER: &str = "live";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveView {
    /// Its address without the parameter.
    address: String,
    /// When the refreshes end; `None` while there are none.
    until: Option<SystemTime>,
    now: SystemTime,
}

impl LiveView {
    /// Returns the view of a page that can be refreshed; `None` for other pages, those for decisions among them.
    pub fn new(page: PagePath<'_>, query: &str, path: &str, now: SystemTime) -> Option<Self> {
        if !matches!(page, PagePath::Key(_) | PagePath::Keys | PagePath::Messages | PagePath::Overview) {
            return None;
        }
        let (mut until, mut rest) = (None, Vec::new());
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((PARAMETER, seconds)) => until = seconds.parse().ok().map(Duration::from_secs),
                // A notice is about one change, and is not repeated.
                Some(("done" | "behind" | "proposed" | "requeued", _)) => {}
                _ => rest.push(part),
            }
        }
        let until = until.and_then(|seconds| UNIX_EPOCH.checked_add(seconds));
        let until = until.filter(|until| *until > now && *until <= now + LIVE_MAX);
        let address = if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) };
        Some(Self { address, until, now })
    }

    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    pub fn until(&self) -> Option<SystemTime> {
        self.until
    }

    /// The address of the page that is not refreshed.
    pub fn stop(&self) -> &str {
        &self.address
    }

    /// The address of the page that is. It names the end, so that it stays the same over all refreshes.
    pub fn start(&self) -> String {
        let end = (self.now + LIVE_MAX).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let separator = if self.address.contains('?') { '&' } else { '?' };
        format!("{}{separator}{PARAMETER}={end}", self.address)
    }

    pub fn seconds(&self) -> u16 {
        REFRESH_SECONDS
    }
}

/// Has the browser load the page again, unless there is nothing to stay current: the key is gone, or the session is
/// over.
pub fn with_refresh(mut response: Response<Body>, live: Option<&LiveView>) -> Response<Body> {
    let may_change = matches!(response.status(), StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE);
    if may_change && live.is_some_and(LiveView::is_on) {
        response.headers_mut().insert(REFRESH, HeaderValue::from(REFRESH_SECONDS));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::execution_risk::ActionKind;

    #[test]
    fn a_page_is_refreshed_until_the_time_in_its_address_and_for_an_hour_at_most() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let view = |query: &str| LiveView::new(PagePath::Keys, query, "/keys", now).unwrap();
        for (query, is_on, stop) in [
            ("", false, "/keys"),
            ("state=unknown&live=1000001", true, "/keys?state=unknown"),
            ("live=1003600&route=a%26b", true, "/keys?route=a%26b"),
            ("live=1000000", false, "/keys"),
            ("live=1003601", false, "/keys"),
            ("live=x", false, "/keys"),
            ("live=18446744073709551615", false, "/keys"),
            ("done=purge&behind=0", false, "/keys"),
        ] {
            assert_eq!((view(query).is_on(), view(query).stop()), (is_on, stop), "{query}");
        }
        assert_eq!(view("state=unknown").start(), "/keys?state=unknown&live=1003600");
        assert_eq!(view("live=1000001").start(), "/keys?live=1003600");
        for page in [PagePath::Change("ab", ActionKind::Purge), PagePath::BulkChange, PagePath::SignIn, PagePath::Find]
        {
            assert_eq!(LiveView::new(page, "live=1000001", "/", now), None, "{page:?}");
        }
    }
}
