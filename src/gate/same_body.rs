//! The route's `same_body`: an equal request of the same caller under another key.

use super::admit::GuardedRequest;
use super::worker::Gate;
use crate::instance::same_bodies::{EarlierUse, SameBodyPair};
use oncegate_domain::operation::OperationId;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::SameBodyPolicy;

/// A request that its route's `same_body` lets take a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameBodyCheck {
    /// Nothing was noted: the route does not refuse, or the client has confirmed the request.
    Unnoted,
    /// The request was noted as the first with its body. It is forgotten if it gets no new key.
    Noted,
}

impl Gate {
    /// Checks a request whose route refuses an equal one under another key. It is noted at once, so that of two that come together one is
    /// refused.
    ///
    /// # Errors
    /// The refusal of a request that has no record of its own.
    pub(super) fn check_same_body(&self, guarded: &GuardedRequest) -> Result<SameBodyCheck, Refusal> {
        let (route, request) = (guarded.route(), &guarded.reserve_request);
        if route.options.same_body != SameBodyPolicy::Refuse {
            return Ok(SameBodyCheck::Unnoted);
        }
        let same_bodies = &self.instance.observability.same_bodies;
        match same_bodies.find_or_note(request, route.options.same_body_window) {
            EarlierUse::None => Ok(SameBodyCheck::Noted),
            EarlierUse::Own => Ok(SameBodyCheck::Unnoted),
            EarlierUse::Other(first) => {
                let confirmed = guarded.head.headers.get(fields::CONFIRM).map(|value| value.as_bytes().trim_ascii());
                if confirmed == Some(first.to_string().as_bytes()) {
                    return Ok(SameBodyCheck::Unnoted);
                }
                self.report_same_body(guarded, SameBodyPair { route: route.name.clone(), first, second: request.id });
                let salt = self.instance.salt.current().salt;
                let operation = OperationId::derive(first, &request.scope, salt);
                Err(Refusal::DuplicateSuspected(Some(Box::new(operation))))
            }
        }
    }

    /// Notes a request that got a new key.
    pub(super) fn note_same_body(&self, guarded: &GuardedRequest) {
        let (route, request) = (guarded.route(), &guarded.reserve_request);
        if route.options.same_body == SameBodyPolicy::Allow {
            return;
        }
        let same_bodies = &self.instance.observability.same_bodies;
        if let EarlierUse::Other(first) = same_bodies.find_or_note(request, route.options.same_body_window) {
            same_bodies.replace(request);
            // A client that has confirmed its request knows.
            if route.options.same_body == SameBodyPolicy::Warn {
                self.report_same_body(guarded, SameBodyPair { route: route.name.clone(), first, second: request.id });
            }
        }
    }

    /// Forgets a request that was noted and got no new key.
    pub(super) fn drop_same_body(&self, guarded: &GuardedRequest, check: SameBodyCheck) {
        if check == SameBodyCheck::Noted {
            self.instance.observability.same_bodies.forget(&guarded.reserve_request);
        }
    }

    fn report_same_body(&self, guarded: &GuardedRequest, pair: SameBodyPair) {
        guarded.active.metrics.same_body.inc();
        self.instance.observability.report_same_body(pair);
    }
}
