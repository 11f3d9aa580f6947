//! The endpoints on which services report about their own attempts, beside their responses.
//!
//! The reservation in the path is the authorization: its token was sent with the attempt's request. Without it the
//! response does not even say whether there is such a key, and no byte of the body is read.

use std::sync::Arc;

use http::header::SET_COOKIE;
use http::{Request, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::key_admin::inputs::{Inputs, RECOVERY_POINT, REPORTED_RESPONSE};
use super::key_admin::params::JsonFields;
use super::key_admin::problem::{ApiProblem, ProblemCode};
use super::key_admin::{find_route, route_value};
use super::{AdminListener, ApiAnswer, path_id, read_body};
use oncegate_domain::attempt::{AttemptOutcome, Settlement};
use oncegate_domain::record::Record;
use oncegate_domain::recovery::{NAME_LENGTH_MAX, RecoveryPoint};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ReservedKey, ServiceReport};
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_engine::instance::Instance;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::stored_response;
use oncegate_settings::{Config, Route};
use oncegate_store::{FindReservationParams, SettleResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceMethod {
    Complete,
    /// The attempt was not executed, and will not be.
    NotExecuted,
    /// The attempt has durably reached this recovery point.
    RecoveryPoint,
}

impl ServiceMethod {
    /// The members of the body.
    pub(super) const fn body(self) -> Inputs {
        match self {
            Self::Complete => &[&REPORTED_RESPONSE],
            Self::NotExecuted => &[],
            Self::RecoveryPoint => &[&RECOVERY_POINT],
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedState {
    /// The state of the key after the report.
    state: StateKind,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedPoint {
    /// The recovery point.
    recovery_point: String,
}

/// The length of a body without a response, at most: it is a name in a JSON object.
const REPORT_BYTES_MAX: usize = 4 * 1024;

/// The length of a response's header fields, at most; also of the JSON around a response.
const FIELDS_BYTES_MAX: usize = 64 * 1024;

/// The number of header fields that a response may have, the same as for a service's answer.
const FIELDS_MAX: usize = 100;

struct CurrentReservation<'a> {
    handle: ReservationHandle,
    key: ReservedKey,
    config: &'a Config,
}

impl AdminListener {
    pub(super) async fn answer_service(&self, method: ServiceMethod, request: Request<RequestBody>) -> ApiAnswer {
        let (head, body) = request.into_parts();
        let handle = ReservationHandle::parse(path_id(&head.uri)).ok_or_else(|| {
            let detail = "this is not a reservation: write the whole value of the request's Oncegate-Reservation field";
            ApiProblem::new(ProblemCode::NoSuchReservation, detail)
        })?;
        let config = Arc::clone(&self.config.borrow());
        let current = self.find_reservation(handle, &config).await?;
        match method {
            ServiceMethod::Complete => self.complete(&current, body).await,
            ServiceMethod::NotExecuted => self.end_unexecuted(&current, body).await,
            ServiceMethod::RecoveryPoint => self.reach_point(&current, body).await,
        }
    }

    /// Finds the key of a reservation, if that is the newest attempt's. A reservation that is over and one that never
    /// was get the same problem.
    async fn find_reservation<'a>(
        &self,
        handle: ReservationHandle,
        config: &'a Config,
    ) -> Result<CurrentReservation<'a>, ApiProblem> {
        let services = config.service_names().map(Arc::clone).collect();
        let params = FindReservationParams { services, handle };
        let key = self.instance.store.find_reservation(params).await?.ok_or_else(over)?;
        Ok(CurrentReservation { handle, key, config })
    }

    async fn complete(&self, current: &CurrentReservation<'_>, body: RequestBody) -> ApiAnswer {
        let response = Arc::new(current.read_response(body).await?);
        let ReservationHandle { id, token } = current.handle;
        let Instance { store, cache, wait_groups, .. } = &*self.instance;
        let outcome = AttemptOutcome::Completed {
            response: Arc::clone(&response),
            ttl: current.route_value(|route| route.options.ttl),
            remember: current.route_value(|route| route.options.remember),
        };
        let epoch = cache.current_epoch();
        match store.settle(Settlement::from_service(id, token, outcome)).await? {
            SettleResult::Done { .. } => {
                tracing::info!(record = %id, before = current.key.state.name(), "the service has completed this key");
                self.count_resolved(current);
                // The attempt may still be running here. New and waiting duplicates get the response all the same.
                if let Ok(Some(record)) = store.find(id).await {
                    self.instance.remember(&record, epoch);
                }
                wait_groups.wake(id);
            }
            SettleResult::Fenced(Some(record)) if record.token.is_same(&token) => match record.state {
                KeyState::Completed(stored) if stored.response == response => {}
                KeyState::Completed(_) => return Err(completed_already()),
                _ => return Err(over()),
            },
            SettleResult::Fenced(_) => return Err(over()),
        }
        Ok((StatusCode::OK, json!(ReportedState { state: StateKind::Completed })))
    }

    /// Whether the attempt has not ended on this instance although its key is unknown or dead in the store: its lease
    /// ran out while it ran, or its outcome waits to be stored. The store cannot know of it, and must not let another
    /// attempt begin beside it.
    fn is_running_here(&self, current: &CurrentReservation<'_>) -> bool {
        let may_end_otherwise = |record: Record| match record.state {
            KeyState::InFlight | KeyState::Completed(_) => record.token.is_same(&current.handle.token),
            KeyState::Dead | KeyState::Expired | KeyState::Queued | KeyState::Retryable | KeyState::Unknown => false,
        };
        matches!(current.key.state, StateKind::Dead | StateKind::Unknown)
            && self.instance.in_flight.find(&current.handle.id).is_some_and(may_end_otherwise)
    }

    async fn end_unexecuted(&self, current: &CurrentReservation<'_>, body: RequestBody) -> ApiAnswer {
        JsonFields::parse(&read_body(body, REPORT_BYTES_MAX).await?, ServiceMethod::NotExecuted.body())?;
        if self.is_running_here(current) {
            let detail = "this attempt is still running here, although its lease ran out: answer its request, or report \
                          again once it has ended";
            return Err(ApiProblem::new(ProblemCode::StillRunning, detail));
        }
        let ttl = current.route_value(|route| route.options.ttl);
        let answer = self
            .report(current, ReportKind::NotExecuted(ttl), json!(ReportedState { state: StateKind::Retryable }))
            .await;
        if matches!(answer, Ok((StatusCode::OK, _))) {
            self.count_resolved(current);
        }
        answer
    }

    /// Counts that the service has resolved the outcome, if that was unknown.
    fn count_resolved(&self, current: &CurrentReservation<'_>) {
        let ReservedKey { service, route, state, settled_at } = &current.key;
        if let (StateKind::Dead | StateKind::Unknown, Some(since)) = (state, settled_at) {
            self.instance.count_resolved((service, route), *since);
        }
    }

    async fn reach_point(&self, current: &CurrentReservation<'_>, body: RequestBody) -> ApiAnswer {
        let body = read_body(body, REPORT_BYTES_MAX).await?;
        let mut fields = JsonFields::parse(&body, ServiceMethod::RecoveryPoint.body())?;
        let name = fields.take_text("name")?.ok_or_else(|| ApiProblem::bad("name", "is missing"))?;
        let point = RecoveryPoint::parse(&name).ok_or_else(|| {
            let form = format!("is not 1 to {NAME_LENGTH_MAX} letters, digits, `.`, `_`, `:` and `-`");
            ApiProblem::bad("name", form)
        })?;
        self.report(current, ReportKind::Reached(point), json!(ReportedPoint { recovery_point: name })).await
    }

    async fn report(&self, current: &CurrentReservation<'_>, kind: ReportKind, taken: Value) -> ApiAnswer {
        let id = current.handle.id;
        let report = ServiceReport { service: Arc::clone(&current.key.service), handle: current.handle, kind };
        match self.instance.store.record_report(report).await? {
            ReportResult::Taken => {
                tracing::debug!(record = %id, "the service has reported about an attempt");
                self.instance.wait_groups.wake(id);
                Ok((StatusCode::OK, taken))
            }
            ReportResult::Noted => Ok((StatusCode::ACCEPTED, json!(ReportedState { state: StateKind::InFlight }))),
            ReportResult::Completed => Err(completed_already()),
            ReportResult::Gone => Err(over()),
            ReportResult::Held => Err(ApiProblem::held()),
        }
    }
}

impl CurrentReservation<'_> {
    fn route_value<T: Ord + Default>(&self, value: impl Fn(&Route) -> T) -> T {
        route_value(self.config, (&self.key.service, &self.key.route), value)
    }

    /// Reads the response as it would be stored if it were the answer to the attempt.
    async fn read_response(&self, body: RequestBody) -> Result<StoredResponse, ApiProblem> {
        let body_max = self.route_value(|route| route.options.max_response_body);
        // A text takes up to twice its bytes in JSON, unless it is all escapes; base64 takes less.
        let body = read_body(body, 2 * (body_max + FIELDS_BYTES_MAX)).await?;
        let mut report = JsonFields::parse(&body, ServiceMethod::Complete.body())?;
        let mut response = report.take_response()?;
        // As of any stored response.
        fields::prepare_for_client(&mut response.headers);
        let response = match find_route(self.config, &self.key.service, &self.key.route) {
            Some(route) => stored_response::to_storable(&response, route),
            None => {
                fields::remove(&mut response.headers, |name| fields::is_momentary(name) || name == SET_COOKIE);
                response
            }
        };
        if response.body.as_ref().is_some_and(|body| body.len() > body_max) {
            return Err(ApiProblem::body_too_large(body_max));
        }
        if response.headers.len() > FIELDS_MAX || response.encode_fields().len() > FIELDS_BYTES_MAX {
            let why = format!("are more than {FIELDS_MAX} fields, or over {FIELDS_BYTES_MAX} bytes");
            return Err(ApiProblem::bad("headers", why));
        }
        Ok(response)
    }
}

fn over() -> ApiProblem {
    let detail = "this reservation is over, if it ever was one: a later attempt has begun, or its key was forgotten; this \
                  attempt should not commit anything more";
    ApiProblem::new(ProblemCode::ReservationOver, detail)
}

fn completed_already() -> ApiProblem {
    let detail = "the key is completed, and a completed key does not change: retries get the stored response";
    ApiProblem::new(ProblemCode::AlreadyCompleted, detail)
}
