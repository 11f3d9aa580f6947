//! Admits a message of a queue: the steps of a request, with the key and the caller's scope that its consumer gives.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use super::body_operation;
use super::guarded_request::{GuardedRequest, ReceivedRequest};
use super::identity::KeySearch;
use super::incoming::{Incoming, Realm};
use super::route_search::{OVERRIDDEN_METHOD, check_path, find_evaded_route};
use super::rules;
use crate::gate::state::{Gate, LiveConfig};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::route_table::RouteMatch;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Consumer, Route, RouteMode};
use oncegate_telemetry::traces::TraceParent;

/// A message that is to be executed at most once.
#[derive(Clone, Debug)]
pub struct Message {
    /// The queue that the message is from, with its configuration.
    pub consumer: Arc<Consumer>,
    /// The topic that it is from; `None` for the queue.
    pub topic: Option<Arc<str>>,
    /// The path that the message is posted to.
    pub path: String,
    /// The message's key, unchecked.
    pub key: Bytes,
    /// The header fields for the service. The scope comes from them.
    pub headers: HeaderMap,
    /// The message's body.
    pub body: Bytes,
    /// The broker's address.
    pub broker: IpAddr,
}

/// The reason why a message is not admitted.
pub(in crate::gate) enum AdmitError {
    /// Its route does not guard at the moment, because a reload has just removed it.
    NoRoute,
    /// The refusal that a request would get.
    Refused(Refusal),
}

impl From<Refusal> for AdmitError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

const PATH_NOT_GUARDED: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The path that the message's headers make is not one that its route guards.",
);

impl Gate {
    /// The guarded request of a message. The key and the scope are the consumer's; the rest of the policy is the
    /// route's.
    pub(in crate::gate) async fn admit_message(
        &self,
        message: Message,
        live: &LiveConfig,
    ) -> Result<Box<GuardedRequest>, AdmitError> {
        if self.instance.draining.is_cancelled() {
            return Err(Refusal::Draining.into());
        }
        let Message { consumer, topic: _, path, key, headers, body, broker } = message;
        let named = live.config.routes.iter().find(|route| route.name == consumer.route);
        let Some(route) = named.filter(|route| route.options.mode == RouteMode::Enforce) else {
            return Err(AdmitError::NoRoute);
        };
        let uri: Uri = path.parse().map_err(|_| PATH_NOT_GUARDED)?;
        check_path(uri.path())?;
        let origin = message_origin(&consumer, broker, route);
        let (mut head, ()) = Request::new(()).into_parts();
        (head.method, head.uri, head.headers) = (Method::POST, uri, headers);
        let target = head.uri.clone();
        let path = RequestPath::new(target.path());
        // The same table as for requests, so that no message reaches a path under another route's policy.
        let service = live.router.service_named(&route.service.name).expect("each route has its service");
        let active = match service.table.find(&head.method, &path) {
            RouteMatch::Route(active) if active.route.name == consumer.route => active,
            RouteMatch::Ambiguous(_) | RouteMatch::NoRoute | RouteMatch::Route(_) => {
                return Err(PATH_NOT_GUARDED.into());
            }
        };
        let route = &active.route;
        let salt = active.salt.current();
        let realm = Realm { service: &route.service.name, salt: salt.salt };
        // Its consumer has it guarded whatever its body names.
        let operation = body_operation::read_at_once(&head, &body, route);
        let incoming = Incoming {
            operation: operation.call(),
            scope: &consumer.scope,
            given_key: Some(&key),
            ..Incoming::new((&head, &path), &origin, route, realm)
        };
        let search = incoming.identify(Some(&body), Some(&self.fingerprinting)).await?;
        let evaded = find_evaded_route(&head, &path, service);
        let is_overridden = evaded.is_some_and(|evaded| evaded.route.options.mode == RouteMode::Enforce);
        let checked = if is_overridden { Err(OVERRIDDEN_METHOD) } else { Ok(()) };
        // The key's record answers a message that breaks a rule, as for each guarded request.
        let broken_rule = checked
            .and_then(|()| rules::check_key(&incoming, &search, || self.instance.store_clock.now()))
            .and_then(|()| rules::check_body(route, body.len()))
            .err();
        let KeySearch::Found(identity) = search else { unreachable!("a message's key is given") };
        set_message_fields(&mut head.headers, &key, route)?;
        // The broker holds back more messages than `prefetch`, so that their bodies are bounded.
        let share = self.instance.bodies.share_of(body.len());
        let trace = TraceParent::from_headers(&head.headers).map(|parent| parent.trace);
        let received = Box::new(ReceivedRequest { head, body, share, origin });
        Ok(Box::new(GuardedRequest {
            client_address: None,
            can_wait_for_store: true,
            broken_rule,
            is_provisional: salt.is_provisional,
            ..self.guard(identity, received, &path, active, &live.config, trace).await
        }))
    }
}

fn message_origin(consumer: &Consumer, broker: IpAddr, route: &Route) -> RequestOrigin {
    RequestOrigin {
        peer: broker,
        // The broker names no earlier hops.
        trusted: false,
        host: Some(host(route)),
        version: Version::HTTP_11,
        secure: consumer.has_tls(),
        certificate: None,
    }
}

/// Sets the fields of a message for the service. The consumer says which key counts. The service must not find another
/// one in a field that it may prefer.
fn set_message_fields(headers: &mut HeaderMap, key: &[u8], route: &Route) -> Result<(), Refusal> {
    for name in route.options.key.headers() {
        headers.remove(name);
    }
    if let Some(name) = route.options.key.headers().next() {
        let value = HeaderValue::from_bytes(key).map_err(|_| Refusal::KeyInvalid("The key is no field's value."))?;
        headers.insert(name, value);
    }
    // The upstream's host is no part of the message: it may be another one when the message comes again.
    match route.service.hosts.first() {
        Some(_) => drop(headers.insert(HOST, host(route))),
        None => drop(headers.remove(HOST)),
    }
    Ok(())
}

/// The host that a message is addressed to: the first one of the service, else the upstream's.
fn host(route: &Route) -> HeaderValue {
    let named = route.service.hosts.first().map(|host| &**host).unwrap_or_else(|| route.service.upstream.host());
    HeaderValue::from_str(named).expect("a host is visible ASCII")
}
