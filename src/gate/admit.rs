//! Admits a request: finds its route, key, scope, body and fingerprint. This is all that the store needs for a reservation.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, request};

use super::client::ClientConnection;
use super::first_sent;
use super::pass::{self, PassThroughRequest};
use super::response_context::ResponseContext;
use super::routing::ActiveRoute;
use super::worker::{Gate, LiveConfig};
use crate::body::request_body::RequestBody;
use crate::body::{Body, ConnectionGuard};
use crate::config::{BODY_BYTES_MAX, Config, Route, RouteMode};
use crate::domain::attempt::ReserveRequest;
use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::Token;
use crate::domain::kept_path;
use crate::domain::key::{Key, KeyLimits};
use crate::domain::normal_path::has_unsafe_character;
use crate::instance::Instance;
use crate::instance::metrics::MethodLabel;
use crate::machine::fill_random;
use crate::protocol::early_hints;
use crate::protocol::fields::{self, RequestOrigin};
use crate::protocol::refusal::Refusal;
use crate::upstream::UpstreamClient;

use fingerprinting::FingerprintSource;
use identity::{Incoming, KeySearch, RequestIdentity};
use key_location::check_without_key;
use origin::{client_address, request_origin};
use read_body::BodyReader;
use read_only::{may_only_read, only_reads};
use route_search::{RouteSearch, find_route};

pub use guarded_request::GuardedRequest;
pub(super) use message::AdmitError;
pub use message::Message;

pub mod explain;
pub(super) mod fingerprinting;
mod guarded_request;
pub(super) mod identity;
mod key_location;
mod message;
mod method_override;
pub(super) mod observed;
pub(super) mod origin;
pub(super) mod read_body;
mod read_only;
mod route_search;
pub(super) mod scope;
mod single_field;
mod stored_key;
pub mod token;

/// An admitted request.
pub enum Admission {
    /// A route guards the request, and the request has a key. Boxed, because it is larger than the other variants.
    Guarded(Box<GuardedRequest>),
    /// A route observes the request.
    Observed(Box<ObservedRequest>),
    /// Nothing guards the request: it streams through.
    Unguarded(Box<PassThroughRequest>),
}

impl From<PassThroughRequest> for Admission {
    fn from(passing: PassThroughRequest) -> Self {
        Self::Unguarded(Box::new(passing))
    }
}

/// A request on a route with `mode = "observe"`.
pub struct ObservedRequest {
    pub(super) head: request::Parts,
    pub(super) body: RequestBody,
    pub(super) origin: RequestOrigin,
    pub(super) active: ActiveRoute,
    pub(super) config: Arc<Config>,
    pub(super) tie: ConnectionGuard,
    /// Whether its refusal is foretold already, because of its path or the method that it names.
    pub(super) is_foretold: bool,
}

impl Gate {
    /// Reads as much of a request as its reservation needs. Nothing is reserved before the whole body is in: the fingerprint
    /// needs it, and a client that goes away before that has requested nothing.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        client: &ClientConnection,
        live: &LiveConfig,
        context: &mut ResponseContext,
    ) -> Result<Admission, Refusal> {
        let (head, body) = request.into_parts();
        let origin = request_origin(&head, client, &live.config);
        let unguarded = |head, body, upstream: &UpstreamClient, route: Option<&Arc<Route>>| {
            unguarded(head, body, &origin, upstream, client, live, route)
        };
        let RouteSearch { found, foretold } = find_route(&head, origin.host_name(), &live.router);
        let is_foretold = foretold.is_some();
        if let Some((observing, refusal)) = foretold {
            context.observe(&self.instance.observability, &head, &observing.metrics);
            self.foretell_refusal(&head, &origin, observing, live, refusal);
        }
        let active = match found {
            Ok(Some(active)) => active,
            Err((evaded, refusal)) => {
                self.note_evaded_route(&head, evaded, context);
                return Err(refusal);
            }
            Ok(None) if fields::connection_lists_any(&head.headers, &[]) => return Err(NOMINATED_FIELD),
            Ok(None) if live.config.refuses_unguarded() && MethodLabel::from_method(&head.method).changes_state() => {
                return Err(Refusal::Unguarded);
            }
            Ok(None) => {
                return Ok(unguarded(head, Body::Streaming(body), &live.pass_through, None).into());
            }
        };
        let route = &active.route;
        context.note_route(route);
        match route.mode {
            // The service needs the fields that name the caller, as on a path without a route.
            RouteMode::Off if fields::connection_lists_any(&head.headers, &[]) => return Err(NOMINATED_FIELD),
            RouteMode::Off => {
                return Ok(unguarded(head, Body::Streaming(body), &active.upstream, Some(route)).into());
            }
            RouteMode::Observe => {
                context.observe(&self.instance.observability, &head, &active.metrics);
                let (config, tie) = (Arc::clone(&live.config), client.ties.attach());
                let active = active.clone();
                let observed = ObservedRequest { head, body, origin, active, config, tie, is_foretold };
                return Ok(Admission::Observed(Box::new(observed)));
            }
            RouteMode::Enforce => context.guard(&self.instance.observability, &head, &active.metrics),
        }
        let mut share = self.instance.bodies.share();
        let mut reader = BodyReader::new(body, &head.headers);
        if may_only_read(&head, route)
            && let Some(whole) = reader.read(route.max_request_body, &mut share).await?
        {
            if only_reads(&head, &whole, route, &self.fingerprinting).await {
                check_nominated(&head.headers, route)?;
                context.unguard();
                let body = Body::whole(whole).counted_in(share);
                let passing = unguarded(head, body, &active.upstream, Some(route));
                return Ok(PassThroughRequest { only_reads: true, ..passing }.into());
            }
            reader.put_back(whole);
        }
        let salt = self.instance.salt.current();
        let incoming = Incoming {
            head: &head,
            origin: &origin,
            route,
            verifier: active.token_verifier.as_deref(),
            // A key that was stored under other limits is still found.
            key_limits: KeyLimits::WIDEST,
            service: &self.instance.config.service,
            salt: salt.salt,
            secrets: &live.config.secrets,
        };
        let identified = match check_nominated(&head.headers, route) {
            Ok(()) => incoming.identify(None).await,
            Err(refusal) => Err(refusal),
        };
        let mut search = identified.inspect_err(|_| echo_valid_key(&head, route, context))?;
        if search != KeySearch::NoKey && self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        // Checked before the body is read: a client that waits for `100 Continue` then sends no body in vain.
        let mut broken_rule = self.check_head(&search, &incoming, salt.is_provisional, context).await?;
        let body = match &search {
            // Read without a key only where one is required.
            KeySearch::NoKey if reader.has_begun() => {
                return Err(key_location::missing(&route.key, &head.headers));
            }
            KeySearch::NoKey => Body::Streaming(reader.into_unread()),
            KeySearch::Found(_) | KeySearch::InBody => {
                let data = match (reader.read(route.max_request_body, &mut share).await?, &search) {
                    (None, KeySearch::Found(identity)) => {
                        let refusal = Refusal::RequestTooLarge(route.max_request_body);
                        broken_rule = Some(self.check_stored(identity, refusal, route, salt.is_provisional).await?);
                        reader.read(BODY_BYTES_MAX, &mut share).await?
                    }
                    (data, _) => data,
                };
                // Without the whole body there is no key in it to look up.
                Body::whole(data.ok_or(Refusal::RequestTooLarge(route.max_request_body))?)
            }
        };
        if let (KeySearch::InBody, Body::Whole { data, .. }) = (&search, &body) {
            search = incoming.identify(Some(data)).await?;
            broken_rule = self.check_head(&search, &incoming, salt.is_provisional, context).await?;
        }
        // A drain may have begun while the body came in.
        if matches!(search, KeySearch::Found(_)) && self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        match (search, body) {
            (KeySearch::Found(identity), Body::Whole { data: body, .. }) => {
                let secrets = live.config.secrets.clone();
                let source = FingerprintSource { head: &head, body: &body, secrets: &secrets };
                let fingerprint = self.fingerprinting.route_fingerprint(route, source).await;
                let reserve_request = self.instance.reserve_request(&head, route, identity, fingerprint);
                if !salt.is_provisional {
                    context.with_trace(|trace| trace.note_record(reserve_request.id));
                }
                let limits_keys = route.limits_new_keys();
                let client_address = limits_keys.then(|| client_address(&head, &origin, &live.config));
                let guarded = GuardedRequest {
                    reserve_request,
                    head,
                    body,
                    share,
                    origin,
                    client_address,
                    active: active.clone(),
                    secrets,
                    can_wait_for_store: false,
                    broken_rule,
                    is_provisional: salt.is_provisional,
                    store_clock: Arc::clone(&self.instance.store_clock),
                };
                Ok(Admission::Guarded(Box::new(guarded)))
            }
            (_, body) if !route.key.required => {
                context.unguard();
                let body = body.counted_in(share);
                Ok(unguarded(head, body, &active.upstream, Some(route)).into())
            }
            (_, _) => Err(key_location::missing(&route.key, &head.headers)),
        }
    }

    /// Checks the head of a request by what is known of its key, and notes the key. Returns the refusal of a new request that breaks
    /// a rule of the route: the key has a record all the same, which was made under an earlier rule.
    ///
    /// # Errors
    /// The refusal of a request without such a record.
    async fn check_head(
        &self,
        search: &KeySearch<RequestIdentity>,
        incoming: &Incoming<'_>,
        is_provisional: bool,
        context: &mut ResponseContext,
    ) -> Result<Option<Refusal>, Refusal> {
        let Incoming { head, route, .. } = *incoming;
        let identity = match search {
            KeySearch::Found(identity) => identity,
            KeySearch::InBody => return Ok(None),
            KeySearch::NoKey => return check_without_key(&head.headers, route).map(|()| None),
        };
        context.with_trace(|trace| trace.note_key(&identity.key));
        let now = || self.instance.store_clock.now();
        let checked = route.key.limits.check(&identity.key).map_err(Refusal::from);
        if checked.is_ok() {
            echo_key(head, route, context);
        }
        let Err(refusal) = checked.and_then(|()| first_sent::check(&head.headers, route, now)) else { return Ok(None) };
        // A field that is missing or malformed broke the earlier rules too: no retry of a stored key is spelled like this.
        if let Refusal::BadRequest(..) | Refusal::RequestFromFuture = refusal {
            return Err(refusal);
        }
        let refusal = Box::pin(self.check_stored(identity, refusal, route, is_provisional)).await?;
        echo_key(head, route, context);
        Ok(Some(refusal))
    }

    /// Lets the refusal of a request that would go around a route's guard look like the route's other refusals.
    fn note_evaded_route(&self, head: &request::Parts, evaded: &ActiveRoute, context: &mut ResponseContext) {
        context.note_route(&evaded.route);
        context.guard(&self.instance.observability, head, &evaded.metrics);
        echo_valid_key(head, &evaded.route, context);
    }
}

impl Instance {
    /// The reservation of a keyed request.
    fn reserve_request(
        &self,
        head: &request::Parts,
        route: &Route,
        identity: RequestIdentity,
        fingerprint: Fingerprint,
    ) -> ReserveRequest {
        let id = identity.record_id();
        let RequestIdentity { service, scope, space, key } = identity;
        ReserveRequest {
            id,
            service,
            scope,
            space,
            key,
            path: kept_path(route, head),
            route: Arc::clone(&route.name),
            recipe: route.recipe.clone(),
            fingerprint,
            instance: self.instance_lease.id(),
            token: fresh_token(),
            time_limit: self.attempt_time_limit(route),
            holder: None,
        }
    }
}

/// Echoes the field that the key was found in.
fn echo_key(head: &request::Parts, route: &Route, context: &mut ResponseContext) {
    if let Some((name, value)) = route.key.headers().find_map(|name| Some((name, head.headers.get(name)?))) {
        context.echo_key(name, value);
    }
}

/// Echoes the key of a request that is refused for another reason.
fn echo_valid_key(head: &request::Parts, route: &Route, context: &mut ResponseContext) {
    if let Ok(Some(key)) = key_location::in_head(head, &route.key)
        && Key::parse(&key, route.key.syntax, route.key.limits).is_ok()
    {
        echo_key(head, route, context);
    }
}

/// A request that nothing guards, with the fields for the service.
fn unguarded(
    mut head: request::Parts,
    mut body: Body,
    origin: &RequestOrigin,
    upstream: &UpstreamClient,
    client: &ClientConnection,
    live: &LiveConfig,
    route: Option<&Arc<Route>>,
) -> PassThroughRequest {
    // A gRPC client may keep a stream open without sending anything for hours.
    if let (Body::Streaming(stream), true) =
        (&mut body, upstream.shares_connections() && fields::is_grpc(&head.headers))
    {
        stream.limit_rate(None);
    }
    // Before the service's fields are prepared: it may be removed from them.
    let misspelled_key = live.misspelled_key_field(&head.headers).cloned();
    let trailers = fields::accepts_trailers(&head.headers);
    let upgrade = pass::asks_for_websocket(&head.headers, head.version);
    // HTTP/1.0 has no interim responses, and hyper sends none over HTTP/2. A client that asks for an upgrade waits for 101.
    let takes_hints =
        head.version == http::Version::HTTP_11 && !upgrade && !early_hints::is_taken_for_final(&head.headers);
    match &mut body {
        Body::Streaming(stream) => pass::prepare_streaming(&mut head.headers, stream, origin, route),
        _ => fields::prepare_for_service(&mut head.headers, origin, |name| pass::is_read(route, name)),
    }
    head.version = http::Version::HTTP_11;
    let mut request = Request::from_parts(head, body);
    if takes_hints {
        client.early_hints.collect(&mut request);
    }
    let (upstream, tie) = (upstream.clone(), client.ties.attach());
    PassThroughRequest { request, trailers, upgrade, only_reads: false, misspelled_key, upstream, tie }
}

const NOMINATED_FIELD: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The Connection field names a field that must not disappear on the way.",
);

/// Refuses a path with a character that services read in different ways.
pub(super) fn check_path(path: &str) -> Result<(), Refusal> {
    if has_unsafe_character(path) { Err(UNSAFE_CHARACTER) } else { Ok(()) }
}

const UNSAFE_CHARACTER: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The path has a backslash or a control character, which programs read in different ways.",
);

fn check_nominated(headers: &HeaderMap, route: &Route) -> Result<(), Refusal> {
    let needed: Vec<_> = route.key.headers().chain(route.scope.header_names()).collect();
    if fields::connection_lists_any(headers, &needed) { Err(NOMINATED_FIELD) } else { Ok(()) }
}

/// The part of the request's target that the record keeps: the path and query if `reconcile.url` uses them, else the path for
/// people. Nobody looks at the keys of a route that observes.
fn kept_path(route: &Route, head: &request::Parts) -> Option<Bytes> {
    let url_uses_path = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.names_path());
    match (route.mode, head.uri.path_and_query()) {
        (_, Some(target)) if url_uses_path => Some(kept_path::keep_target(target.as_str())),
        (RouteMode::Enforce, _) => Some(kept_path::keep_path(head.uri.path())),
        (RouteMode::Observe | RouteMode::Off, _) => None,
    }
}

/// A token: 128 bits from the operating system's generator.
pub(super) fn fresh_token() -> Token {
    thread_local! {
        /// Tokens are drawn many at once: one system call for each token took a twentieth of a replay's time.
        static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.is_empty() {
            drawn.resize(TOKENS_AT_ONCE, [0; 16]);
            fill_random(drawn.as_flattened_mut()).expect("the operating system has random numbers");
        }
        Token::from_random(drawn.pop().expect("some were just drawn"))
    })
}

/// A kibibyte for each thread.
const TOKENS_AT_ONCE: usize = 64;
