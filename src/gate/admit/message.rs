//! Admits a message of a queue: the steps of a request, with the key and the caller's scope that its consumer gives.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use super::body_operation::{self, BodyOperation};
use super::guarded_request::GuardedRequest;
use super::identity::KeySearch;
use super::incoming::{Incoming, Realm};
use super::method_override::find_evaded_route;
use super::route_search::{OVERRIDDEN_METHOD, check_path};
use crate::gate::first_sent;
use crate::gate::worker::{Gate, LiveConfig};
use oncegate_domain::key::KeyLimits;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::route_table::RouteMatch;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Consumer, Route, RouteMode};

/// A message that is to be executed at most once.
#[derive(Clone, Debug)]
pub struct Message {
    /// The queue that the message is from, with its configuration.
    pub consumer: Arc<Consumer>,
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
    /// The guarded request of a message. The key and the scope are the consumer's; the rest of the policy is the route's.
    pub(in crate::gate) async fn admit_message(
        &self,
        message: Message,
        live: &LiveConfig,
    ) -> Result<Box<GuardedRequest>, AdmitError> {
        if self.instance.draining.is_cancelled() {
            return Err(Refusal::Draining.into());
        }
        let Message { consumer, path, key, headers, body, broker } = message;
        let named = live.config.routes.iter().find(|route| route.name == consumer.route);
        let Some(route) = named.filter(|route| route.options.mode == RouteMode::Enforce) else {
            return Err(AdmitError::NoRoute);
        };
        let uri: Uri = path.parse().map_err(|_| PATH_NOT_GUARDED)?;
        check_path(uri.path())?;
        let origin = RequestOrigin {
            peer: broker,
            // The broker names no earlier hops.
            trusted: false,
            host: Some(host(route)),
            version: Version::HTTP_11,
            secure: consumer.has_tls(),
            certificate: None,
        };
        let (mut head, ()) = Request::new(()).into_parts();
        (head.method, head.uri, head.headers) = (Method::POST, uri, headers);
        let target = head.uri.clone();
        let path = RequestPath::new(target.path());
        // The same table as for requests, so that no message reaches a path under another route's policy.
        let active = match live.router.find(&head.method, origin.host_name(), &path) {
            RouteMatch::Route(active) if active.route.name == consumer.route => active,
            RouteMatch::Ambiguous(_) | RouteMatch::NoRoute | RouteMatch::Route(_) => {
                return Err(PATH_NOT_GUARDED.into());
            }
        };
        let route = &active.route;
        let salt = self.instance.salt.current();
        let realm = Realm { service: &self.instance.config.service, salt: salt.salt };
        let body_operation = body_operation::read_at_once(&head, &body, route);
        let operation = match &body_operation {
            BodyOperation::Call(call) => Some(&call.operation),
            BodyOperation::Passes { .. } | BodyOperation::Refused(_) | BodyOperation::Unnamed => None,
        };
        let incoming = Incoming {
            operation,
            scope: &consumer.scope,
            given_key: Some(&key),
            // A key that was stored under other limits is still found.
            key_limits: KeyLimits::WIDEST,
            ..Incoming::new((&head, &path), &origin, route, realm, &live.config.secrets)
        };
        let KeySearch::Found(identity) = incoming.identify(None).await? else {
            unreachable!("a message's key is given");
        };
        let now = self.instance.store_clock.now();
        let check_body = || match body.len() > route.options.max_request_body {
            true => Err(Refusal::RequestTooLarge(route.options.max_request_body)),
            false => Ok(()),
        };
        let evaded = find_evaded_route(&head, &path, origin.host_name(), &live.router);
        let check_method = || match evaded {
            Some(evaded) if evaded.route.options.mode == RouteMode::Enforce => Err(OVERRIDDEN_METHOD),
            Some(_) | None => Ok(()),
        };
        let check_age =
            || route.options.max_age.map_or(Ok(()), |limit| first_sent::check_age(&head.headers, limit, now));
        let check_key = || route.options.key.limits.check(&identity.key).map_err(Refusal::from);
        let broken_rule =
            check_body().and_then(|()| check_method()).and_then(|()| check_key()).and_then(|()| check_age()).err();
        // The consumer says which key counts. The service must not find another one in a field that it may prefer.
        for name in route.options.key.headers() {
            head.headers.remove(name);
        }
        if let Some(name) = route.options.key.headers().next() {
            let value =
                HeaderValue::from_bytes(&key).map_err(|_| Refusal::KeyInvalid("The key is no field's value."))?;
            head.headers.insert(name, value);
        }
        // The upstream's host is no part of the message: it may be another one when the message comes again.
        match &route.options.host {
            Some(_) => drop(head.headers.insert(HOST, host(route))),
            None => drop(head.headers.remove(HOST)),
        }
        let incoming = Incoming::new((&head, &path), &origin, route, realm, &live.config.secrets);
        let fingerprint = self.fingerprinting.route_fingerprint(&incoming, &body).await;
        let reserve_request = self.instance.reserve_request(&head, route, identity, fingerprint);
        // The broker holds back more messages than `prefetch`, so that their bodies are bounded.
        let share = self.instance.bodies.share_of(body.len());
        let request = (head, body, share, origin);
        Ok(Box::new(GuardedRequest {
            client_address: None,
            can_wait_for_store: true,
            broken_rule,
            is_provisional: salt.is_provisional,
            ..GuardedRequest::new(&self.instance, reserve_request, request, active, &live.config)
        }))
    }
}

/// The host that a message is addressed to: the route's own host, else the upstream's.
fn host(route: &Route) -> HeaderValue {
    let named = route.options.host.as_deref().unwrap_or_else(|| route.upstream.host());
    HeaderValue::from_str(named).expect("a host is visible ASCII")
}
