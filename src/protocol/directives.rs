//! The service's directives about a response, in header fields that only Oncegate reads.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use super::fields;
use crate::config::{self, Route};
use crate::domain::response_policy::{ResponseVerdict, ServiceStatus};
use crate::domain::unknown_cause::UnknownCause;

/// The values of `Oncegate-Decision` and `Oncegate-TTL`; `None` for a field that is missing or invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceDirectives {
    verdict: Option<ResponseVerdict>,
    ttl: Option<Duration>,
}

impl ServiceDirectives {
    /// Reads the two fields. An invalid one is logged and then ignored: the status table decides, as it would without the
    /// field.
    pub fn parse(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let verdict = text(fields::DECISION).and_then(|value| match value {
            "release" => Some(ResponseVerdict::Release),
            "store" => Some(ResponseVerdict::Store),
            "unknown" => Some(ResponseVerdict::Unknown),
            _ => report_invalid("oncegate-decision"),
        });
        let ttl =
            text(fields::TTL).and_then(|ttl| config::parse_ttl(ttl).ok().or_else(|| report_invalid("oncegate-ttl")));
        Self { verdict, ttl }
    }

    /// These directives, and where one is missing that of `others`.
    pub fn or(self, others: Self) -> Self {
        Self { verdict: self.verdict.or(others.verdict), ttl: self.ttl.or(others.ttl) }
    }

    /// The cause of an outcome that a response with this status leaves unknown.
    pub fn unknown_cause(self, status: ServiceStatus) -> UnknownCause {
        match self.verdict {
            Some(ResponseVerdict::Unknown) => UnknownCause::Service,
            Some(ResponseVerdict::Release | ResponseVerdict::Store) | None => status.into(),
        }
    }

    /// Returns the verdict on the response, and the time for which its outcome is kept.
    pub fn apply(self, route: &Route, status: ServiceStatus, headers: &HeaderMap) -> (ResponseVerdict, Duration) {
        let table = || route.statuses.verdict_on(status, headers.contains_key(RETRY_AFTER));
        (self.verdict.unwrap_or_else(table), self.ttl.unwrap_or(route.ttl))
    }
}

fn report_invalid<T>(field: &str) -> Option<T> {
    tracing::warn!(field, "the service sent an invalid directive about its response; the route's own rule applies");
    None
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn directives(decision: &'static str, ttl: &'static str) -> ServiceDirectives {
        let mut headers = HeaderMap::new();
        headers.insert(fields::DECISION, HeaderValue::from_static(decision));
        headers.insert(fields::TTL, HeaderValue::from_static(ttl));
        ServiceDirectives::parse(&headers)
    }

    #[test]
    fn valid_directives_are_used_and_invalid_ones_are_ignored() {
        let hour = Some(Duration::from_secs(3_600));
        assert_eq!(directives("store", "1h"), ServiceDirectives { verdict: Some(ResponseVerdict::Store), ttl: hour });
        assert_eq!(
            directives("release", "3600s"),
            ServiceDirectives { verdict: Some(ResponseVerdict::Release), ttl: hour }
        );
        assert_eq!(
            directives("unknown", "0s"),
            ServiceDirectives { verdict: Some(ResponseVerdict::Unknown), ttl: None }
        );
        assert_eq!(directives("Store", "soon"), ServiceDirectives::default());
    }
}
