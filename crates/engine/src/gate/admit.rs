//! Admits a request: finds its route, its identity, its body and its fingerprint, which are all that the store needs
//! for a reservation.
//!
//! 1. `route_search` finds the route.
//! 2. `arrival` reads the request on its route, and asks `identity` for the key (`key_location`) and the caller
//!    (`scope`, `token`). `rules` has the rules that it must keep.
//! 3. `guarded_request` makes the reservation, with the fingerprint (`fingerprinting`).
//!
//! Copies of observed requests (`observed`) and `oncegate explain` (`explain`) take the same steps with the same rules.
//! Messages (`message`) have their key from their consumer, and keep the same rules.

use std::sync::Arc;

use http::{HeaderMap, Request, request};

use super::pass::PassThroughRequest;
use super::response_context::ResponseContext;
use super::routing::{ActiveRoute, ServiceRouter};
use super::state::{Gate, LiveConfig};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::RequestPlaces;
use oncegate_domain::scope::Salt;
use oncegate_http::body::Body;
use oncegate_http::body::body_budget::BudgetShare;
use oncegate_http::body::request_body::RequestBody;
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Route, RouteMode};

use arrival::{Arrival, ArrivedRequest, BodySource, KeyedRequest};
use incoming::{Incoming, Realm, request_origin};
use observed::Observation;
use read_body::BodyReader;
use route_search::{NO_SERVICE, RouteSearch, find_route};

pub use guarded_request::fresh_token;
pub(super) use guarded_request::{GuardedRequest, ReceivedRequest};
pub(super) use message::AdmitError;
pub use message::Message;
pub(super) use route_search::check_path;

mod arrival;
mod body_operation;
pub mod caller_token;
pub mod explain;
pub(super) mod fingerprinting;
mod guarded_request;
mod identity;
pub(super) mod incoming;
mod key_location;
mod message;
pub(super) mod observed;
pub(super) mod read_body;
mod route_search;
mod rules;
pub mod scope;

pub(super) enum Admission {
    /// The parts of a batch, each of which a route guards, and the memory that the whole takes.
    Batch(Vec<GuardedRequest>, BudgetShare),
    /// A route guards the request, and the request has a key. Boxed, because it is larger than the other variants.
    Guarded(Box<GuardedRequest>),
    /// A route observes the request: it streams through. `None` if its refusal is foretold already.
    Observed(Box<PassThroughRequest>, Option<Box<Observation>>),
    /// Nothing guards the request: it streams through.
    Unguarded(Box<PassThroughRequest>),
}

/// The head of a request, with its route if it has one.
struct RoutedRequest<'a> {
    head: request::Parts,
    path: &'a RequestPath<'a>,
    origin: RequestOrigin,
    client: &'a ClientConnection,
    live: &'a LiveConfig,
    /// Or the vendor's, whose path it has.
    active: Option<&'a ActiveRoute>,
    service: &'a ServiceRouter,
}

impl RoutedRequest<'_> {
    /// The request with a body, as it streams to its service.
    fn pass(self: Box<Self>, body: Body) -> Box<PassThroughRequest> {
        let Self { head, origin, client, live, active, service, .. } = *self;
        let of_service = (&service.pass_through, &service.weekly);
        let parts = active.map_or(of_service, |active| (&active.upstream, &active.metrics.weekly));
        let route = active.map(|active| &active.route);
        Box::new(PassThroughRequest::new((head, body), &origin, parts, client, live, route))
    }
}

impl Gate {
    /// Finds the route of a request, and reads as much of the request as its reservation needs. Nothing is reserved
    /// before the whole body is in: the fingerprint needs it, and a client that goes away before that has requested
    /// nothing.
    pub(super) async fn admit(
        self: &Arc<Self>,
        request: Box<Request<RequestBody>>,
        path: &RequestPath<'_>,
        client: &ClientConnection,
        live: &LiveConfig,
        context: &mut ResponseContext,
    ) -> Result<Admission, Refusal> {
        let (head, body) = (*request).into_parts();
        let origin = request_origin(&head, client, &live.config);
        let observability = &self.instance.observability;
        let service = live.router.service_of(origin.host_name()).ok_or(NO_SERVICE)?;
        let RouteSearch { found, foretold } = find_route(&head, path, (service, &live.router));
        let is_foretold = foretold.is_some();
        if let Some((observing, refusal)) = foretold {
            context.observe(observability, &head, &observing.metrics);
            Observation::new(self, &head, &origin, observing, live).foretell(refusal);
        }
        let active = found.map_err(|(evaded, refusal)| {
            // The refusal of a request that would go around a route's guard looks like the route's other refusals.
            context.note_route(&evaded.route, &evaded.metrics, &head.headers);
            context.guard(observability, &head, &evaded.metrics);
            let reader = key_location::place_reader(&evaded.route, path, &head);
            echo_valid_key(&reader, &evaded.route, context);
            refusal
        })?;
        if let Some(active) = active {
            context.note_route(&active.route, &active.metrics, &head.headers);
        }
        let owner = active.or_else(|| service.find_beside(&head.method, path));
        if let Some(owner) = owner {
            rules::check_path_of(&owner.route, &head, active.is_some())?;
        }
        // Only what goes to a vendor takes the settings of a route that does not guard it.
        let way = active.or(owner.filter(|owner| owner.route.vendor.is_some()));
        let routed = Box::new(RoutedRequest { head, path, origin, client, live, active: way, service });
        match active.map(|active| (active, active.route.options.mode)) {
            None | Some((_, RouteMode::Off)) => {
                rules::check_unguarded(&routed.head, active.is_some(), &live.config)?;
                Ok(Admission::Unguarded(routed.pass(Body::Streaming(body))))
            }
            Some((active, RouteMode::Observe)) => {
                context.observe(observability, &routed.head, &active.metrics);
                let observe = || Box::new(Observation::new(self, &routed.head, &routed.origin, active, live));
                let observation = (!is_foretold).then(observe);
                Ok(Admission::Observed(routed.pass(Body::Streaming(body)), observation))
            }
            Some((active, RouteMode::Enforce)) => {
                context.guard(observability, &routed.head, &active.metrics);
                self.admit_on_route(routed, active, body, context).await
            }
        }
    }

    /// Reads a request on a route that guards it.
    async fn admit_on_route(
        &self,
        routed: Box<RoutedRequest<'_>>,
        active: &ActiveRoute,
        body: RequestBody,
        context: &mut ResponseContext,
    ) -> Result<Admission, Refusal> {
        let RoutedRequest { head, path, origin, live, .. } = &*routed;
        let (path, live, salt) = (*path, *live, active.salt.current());
        let realm = Realm { service: &active.route.service.name, salt: salt.salt };
        let incoming = Incoming { token: active.into(), ..Incoming::new((head, path), origin, &active.route, realm) };
        let is_provisional = salt.is_provisional;
        let body = BodySource::Client(BodyReader::new(body, &head.headers), self.instance.bodies.share());
        let mut arrival = Arrival { gate: Some(self), context: Some(&mut *context), is_provisional, body };
        let arrived = arrival.read(incoming).await;
        let BodySource::Client(reader, share) = arrival.body else { unreachable!("it is the client's") };
        let places = key_location::place_reader(&active.route, path, head);
        match arrived.inspect_err(|_| echo_valid_key(&places, &active.route, context))? {
            ArrivedRequest::Unkeyed { body, only_reads } => {
                context.unguard();
                // A provisional salt names nobody in the store.
                let caller = if is_provisional { None } else { incoming.name_caller() };
                let body = body.map_or_else(|| Body::Streaming(reader.into_unread()), Body::whole).counted_in(share);
                Ok(Admission::Unguarded(Box::new(PassThroughRequest { only_reads, caller, ..*routed.pass(body) })))
            }
            ArrivedRequest::Batch(parts) => {
                let RoutedRequest { head, origin, .. } = *routed;
                let mut batch = Vec::with_capacity(parts.len());
                for KeyedRequest { identity, body, broken_rule } in parts {
                    let share = self.instance.bodies.share_of(body.len());
                    let received =
                        Box::new(ReceivedRequest { head: head.clone(), body, share, origin: origin.clone() });
                    let guarded = self.guard(identity, received, path, active, &live.config, context.trace_id()).await;
                    batch.push(GuardedRequest { broken_rule, is_provisional, ..guarded });
                }
                Ok(Admission::Batch(batch, share))
            }
            ArrivedRequest::Keyed(KeyedRequest { identity, body, broken_rule }) => {
                echo_key(&head.headers, &active.route, context);
                let RoutedRequest { head, origin, .. } = *routed;
                let received = Box::new(ReceivedRequest { head, body, share, origin });
                let guarded = self.guard(identity, received, path, active, &live.config, context.trace_id()).await;
                context.note(|state| state.client_address = guarded.reserve_request.client_address);
                if !is_provisional {
                    context.note_record(guarded.reserve_request.id);
                }
                Ok(Admission::Guarded(Box::new(GuardedRequest { broken_rule, is_provisional, ..guarded })))
            }
        }
    }
}

/// Echoes the field that the key was found in.
fn echo_key(headers: &HeaderMap, route: &Route, context: &mut ResponseContext) {
    // A secret is not sent back.
    if route.options.key.hash {
        return;
    }
    if let Some((name, value)) = route.options.key.headers().find_map(|name| Some((name, headers.get(name)?))) {
        context.echo_key(name, value);
    }
}

/// Echoes the key of a request that is refused for another reason.
fn echo_valid_key(reader: &RequestPlaces<'_>, route: &Route, context: &mut ResponseContext) {
    // The salt does not matter to a field.
    if let Ok(Some(found)) = key_location::find(route, reader, None, &Salt::new([0; 32]))
        && route.options.key.limits.check_length(found.length).is_ok()
    {
        echo_key(reader.headers, route, context);
    }
}
