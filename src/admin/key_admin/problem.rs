//! The error of a request about keys: refused because of what it says, or because of the state that the key is in.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use crate::domain::execution_risk::ActionRisk;
use crate::domain::ids::RecordId;
use crate::domain::quantity::quantity;
use crate::domain::state::StateKind;
use crate::store::StoreError;
use crate::store::admin::{DecisionResult, OperatorDecision, Target};
use crate::telemetry::logs::error_causes;

macro_rules! define_codes {
    ($($code:ident $name:literal $status:ident,)+) => {
        /// The name of a problem, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum ProblemCode { $($code),+ }

        impl ProblemCode {
            /// The name in the API.
            pub fn name(self) -> &'static str {
                match self { $(Self::$code => $name),+ }
            }

            /// The code of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$code),)+ _ => None }
            }

            /// The HTTP status of a response with this problem.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status),+ }
            }
        }
    };
}

define_codes! {
    AlreadyCompleted "already-completed" CONFLICT,
    BadRequest "bad-request" BAD_REQUEST,
    DoubtfulResponse "doubtful-response" CONFLICT,
    KeyChanged "key-changed" CONFLICT,
    KeyHeld "key-held" CONFLICT,
    MoreThanExpected "more-than-expected" CONFLICT,
    NoSuchKey "no-such-key" NOT_FOUND,
    NoSuchReservation "no-such-reservation" NOT_FOUND,
    NotQuiet "not-quiet" CONFLICT,
    OtherService "other-service" CONFLICT,
    RequestTimeout "request-timeout" REQUEST_TIMEOUT,
    RequestTooLarge "request-too-large" PAYLOAD_TOO_LARGE,
    ReservationOver "reservation-over" GONE,
    RouteUnknown "route-unknown" CONFLICT,
    RowCorrupt "row-corrupt" INTERNAL_SERVER_ERROR,
    SharedResponse "shared-response" CONFLICT,
    StillRunning "still-running" CONFLICT,
    StoreUnavailable "store-unavailable" SERVICE_UNAVAILABLE,
    WrongState "wrong-state" CONFLICT,
}

/// A refused or failed request. The API writes it as a problem document (RFC 9457), the page as text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct ApiProblem {
    /// The problem's name, for programs.
    pub code: ProblemCode,
    /// The explanation, for people.
    pub detail: String,
    /// Facts for programs, beyond the code.
    pub members: Vec<ProblemMember>,
}

/// An extension member of a problem document (RFC 9457 section 3.2).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemMember {
    /// The number of keys that were changed before the store failed.
    Changed(u64),
    /// The number of keys that fit.
    Count(u64),
    /// The name of the parameter or JSON field that is wrong.
    Field(String),
    /// The key's id; as it was written where no key has it.
    Id(String),
    /// The time until "not executed" is believed.
    QuietInMs(u64),
    /// The key's route.
    Route(String),
    /// The service of this instance.
    Service(String),
    /// The key's state.
    State(StateKind),
}

impl ProblemMember {
    fn quiet_in(left: Duration) -> Self {
        Self::QuietInMs(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }
}

impl ApiProblem {
    /// A problem without extension members.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), members: Vec::new() }
    }

    /// Adds an extension member.
    pub fn with(mut self, member: ProblemMember) -> Self {
        self.members.push(member);
        self
    }

    /// The HTTP status of a response with this problem.
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// The request is wrong: `field` is the parameter or JSON field, `why` completes a sentence about it.
    pub fn bad(field: &str, why: impl fmt::Display) -> Self {
        let problem = Self::new(ProblemCode::BadRequest, format!("`{field}` {why}"));
        problem.with(ProblemMember::Field(field.to_owned()))
    }

    /// The body is over so many bytes.
    pub fn body_too_large(bytes_max: usize) -> Self {
        Self::new(ProblemCode::RequestTooLarge, format!("the body is over {bytes_max} bytes"))
    }

    /// Adds the id of the key that the problem is about.
    pub fn about(self, id: RecordId) -> Self {
        self.with(ProblemMember::Id(id.to_string()))
    }

    /// There is no key with this id, or it belongs to another service: the two are not told apart.
    pub fn no_such_key() -> Self {
        Self::new(ProblemCode::NoSuchKey, "there is no key with this id; it may have been forgotten")
    }

    /// Another transaction holds the key's row.
    pub fn held() -> Self {
        Self::new(ProblemCode::KeyHeld, "an open transaction in the database holds the key; try again")
    }

    /// More keys fit than the request expects.
    pub fn more_than_expected(count: u64, expected: u64) -> Self {
        let detail = format!(
            "{} match, more than the {expected} that were expected; nothing was changed",
            quantity(count, "key", "keys")
        );
        Self::new(ProblemCode::MoreThanExpected, detail).with(ProblemMember::Count(count))
    }

    /// One response would be stored for the requests of several keys.
    pub fn shared_response(count: u64) -> Self {
        let detail = format!(
            "the retries of {count} keys, perhaps of several callers, would all get this response: complete each key with its own, or \
             use accept_risk"
        );
        Self::new(ProblemCode::SharedResponse, detail).with(ProblemMember::Count(count))
    }

    /// An operator's response that nobody may mean. `doubt` is the rest of a sentence about it.
    pub fn doubtful_response(doubt: &str) -> Self {
        let detail = format!("the response {doubt}: correct it, or use accept_risk if retries are to get exactly this");
        Self::new(ProblemCode::DoubtfulResponse, detail)
    }

    /// The request names another service than the one that this instance serves.
    pub fn another_service(served: &str, named: &str) -> Self {
        let detail = format!(
            "this instance serves `{served}`, and the request is about `{named}`: name an instance of that service \
             (--admin, `admin.listen`), or this one's configuration"
        );
        Self::new(ProblemCode::OtherService, detail).with(ProblemMember::Service(served.to_owned()))
    }

    /// "Not executed" cannot be believed here: the route's `reconcile.after` is not in the configuration.
    pub fn unknown_route(route: &str) -> Self {
        let detail = format!(
            "its route `{route}` is not in the configuration here, so it is not known when its last attempt can no longer \
             run: use the proxies' own configuration (-c), an instance that has the route (--admin), or use accept_risk"
        );
        Self::new(ProblemCode::RouteUnknown, detail).with(ProblemMember::Route(route.to_owned()))
    }

    /// "Not executed" cannot be believed yet: this instance has not watched the store's clock since before the attempt.
    pub fn unwatched_clock(left: Duration) -> Self {
        let detail = format!(
            "its last attempt may still be running: the store's clock has jumped, or this instance started, since the \
             attempt began; try again in {} s, or use accept_risk",
            left.as_millis().div_ceil(1000)
        );
        Self::new(ProblemCode::NotQuiet, detail).with(ProblemMember::quiet_in(left))
    }

    /// The action is not possible in the key's state.
    fn wrong_state(action: &str, state: StateKind) -> Self {
        let detail = match state {
            StateKind::InFlight => format!("the key is in_flight; {action} is not possible while its attempt runs"),
            _ => format!("the key is {state}; {action} is not possible in this state"),
        };
        Self::new(ProblemCode::WrongState, detail).with(ProblemMember::State(state))
    }

    /// The action has a risk that is not accepted.
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
        Self::new(ProblemCode::WrongState, detail).with(ProblemMember::State(state))
    }

    /// Returns the reason why a decision about a key did not take; `None` where it did.
    pub fn from_result(result: DecisionResult, decision: &OperatorDecision, target: &Target) -> Option<Self> {
        Some(match result {
            DecisionResult::Done => return None,
            DecisionResult::Gone => Self::no_such_key(),
            DecisionResult::Changed(now) => {
                let detail = format!("the key has changed since it was looked at: it is {now} now; look again");
                Self::new(ProblemCode::KeyChanged, detail).with(ProblemMember::State(now))
            }
            DecisionResult::Held => Self::held(),
            DecisionResult::NotQuiet(left) => {
                let detail = format!(
                    "its last attempt may still be running: try again in {} s, or use accept_risk",
                    left.as_millis().div_ceil(1000)
                );
                Self::new(ProblemCode::NotQuiet, detail).with(ProblemMember::quiet_in(left))
            }
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
