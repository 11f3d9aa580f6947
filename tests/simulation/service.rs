//! The simulated service: it fails as real services do, and logs each effect.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::history::{Attempt, Effect, ScopedKey, ServiceCall};
use crate::hosts::elapsed;
use crate::network::{Network, Place};
use crate::seeded_random::SeededRandom;
use crate::trace;

/// One effect in so many is answered by a response that streams.
const STREAM_EVERY: u64 = 3;

type ServiceResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<ServiceState>);

struct ServiceState {
    /// All requests that arrived whole. The end of one that is still worked on is `Duration::MAX`.
    calls: Mutex<Vec<ServiceCall>>,
    effects: Mutex<Vec<Effect>>,
    events: Mutex<Vec<ReceivedEvent>>,
    /// The effect of each record's attempts, the first one.
    known: Mutex<BTreeMap<String, u64>>,
    random: Mutex<SeededRandom>,
    /// Per mille of the requests with each kind of misbehaviour.
    faults: usize,
    /// Wakes the waiting requests in their order; a `watch` would draw one.
    reliable: CancellationToken,
}

/// An event about a key, as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedEvent {
    pub record: String,
    pub sequence: i64,
    pub state: String,
}

/// The service's reaction to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    /// Answers 503 and does nothing.
    Refuses,
    /// Executes after the first time, and answers after the second, in milliseconds.
    Executes(u64, u64),
    /// Executes, and never answers.
    FallsSilent,
}

impl Service {
    /// The service and its task.
    pub fn new(
        network: &Network,
        random: SeededRandom,
        faults: usize,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let service = Self(Arc::new(ServiceState {
            calls: Mutex::default(),
            effects: Mutex::default(),
            events: Mutex::default(),
            known: Mutex::default(),
            random: Mutex::new(random),
            faults,
            reliable: CancellationToken::new(),
        }));
        let (mut accepted, state) = (network.listen(Place::Service), Arc::clone(&service.0));
        let task = async move {
            while let Some(stream) = accepted.recv().await {
                let state = Arc::clone(&state);
                let answer = service_fn(move |request| answer(Arc::clone(&state), request));
                tokio::spawn(async move {
                    drop(
                        http1::Builder::new()
                            .auto_date_header(false)
                            .serve_connection(TokioIo::new(stream), answer)
                            .await,
                    )
                });
            }
        };
        (service, task)
    }

    /// From now on the service works correctly and at once, also for requests that already wait.
    pub fn stop_misbehaving(&self) {
        self.0.reliable.cancel();
    }

    pub fn calls(&self) -> Vec<ServiceCall> {
        self.0.calls.lock().unwrap().clone()
    }

    /// The events, in the order in which they came.
    pub fn events(&self) -> Vec<ReceivedEvent> {
        self.0.events.lock().unwrap().clone()
    }

    pub fn effects(&self) -> Vec<Effect> {
        self.0.effects.lock().unwrap().clone()
    }
}

async fn answer(state: Arc<ServiceState>, request: Request<Incoming>) -> Result<ServiceResponse, Infallible> {
    if request.method() == Method::GET {
        return Ok(state.report_outcome(request.uri().path()));
    }
    let (head, body) = request.into_parts();
    // A request whose body breaks off is not executed.
    let Ok(body) = body.collect().await else { return Ok(respond(StatusCode::BAD_REQUEST, "broken")) };
    let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    if head.uri.path() == "/events" {
        return Ok(state.receive_event(&body).await);
    }
    let request = ReceivedRequest::new(&head, body);
    let call = state.begin_call(&request);
    let behavior = state.choose_behavior();
    let (before, after) = match behavior {
        Behavior::Refuses => {
            state.end_call(call, true);
            return Ok(respond(StatusCode::SERVICE_UNAVAILABLE, "not now"));
        }
        Behavior::Executes(before, after) => (before, after),
        Behavior::FallsSilent => (0, 60_000),
    };
    // A task of its own, because the service works on when its client has gone.
    let executed = tokio::spawn(async move {
        state.wait(before).await;
        let id = state.execute(request);
        state.wait(after).await;
        if id.is_multiple_of(STREAM_EVERY) {
            return state.stream(id, call);
        }
        state.end_call(call, false);
        executed_response(id)
    });
    Ok(executed.await.unwrap())
}

impl ServiceState {
    /// Waits so long, or until the service is reliable.
    async fn wait(&self, milliseconds: u64) {
        drop(timeout(Duration::from_millis(milliseconds), self.reliable.cancelled()).await);
    }

    fn choose_behavior(&self) -> Behavior {
        let (mut random, faults) = (self.random.lock().unwrap(), self.faults);
        if self.reliable.is_cancelled() {
            return Behavior::Executes(0, 0);
        }
        let mut time = |limit| random.next_u64() % limit;
        match time(1_000) as usize {
            drawn if drawn < faults => Behavior::Refuses,
            drawn if drawn < 2 * faults => Behavior::FallsSilent,
            drawn if drawn < 4 * faults => Behavior::Executes(time(900), time(900)),
            drawn if drawn < 6 * faults => Behavior::Executes(0, 2_000),
            _ => Behavior::Executes(time(20), time(20)),
        }
    }

    /// Takes an event. Sometimes it refuses it for now, or takes it and does not say so.
    async fn receive_event(&self, body: &str) -> ServiceResponse {
        let behavior = self.choose_behavior();
        if behavior == Behavior::Refuses {
            return respond(StatusCode::SERVICE_UNAVAILABLE, "not now");
        }
        let event: serde_json::Value = serde_json::from_str(body).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let (record, state) = (text(&event["subject"]), text(&event["data"]["state"]));
        trace::record(format_args!("EVENT {} of {record}: {state}", event["sequence"]));
        let sequence = text(&event["sequence"]).parse().unwrap();
        self.events.lock().unwrap().push(ReceivedEvent { record, sequence, state });
        if behavior == Behavior::FallsSilent {
            self.wait(60_000).await;
        }
        respond(StatusCode::NO_CONTENT, "")
    }

    /// Logs a request, and returns its place in the log.
    fn begin_call(&self, request: &ReceivedRequest) -> usize {
        let ReceivedRequest { op, name, attempt, .. } = request.clone();
        let mut calls = self.calls.lock().unwrap();
        calls.push(ServiceCall { op, name, attempt, began: elapsed(), ended: Duration::MAX, was_refused: false });
        calls.len() - 1
    }

    fn end_call(&self, place: usize, was_refused: bool) {
        let call = &mut self.calls.lock().unwrap()[place];
        (call.ended, call.was_refused) = (elapsed(), was_refused);
    }

    fn execute(&self, request: ReceivedRequest) -> u64 {
        let ReceivedRequest { op, name, attempt, body } = request;
        let mut effects = self.effects.lock().unwrap();
        let id = effects.len() as u64 + 1;
        trace::record(format_args!("EFFECT {id} of op {op} for {name}, attempt {}", attempt.number));
        self.known.lock().unwrap().entry(attempt.record.clone()).or_insert(id);
        effects.push(Effect { id, op, name, body, at: elapsed(), attempt });
        id
    }

    /// Sends the response line by line, also when nobody reads it any more. Sometimes it breaks off.
    fn stream(self: Arc<Self>, id: u64, call: usize) -> ServiceResponse {
        let (pieces, received) = mpsc::unbounded_channel();
        let (mut random, mut lines_left) = (self.random.lock().unwrap().split(), usize::MAX);
        if random.chance(3 * self.faults) && !self.reliable.is_cancelled() {
            lines_left = random.below(STREAM_LINES);
        }
        tokio::spawn(async move {
            for line in body_of(id).split_inclusive('\n') {
                if lines_left == 0 {
                    let _ = pieces.send(Err(io::ErrorKind::ConnectionReset.into()));
                    break;
                }
                lines_left -= 1;
                let _ = pieces.send(Ok(Frame::data(Bytes::from(line.to_owned()))));
                self.wait(random.next_u64() % 80).await;
            }
            self.end_call(call, false);
        });
        let frames = stream::unfold(received, async |mut received| Some((received.recv().await?, received)));
        executed_response(id).map(|_| StreamBody::new(frames).boxed_unsync())
    }

    /// Answers a probe for the outcome of an attempt.
    fn report_outcome(&self, path: &str) -> ServiceResponse {
        let known = self.known.lock().unwrap();
        match known.get(path.strip_prefix("/outcomes/").unwrap()) {
            Some(id) => executed_response(*id),
            None => respond(StatusCode::NOT_FOUND, "unknown"),
        }
    }
}

/// A request: the client's that it comes from, its key, and its attempt.
#[derive(Clone)]
struct ReceivedRequest {
    op: u64,
    name: ScopedKey,
    attempt: Attempt,
    body: String,
}

impl ReceivedRequest {
    /// A batch arrives as one of one, and has the key and the rest in its element.
    fn new(head: &Parts, body: String) -> Self {
        let field = |name| head.headers[name].to_str().unwrap().to_owned();
        let record = field("oncegate-reservation")[..64].to_owned();
        let attempt = Attempt { record, number: field("oncegate-attempt").parse().unwrap() };
        let (op, key, body) = match head.uri.path() {
            "/batched" => {
                let batch: [BTreeMap<String, String>; 1] = serde_json::from_str(&body).unwrap();
                (batch[0]["op"].clone(), batch[0]["key"].clone(), batch[0]["body"].clone())
            }
            _ => (field("x-op"), field("idempotency-key"), body),
        };
        let name = ScopedKey { caller: field("authorization"), key };
        Self { op: op.parse().unwrap(), name, attempt, body }
    }
}

/// The lines of a response that streams.
const STREAM_LINES: usize = 5;

fn body_of(id: u64) -> String {
    let more = if id.is_multiple_of(STREAM_EVERY) { STREAM_LINES - 1 } else { 0 };
    (0..more).fold(format!("effect {id}\n"), |body, line| format!("{body}line {line} of {id}\n"))
}

fn executed_response(id: u64) -> ServiceResponse {
    let mut response = respond(StatusCode::CREATED, body_of(id));
    if id.is_multiple_of(STREAM_EVERY) {
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    }
    for (name, value) in [("x-effect", id.to_string()), ("x-twice", "a".to_owned()), ("x-twice", id.to_string())] {
        response.headers_mut().append(name, value.parse().unwrap());
    }
    response
}

fn respond(status: StatusCode, body: impl Into<Bytes>) -> ServiceResponse {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    response
}
