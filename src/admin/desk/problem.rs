//! What is told where a question cannot be answered, or a decision does not take.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use crate::domain::phase::Phase;
use crate::store::StoreError;
use crate::store::books::{Decision, Verdict};
use crate::telemetry::logs::causes;

/// A problem document in the making (RFC 9457).
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The answer's status.
    pub status: StatusCode,
    /// Its name, for programs.
    pub code: &'static str,
    /// What is wrong, for people.
    pub detail: String,
    /// Further members.
    pub more: Vec<(&'static str, Value)>,
}

impl Problem {
    /// With no more than that.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Vec::new() }
    }

    /// The question is not one that can be asked; `field` is what is wrong with it.
    pub fn bad(field: &str, why: impl fmt::Display) -> Self {
        let problem = Self::new(StatusCode::BAD_REQUEST, "bad-request", format!("`{field}` {why}"));
        problem.with("field", field.into())
    }

    /// With another member.
    pub fn with(mut self, name: &'static str, value: Value) -> Self {
        self.more.push((name, value));
        self
    }

    /// There is no such key, or it is another service's: that is not told apart.
    pub fn no_such_key() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-key", "there is no key with this id; it may have been forgotten")
    }

    /// Who asks means another service's instance.
    pub fn another_service(served: &str, meant: &str) -> Self {
        let detail = format!(
            "this instance serves `{served}`, and the question is about `{meant}`: name an instance of that one (--admin, \
             `admin.listen`), or this one's configuration"
        );
        Self::new(StatusCode::CONFLICT, "other-service", detail).with("service", served.into())
    }

    /// It cannot be told when "not executed" may be believed: the route's `reconcile.after` is not known here.
    pub fn unknown_route(route: &str) -> Self {
        let detail = format!(
            "its route `{route}` is not in the configuration here, so nobody can tell when nothing of its last attempt can \
             be running any more: ask with the proxies' own configuration (-c) or an instance that has the route \
             (--admin); accept_risk overrules"
        );
        Self::new(StatusCode::CONFLICT, "route-unknown", detail).with("route", route.into())
    }

    /// Why a decision did not take; `None` where it did.
    pub fn of(verdict: Verdict, decision: &Decision, state: Phase) -> Option<Self> {
        let conflict = |code, detail: String| Some(Self::new(StatusCode::CONFLICT, code, detail));
        match verdict {
            Verdict::Done => None,
            Verdict::Gone => Some(Self::no_such_key()),
            Verdict::Changed(now) => {
                let detail = format!("the key has changed since it was looked at: it is {now} now; look again");
                Some(conflict("key-changed", detail)?.with("state", now.name().into()))
            }
            Verdict::Held => {
                conflict("key-held", "an open transaction in the database holds the key; try again".to_owned())
            }
            Verdict::NotQuiet(left) => {
                let detail = format!(
                    "its last attempt may still be running: \"not executed\" is believed in {}; accept_risk overrules",
                    seconds(left)
                );
                let problem = conflict("not-quiet", detail)?;
                Some(problem.with("quiet_in_ms", u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into()))
            }
            Verdict::Unfit => {
                let at_risk = Decision { accept_risk: true, ..decision.clone() };
                let action = decision.change.action();
                let detail = match state {
                    Phase::InFlight => format!("the key is in_flight, and {action} is not for what is running"),
                    _ if at_risk.is_for(state) => {
                        format!("the key is {state}: to {action} it may have it executed twice; accept_risk overrules")
                    }
                    _ => format!("the key is {state}, and {action} is not for keys in that state"),
                };
                Some(conflict("wrong-state", detail)?.with("state", state.name().into()))
            }
        }
    }
}

fn seconds(left: Duration) -> String {
    format!("{} s", left.as_millis().div_ceil(1000))
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let cause = causes(&error);
        tracing::warn!(cause, "{error}; a question at the admin listener is refused");
        match error {
            StoreError::Corrupt(what) => {
                let detail = format!("a row does not decode: {what}");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "row-corrupt", detail)
            }
            StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
                let detail = format!(
                    "{error}; if this was to change something, it may have happened all the same: look before you try again"
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
            }
        }
    }
}
