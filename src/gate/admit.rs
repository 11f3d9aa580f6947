//! Is it ours? Route, key, scope, body and fingerprint: all that must be known before the store is asked.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{DATE, HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Request, StatusCode, request};
use hyper::body::Incoming;

use super::client::Client;
use super::decide::Rules;
use super::fields::{self, Origin};
use super::meters::Verb;
use super::observe::Observed;
use super::pass::{self, Passing};
use super::refuse::Refusal;
use super::routing::Guard;
use super::{Gate, Live, Shared, Stamp};
use crate::body::Body;
use crate::config::{Config, Mode, Route, Space};
use crate::domain::attempt::Token;
use crate::domain::fingerprint::{Parts, Secrets};
use crate::domain::key::Key;
use crate::domain::record::{Ask, Record, RecordId};
use crate::domain::scope::Scope;
use crate::upstream::Upstream;

pub(super) use message::Turned;

pub(super) mod caller;
pub mod explain;
mod message;
mod place;
pub(super) mod whole;

/// When the client first sent the request, by its own word (OASIS Repeatable Requests 1.0).
const FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");

/// A request that has come through the door.
pub enum Admission {
    /// A route guards it, and it has a key. Boxed: it is large, and few others are.
    Guarded(Box<Guarded>),
    /// A route looks on.
    Observed(Box<Observed>),
    /// No route guards it: it streams through.
    Unguarded(Box<Passing>),
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
    pub(super) secrets: Secrets,
    /// Whether its sender can wait for the store: it is never forwarded unguarded.
    pub(super) is_patient: bool,
}

impl Guarded {
    /// The route's policy.
    pub fn route(&self) -> &Route {
        &self.guard.route
    }

    /// What decides about its key's record.
    pub fn rules(&self) -> Rules {
        let Guard { route, pace, .. } = &self.guard;
        Rules { on_unknown: route.on_unknown, quiet_after: route.quiet_after, usual: pace.usual() }
    }

    /// Whether this request is the one that the record was made for.
    pub fn is_what(&self, record: &Record) -> bool {
        is_what(&self.ask, &parts(&self.head, &self.body), &self.secrets, record)
    }
}

impl Gate {
    /// Looks at a request as far as it takes to know what to ask the store. Nothing is reserved before the whole body is
    /// in: the fingerprint needs it, and a client that goes away before has asked for nothing.
    pub(super) async fn admit(
        &self,
        request: Request<Incoming>,
        client: &Client,
        live: &Live,
        stamp: &mut Stamp,
    ) -> Result<Admission, Refusal> {
        let (head, body) = request.into_parts();
        let origin = origin(&head, client, &live.config);
        let Some(guard) = live.router.find(&head.method, origin.host_name(), head.uri.path()) else {
            if fields::nominates(&head.headers, &[]) {
                return Err(NOMINATED);
            }
            if live.config.refuse_unguarded && Verb::of(&head.method).changes_state() {
                return Err(Refusal::Unguarded);
            }
            return Ok(unguarded(head, Body::Streaming(body), &origin, &live.pass, client));
        };
        let route = &guard.route;
        match route.mode {
            // Whoever is behind it is to hear who is calling, as where there is no route.
            Mode::Off if fields::nominates(&head.headers, &[]) => return Err(NOMINATED),
            Mode::Off => return Ok(unguarded(head, Body::Streaming(body), &origin, &guard.upstream, client)),
            Mode::Observe => {
                stamp.observe(&self.shared.watch, &head, &guard.meters);
                let (config, tie) = (Arc::clone(&live.config), client.ties.tie());
                let observed = Observed { head, body, origin, guard: guard.clone(), config, tie };
                return Ok(Admission::Observed(Box::new(observed)));
            }
            Mode::Enforce => stamp.guard(&self.shared.watch, &head, &guard.meters),
        }
        check_nominated(&head.headers, route)?;
        let mut key = place::in_head(&head, &route.key)?;
        if (key.is_some() || place::may_be_in_body(&route.key)) && self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        // What the head alone refuses is refused before the body is asked for: who waits for `100 Continue` has then not
        // sent it in vain.
        let seen = key.as_deref().map(|key| self.seen(key, &head, &origin, route, stamp)).transpose()?;
        let reads_body = seen.is_some() || place::may_be_in_body(&route.key);
        let body = match reads_body {
            true => Body::whole(whole::read(body, &head.headers, route.max_request_body).await?),
            false => Body::Streaming(body),
        };
        let seen = match (seen, &body) {
            (None, Body::Whole { data, .. }) => {
                key = place::in_body(&head.headers, data, route)?;
                key.as_deref().map(|key| self.seen(key, &head, &origin, route, stamp)).transpose()?
            }
            (seen, _) => seen,
        };
        match (seen, body) {
            (Some((key, scope)), Body::Whole { data: body, .. }) => {
                let secrets = live.config.secrets.clone();
                let seen = Seen { head: &head, body: &body, origin: &origin, route, secrets: &secrets };
                let ask = self.shared.ask(&seen, key, scope, &self.shared.config.service);
                let guarded = Guarded { ask, head, body, origin, guard: guard.clone(), secrets, is_patient: false };
                Ok(Admission::Guarded(Box::new(guarded)))
            }
            (_, body) if !route.key.required => {
                stamp.unguard();
                Ok(unguarded(head, body, &origin, &guard.upstream, client))
            }
            (_, _) => Err(Refusal::KeyMissing),
        }
    }

    /// What of a keyed request's head must hold.
    fn seen(
        &self,
        key: &[u8],
        head: &request::Parts,
        origin: &Origin,
        route: &Route,
        stamp: &mut Stamp,
    ) -> Result<(Key, Scope), Refusal> {
        let key = Key::parse(key, route.key.syntax, route.key.limits)?;
        stamp.with_trail(|trail| trail.key(&key));
        let scope = caller::scope(&self.shared.salt, &route.scope, head, origin.trusted)?;
        if let Some((name, value)) = route.key.header().and_then(|name| Some((name, head.headers.get(name)?))) {
            stamp.echo(name, value);
        }
        if let Some(max_age) = route.max_age {
            check_age(&head.headers, max_age, self.shared.tenure.store_now())?;
        }
        Ok((key, scope))
    }
}

/// Where the request comes from, and whether that peer's word about earlier hops is taken.
pub(super) fn origin(head: &request::Parts, client: &Client, config: &Config) -> Origin {
    let peer = client.peer.to_canonical();
    Origin {
        peer,
        trusted: config.trusted_proxies.iter().any(|net| net.contains(&peer)),
        host: effective_host(head),
        version: head.version,
        secure: client.secure,
    }
}

impl Shared {
    /// How long after it asked for its reservation an attempt may still send its first byte: as long as the store may
    /// take to answer, and a second for a busy machine. Later, quiescence could be over before the attempt is.
    pub(super) fn send_within(&self) -> Duration {
        self.config.store.timeout + Duration::from_secs(1)
    }

    /// From its reservation on, an attempt may wait so long for its first byte, and then as long as its route says.
    pub fn time_limit(&self, route: &Route) -> Duration {
        self.send_within() + route.upstream_timeout
    }

    /// What the store is asked for a keyed request.
    fn ask(&self, seen: &Seen<'_>, key: Key, scope: Scope, service: &Arc<str>) -> Ask {
        let Seen { head, body, route, secrets, .. } = *seen;
        let fingerprint = route
            .recipe
            .fingerprint(&parts(head, body), secrets)
            .expect("a route's own recipe uses the current secret");
        let space = space(route, head);
        Ask {
            id: RecordId::of(service, &scope, &space, &key),
            service: Arc::clone(service),
            scope,
            space,
            key,
            path: path(route, head),
            route: Arc::clone(&route.name),
            recipe: route.recipe.clone(),
            fingerprint,
            instance: self.tenure.id(),
            token: fresh_token(),
            time_limit: self.time_limit(route),
        }
    }

    /// Key and scope of a request that is only looked at, or why it would be refused. `None` without a key.
    pub(super) fn would_ask(&self, seen: &Seen<'_>, service: &Arc<str>) -> Result<Option<Ask>, Refusal> {
        let Seen { head, body, origin, route, .. } = *seen;
        check_nominated(&head.headers, route)?;
        let key = match place::in_head(head, &route.key)? {
            None => place::in_body(&head.headers, body, route)?,
            some => some,
        };
        let Some(key) = key else {
            return if route.key.required { Err(Refusal::KeyMissing) } else { Ok(None) };
        };
        let key = Key::parse(&key, route.key.syntax, route.key.limits)?;
        let scope = caller::scope(&self.salt, &route.scope, head, origin.trusted)?;
        if let Some(max_age) = route.max_age {
            check_age(&head.headers, max_age, self.tenure.store_now())?;
        }
        Ok(Some(self.ask(seen, key, scope, service)))
    }
}

/// A request with its body, and by what it is looked at.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) head: &'a request::Parts,
    pub(super) body: &'a [u8],
    pub(super) origin: &'a Origin,
    pub(super) route: &'a Route,
    pub(super) secrets: &'a Secrets,
}

impl Seen<'_> {
    /// Whether this request is the one that the record was made for.
    pub(super) fn is_what(&self, ask: &Ask, record: &Record) -> bool {
        is_what(ask, &parts(self.head, self.body), self.secrets, record)
    }
}

/// Compares by the record's own recipe. What cannot be compared any more (its secret is gone) is not the same: nobody gets
/// an answer that may be another request's.
fn is_what(ask: &Ask, parts: &Parts<'_>, secrets: &Secrets, record: &Record) -> bool {
    if record.recipe == ask.recipe {
        return record.fingerprint == ask.fingerprint;
    }
    let fingerprint = record.recipe.fingerprint(parts, secrets);
    fingerprint.is_some_and(|fingerprint| fingerprint == record.fingerprint)
}

/// A request that nothing guards, ready for the upstream.
fn unguarded(mut head: request::Parts, body: Body, origin: &Origin, upstream: &Upstream, client: &Client) -> Admission {
    let trailers = fields::accepts_trailers(&head.headers);
    let upgrade = pass::upgrade(&head.headers, head.version);
    fields::towards_service(&mut head.headers, origin);
    head.version = http::Version::HTTP_11;
    let request = Request::from_parts(head, body);
    let (upstream, tie) = (upstream.clone(), client.ties.tie());
    Admission::Unguarded(Box::new(Passing { request, trailers, upgrade, upstream, tie }))
}

const NOMINATED: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The Connection field names a field that must not disappear on the way.",
);

fn check_nominated(headers: &HeaderMap, route: &Route) -> Result<(), Refusal> {
    let needed: Vec<_> = route.key.header().into_iter().chain(route.scope.header_names()).collect();
    if fields::nominates(headers, &needed) { Err(NOMINATED) } else { Ok(()) }
}

/// What the request is addressed to: the target's authority where it has one (RFC 9112 section 3.2.2), else `Host`. A
/// user before the host is no part of it (RFC 9110 section 4.2.4), and would lead past the host's own routes.
fn effective_host(head: &request::Parts) -> Option<HeaderValue> {
    let named = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get(HOST)?.as_bytes(),
    };
    HeaderValue::from_bytes(named.rsplit(|byte| *byte == b'@').next()?).ok()
}

/// A request that says it was first sent longer ago than a key is remembered must not be taken for a new one.
fn check_age(headers: &HeaderMap, max_age: Duration, now: SystemTime) -> Result<(), Refusal> {
    let Some(said) = headers.get(FIRST_SENT).or_else(|| headers.get(DATE)) else { return Ok(()) };
    let sent = said.to_str().ok().and_then(|said| httpdate::parse_http_date(said).ok());
    match sent.map(|sent| now.duration_since(sent).unwrap_or_default()) {
        Some(age) if age <= max_age => Ok(()),
        Some(_) => Err(Refusal::RequestTooOld),
        None => Err(Refusal::BadRequest(StatusCode::BAD_REQUEST, "The time at which the request was sent is no date.")),
    }
}

/// Within what the key is unique.
fn space(route: &Route, head: &request::Parts) -> Bytes {
    match route.space {
        // Where a route is for one host, another host's route may have the same path.
        Space::Path => {
            let host = route.host.as_deref().unwrap_or_default();
            Bytes::from(format!("{} {host}{}", head.method, head.uri.path()))
        }
        Space::Route => Bytes::from(format!("route {}", route.name)),
        Space::Service => Bytes::from_static(b"service"),
    }
}

/// What is kept of a request's target: nothing, unless the service is to be asked with it.
fn path(route: &Route, head: &request::Parts) -> Option<Bytes> {
    let asks_with_it = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.names_path());
    let sent = head.uri.path_and_query().filter(|_| asks_with_it)?;
    Some(Bytes::copy_from_slice(sent.as_str().as_bytes()))
}

fn parts<'a>(head: &'a request::Parts, body: &'a [u8]) -> Parts<'a> {
    Parts { method: head.method.as_str(), path: head.uri.path(), query: head.uri.query(), headers: &head.headers, body }
}

/// 128 bits that nobody can guess, and that never come again.
pub(super) fn fresh_token() -> Token {
    thread_local! {
        /// Drawn many at once: one call of the system for each token was a twentieth of a replay.
        static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.is_empty() {
            drawn.resize(TOKENS_AT_ONCE, [0; 16]);
            getrandom::fill(drawn.as_flattened_mut()).expect("the operating system has random numbers");
        }
        Token::from_random(drawn.pop().expect("some were just drawn"))
    })
}

/// A kibibyte for each thread.
const TOKENS_AT_ONCE: usize = 64;
