//! What the service itself says of a response, in fields that only Oncegate sees.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, StatusCode};

use super::fields;
use crate::config::{self, Route};
use crate::domain::policy::Verdict;

/// `Oncegate-Decision` and `Oncegate-TTL`, where they are there and can be understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    verdict: Option<Verdict>,
    ttl: Option<Duration>,
}

impl Said {
    /// Reads the two fields. What cannot be understood is as good as not said, and is told: the status table then
    /// decides, which is what the service would have got without them.
    pub fn take(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let verdict = text(fields::DECISION).and_then(|word| match word {
            "release" => Some(Verdict::Release),
            "store" => Some(Verdict::Store),
            "unknown" => Some(Verdict::Unknown),
            _ => misunderstood("oncegate-decision"),
        });
        let ttl = text(fields::TTL).and_then(|ttl| config::ttl(ttl).ok().or_else(|| misunderstood("oncegate-ttl")));
        Self { verdict, ttl }
    }

    /// What the response means for its attempt, and how long that is remembered.
    pub fn judge(self, route: &Route, status: StatusCode, headers: &HeaderMap) -> (Verdict, Duration) {
        let table = || route.statuses.judge(status, headers.contains_key(RETRY_AFTER));
        (self.verdict.unwrap_or_else(table), self.ttl.unwrap_or(route.ttl))
    }
}

fn misunderstood<T>(field: &str) -> Option<T> {
    tracing::warn!(field, "the service's word about its response cannot be understood; the route's own rule counts");
    None
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn said(decision: &'static str, ttl: &'static str) -> Said {
        let mut headers = HeaderMap::new();
        headers.insert(fields::DECISION, HeaderValue::from_static(decision));
        headers.insert(fields::TTL, HeaderValue::from_static(ttl));
        Said::take(&headers)
    }

    #[test]
    fn what_the_service_says_is_taken_where_it_can_be_understood() {
        let hour = Some(Duration::from_secs(3_600));
        assert_eq!(said("store", "1h"), Said { verdict: Some(Verdict::Store), ttl: hour });
        assert_eq!(said("release", "3600s"), Said { verdict: Some(Verdict::Release), ttl: hour });
        assert_eq!(said("unknown", "0s"), Said { verdict: Some(Verdict::Unknown), ttl: None });
        assert_eq!(said("Store", "soon"), Said::default());
    }
}
