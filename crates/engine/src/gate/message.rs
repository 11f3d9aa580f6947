//! Executes a message as a request whose sender waits for no response.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

pub use super::admit::Message;

use super::admit::AdmitError;
use super::outcome::Outcome;
use super::state::Gate;
use oncegate_domain::ids::RecordId;
use oncegate_domain::response_policy::{ResponseVerdict, ServiceStatus};
use oncegate_domain::state::KeyState;
use oncegate_http::protocol::grpc;
use oncegate_http::protocol::refusal::{ClientAction, Refusal};
use oncegate_http::protocol::retry_after::requested_pause;

/// The outcome of a message. It decides how the broker is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// The outcome is stored and is a success (status 2xx or 3xx).
    Done,
    /// The message will never succeed: the stored response or a refusal says no.
    Refused(OutcomeReason),
    /// Nothing was executed, or nothing is stored yet: the same message must come again.
    Again(OutcomeReason),
    /// The message was sent to the service, and nobody knows whether it was executed.
    Unknown(OutcomeReason),
    /// An earlier attempt's outcome is still unknown; nothing was executed.
    StillUnknown(OutcomeReason),
}

/// The reason of an outcome, for logs and for the headers of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeReason {
    /// A problem's slug, or `status`.
    pub slug: &'static str,
    /// The reason in a sentence.
    pub detail: Cow<'static, str>,
    /// The status of the service's response, if there is one.
    pub status: Option<StatusCode>,
    /// The pause that the service asks for with `Retry-After`.
    pub wait: Option<Duration>,
}

impl OutcomeReason {
    /// A reason of Oncegate's own.
    pub fn new(slug: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { slug, detail: detail.into(), status: None, wait: None }
    }

    fn answered(slug: &'static str, detail: &'static str, status: StatusCode, headers: &HeaderMap) -> Self {
        Self { status: Some(status), wait: requested_pause(headers), ..Self::new(slug, detail) }
    }
}

impl Gate {
    /// The largest body that a route takes; `None` if there is no such route.
    pub fn max_request_body(&self, route: &str) -> Option<usize> {
        Some(self.live().router.named(route)?.route.options.max_request_body)
    }

    /// Executes a message, or finds out what became of its key. With [`MessageOutcome::Done`] and
    /// [`MessageOutcome::Refused`] nothing is left to be stored. The work runs to its end, even if its caller goes
    /// away.
    pub async fn execute_message(self: &Arc<Self>, message: Message) -> MessageOutcome {
        let live = self.live();
        let broker = match &message.topic {
            Some(topic) => ("kafka", Arc::clone(topic)),
            None => ("rabbitmq", message.consumer.source.to_string().into()),
        };
        let guarded = match self.admit_message(message, &live).await {
            Ok(guarded) => guarded,
            Err(AdmitError::Refused(refusal)) => return refusal.into(),
            Err(AdmitError::NoRoute) => {
                return MessageOutcome::Again(OutcomeReason::new(
                    "no-route",
                    "No route guards the message at the moment.",
                ));
            }
        };
        let context = guarded.context_without_client(Some(broker), &self.instance.observability);
        let id = guarded.reserve_request.id;
        let outcome = self.execute(guarded, &context, None).await;
        context.with_trace(|trace| {
            trace.note(|state| state.oncegate_status = Some(outcome.oncegate_status()));
            match &outcome {
                Outcome::Refused(refusal) => trace.note_refusal(refusal),
                outcome => trace.note_response(outcome.http_status()),
            }
        });
        match outcome {
            Outcome::Refused(Refusal::ResponseNotKept) => self.outcome_by_stored_status(id).await,
            outcome => message_outcome(outcome).await,
        }
    }

    /// The outcome of a message whose response was too large to store: the store keeps its status.
    async fn outcome_by_stored_status(&self, id: RecordId) -> MessageOutcome {
        match self.instance.find_record(id).await.map(|record| record.map(|record| record.state)) {
            Ok(Some(KeyState::Completed(completed))) => stored(completed.response.status.into()),
            Ok(_) | Err(_) => Refusal::StoreUnavailable.into(),
        }
    }
}

async fn message_outcome(outcome: Outcome) -> MessageOutcome {
    match outcome {
        // The request is in the store, so the message is not needed any more.
        Outcome::Accepted { .. } => MessageOutcome::Done,
        Outcome::Answered { is_stored: false, response, .. } => unstored(response.status, &response.headers),
        Outcome::Answered { verdict: ResponseVerdict::Store, response, .. } => stored(grpc::answered_status(&response)),
        Outcome::Answered { verdict, response, .. } => answered(verdict, response.status, &response.headers),
        Outcome::InFlight(_) => {
            MessageOutcome::Again(OutcomeReason::new("in-flight", "The first attempt is still running."))
        }
        Outcome::Refused(refusal) => refusal.into(),
        Outcome::ExecutedElsewhere(completed) | Outcome::Replayed(completed) => match completed.expires_at {
            Some(_) => stored(grpc::answered_status(&completed.response)),
            None => unstored(completed.response.status, &completed.response.headers),
        },
        Outcome::Streamed(streamed) => {
            let (status, headers) = (streamed.status(), streamed.head.headers.clone());
            match streamed.drain().await {
                Some(verdict) => answered(verdict, status, &headers),
                None => MessageOutcome::Unknown(OutcomeReason::new(
                    "outcome-unknown",
                    "A large response broke off, or its outcome could not be stored.",
                )),
            }
        }
        // Messages wait for the store and are never forwarded unguarded. If one were, its response would not be stored.
        Outcome::Bypassed(outcome) => unstored(outcome.http_status(), &HeaderMap::new()),
    }
}

/// A stored response is final.
fn stored(status: ServiceStatus) -> MessageOutcome {
    const REFUSED: &str = "The service refused the message, and its response is stored.";
    match status {
        status if status.is_success() => MessageOutcome::Done,
        ServiceStatus::Http(status) if status.is_redirection() => MessageOutcome::Done,
        ServiceStatus::Http(status) => {
            MessageOutcome::Refused(OutcomeReason { status: Some(status), ..OutcomeReason::new("status", REFUSED) })
        }
        ServiceStatus::Grpc(_) | ServiceStatus::GrpcUnclear => {
            MessageOutcome::Refused(OutcomeReason::new("status", format!("{REFUSED} It is {status}.")))
        }
    }
}

/// A response whose meaning for the key is stored.
fn answered(verdict: ResponseVerdict, status: StatusCode, headers: &HeaderMap) -> MessageOutcome {
    let reason = |slug, detail| OutcomeReason::answered(slug, detail, status, headers);
    match verdict {
        ResponseVerdict::Release => {
            MessageOutcome::Again(reason("released", "The service did not execute the message."))
        }
        ResponseVerdict::Store => stored(status.into()),
        ResponseVerdict::Unknown => {
            MessageOutcome::Unknown(reason("outcome-unknown", "The service's response leaves the outcome unknown."))
        }
    }
}

fn unstored(status: StatusCode, headers: &HeaderMap) -> MessageOutcome {
    let detail = "The service responded, and its response is not stored yet.";
    MessageOutcome::Again(OutcomeReason::answered("unstored", detail, status, headers))
}

impl From<Refusal> for MessageOutcome {
    fn from(refusal: Refusal) -> Self {
        let reason = OutcomeReason::new(refusal.slug(), refusal.detail().into_owned());
        match (&refusal, refusal.row().action) {
            (Refusal::OutcomeUnknown(_), _) => Self::StillUnknown(reason),
            // The store has the status of its response, which decides once it can be read.
            (Refusal::ResponseNotKept, _) | (_, ClientAction::SameKey) => Self::Again(reason),
            (_, ClientAction::Reconcile) => Self::Unknown(reason),
            (_, ClientAction::Fix | ClientAction::NewKey) => Self::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;
    use http::header::RETRY_AFTER;
    use http::{HeaderName, HeaderValue};

    use super::*;
    use oncegate_domain::response::StoredResponse;
    use oncegate_domain::state::CompletedResponse;
    use oncegate_http::protocol::refusal::RetryAfter;

    /// The outcome in one word.
    fn word(outcome: &MessageOutcome) -> &'static str {
        match outcome {
            MessageOutcome::Done => "done",
            MessageOutcome::Refused(_) => "refused",
            MessageOutcome::Again(_) => "again",
            MessageOutcome::Unknown(_) | MessageOutcome::StillUnknown(_) => "unknown",
        }
    }

    fn response(status: u16) -> StoredResponse {
        StoredResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("7"))]),
            body: Some(Bytes::new()),
            trailers: HeaderMap::new(),
        }
    }

    fn completed(status: u16, is_stored: bool) -> CompletedResponse {
        CompletedResponse { response: response(status).into(), expires_at: is_stored.then(SystemTime::now) }
    }

    fn answer(status: u16, verdict: ResponseVerdict, is_stored: bool) -> Outcome {
        Outcome::Answered { response: response(status), verdict, is_stored, expires_at: None }
    }

    fn executed(status: u16) -> Outcome {
        answer(status, ResponseVerdict::Store, true)
    }

    #[tokio::test]
    async fn only_a_stored_response_ends_a_message() {
        for (outcome, expected) in [
            (executed(201), "done"),
            (executed(404), "refused"),
            (Outcome::ExecutedElsewhere(completed(201, true)), "done"),
            (Outcome::ExecutedElsewhere(completed(404, false)), "again"),
            (Outcome::Replayed(completed(302, true)), "done"),
            (Outcome::Replayed(completed(422, true)), "refused"),
            (Outcome::Replayed(completed(500, true)), "refused"),
            (Outcome::Replayed(completed(201, false)), "again"),
            (answer(201, ResponseVerdict::Store, false), "again"),
            (Outcome::Bypassed(Box::new(executed(201))), "again"),
            (answer(503, ResponseVerdict::Release, true), "again"),
            (Outcome::InFlight(RetryAfter::new(Duration::from_secs(1))), "again"),
            (answer(502, ResponseVerdict::Unknown, true), "unknown"),
        ] {
            let status = outcome.oncegate_status();
            assert_eq!(word(&message_outcome(outcome).await), expected, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_call_that_its_service_refused_is_no_success_for_its_http_status() {
        let call = |code: &'static str| {
            let fields = [("content-type", "application/grpc"), ("grpc-status", code)];
            let headers = fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let response = StoredResponse { headers: headers.into_iter().collect(), ..response(200) };
            Outcome::Answered { response, verdict: ResponseVerdict::Store, is_stored: true, expires_at: None }
        };
        assert_eq!(word(&message_outcome(call("0")).await), "done");
        assert_eq!(word(&message_outcome(call("3")).await), "refused");
    }

    #[tokio::test]
    async fn a_released_message_waits_as_long_as_its_service_asks() {
        let MessageOutcome::Again(reason) = message_outcome(answer(429, ResponseVerdict::Release, true)).await else {
            panic!("a released message comes again")
        };
        assert_eq!((reason.wait, reason.status), (Some(Duration::from_secs(7)), Some(StatusCode::TOO_MANY_REQUESTS)));
    }

    #[test]
    fn a_refusal_that_says_to_send_it_again_never_ends_a_message() {
        for refusal in Refusal::ALL {
            let outcome = MessageOutcome::from(refusal.clone());
            let expected = match refusal.client_action() {
                "same_key" => "again",
                "reconcile" if refusal == Refusal::ResponseNotKept => "again",
                "reconcile" => "unknown",
                _ => "refused",
            };
            assert_eq!(word(&outcome), expected, "{}", refusal.slug());
        }
    }
}
