//! The service's directives about a response, in header fields that only Oncegate reads.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};

use super::fields;
use super::judged_body::JudgedBody;
use super::payment_challenge::is_payment_challenge;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_settings::{self as settings, Route};

/// The values of `Oncegate-Decision` and `Oncegate-TTL`; `None` for a field that is missing or invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceDirectives {
    verdict: Option<ResponseVerdict>,
    /// Whether there is a decision that cannot be read, or there are several that differ.
    is_unclear: bool,
    ttl: Option<Duration>,
}

impl ServiceDirectives {
    /// Reads the two fields. An invalid one is logged. The status table decides then, as it would without the field;
    /// but a decision that is not clear never releases.
    pub fn parse(headers: &HeaderMap) -> Self {
        let mut decisions = headers.get_all(fields::DECISION).iter().map(read_decision);
        let first = decisions.next();
        let is_unclear = first.is_some_and(|first| first.is_none() || decisions.any(|other| other != first));
        if is_unclear {
            report_invalid("oncegate-decision");
        }
        let ttl = headers.get(fields::TTL).and_then(|ttl| {
            let ttl = settings::parse_ttl(ttl.to_str().unwrap_or_default());
            ttl.inspect_err(|_| report_invalid("oncegate-ttl")).ok()
        });
        Self { verdict: first.flatten().filter(|_| !is_unclear), is_unclear, ttl }
    }

    /// These directives, and where one is missing that of `others`.
    pub fn or(self, others: Self) -> Self {
        Self {
            verdict: self.verdict.or(others.verdict).filter(|_| !self.contradicts(others)),
            is_unclear: self.is_unclear || others.is_unclear || self.contradicts(others),
            ttl: self.ttl.or(others.ttl),
        }
    }

    fn contradicts(self, others: Self) -> bool {
        self.verdict.zip(others.verdict).is_some_and(|(one, other)| one != other)
    }

    /// Judges a response: by the service's own decision, else by the route's rules about bodies, else by its statuses.
    pub fn apply(
        self,
        route: &Route,
        status: ServiceStatus,
        headers: &HeaderMap,
        body: JudgedBody<'_>,
    ) -> ResponseJudgement {
        let ttl = self.ttl.unwrap_or(route.options.ttl);
        if let Some(verdict) = self.verdict {
            return ResponseJudgement { verdict, ttl, unknown_cause: UnknownCause::Service };
        }
        let asks_for_payment = is_payment_challenge(status, headers);
        let by_status = route.statuses.verdict_on(status, headers.contains_key(RETRY_AFTER) || asks_for_payment);
        let by_status = match (status, by_status) {
            // The service has begun to answer.
            (ServiceStatus::Grpc(_), ResponseVerdict::Release) if body.has_message(headers) => ResponseVerdict::Unknown,
            _ => by_status,
        };
        let by_body = match status {
            ServiceStatus::Http(code) if !route.options.outcome.is_empty() => {
                let is_named = route.statuses.names(code) || asks_for_payment;
                body.verdict(route, headers, by_status, is_named)
            }
            _ => None,
        };
        let (verdict, unknown_cause) = match (by_body.unwrap_or(by_status), by_body) {
            // The service may have meant that it was executed.
            (ResponseVerdict::Release, _) if self.is_unclear => (ResponseVerdict::Unknown, UnknownCause::Service),
            (verdict, _) if self.is_unclear => (verdict, UnknownCause::Service),
            (verdict, Some(_)) if by_status != ResponseVerdict::Unknown => (verdict, UnknownCause::Body),
            (verdict, _) => (verdict, status.into()),
        };
        ResponseJudgement { verdict, ttl, unknown_cause }
    }
}

/// The meaning of a response for its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseJudgement {
    pub verdict: ResponseVerdict,
    /// The time for which the outcome is kept.
    pub ttl: Duration,
    /// The cause, where the verdict is that the outcome is unknown.
    pub unknown_cause: UnknownCause,
}

fn read_decision(value: &HeaderValue) -> Option<ResponseVerdict> {
    match value.as_bytes() {
        b"release" => Some(ResponseVerdict::Release),
        b"store" => Some(ResponseVerdict::Store),
        b"unknown" => Some(ResponseVerdict::Unknown),
        _ => None,
    }
}

fn report_invalid(field: &str) {
    tracing::warn!(
        field,
        "the service sent an invalid directive about its response; the status decides, but never that nothing was executed"
    );
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            directives("store", "1h"),
            ServiceDirectives { verdict: Some(ResponseVerdict::Store), is_unclear: false, ttl: hour }
        );
        assert_eq!(
            directives("release", "3600s"),
            ServiceDirectives { verdict: Some(ResponseVerdict::Release), is_unclear: false, ttl: hour }
        );
        assert_eq!(
            directives("unknown", "0s"),
            ServiceDirectives { verdict: Some(ResponseVerdict::Unknown), is_unclear: false, ttl: None }
        );
        let unclear = ServiceDirectives { is_unclear: true, ..ServiceDirectives::default() };
        assert_eq!(directives("Store", "soon"), unclear);
    }

    #[test]
    fn a_decision_at_the_end_that_contradicts_the_head_makes_both_unclear() {
        let (store, release) = (directives("store", "1h"), directives("release", "1h"));
        assert_eq!(store.or(store), store);
        assert_eq!(store.or(ServiceDirectives::default()), store);
        let unclear = ServiceDirectives { verdict: None, is_unclear: true, ..store };
        assert_eq!((release.or(store), store.or(release)), (unclear, unclear));
    }

    #[test]
    fn several_decisions_count_only_if_they_agree() {
        for (values, verdict, is_unclear) in [
            (&[][..], None, false),
            (&["store", "store"], Some(ResponseVerdict::Store), false),
            (&["store", "release"], None, true),
            (&["release", "unknown"], None, true),
            (&["release", "x"], None, true),
            (&["store, release"], None, true),
            (&[""], None, true),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(fields::DECISION, HeaderValue::from_static(value));
            }
            let expected = ServiceDirectives { verdict, is_unclear, ttl: None };
            assert_eq!(ServiceDirectives::parse(&headers), expected, "{values:?}");
        }
    }
}
