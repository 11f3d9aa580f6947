//! Admits a request: finds its route, its identity, its body and its fingerprint, which are all that the store needs for a reservation.
//!
//! Four steps over one `Incoming` value. Requests take them here, copies of observed requests in `observed`,
//! messages in `message`, and `oncegate explain` in `explain`:
//!
//! 1. `route_search` finds the route.
//! 2. `identity` finds the key (`key_location`) and the caller (`scope`, `token`).
//! 3. `read_body` reads the body.
//! 4. `fingerprinting` computes the fingerprint, and `reservation` makes the reservation.

use std::sync::Arc;

use http::{Request, request};

use super::first_sent;
use super::pass::PassThroughRequest;
use super::response_context::ResponseContext;
use super::routing::ActiveRoute;
use super::worker::{Gate, LiveConfig};
use crate::instance::metrics::MethodLabel;
use oncegate_domain::key::{Key, KeyLimits};
use oncegate_domain::normal_path::RequestPath;
use oncegate_http::body::Body;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::upstream::UpstreamClient;
use oncegate_settings::{BODY_BYTES_MAX, Route, RouteMode};

use body_operation::BodyOperation;
use identity::{KeySearch, RequestIdentity};
use incoming::{Incoming, Realm};
use key_location::{NOMINATED_FIELD, check_nominated, check_without_key};
use observed::Observation;
use origin::request_origin;
use read_body::BodyReader;
use route_search::{RouteSearch, find_route};

pub use guarded_request::GuardedRequest;
pub(super) use message::AdmitError;
pub use message::Message;
pub use reservation::fresh_token;
pub(super) use route_search::check_path;

mod body_operation;
pub mod explain;
pub(super) mod fingerprinting;
mod guarded_request;
mod identity;
pub(super) mod incoming;
mod key_location;
mod message;
mod method_override;
pub(super) mod observed;
pub(super) mod origin;
pub(super) mod read_body;
mod reservation;
mod route_search;
mod scope;
mod single_field;
mod stored_key;
pub mod token;

/// An admitted request.
pub enum Admission {
    /// A route guards the request, and the request has a key. Boxed, because it is larger than the other variants.
    Guarded(Box<GuardedRequest>),
    /// A route observes the request: it streams through. `None` if its refusal is foretold already.
    Observed(Box<PassThroughRequest>, Option<Box<Observation>>),
    /// Nothing guards the request: it streams through.
    Unguarded(Box<PassThroughRequest>),
}

impl Gate {
    /// Reads as much of a request as its reservation needs. Nothing is reserved before the whole body is in: the fingerprint
    /// needs it, and a client that goes away before that has requested nothing.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        path: &RequestPath<'_>,
        client: &ClientConnection,
        live: &LiveConfig,
        context: &mut ResponseContext,
    ) -> Result<Admission, Refusal> {
        let (head, body) = request.into_parts();
        let origin = request_origin(&head, client, &live.config);
        let pass = |head, body, upstream: &UpstreamClient, route: Option<&Arc<Route>>| {
            Box::new(PassThroughRequest::new((head, body), &origin, upstream, client, live, route))
        };
        let RouteSearch { found, foretold } = find_route(&head, path, origin.host_name(), &live.router);
        let is_foretold = foretold.is_some();
        if let Some((observing, refusal)) = foretold {
            context.observe(&self.instance.observability, &head, &observing.metrics);
            Observation::new(self, &head, &origin, observing, live).foretell(refusal);
        }
        let active = match found {
            Ok(Some(active)) => active,
            Err((evaded, refusal)) => {
                self.note_evaded_route(&head, evaded, context);
                return Err(refusal);
            }
            Ok(None) if fields::connection_lists_any(&head.headers, &[]) => return Err(NOMINATED_FIELD),
            Ok(None) if live.config.refuses_unguarded && MethodLabel::from_method(&head.method).changes_state() => {
                return Err(Refusal::Unguarded);
            }
            Ok(None) => {
                return Ok(Admission::Unguarded(pass(head, Body::Streaming(body), &live.pass_through, None)));
            }
        };
        let route = &active.route;
        context.note_route(route);
        match route.options.mode {
            // The service needs the fields that name the caller, as on a path without a route.
            RouteMode::Off if fields::connection_lists_any(&head.headers, &[]) => return Err(NOMINATED_FIELD),
            RouteMode::Off => {
                return Ok(Admission::Unguarded(pass(head, Body::Streaming(body), &active.upstream, Some(route))));
            }
            RouteMode::Observe => {
                context.observe(&self.instance.observability, &head, &active.metrics);
                let observe = || Box::new(Observation::new(self, &head, &origin, active, live));
                let observation = (!is_foretold).then(observe);
                let passing = pass(head, Body::Streaming(body), &active.upstream, Some(route));
                return Ok(Admission::Observed(passing, observation));
            }
            RouteMode::Enforce => context.guard(&self.instance.observability, &head, &active.metrics),
        }
        let mut share = self.instance.bodies.share();
        let mut reader = BodyReader::new(body, &head.headers);
        // The body and the operation of a request whose key may be in both of its parts, or whose operation is a part of its space.
        let (mut whole, mut operation) = (None, None);
        if body_operation::is_needed(&head, route) {
            match reader.read(route.options.max_request_body, &mut share).await? {
                None if route.options.dialect.is_jsonrpc() => {
                    return Err(Refusal::RequestTooLarge(route.options.max_request_body));
                }
                None => {}
                Some(body) => match body_operation::read(&head, &body, route, &self.fingerprinting).await {
                    BodyOperation::Passes { only_reads } => {
                        check_nominated(&head.headers, route)?;
                        context.unguard();
                        let passing = pass(head, Body::whole(body).counted_in(share), &active.upstream, Some(route));
                        return Ok(Admission::Unguarded(Box::new(PassThroughRequest { only_reads, ..*passing })));
                    }
                    BodyOperation::Refused(refusal) => return Err(refusal),
                    BodyOperation::Call(call) => {
                        context.note_rpc_id(call.id);
                        operation = Some(call.operation);
                        whole = Some(body.clone());
                        reader.put_back(body);
                    }
                    BodyOperation::Unnamed => {
                        whole = route.options.dialect.is_jsonrpc().then(|| body.clone());
                        reader.put_back(body);
                    }
                },
            }
        }
        let salt = self.instance.salt.current();
        let realm = Realm { service: &self.instance.config.service, salt: salt.salt };
        let incoming = Incoming {
            verifier: active.token_verifier.as_deref(),
            // A key that was stored under other limits is still found.
            key_limits: KeyLimits::WIDEST,
            operation: operation.as_ref(),
            ..Incoming::new((&head, path), &origin, route, realm, &live.config.secrets)
        };
        let identified = match check_nominated(&head.headers, route) {
            Ok(()) => incoming.identify(whole.as_deref()).await,
            Err(refusal) => Err(refusal),
        };
        let mut search = identified.inspect_err(|_| echo_valid_key(&head, route, context))?;
        if search != KeySearch::NoKey && self.draining.is_cancelled() {
            return Err(Refusal::Draining);
        }
        // Checked before the body is read: a client that waits for `100 Continue` then sends no body in vain.
        let mut broken_rule = self.check_head(&search, &incoming, salt.is_provisional, context).await?;
        if search == KeySearch::NoKey {
            // A body of GraphQL is read without a key only where one is required.
            if route.options.key.required || whole.is_none() && reader.has_begun() {
                return Err(key_location::missing(&route.options.key, &head.headers));
            }
            context.unguard();
            let body = whole.map_or_else(|| Body::Streaming(reader.into_unread()), Body::whole).counted_in(share);
            return Ok(Admission::Unguarded(pass(head, body, &active.upstream, Some(route))));
        }
        let data = match (reader.read(route.options.max_request_body, &mut share).await?, &search) {
            (None, KeySearch::Found(identity)) => {
                let refusal = Refusal::RequestTooLarge(route.options.max_request_body);
                broken_rule = Some(self.check_stored(identity, refusal, route, salt.is_provisional).await?);
                reader.read(BODY_BYTES_MAX, &mut share).await?
            }
            (data, _) => data,
        };
        // Without the whole body there is no key in it to look up.
        let body = data.ok_or(Refusal::RequestTooLarge(route.options.max_request_body))?;
        if search == KeySearch::InBody {
            search = incoming.identify(Some(&body)).await?;
            broken_rule = self.check_head(&search, &incoming, salt.is_provisional, context).await?;
        }
        let identity = match search {
            // A drain may have begun while the body came in.
            KeySearch::Found(_) if self.draining.is_cancelled() => return Err(Refusal::Draining),
            KeySearch::Found(identity) => identity,
            KeySearch::InBody | KeySearch::NoKey if route.options.key.required => {
                return Err(key_location::missing(&route.options.key, &head.headers));
            }
            KeySearch::InBody | KeySearch::NoKey => {
                context.unguard();
                let body = Body::whole(body).counted_in(share);
                return Ok(Admission::Unguarded(pass(head, body, &active.upstream, Some(route))));
            }
        };
        let fingerprint = self.fingerprinting.route_fingerprint(&incoming, &body).await;
        let reserve_request = self.instance.reserve_request(&head, route, identity, fingerprint);
        if !salt.is_provisional {
            context.with_trace(|trace| trace.note_record(reserve_request.id));
        }
        let is_provisional = salt.is_provisional;
        let request = (head, body, share, origin);
        let guarded = GuardedRequest::new(&self.instance, reserve_request, request, active, &live.config);
        Ok(Admission::Guarded(Box::new(GuardedRequest { broken_rule, is_provisional, ..guarded })))
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
        let checked = route.options.key.limits.check(&identity.key).map_err(Refusal::from);
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

/// Echoes the field that the key was found in.
fn echo_key(head: &request::Parts, route: &Route, context: &mut ResponseContext) {
    if let Some((name, value)) = route.options.key.headers().find_map(|name| Some((name, head.headers.get(name)?))) {
        context.echo_key(name, value);
    }
}

/// Echoes the key of a request that is refused for another reason.
fn echo_valid_key(head: &request::Parts, route: &Route, context: &mut ResponseContext) {
    if let Ok(Some(key)) = key_location::in_head(head, &route.options.key)
        && Key::parse(&key, route.options.key.syntax, route.options.key.limits).is_ok()
    {
        echo_key(head, route, context);
    }
}
