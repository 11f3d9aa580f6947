//! A message is a request whose sender waits for no answer: the same way through the gate, and a fate at its end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;

use super::admit::Turned;
use super::refuse::Refusal;
use super::status::Told;
use super::{Gate, Stamp};
use crate::body::Body;
use crate::config::Consumer;
use crate::domain::record::{RecordId, State};

/// A message that is to be executed once.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which queue it is from, and what it says of its messages.
    pub consumer: Arc<Consumer>,
    /// Where it is posted to.
    pub path: String,
    /// Its key, not yet checked.
    pub key: Bytes,
    /// What goes to the service with it; its scope is among them.
    pub headers: HeaderMap,
    /// What it says.
    pub body: Bytes,
    /// Where the broker is.
    pub broker: IpAddr,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its outcome is stored, and is a good one: it may be forgotten.
    Done,
    /// It will never do: what is stored, or what we say of it, is a no.
    Refused(Reason),
    /// Nothing is executed, or nothing is stored yet: the same message is to come again.
    Again(Reason),
    /// It may have been executed, and nobody knows.
    Unknown(Reason),
}

/// Why, for logs and for whoever finds the message among the dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In a word: a problem's slug, or `status`.
    pub slug: &'static str,
    /// In a sentence.
    pub detail: &'static str,
    /// The service's answer, where it has given one.
    pub status: Option<StatusCode>,
    /// How long the service wants to be left alone.
    pub wait: Option<Duration>,
}

impl Reason {
    /// One of ours.
    pub fn new(slug: &'static str, detail: &'static str) -> Self {
        Self { slug, detail, status: None, wait: None }
    }

    fn answered(slug: &'static str, detail: &'static str, status: StatusCode) -> Self {
        Self { status: Some(status), ..Self::new(slug, detail) }
    }
}

impl Gate {
    /// Executes a message, or finds out what has become of it. When this says [`Fate::Done`] or [`Fate::Refused`], nothing
    /// is left to be stored. It runs to its end, whoever waits for it.
    pub async fn execute(self: &Arc<Self>, message: Message) -> Fate {
        let live = self.live();
        let guarded = match self.admit_message(message, &live) {
            Ok(guarded) => guarded,
            Err(Turned::Refused(refusal)) => return refusal.into(),
            Err(Turned::NoRoute) => {
                return Fate::Again(Reason::new("no-route", "Its route does not guard at the moment."));
            }
        };
        let mut stamp = Stamp::default();
        stamp.guard(&self.shared.watch, &guarded.head, &guarded.guard.meters);
        stamp.with_trail(|trail| trail.key(&guarded.ask.key));
        let id = guarded.ask.id;
        match self.take_up(guarded, &stamp).await {
            Ok(response) => {
                stamp.with_trail(|trail| trail.answered(response.status()));
                answered(response).await
            }
            Err(refusal) => {
                stamp.with_trail(|trail| trail.told(refusal.told()));
                match refusal {
                    Refusal::ResponseNotKept => self.as_stored(id).await,
                    refusal => refusal.into(),
                }
            }
        }
    }

    /// What a response that was too large to keep has said: its status is kept.
    async fn as_stored(&self, id: RecordId) -> Fate {
        match self.shared.look_up(id).await.map(|record| record.map(|record| record.state)) {
            Ok(Some(State::Completed(completed))) => settled(completed.response.status),
            Ok(_) | Err(_) => Refusal::StoreUnavailable.into(),
        }
    }
}

/// By what the answer says of itself, once its last byte is there: that of a large one waits for the store.
async fn answered(response: Response<Body>) -> Fate {
    let (head, mut body) = response.into_parts();
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return Fate::Again(Reason::new("unstored", "A large response broke off, or could not be recorded."));
        }
    }
    let because = |slug, detail| Reason { wait: wait(&head.headers), ..Reason::answered(slug, detail, head.status) };
    match Told::on(&head.headers) {
        // What is accepted for a later delivery is in the store, and ours.
        Some(Told::Queued) => Fate::Done,
        Some(Told::Executed | Told::Replayed) => settled(head.status),
        Some(Told::Released) => Fate::Again(because("released", "The service has not taken it.")),
        Some(Told::Unknown) => Fate::Unknown(because("outcome-unknown", "The service's answer does not tell.")),
        Some(Told::InFlight) => Fate::Again(Reason::new("in-flight", "The first attempt is still running.")),
        Some(Told::Unstored | Told::Bypassed | Told::Observed) | None => {
            Fate::Again(because("unstored", "The service has answered, and the answer is not stored yet."))
        }
        Some(Told::Mismatch | Told::Rejected) => Fate::Refused(because("status", "It was refused.")),
    }
}

/// A stored answer is the last one.
fn settled(status: StatusCode) -> Fate {
    match status.as_u16() {
        200..400 => Fate::Done,
        _ => Fate::Refused(Reason::answered("status", "The service has refused it, and the answer is stored.", status)),
    }
}

/// `Retry-After` in seconds (RFC 9110 section 10.2.3); a date says too little without a clock that is believed.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

impl From<Refusal> for Fate {
    fn from(refusal: Refusal) -> Self {
        let reason = Reason::new(refusal.slug(), refusal.detail());
        match refusal {
            Refusal::Draining
            | Refusal::InFlight(_)
            | Refusal::ResponseNotKept
            | Refusal::StoreUnavailable
            | Refusal::UpstreamUnreachable => Self::Again(reason),
            Refusal::OutcomeUnknown(_) | Refusal::UpstreamBroken | Refusal::UpstreamTimeout => Self::Unknown(reason),
            Refusal::BadRequest(..)
            | Refusal::KeyExpired
            | Refusal::KeyInvalid(_)
            | Refusal::KeyMissing
            | Refusal::KeyReused
            | Refusal::RequestTimeout
            | Refusal::RequestTooLarge
            | Refusal::RequestTooOld
            | Refusal::ResponseCorrupt
            | Refusal::Unguarded => Self::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::gate::fields::ONCEGATE_STATUS;

    /// The fate in one word.
    fn word(fate: &Fate) -> &'static str {
        match fate {
            Fate::Done => "done",
            Fate::Refused(_) => "refused",
            Fate::Again(_) => "again",
            Fate::Unknown(_) => "unknown",
        }
    }

    async fn of(status: u16, told: Option<&'static str>) -> Fate {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("7"));
        if let Some(told) = told {
            response.headers_mut().insert(ONCEGATE_STATUS, HeaderValue::from_static(told));
        }
        answered(response).await
    }

    #[tokio::test]
    async fn only_a_stored_answer_ends_a_message() {
        for (status, told, fate) in [
            (201, Some("executed"), "done"),
            (302, Some("replayed"), "done"),
            (404, Some("executed"), "refused"),
            (422, Some("replayed"), "refused"),
            (500, Some("replayed"), "refused"),
            (201, Some("unstored"), "again"),
            (201, Some("bypassed"), "again"),
            (503, Some("released"), "again"),
            (202, Some("in-flight"), "again"),
            (502, Some("unknown"), "unknown"),
            (201, None, "again"),
        ] {
            assert_eq!(word(&of(status, told).await), fate, "{status} {told:?}");
        }
    }

    #[tokio::test]
    async fn a_service_that_wants_to_be_left_alone_is() {
        let Fate::Again(reason) = of(429, Some("released")).await else { panic!("it is released") };
        assert_eq!((reason.wait, reason.status), (Some(Duration::from_secs(7)), Some(StatusCode::TOO_MANY_REQUESTS)));
    }

    #[test]
    fn a_refusal_that_says_to_send_it_again_never_ends_a_message() {
        for refusal in Refusal::ALL {
            let fate = Fate::from(refusal);
            let expected = match refusal.next() {
                "same_key" => "again",
                "reconcile" if refusal == Refusal::ResponseNotKept => "again",
                "reconcile" => "unknown",
                _ => "refused",
            };
            assert_eq!(word(&fate), expected, "{}", refusal.slug());
        }
    }
}
