//! The door for messages: the same questions as to a request, asked of what a queue brings.

use http::header::HOST;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};

use super::{Guarded, Seen, caller, check_age};
use crate::config::{Mode, Route, Upstream};
use crate::domain::key::Key;
use crate::gate::fields::Origin;
use crate::gate::message::Message;
use crate::gate::refuse::Refusal;
use crate::gate::{Gate, Live};

/// Why a message is not let in.
pub(in crate::gate) enum Turned {
    /// Its route does not guard at the moment: a reload has just taken it away.
    NoRoute,
    /// As a request would be.
    Refused(Refusal),
}

impl From<Refusal> for Turned {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

const NOT_ITS_PATH: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The path that the message's headers make is not one that its route guards.",
);

impl Gate {
    /// What the store is to be asked for a message. Key and scope are the message's own; all else is its route's.
    pub(in crate::gate) fn admit_message(&self, message: Message, live: &Live) -> Result<Box<Guarded>, Turned> {
        if self.shared.draining.is_cancelled() {
            return Err(Refusal::Draining.into());
        }
        let Message { consumer, path, key, headers, body, broker } = message;
        let named = live.config.routes.iter().find(|route| route.name == consumer.route);
        let Some(route) = named.filter(|route| route.mode == Mode::Enforce) else { return Err(Turned::NoRoute) };
        let uri: Uri = path.parse().map_err(|_| NOT_ITS_PATH)?;
        let origin = Origin {
            peer: broker,
            // Nobody before the broker has said anything about himself.
            trusted: false,
            host: Some(host(route)),
            version: Version::HTTP_11,
            secure: consumer.broker.tls,
        };
        // By the same table as requests, so that nothing comes to a path under another policy than its own.
        let found = live.router.find(&Method::POST, origin.host_name(), uri.path());
        let guard = found.filter(|guard| guard.route.name == consumer.route).ok_or(NOT_ITS_PATH)?.clone();
        let route = &guard.route;
        if body.len() > route.max_request_body {
            return Err(Refusal::RequestTooLarge.into());
        }
        let (mut head, ()) = Request::new(()).into_parts();
        (head.method, head.uri, head.headers) = (Method::POST, uri, headers);
        let parsed = Key::parse(&key, route.key.syntax, route.key.limits).map_err(Refusal::from)?;
        // Whoever may publish to the queue is trusted with its headers, by whoever has configured it.
        let scope = caller::scope(&self.shared.salt, &consumer.scope, &head, true)?;
        if let Some(max_age) = route.max_age {
            check_age(&head.headers, max_age, self.shared.tenure.store_now())?;
        }
        if let Some(name) = route.key.header() {
            let value =
                HeaderValue::from_bytes(&key).map_err(|_| Refusal::KeyInvalid("The key is no field's value."))?;
            head.headers.insert(name, value);
        }
        head.headers.insert(HOST, host(route));
        let secrets = live.config.secrets.clone();
        let seen = Seen { head: &head, body: &body, origin: &origin, route, secrets: &secrets };
        let ask = self.shared.ask(&seen, parsed, scope, &self.shared.config.service);
        Ok(Box::new(Guarded { ask, head, body, origin, guard, secrets, is_patient: true }))
    }
}

/// Whom a message is addressed to: the route's own host, else the service as it is configured.
fn host(route: &Route) -> HeaderValue {
    let named = match (&route.host, &*route.upstream) {
        (Some(host), _) => host,
        (None, Upstream::H2c(service) | Upstream::Http(service) | Upstream::Https(service, _)) => service.as_str(),
        (None, Upstream::Unix(_)) => "localhost",
    };
    HeaderValue::from_str(named).expect("a host is visible ASCII")
}
