//! What services say of their own attempts, beside their answers.
//!
//! The reservation in the path is the right to it: its token was given to whoever got the attempt's request. Without it
//! nothing is told, not even whether there is such a key; and nothing is read of what somebody sends who has none.

use std::sync::Arc;
use std::time::Duration;

use http::header::SET_COOKIE;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::desk::problem::Problem;
use super::desk::{Fields, body_too_large};
use super::read;
use crate::config::{Config, Route};
use crate::domain::attempt::{Ending, Settlement};
use crate::domain::phase::Phase;
use crate::domain::record::{Record, State};
use crate::domain::recovery::{NAME_LENGTH_MAX, RecoveryPoint};
use crate::domain::response::StoredResponse;
use crate::domain::testimony::{Heard, Reservation, What, Word};
use crate::gate::{Shared, fields, replay};
use crate::store::Settled;
use crate::store::books::{Entry, Filter, IdRange};

/// What a service may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saying {
    /// That its attempt was executed, with its response.
    Completed,
    /// That its attempt was not executed, and will not be.
    NotExecuted,
    /// How far its attempt has come, for good.
    Reached,
}

/// For a body that is no response: a name and what stands around it.
const WORD_BYTES_MAX: usize = 4 * 1024;

/// Of a response's fields, and of what JSON puts around them.
const FIELDS_BYTES_MAX: usize = 64 * 1024;

/// As many fields as are taken of a service's answer.
const FIELDS_MAX: usize = 100;

/// Where services are heard.
pub(super) struct Services {
    shared: Arc<Shared>,
    config: watch::Receiver<Arc<Config>>,
}

/// A reservation that is the newest attempt's, with what its route says.
struct Current<'a> {
    of: Reservation,
    entry: Entry,
    config: &'a Config,
    route: Option<&'a Route>,
}

impl Services {
    pub(super) fn new(shared: Arc<Shared>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { shared, config }
    }

    /// Hears what is said.
    ///
    /// # Errors
    /// [`Problem`], and nothing was changed; but for a store that failed, whose problem says so.
    pub(super) async fn hear(
        &self,
        saying: Saying,
        request: Request<Incoming>,
    ) -> Result<(StatusCode, Value), Problem> {
        let (head, body) = request.into_parts();
        let text = head.uri.path().split('/').nth(4).unwrap_or_default();
        let of = Reservation::parse(text).ok_or_else(no_reservation)?;
        let config = Arc::clone(&self.config.borrow());
        let current = self.current(of, &config).await?;
        match saying {
            Saying::Completed => {
                // In JSON a text takes up to twice its bytes, unless it is all escapes; in base64 it never does.
                let body = read(body, 2 * current.body_max() + 2 * FIELDS_BYTES_MAX).await?;
                let mut fields = Fields::parse(&body)?;
                let response = fields.response_of_service()?;
                fields.end()?;
                self.complete(&current, response).await
            }
            Saying::NotExecuted => {
                Fields::parse(&read(body, WORD_BYTES_MAX).await?)?.end()?;
                if self.runs_here(&current) {
                    return Err(still_running());
                }
                self.word(&current, What::NotExecuted(current.ttl())).await
            }
            Saying::Reached => {
                let mut fields = Fields::parse(&read(body, WORD_BYTES_MAX).await?)?;
                let name = fields.text("name")?.ok_or_else(|| Problem::bad("name", "is missing"))?;
                fields.end()?;
                let point = RecoveryPoint::parse(&name).ok_or_else(|| {
                    let form = format!("is not 1 to {NAME_LENGTH_MAX} letters, digits, `.`, `_`, `:` and `-`");
                    Problem::bad("name", form)
                })?;
                self.word(&current, What::Reached(point)).await
            }
        }
    }

    /// Whose reservation it is. What is over and what never was are not told apart.
    async fn current<'a>(&self, of: Reservation, config: &'a Config) -> Result<Current<'a>, Problem> {
        let filter = Filter { ids: IdRange::one(of.id), ..Filter::default() };
        let page = self.shared.store.books().page(Arc::clone(&config.service), filter, None, 1).await?;
        let entry = page.entries.into_iter().find(|entry| entry.token.is(&of.token)).ok_or_else(over)?;
        let route = config.routes.iter().find(|route| *route.name == *entry.route).map(|route| &**route);
        Ok(Current { of, entry, config, route })
    }

    async fn complete(&self, current: &Current<'_>, response: StoredResponse) -> Result<(StatusCode, Value), Problem> {
        let response = current.to_keep(response);
        if response.body.as_ref().is_some_and(|body| body.len() > current.body_max()) {
            return Err(body_too_large(current.body_max()));
        }
        if response.headers.len() > FIELDS_MAX || response.encode_fields().len() > FIELDS_BYTES_MAX {
            let most = format!("are more than {FIELDS_MAX} fields, or over {FIELDS_BYTES_MAX} bytes");
            return Err(Problem::bad("headers", most));
        }
        let Reservation { id, token } = current.of;
        let Shared { store, cache, waiters, .. } = &*self.shared;
        let ending = Ending::Completed { response: response.clone(), ttl: current.ttl(), remember: current.remember() };
        let begun = cache.begin();
        match store.settle(Settlement::of_service(id, token, ending)).await? {
            Settled::Done { .. } => {
                tracing::info!(record = %id, before = current.entry.state.name(), "its service has completed this key");
                // The attempt may be running here yet. Who comes now, or waits, gets the response all the same.
                if let Ok(Some(record)) = store.find(id).await {
                    cache.put(&record, begun);
                }
                waiters.nudge(id);
            }
            Settled::Fenced(Some(record)) if record.token.is(&token) => match record.state {
                State::Completed(stored) if stored.response == response => {}
                State::Completed(_) => return Err(completed_already()),
                _ => return Err(over()),
            },
            Settled::Fenced(_) => return Err(over()),
        }
        Ok((StatusCode::OK, json!({ "state": "completed" })))
    }

    /// Whether the attempt has not ended for this instance although its key is given up as unknown: its lease ran out while
    /// it ran, or its answer waits to be stored. What the store cannot know must not let another attempt begin beside it.
    fn runs_here(&self, current: &Current<'_>) -> bool {
        let may_end_otherwise = |record: Record| match record.state {
            State::InFlight | State::Completed(_) => record.token.is(&current.of.token),
            State::Dead | State::Expired | State::Queued | State::Retryable | State::Unknown => false,
        };
        matches!(current.entry.state, Phase::Dead | Phase::Unknown)
            && self.shared.underway.known(&current.of.id).is_some_and(may_end_otherwise)
    }

    async fn word(&self, current: &Current<'_>, what: What) -> Result<(StatusCode, Value), Problem> {
        let told = match &what {
            What::NotExecuted(_) => json!({ "state": "retryable" }),
            What::Reached(point) => json!({ "recovery_point": point.as_str() }),
        };
        let id = current.of.id;
        let word = Word { service: Arc::clone(&current.config.service), of: current.of, what };
        match self.shared.store.testimony().hear(word).await? {
            Heard::Taken => {
                tracing::debug!(record = %id, "its service has spoken of an attempt");
                self.shared.waiters.nudge(id);
                Ok((StatusCode::OK, told))
            }
            Heard::Noted => Ok((StatusCode::ACCEPTED, json!({ "state": "in_flight" }))),
            Heard::Completed => Err(completed_already()),
            Heard::Gone => Err(over()),
            Heard::Held => Err(held()),
        }
    }
}

impl Current<'_> {
    /// What a route says; where it is not known here, the most careful of what all say.
    fn most<T: Ord + Default>(&self, of: impl Fn(&Route) -> T) -> T {
        match self.route {
            Some(route) => of(route),
            None => self.config.routes.iter().map(|route| of(route)).max().unwrap_or_default(),
        }
    }

    fn ttl(&self) -> Duration {
        self.most(|route| route.ttl)
    }

    fn remember(&self) -> Option<Duration> {
        self.most(|route| route.remember)
    }

    fn body_max(&self) -> usize {
        self.most(|route| route.max_response_body)
    }

    /// As the answer to the attempt itself would be kept.
    fn to_keep(&self, mut response: StoredResponse) -> StoredResponse {
        match self.route {
            Some(route) => replay::to_keep(&response, route),
            None => {
                fields::remove(&mut response.headers, |name| fields::is_of_the_moment(name) || name == SET_COOKIE);
                response
            }
        }
    }
}

fn no_reservation() -> Problem {
    let detail = "this is no reservation: write the whole value of the request's Oncegate-Reservation field";
    Problem::new(StatusCode::NOT_FOUND, "no-such-reservation", detail)
}

fn over() -> Problem {
    let detail = "this reservation is over, if it ever was one: a later attempt has begun, or its key was forgotten; what \
                  this attempt has not committed yet should not be";
    Problem::new(StatusCode::GONE, "reservation-over", detail)
}

fn completed_already() -> Problem {
    let detail = "the key is completed, and what is completed does not change: retries get the response that is stored";
    Problem::new(StatusCode::CONFLICT, "already-completed", detail)
}

fn still_running() -> Problem {
    let detail = "this attempt is still running here, although its lease ran out: answer its request, or say it again once it \
                  has ended";
    Problem::new(StatusCode::CONFLICT, "still-running", detail)
}

fn held() -> Problem {
    let detail = "an open transaction in the database holds the key; try again";
    Problem::new(StatusCode::CONFLICT, "key-held", detail)
}
