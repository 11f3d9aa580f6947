//! Admits the copy of an observed request as `mode = "enforce"` would admit the request.

use std::sync::Arc;

use http::request;
use tokio::sync::oneshot;

use super::arrival::{Arrival, ArrivedRequest, BodySource, CopiedBody, KeyedRequest};
use super::caller_token::CallerToken;
use super::guarded_request::{GuardedRequest, ReceivedRequest};
use super::identity::{KeySearch, RequestIdentity};
use super::incoming::{Incoming, Realm, client_address};
use crate::gate::routing::ActiveRoute;
use crate::gate::state::{Gate, LiveConfig};
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::Key;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::scope::Scope;
use oncegate_http::body::CopyResult;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::Config;
use oncegate_telemetry::traces::TraceParent;

/// The result that an observed request would get under `mode = "enforce"`.
#[derive(Debug)]
pub(in crate::gate) enum ForetoldResult {
    /// The request could not be compared, for this reason.
    NotCompared(&'static str),
    Refused(Refusal),
    /// Refused, because the first attempt had just begun: a proxy or a client may hedge, and would take the refusal for
    /// the answer.
    Hedged(Refusal),
    Status(OncegateStatus),
    /// It would pass: it has no key and its route requires none, or it is an operation that only reads.
    Unguarded,
}

impl From<Refusal> for ForetoldResult {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The parts by which an operator finds an observed request's client, as far as the request has them.
#[derive(Debug, Default)]
pub(in crate::gate) struct RequestClues {
    pub(in crate::gate) key: Option<Key>,
    pub(in crate::gate) record: Option<RecordId>,
    pub(in crate::gate) scope: Option<Scope>,
}

impl From<&ReserveRequest> for RequestClues {
    fn from(request: &ReserveRequest) -> Self {
        Self { key: Some(request.key.clone()), record: Some(request.id), scope: Some(request.scope) }
    }
}

/// A request on a route with `mode = "observe"`, with all that its comparison needs while it passes to the service.
pub struct Observation {
    pub(in crate::gate) gate: Arc<Gate>,
    pub(in crate::gate) active: ActiveRoute,
    pub(in crate::gate) head: request::Parts,
    origin: RequestOrigin,
    config: Arc<Config>,
    /// The service under which its key is stored. Observed keys have records of their own: a route that is enforced
    /// later starts with none.
    service: Arc<str>,
}

impl Observation {
    pub(super) fn new(
        gate: &Arc<Gate>,
        head: &request::Parts,
        origin: &RequestOrigin,
        active: &ActiveRoute,
        live: &LiveConfig,
    ) -> Self {
        let service = format!("{} (observed)", active.route.service.name).into();
        let (head, origin, active) = (head.clone(), origin.clone(), active.clone());
        Self { gate: Arc::clone(gate), active, head, origin, config: Arc::clone(&live.config), service }
    }

    /// Logs the refusal of a request that would not come as far as its route, because of its path or the method that it
    /// names.
    pub(super) fn foretell(self, refusal: Refusal) {
        // The token that names the caller may take time to verify.
        tokio::spawn(async move {
            let clues = self.find_clues().await;
            self.log(&refusal.into(), &clues);
        });
    }

    fn incoming<'a>(&'a self, path: &'a RequestPath<'a>) -> Incoming<'a> {
        let Self { active, head, origin, service, .. } = self;
        let realm = Realm { service, salt: active.salt.current().salt };
        Incoming { token: active.into(), ..Incoming::new((head, path), origin, &active.route, realm) }
    }

    /// Admits the request as [`Gate::admit`] does, but for the checks of the instance's own state.
    ///
    /// # Errors
    /// The result of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn admit(
        &self,
        copy: oneshot::Receiver<CopyResult>,
    ) -> Result<Box<GuardedRequest>, ForetoldResult> {
        let Self { gate, head, active, origin, config, .. } = self;
        // Before the identity: what is found by a provisional salt must not be reserved.
        let is_provisional = active.salt.stored().is_none();
        let (path, share) = (RequestPath::new(head.uri.path()), gate.instance.bodies.share());
        let body = BodySource::Copied(CopiedBody { copy: Some(copy), share, failure: None });
        let mut arrival = Arrival { gate: Some(gate), context: None, is_provisional, body };
        let arrived = arrival.read(self.incoming(&path)).await;
        let BodySource::Copied(CopiedBody { share, failure, .. }) = arrival.body else { unreachable!("it is copied") };
        match arrived.map_err(|refusal| failure.map_or(refusal.into(), ForetoldResult::NotCompared))? {
            ArrivedRequest::Unkeyed { .. } => Err(ForetoldResult::Unguarded),
            ArrivedRequest::Batch(_) => Err(ForetoldResult::NotCompared("not compared: it is a batch")),
            ArrivedRequest::Keyed(KeyedRequest { identity, body, broken_rule }) => {
                let received = Box::new(ReceivedRequest { head: head.clone(), body, share, origin: origin.clone() });
                let trace = TraceParent::from_headers(&head.headers).map(|parent| parent.trace);
                let guarded = gate.guard(identity, received, &path, active, config, trace).await;
                Ok(Box::new(GuardedRequest { broken_rule, is_provisional, ..guarded }))
            }
        }
    }

    /// The parts of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn find_clues(&self) -> RequestClues {
        let path = RequestPath::new(self.head.uri.path());
        let incoming = self.incoming(&path);
        if let Ok(KeySearch::Found(identity)) = incoming.identify(None, None).await {
            let record = Some(identity.record_id());
            let RequestIdentity { scope, key, .. } = identity;
            return RequestClues { key: Some(key), record, scope: Some(scope) };
        }
        let token = incoming.token.read(&self.head.headers).await.unwrap_or(CallerToken::Unread);
        let key = incoming.key_in_head().ok().flatten();
        let scope = incoming.compute_scope(&token, incoming.read_scope_places(None)).ok();
        RequestClues { key, record: None, scope }
    }

    /// Logs the result that the request would have got.
    pub(in crate::gate) fn log(&self, foretold: &ForetoldResult, clues: &RequestClues) {
        let (would, refusal) = match foretold {
            ForetoldResult::NotCompared(reason) => (*reason, None),
            ForetoldResult::Hedged(refusal) | ForetoldResult::Refused(refusal) => (refusal.slug(), Some(refusal)),
            ForetoldResult::Status(status) => (status.name(), None),
            ForetoldResult::Unguarded => ("passed without a key", None),
        };
        let RequestClues { key, record, scope } = clues;
        // Needed to find a client that has to change; the others are not to be found.
        let client = refusal.map(|_| client_address(&self.head, &self.origin, &self.config));
        tracing::info!(
            route = %self.active.route.name,
            would,
            refusal = refusal.map(Refusal::slug),
            retry = refusal.map(Refusal::client_action),
            advice = matches!(foretold, ForetoldResult::Hedged(_)).then_some("in_flight = \"wait\""),
            differs = refusal.map(Refusal::differs).filter(|names| !names.is_empty()).map(|names| names.join(", ")),
            key = key.as_ref().map(Key::prefix).map(display),
            record = record.as_ref().map(display),
            scope = scope.as_ref().map(display),
            client = client.map(display),
            "observed"
        );
    }
}
