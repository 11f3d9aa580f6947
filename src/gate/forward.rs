//! Arm: go upstream under a lease, out of the client's reach.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderValue, TRAILER};
use http::{HeaderMap, Request, Response, request, response};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::admit::Guarded;
use super::fields::{self, Origin};
use super::refuse::Refusal;
use super::replay::{self, http_date};
use super::routing::Guard;
use super::said::Said;
use super::settle::{Attempt, Filed, file};
use super::status::Told;
use super::tenure::Moment;
use super::trail::Stage;
use super::underway::{Entry, Standing};
use super::{Gate, Stamp, deliver, forwarded_key, oversize};
use crate::body::Body;
use crate::body::flow::Flow;
use crate::config::Route;
use crate::domain::attempt::{Lease, Settlement};
use crate::domain::policy::Verdict;
use crate::domain::record::{Ask, Completed, Record, State};
use crate::domain::response::StoredResponse;
use crate::domain::testimony::Reservation;
use crate::telemetry::logs::causes;
use crate::upstream::{CallError, Upstream};

/// How a call to the upstream ended.
enum Outcome {
    /// A whole response is in, with what the service said of it.
    Answered(StoredResponse, Said),
    /// Bytes of the request may have left this process, and no whole response came back.
    Broken,
    /// Not one byte of the request left this process: trying again is safe.
    NeverSent,
    /// The response is larger than the route keeps. This is its beginning; the rest is still coming.
    Oversize(Oversize),
    /// Bytes may have left, and the attempt's time is up.
    TimedOut,
}

/// A response too large to keep, as far as it has come.
pub(super) struct Oversize {
    pub(super) head: response::Parts,
    pub(super) said: Said,
    /// The names of the trailers that will come, by the service's word.
    pub(super) announced: Option<HeaderValue>,
    pub(super) beginning: BytesMut,
    pub(super) rest: Flow,
    pub(super) length: Option<u64>,
}

impl Gate {
    /// Sends the request, judges what comes of it, writes that down and only then answers.
    pub(super) async fn forward(
        &self,
        guarded: Box<Guarded>,
        lease: Lease,
        entry: Entry,
        begun: Moment,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        // The reservation may have taken long, and the machine may have slept: looked at again right before the first byte.
        // The lease alone would not do: it may have been lost and renewed in between, and the key be another's by now.
        if !self.shared.tenure.may_start() || begun.elapsed() > self.shared.send_within() {
            file(
                &self.shared,
                deliver::not_sent(&self.shared, lease, &guarded.route().retry, guarded.route().ttl),
                entry,
            )
            .await;
            return Err(Refusal::StoreUnavailable);
        }
        self.send(guarded, lease, entry, stamp).await
    }

    /// The same, whether there is a reservation or not.
    pub(super) async fn send(
        &self,
        guarded: Box<Guarded>,
        lease: Lease,
        entry: Entry,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        let Guarded { ask, head, body, origin, guard, .. } = *guarded;
        let Guard { route, upstream, pace, .. } = guard;
        let (ttl, record, number) = (route.ttl, ask.id, lease.attempt);
        let mut request = request(head, body, &origin, (entry.standing() == Standing::Reserved).then_some(&lease));
        forwarded_key::put(request.headers_mut(), &route, &ask.key);
        stamp.go_on(request.headers_mut());
        stamp.with_trail(|trail| trail.attempt(number));
        let mut attempt = Attempt::new(&self.shared, lease, entry, ttl);
        attempt.sending();
        let sent = Instant::now();
        let deadline = sent + route.upstream_timeout;
        let outcome = call(&upstream, &mut request, deadline, &route).await;
        let took = sent.elapsed();
        pace.record(took);
        self.shared.watch.meters.upstream_duration.observe(took);
        stamp.with_trail(|trail| trail.took(Stage::Upstream, sent, took));
        match outcome {
            Outcome::Answered(response, said) => {
                let (verdict, ttl) = said.judge(&route, response.status, &response.headers);
                // Before the lease is taken out of the attempt's care: whatever may panic is behind us then.
                let kept = (verdict == Verdict::Store).then(|| replay::to_keep(&response, &route));
                let (lease, entry) = attempt.end();
                let (settlement, told) = match (verdict, kept) {
                    (Verdict::Store, Some(kept)) => {
                        (lease.complete(kept, ttl).remembered(route.remember), Told::Executed)
                    }
                    (Verdict::Release, _) => (
                        deliver::release(lease, &route, ttl, Some((response.status, &response.headers))),
                        Told::Released,
                    ),
                    (Verdict::Unknown | Verdict::Store, _) => (deliver::unknown(lease, &route), Told::Unknown),
                };
                if told == Told::Unknown {
                    tracing::warn!(%record, route = %route.name, attempt = number, status = response.status.as_u16(),
                        "the service's answer leaves the outcome unknown");
                }
                Ok(match stamp.timed(Stage::Settle, pin!(file(&self.shared, settlement, entry))).await {
                    Filed::Done { expires_at } => {
                        let mut answer = live(response, told, stamp);
                        if let (Some(expires_at), Verdict::Store) = (expires_at, verdict) {
                            answer.headers_mut().insert(fields::KEY_EXPIRES, http_date(expires_at));
                        }
                        answer
                    }
                    Filed::Fenced(record) => match stored(record, &ask, stamp) {
                        Some(durable) => durable,
                        None => live(response, Told::Unstored, stamp),
                    },
                    Filed::Unstored => live(response, Told::Unstored, stamp),
                    Filed::Bypassed => live(response, told, stamp),
                })
            }
            Outcome::NeverSent => {
                let (lease, entry) = attempt.end();
                self.ended(deliver::release(lease, &route, ttl, None), entry, &ask, stamp, Refusal::UpstreamUnreachable)
                    .await
            }
            Outcome::Broken | Outcome::TimedOut => {
                let refusal = match outcome {
                    Outcome::TimedOut => Refusal::UpstreamTimeout,
                    _ => Refusal::UpstreamBroken,
                };
                tracing::warn!(%record, route = %route.name, attempt = number, "{}: the outcome is unknown", refusal.slug());
                let (lease, entry) = attempt.end();
                self.ended(deliver::unknown(lease, &route), entry, &ask, stamp, refusal).await
            }
            Outcome::Oversize(oversize) => {
                Ok(oversize::stream(self.shared.clone(), oversize, attempt, &route, deadline, stamp))
            }
        }
    }

    /// Settles an attempt that brought no response. Should the service itself have completed the key meanwhile, that is
    /// the answer.
    async fn ended(
        &self,
        settlement: Settlement,
        entry: Entry,
        ask: &Ask,
        stamp: &Stamp,
        refusal: Refusal,
    ) -> Result<Response<Body>, Refusal> {
        match stamp.timed(Stage::Settle, pin!(file(&self.shared, settlement, entry))).await {
            Filed::Fenced(record) => stored(record, ask, stamp).ok_or(refusal),
            Filed::Bypassed | Filed::Done { .. } | Filed::Unstored => Err(refusal),
        }
    }
}

/// The request as the service gets it. Without a lease there is no reservation that it could complete.
fn request(head: request::Parts, body: Bytes, origin: &Origin, lease: Option<&Lease>) -> Request<Body> {
    let mut request = Request::new(Body::whole(body));
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    let mut headers = head.headers;
    fields::towards_service(&mut headers, origin);
    fields::ask_for_identity(&mut headers);
    if let Some(lease) = lease {
        headers.insert(fields::RESERVATION, reservation(lease));
        headers.insert(fields::ATTEMPT, HeaderValue::from(lease.attempt));
        if let Some(reached) = &lease.recovery_point {
            let name = HeaderValue::from_str(reached.as_str()).expect("its name is plain ASCII");
            headers.insert(fields::RECOVERY_POINT, name);
        }
    }
    *request.headers_mut() = headers;
    request
}

/// The attempt's name for the service, by which it may speak of it.
fn reservation(lease: &Lease) -> HeaderValue {
    let reservation = Reservation { id: lease.ask.id, token: lease.ask.token };
    HeaderValue::from_str(&reservation.to_hex()).expect("hex is plain ASCII")
}

async fn call(upstream: &Upstream, request: &mut Request<Body>, deadline: Instant, route: &Route) -> Outcome {
    let response = match timeout_at(deadline, upstream.call(request)).await {
        Err(_) => return Outcome::TimedOut,
        Ok(Err(error)) => {
            let cause = causes(&error);
            tracing::warn!(route = %route.name, cause, "{error}");
            return match error {
                CallError::NeverSent(_) => Outcome::NeverSent,
                CallError::Broken(_) | CallError::Garbage(_) => Outcome::Broken,
            };
        }
        Ok(Ok(response)) => response,
    };
    let (mut head, mut body) = response.into_parts();
    let length = http_body::Body::size_hint(&body).exact();
    let said = Said::take(&head.headers);
    let announced = head.headers.get(TRAILER).cloned();
    fields::towards_client(&mut head.headers);
    let mut whole = Whole::default();
    let mut trailers = HeaderMap::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => return Outcome::TimedOut,
            Ok(None) => break,
            // A response that breaks off is never passed for a whole one.
            Ok(Some(Err(_))) => return Outcome::Broken,
            Ok(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(data) => whole.push(data),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
        if whole.len() > route.max_response_body {
            return Outcome::Oversize(Oversize {
                head,
                said,
                announced,
                beginning: whole.into_mut(),
                rest: body,
                length,
            });
        }
    }
    fields::towards_client(&mut trailers);
    let body = Some(whole.into_bytes());
    Outcome::Answered(StoredResponse { status: head.status, headers: head.headers, body, trailers }, said)
}

/// Pieces put together; a body in one piece, as most are, is never copied.
#[derive(Default)]
struct Whole {
    first: Bytes,
    all: BytesMut,
}

impl Whole {
    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&data);
    }

    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }

    fn into_mut(self) -> BytesMut {
        if self.all.is_empty() { BytesMut::from(self.first) } else { self.all }
    }
}

/// The response to the caller whose attempt brought it.
fn live(response: StoredResponse, told: Told, stamp: &Stamp) -> Response<Body> {
    let mut headers = response.headers;
    let body = stamp.body(response.body.unwrap_or_default(), response.trailers, &mut headers);
    stamp.put(&mut headers, told);
    let mut answer = Response::new(body);
    *answer.status_mut() = response.status;
    *answer.headers_mut() = headers;
    answer
}

/// What stands in the store, where that is a response: it is what every retry will get, so it is what this caller gets.
fn stored(record: Option<Box<Record>>, ask: &Ask, stamp: &Stamp) -> Option<Response<Body>> {
    let record = record?;
    // An operator may have purged the key meanwhile, and somebody used it for something else: that answer is theirs.
    if record.recipe != ask.recipe || record.fingerprint != ask.fingerprint {
        tracing::warn!(record = %record.id, "the key was used for another request meanwhile; this answer is not stored");
        return None;
    }
    let ours = record.token == ask.token;
    match record.state {
        State::Completed(Completed { response, .. }) if response.body.is_none() => None,
        State::Completed(completed) if ours => Some(replay::answer(completed, Told::Executed, stamp)),
        State::Completed(completed) => Some(replay::replay(completed, stamp)),
        State::Dead | State::Expired | State::InFlight | State::Queued | State::Retryable | State::Unknown => None,
    }
}
