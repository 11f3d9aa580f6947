//! The route's `same_body`: an equal request of the same caller under another key.

use super::admit::GuardedRequest;
use crate::instance::Instance;
use crate::instance::same_bodies::{EarlierUse, SameBodies, SameBodyPair, SameRequest};
use oncegate_domain::ids::RecordId;
use oncegate_domain::operation::OperationId;
use oncegate_http::protocol::fields;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::SameBodyPolicy;

/// The note of a request that is the first with its body. It is forgotten if the request gets no new key.
pub(super) struct SameBodyNote<'a> {
    same_bodies: &'a SameBodies,
    /// `None` if nothing was noted: the route does not refuse, or the client has confirmed the request.
    noted: Option<SameRequest>,
}

impl SameBodyNote<'_> {
    /// Keeps the note: the request has got its key.
    pub(super) fn keep(mut self) {
        self.noted = None;
    }
}

impl Drop for SameBodyNote<'_> {
    fn drop(&mut self) {
        if let Some(noted) = self.noted.take() {
            self.same_bodies.forget(&noted);
        }
    }
}

impl GuardedRequest {
    /// Checks a request whose route refuses an equal one under another key. It is noted at once, so that of two that
    /// come together one is refused.
    ///
    /// # Errors
    /// The refusal of a request that has no record of its own.
    pub(super) fn check_same_body<'a>(&self, instance: &'a Instance) -> Result<SameBodyNote<'a>, Refusal> {
        let route = self.route();
        let same_bodies = &instance.observability.same_bodies;
        let note = |noted| Ok(SameBodyNote { same_bodies, noted });
        if route.options.same_body != SameBodyPolicy::Refuse {
            return note(None);
        }
        let request = SameRequest::from(&self.reserve_request);
        match same_bodies.find_or_note(&request, route.options.same_body_window) {
            EarlierUse::None => note(Some(request)),
            EarlierUse::Own => note(None),
            EarlierUse::Other(first) => {
                let confirmed = self.head.headers.get(fields::CONFIRM).map(|value| value.as_bytes().trim_ascii());
                if confirmed == Some(first.to_string().as_bytes()) {
                    return note(None);
                }
                self.report_same_body(instance, first);
                let salt = self.active.salt.current().salt;
                // Where the key is the only secret, an equal request does not prove that the first one is the caller's.
                let link = route.scope.keeps_callers_apart();
                let operation = link.then(|| OperationId::derive(first, &self.reserve_request.scope, salt));
                Err(Refusal::DuplicateSuspected(Some(Box::new((first, operation)))))
            }
        }
    }

    /// Notes a request that got a new key.
    pub(super) fn note_same_body(&self, instance: &Instance) {
        let route = self.route();
        if route.options.same_body == SameBodyPolicy::Allow {
            return;
        }
        let request = SameRequest::from(&self.reserve_request);
        let same_bodies = &instance.observability.same_bodies;
        if let EarlierUse::Other(first) = same_bodies.find_or_note(&request, route.options.same_body_window) {
            same_bodies.replace(&request);
            // A client that has confirmed its request knows.
            if route.options.same_body == SameBodyPolicy::Warn {
                self.report_same_body(instance, first);
            }
        }
    }

    fn report_same_body(&self, instance: &Instance, first: RecordId) {
        self.active.metrics.same_body.inc();
        let pair = SameBodyPair { route: self.route().name.clone(), first, second: self.reserve_request.id };
        instance.observability.report_same_body(pair);
    }
}
