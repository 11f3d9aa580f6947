//! The error of a request about keys: refused because of what it says, or because of the state that the key is in.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::inputs::{Input, InputKind, object_schema};
use oncegate_domain::execution_risk::ActionRisk;
use oncegate_domain::macros::named;
use oncegate_domain::state::StateKind;
use oncegate_store::StoreError;
use oncegate_store::admin::{DecisionResult, KeyEntry, OperatorAction, OperatorDecision, Target};
use oncegate_telemetry::logs::error_causes;

named! {
    #[derive(PartialOrd, Ord)]
    pub enum ProblemCode {
        AlreadyCompleted => "already-completed",
        BadRequest => "bad-request",
        DoubtfulResponse => "doubtful-response",
        EmptyBody => "empty-body",
        Forbidden => "forbidden",
        FourEyes => "four-eyes",
        KeyChanged => "key-changed",
        KeyHeld => "key-held",
        MoreThanExpected => "more-than-expected",
        NoSuchEvents => "no-such-events",
        NoSuchKey => "no-such-key",
        NoSuchMethod => "no-such-method",
        NoSuchPath => "no-such-path",
        NoSuchReservation => "no-such-reservation",
        NotQuiet => "not-quiet",
        OtherService => "other-service",
        RequestTimeout => "request-timeout",
        RequestTooLarge => "request-too-large",
        ReservationOver => "reservation-over",
        RouteUnknown => "route-unknown",
        RowCorrupt => "row-corrupt",
        SharedResponse => "shared-response",
        StillRunning => "still-running",
        StoreUnavailable => "store-unavailable",
        TooManyWrongTokens => "too-many-wrong-tokens",
        Unauthorized => "unauthorized",
        WrongState => "wrong-state",
    }
}

impl ProblemCode {
    pub const fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NoSuchEvents | Self::NoSuchKey | Self::NoSuchPath | Self::NoSuchReservation => StatusCode::NOT_FOUND,
            Self::NoSuchMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ReservationOver => StatusCode::GONE,
            Self::RowCorrupt => StatusCode::INTERNAL_SERVER_ERROR,
            Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooManyWrongTokens => StatusCode::TOO_MANY_REQUESTS,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            // It is about the state of the key, or about the service.
            _ => StatusCode::CONFLICT,
        }
    }
}

/// The members of a problem beyond those of RFC 9457. A problem has those that its `detail` is about.
const MEMBERS: [Input; 10] = [
    Input::new("allow", InputKind::Text, "The methods of the path."),
    Input::new("changed", InputKind::Number, "The number of keys that were changed before the store failed."),
    Input::new("count", InputKind::Number, "The number of keys that the change is for."),
    Input::new("field", InputKind::Text, "The parameter or member of the request that is wrong."),
    Input::new("id", InputKind::Text, "The id of the key."),
    Input::new("paths", InputKind::Texts, "All paths of the listener."),
    Input::new("quiet_in_ms", InputKind::Number, "The time until nothing of the newest attempt can be running."),
    Input::new("route", InputKind::Text, "The route that this instance does not have."),
    Input::new("service", InputKind::Text, "The services of this instance."),
    Input::new("state", InputKind::Text, "The state of the key."),
];

/// A refused or failed request. The API writes it as a problem document (RFC 9457), the page as text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct ApiProblem {
    pub code: ProblemCode,
    pub detail: String,
    /// Facts for programs, beyond the code: extension members (RFC 9457 section 3.2).
    pub members: Vec<(&'static str, Value)>,
}

impl ApiProblem {
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), members: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        debug_assert!(MEMBERS.iter().any(|member| member.name == name), "`MEMBERS` lacks `{name}`");
        self.members.push((name, value.into()));
        self
    }

    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// The request is wrong: `field` is the parameter or JSON field, `why` completes a sentence about it.
    pub fn bad(field: &str, why: impl fmt::Display) -> Self {
        Self::new(ProblemCode::BadRequest, format!("`{field}` {why}")).with("field", field)
    }

    pub fn body_too_large(bytes_max: usize) -> Self {
        Self::new(ProblemCode::RequestTooLarge, format!("the body is over {bytes_max} bytes"))
    }

    pub fn about(self, id: impl ToString) -> Self {
        self.with("id", id.to_string())
    }

    /// There is no key with this id, or it belongs to another service: the two are not told apart.
    pub fn no_such_key() -> Self {
        Self::new(ProblemCode::NoSuchKey, "there is no key with this id; it may have been forgotten")
    }

    pub fn held() -> Self {
        Self::new(ProblemCode::KeyHeld, "an open transaction in the database holds the key; try again")
    }

    pub fn another_service(served: &str, named: &str) -> Self {
        let detail = format!(
            "this instance serves {served}, and the request is about `{named}`: name an instance of that service \
             (--admin, `admin.listen`), or this one's configuration"
        );
        Self::new(ProblemCode::OtherService, detail).with("service", served)
    }

    pub fn no_service(served: &str) -> Self {
        let detail = format!("this instance serves {served}: name one of them (--service, X-Oncegate-Service)");
        Self::new(ProblemCode::OtherService, detail).with("service", served)
    }

    /// "Not executed" cannot be believed yet, but after this time.
    pub fn not_quiet(left: Duration, is_unwatched: bool) -> Self {
        let why = match is_unwatched {
            true => "; this instance started, or the store's clock has jumped, since the attempt began",
            false => "",
        };
        let seconds = left.as_millis().div_ceil(1000);
        let detail = format!(
            "its last attempt may still be running at the service, also if an answer came{why}: try again in {seconds} s, or use accept_risk"
        );
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Self::new(ProblemCode::NotQuiet, detail).with("quiet_in_ms", left_ms)
    }

    pub fn key_changed(now: StateKind) -> Self {
        let detail = format!("the key has changed since it was looked at: it is {now} now; look again");
        Self::new(ProblemCode::KeyChanged, detail).with("state", now.name())
    }

    pub fn wrong_state(action: &str, state: StateKind) -> Self {
        let detail = match state {
            StateKind::InFlight => format!("the key is in_flight; {action} is not possible while its attempt runs"),
            _ => format!("the key is {state}; {action} is not possible in this state"),
        };
        Self::new(ProblemCode::WrongState, detail).with("state", state.name())
    }

    pub fn not_permitted(change: &OperatorAction, key: &KeyEntry) -> Self {
        let mut problem = Self::wrong_state(change.action(), key.state);
        match change {
            OperatorAction::Replace(_) if key.is_redacted() => problem.detail = "the key is redacted".into(),
            OperatorAction::Replace(_) if key.state == StateKind::Completed => {
                problem.detail =
                    "the service itself has completed the key, and its response is never replaced".to_owned();
            }
            OperatorAction::Redact if key.state == StateKind::Retryable => {
                problem.detail = "its route executes a redelivery of it all the same (`replay.until`): purge it".into();
            }
            OperatorAction::Redact if key.is_redacted() => problem.detail = "the key is redacted already".into(),
            OperatorAction::Redact => problem.detail.push_str(": decide about it first"),
            OperatorAction::Complete(_) if key.is_by_hand => {
                problem.detail.push_str(": an operator has written its response; use replace to correct it");
            }
            _ => {}
        }
        problem
    }

    fn risk_not_accepted(action: &str, risk: ActionRisk, state: StateKind) -> Self {
        let facts = match risk {
            ActionRisk::AttemptRunning => {
                "its last attempt may still be running, and its next retry is executed too".to_owned()
            }
            ActionRisk::DeliveryLost => format!(
                "its request was accepted for delivery, and its caller was told so: after a {action} it is never delivered"
            ),
            ActionRisk::LateRetries => format!(
                "its TTL has ended, and late retries are refused with key-expired: after a {action} a late retry is executed, a \
                 second time"
            ),
            ActionRisk::OutcomeUnknown => {
                format!("after a {action} its next retry is executed, perhaps a second time")
            }
            ActionRisk::ResponseWithdrawn => format!(
                "its retries get the stored response: after a {action} its next retry is executed, a second time"
            ),
            ActionRisk::TtlInDoubt => format!(
                "its TTL has ended by the store's clock alone, which has jumped or was not watched for long enough, so that its \
                 retries are not executed yet: after a {action} its next retry is executed, a second time; ask an instance that \
                 has run for some minutes"
            ),
            ActionRisk::UnknownRetried => format!(
                "after a {action} it is unknown, and its route executes retries of unknown keys, perhaps a second time"
            ),
        };
        let detail = format!("the key is {state}, and {facts}; use accept_risk to do it anyway");
        Self::new(ProblemCode::WrongState, detail).with("state", state.name())
    }

    /// Returns the reason why a decision about a key did not take; `None` where it did.
    pub fn from_result(result: DecisionResult, decision: &OperatorDecision, target: &Target) -> Option<Self> {
        Some(match result {
            DecisionResult::Done => return None,
            DecisionResult::Gone => Self::no_such_key(),
            DecisionResult::Changed(now) => Self::key_changed(now),
            DecisionResult::Held => Self::held(),
            DecisionResult::NotQuiet(left) => Self::not_quiet(left, false),
            DecisionResult::Unfit => {
                let (action, state) = (decision.change.action(), target.state);
                match target.risk {
                    Some(risk) if !decision.accept_risk => Self::risk_not_accepted(action, risk, state),
                    _ => Self::wrong_state(action, state),
                }
            }
        })
    }
}

impl From<StoreError> for ApiProblem {
    fn from(error: StoreError) -> Self {
        let cause = error_causes(&error);
        tracing::warn!(cause, "{error}; a request at the admin listener is refused");
        match error {
            StoreError::Corrupt(what) => Self::new(ProblemCode::RowCorrupt, format!("a row does not decode: {what}")),
            StoreError::Failed(_) | StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
                let detail = format!(
                    "{error}; if this was to change something, it may have happened all the same: look before you try again"
                );
                Self::new(ProblemCode::StoreUnavailable, detail)
            }
        }
    }
}

/// A problem document (RFC 9457).
impl Serialize for ApiProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let status = self.status();
        let mut document = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
        });
        for (name, value) in &self.members {
            document[*name] = value.clone();
        }
        document.serialize(serializer)
    }
}

impl JsonSchema for ApiProblem {
    fn schema_name() -> Cow<'static, str> {
        "Problem".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let about = [
            Input::new("type", InputKind::Text, "Always `about:blank`.").required(),
            Input::new("title", InputKind::Text, "The status in words.").required(),
            Input::new("status", InputKind::Number, "The status of the response.").required(),
            Input::new("detail", InputKind::Text, "What is wrong, for people.").required(),
            Input::new("code", InputKind::Text, "What is wrong, for programs.").required(),
        ];
        let mut schema = object_schema(&[&about, &MEMBERS]);
        schema["description"] = "A refused or failed request (RFC 9457).".into();
        schema["properties"]["code"]["examples"] = json!(ProblemCode::ALL.map(ProblemCode::name));
        Schema::try_from(schema).expect("it is an object")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_a_document_with_its_members() {
        let plain = json!(ApiProblem::no_such_key());
        let expected = json!({ "type": "about:blank", "title": "Not Found", "status": 404, "code": "no-such-key",
                               "detail": "there is no key with this id; it may have been forgotten" });
        assert_eq!(plain, expected);
        let problem = ApiProblem::new(ProblemCode::NotQuiet, "d").with("changed", 1).with("route", "r");
        let expected = json!({ "type": "about:blank", "title": "Conflict", "status": 409, "code": "not-quiet",
                               "detail": "d", "changed": 1, "route": "r" });
        assert_eq!(json!(problem), expected);
    }
}
