//! Is it ours? Route, key, scope, body and fingerprint: all that must be known before the store is asked.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::fields::{self, Origin};
use super::pace::Pace;
use super::pass::{self, Passing};
use super::refuse::Refusal;
use super::routing::Guard;
use super::{Gate, Stamp};
use crate::config::{Route, ScopeRule, ScopeSource, Space};
use crate::domain::attempt::Token;
use crate::domain::fingerprint::{Parts, Secrets, form};
use crate::domain::key::{Key, KeyError};
use crate::domain::record::{Ask, Record, RecordId};
use crate::domain::scope::Scope;
use crate::upstream::Upstream;

/// A body that brings nothing for so long has stalled: far more than a lost packet costs, far less than an attacker
/// would like to hold a connection.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);
/// From this long after its beginning on a body must have come at [`BODY_RATE_MIN`] on the whole.
const BODY_GRACE: Duration = Duration::from_secs(5);
/// Bytes in a second. Less is no client's network, it is somebody holding a connection.
const BODY_RATE_MIN: u64 = 1024;

/// A request that has come through the door.
pub enum Admission {
    /// No route guards it: it streams through.
    Unguarded(Passing),
    /// A route guards it, and it has a key. Boxed: it is large, and the other is not.
    Guarded(Box<Guarded>),
}

/// A guarded request, whole, with all that the store is asked.
pub struct Guarded {
    /// What the store is asked.
    pub ask: Ask,
    /// As received: what a later recipe may have to look at again.
    pub(super) head: request::Parts,
    pub(super) body: Bytes,
    pub(super) origin: Origin,
    pub(super) guard: Guard,
    secrets: Secrets,
}

impl Guarded {
    /// The route's policy.
    pub fn route(&self) -> &Route {
        &self.guard.route
    }

    /// How long the route's attempts take.
    pub fn pace(&self) -> &Pace {
        &self.guard.pace
    }

    /// Where the request goes.
    pub fn upstream(&self) -> &Upstream {
        &self.guard.upstream
    }

    /// Whether this request is the one that the record was made for, by the record's own recipe. One that cannot be
    /// compared any more (its secret is gone) is not: nobody gets an answer that may be another request's.
    pub fn is_what(&self, record: &Record) -> bool {
        if record.recipe == self.ask.recipe {
            return record.fingerprint == self.ask.fingerprint;
        }
        let fingerprint = record.recipe.fingerprint(&parts(&self.head, &self.body), &self.secrets);
        fingerprint.is_some_and(|fingerprint| fingerprint == record.fingerprint)
    }
}

impl Gate {
    /// Looks at a request as far as it takes to know what to ask the store. Nothing is reserved before the whole body is
    /// in: the fingerprint needs it, and a client that goes away before has asked for nothing.
    pub(super) async fn admit(
        &self,
        request: Request<Incoming>,
        peer: IpAddr,
        stamp: &mut Stamp,
    ) -> Result<Admission, Refusal> {
        let config = &self.shared.config;
        let (head, body) = request.into_parts();
        let origin = self.origin(&head, peer);
        let Some(guard) = self.router.find(&head.method, head.uri.path()) else {
            if fields::nominates(&head.headers, &[]) {
                return Err(NOMINATED);
            }
            return Ok(Admission::Unguarded(passing(head, body, &origin)));
        };
        stamp.guard();
        let route = &guard.route;
        let needed: Vec<_> = std::iter::once(&route.key.header).chain(route.scope.header_names()).collect();
        if fields::nominates(&head.headers, &needed) {
            return Err(NOMINATED);
        }
        let Some(field) = single_key(&head.headers, route)? else {
            if route.key.required {
                return Err(Refusal::KeyMissing);
            }
            stamp.unguard();
            return Ok(Admission::Unguarded(passing(head, body, &origin)));
        };
        let key = Key::parse(field.as_bytes(), route.key.syntax, route.key.limits)?;
        stamp.echo(&route.key.header, &field);
        let scope = self.scope(&route.scope, &head, origin.trusted)?;
        if self.shared.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        let body = read(body, &head.headers, route.max_request_body).await?;
        let fingerprint = route
            .recipe
            .fingerprint(&parts(&head, &body), &config.secrets)
            .expect("a route's own recipe uses the current secret");
        let space = space(route, &head);
        let ask = Ask {
            id: RecordId::of(&config.service, &scope, &space, &key),
            service: Arc::clone(&config.service),
            scope,
            space,
            key,
            route: Arc::clone(&route.name),
            recipe: route.recipe.clone(),
            fingerprint,
            instance: self.shared.tenure.id(),
            token: Token::from_random(random()),
            // The attempt's own clock starts when the reservation is back, so that the store's ends later.
            time_limit: route.upstream_timeout + config.store.timeout,
        };
        let secrets = config.secrets.clone();
        Ok(Admission::Guarded(Box::new(Guarded { ask, head, body, origin, guard: guard.clone(), secrets })))
    }

    /// Where the request comes from, and whether that peer's word about earlier hops is taken.
    fn origin(&self, head: &request::Parts, peer: IpAddr) -> Origin {
        let peer = peer.to_canonical();
        Origin {
            peer,
            trusted: self.shared.config.trusted_proxies.iter().any(|net| net.contains(&peer)),
            host: effective_host(head),
            version: head.version,
        }
    }

    fn scope(&self, rule: &ScopeRule, head: &request::Parts, trusted: bool) -> Result<Scope, Refusal> {
        let mut parts = Vec::with_capacity(rule.parts.len());
        for part in &rule.parts {
            let value = match &part.source {
                ScopeSource::Authorization => single(&head.headers, &AUTHORIZATION)?.map(as_bytes),
                ScopeSource::Header(name) => single(&head.headers, name)?.map(as_bytes),
                ScopeSource::Cookie(name) => cookie(&head.headers, name)?,
                ScopeSource::Query(name) => query(&head.uri, name)?,
            };
            if value.is_some() && matches!(part.source, ScopeSource::Header(_)) && !trusted {
                return Err(Refusal::KeyInvalid(
                    "A field that tells callers apart was sent by a peer that is not trusted to set it.",
                ));
            }
            if value.is_none() && !part.optional {
                return Err(Refusal::KeyInvalid(
                    "The request lacks what tells its caller from others, and its key is therefore nobody's.",
                ));
            }
            parts.push((&*part.name, value));
        }
        let anonymous = parts.iter().all(|(_, value)| value.is_none());
        if rule.is_default && anonymous && head.headers.contains_key(COOKIE) {
            return Err(Refusal::KeyInvalid(
                "The caller seems to be known by a cookie, which this route's scope does not look at.",
            ));
        }
        Ok(Scope::of(&self.shared.salt, parts.iter().map(|(name, value)| (*name, value.as_deref()))))
    }
}

/// A request that nothing guards, ready for the upstream.
fn passing(mut head: request::Parts, body: Incoming, origin: &Origin) -> Passing {
    let trailers = fields::accepts_trailers(&head.headers);
    let upgrade = pass::upgrade(&head.headers, head.version);
    fields::towards_service(&mut head.headers, origin);
    head.version = http::Version::HTTP_11;
    Passing { request: Request::from_parts(head, body), trailers, upgrade }
}

const NOMINATED: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The Connection field names a field that must not disappear on the way.",
);

/// What the request is addressed to: the target's authority where it has one (RFC 9112 section 3.2.2), else `Host`.
fn effective_host(head: &request::Parts) -> Option<HeaderValue> {
    match head.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => head.headers.get(HOST).cloned(),
    }
}

/// The one value of the key's field; `None` without one.
fn single_key(headers: &HeaderMap, route: &Route) -> Result<Option<HeaderValue>, Refusal> {
    let mut lines = headers.get_all(&route.key.header).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(field), None) => Ok(Some(field.clone())),
        (Some(_), Some(_)) => Err(KeyError::Several.into()),
    }
}

/// The one value of a field that says who is calling.
fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

/// Two of them, and whom the service would believe is anybody's guess.
const AMBIGUOUS: Refusal = Refusal::KeyInvalid("What tells this request's caller from others was sent more than once.");

fn as_bytes(value: &HeaderValue) -> Vec<u8> {
    value.as_bytes().to_vec()
}

fn cookie(headers: &HeaderMap, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii().to_vec())
    });
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

fn query(uri: &Uri, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = form::pairs(uri.query().unwrap_or_default().as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name.as_bytes()).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

/// Within what the key is unique.
fn space(route: &Route, head: &request::Parts) -> Bytes {
    match route.space {
        Space::Path => Bytes::from(format!("{} {}", head.method, head.uri.path())),
        Space::Route => Bytes::from(format!("route {}", route.name)),
        Space::Service => Bytes::from_static(b"service"),
    }
}

fn parts<'a>(head: &'a request::Parts, body: &'a [u8]) -> Parts<'a> {
    Parts { method: head.method.as_str(), path: head.uri.path(), query: head.uri.query(), headers: &head.headers, body }
}

/// Reads a body whole. Its trailers are dropped: nothing after the body may change what it means.
async fn read(mut body: Incoming, headers: &HeaderMap, bytes_max: usize) -> Result<Bytes, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Before the body is asked for: who waits for `100 Continue` has then not sent it in vain.
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Refusal::RequestTooLarge);
    }
    let begun = Instant::now();
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut length = 0;
    loop {
        let frame = match timeout(BODY_SILENCE_MAX, body.frame()).await {
            Err(_) => return Err(Refusal::RequestTimeout),
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(Refusal::BadRequest(
                    StatusCode::BAD_REQUEST,
                    "The request's body is not framed as it says, or broke off.",
                ));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > bytes_max {
            return Err(Refusal::RequestTooLarge);
        }
        let late = begun.elapsed().saturating_sub(BODY_GRACE);
        if (length as u64) < late.as_secs() * BODY_RATE_MIN {
            return Err(Refusal::RequestTimeout);
        }
        // A body that comes in one piece, as most do, is never copied.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(piece) => {
                all.reserve(announced.map_or(piece.len() + data.len(), |length| length as usize));
                all.extend_from_slice(&piece);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}
