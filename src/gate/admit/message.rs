//! Admits a message of a queue: the same checks as for a request.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use super::fingerprinting::FingerprintSource;
use super::identity::{self, RequestIdentity};
use super::scope::CallerProofs;
use super::token::CallerToken;
use super::{GuardedRequest, check_path, scope};
use crate::config::{Consumer, Route, RouteMode};
use crate::domain::key::{Key, KeyLimits};
use crate::domain::route_table::RouteMatch;
use crate::gate::first_sent;
use crate::gate::worker::{Gate, LiveConfig};
use crate::protocol::fields::RequestOrigin;
use crate::protocol::refusal::Refusal;

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
        let Some(route) = named.filter(|route| route.mode == RouteMode::Enforce) else {
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
            secure: consumer.broker.tls,
            certificate: None,
        };
        // The same table as for requests, so that no message reaches a path under another route's policy.
        let active = match live.router.find(&Method::POST, origin.host_name(), uri.path()) {
            RouteMatch::Route(active) if active.route.name == consumer.route => active.clone(),
            RouteMatch::Ambiguous(_) | RouteMatch::NoRoute | RouteMatch::Route(_) => {
                return Err(PATH_NOT_GUARDED.into());
            }
        };
        let route = &active.route;
        let (mut head, ()) = Request::new(()).into_parts();
        (head.method, head.uri, head.headers) = (Method::POST, uri, headers);
        // A key that was stored under other limits is still found.
        let key_parsed = Key::parse(&key, route.key.syntax, KeyLimits::WIDEST).map_err(Refusal::from)?;
        // A queue that is configured here is trusted: its publishers set the scope's headers.
        let proofs = CallerProofs { untrusted_peer: None, token: &CallerToken::Unread, certificate: None };
        let caller = scope::read_parts(&consumer.scope, &head, proofs)?;
        let now = self.instance.store_clock.now();
        let check_body = || match body.len() > route.max_request_body {
            true => Err(Refusal::RequestTooLarge(route.max_request_body)),
            false => Ok(()),
        };
        let check_age = || route.max_age.map_or(Ok(()), |limit| first_sent::check_age(&head.headers, limit, now));
        let check_key = || route.key.limits.check(&key_parsed).map_err(Refusal::from);
        let broken_rule = check_body().and_then(|()| check_key()).and_then(|()| check_age()).err();
        // The consumer says which key counts. The service must not find another one in a field that it may prefer.
        for name in route.key.headers() {
            head.headers.remove(name);
        }
        if let Some(name) = route.key.headers().next() {
            let value =
                HeaderValue::from_bytes(&key).map_err(|_| Refusal::KeyInvalid("The key is no field's value."))?;
            head.headers.insert(name, value);
        }
        // The upstream's host is no part of the message: it may be another one when the message comes again.
        match &route.host {
            Some(_) => drop(head.headers.insert(HOST, host(route))),
            None => drop(head.headers.remove(HOST)),
        }
        let secrets = live.config.secrets.clone();
        let salt = self.instance.salt.current();
        let identity = RequestIdentity {
            service: Arc::clone(&self.instance.config.service),
            scope: scope::hash(salt.salt, &caller),
            space: identity::key_space(route, &Method::POST, head.uri.path()),
            key: key_parsed,
        };
        let source = FingerprintSource { head: &head, body: &body, secrets: &secrets };
        let fingerprint = self.fingerprinting.route_fingerprint(route, source).await;
        let reserve_request = self.instance.reserve_request(&head, route, identity, fingerprint);
        // The broker holds back more messages than `prefetch`, so that their bodies are bounded.
        let share = self.instance.bodies.share_of(body.len());
        let store_clock = Arc::clone(&self.instance.store_clock);
        let can_wait_for_store = true;
        Ok(Box::new(GuardedRequest {
            reserve_request,
            head,
            body,
            share,
            origin,
            client_address: None,
            active,
            secrets,
            can_wait_for_store,
            broken_rule,
            is_provisional: salt.is_provisional,
            store_clock,
        }))
    }
}

/// The host that a message is addressed to: the route's own host, else the upstream's.
fn host(route: &Route) -> HeaderValue {
    let named = route.host.as_deref().unwrap_or_else(|| route.upstream.host());
    HeaderValue::from_str(named).expect("a host is visible ASCII")
}
