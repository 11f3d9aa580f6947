//! Admits the copy of an observed request as `mode = "enforce"` would admit the request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request;
use tokio::sync::oneshot;

use super::body_operation::{self, BodyOperation};
use super::guarded_request::GuardedRequest;
use super::identity::{KeySearch, RequestIdentity};
use super::incoming::{Incoming, Realm};
use super::key_location::{self, check_nominated, check_without_key};
use super::origin::client_address;
use super::token::{CallerToken, verify_token};
use crate::gate::first_sent;
use crate::gate::routing::ActiveRoute;
use crate::gate::worker::{Gate, LiveConfig};
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::Key;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::scope::Scope;
use oncegate_http::body::body_budget::BudgetShare;
use oncegate_http::body::{CopyFailure, CopyResult};
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::grpc::CallProtocol;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::protocol::status::OncegateStatus;
use oncegate_settings::{Config, Route};

/// The result that an observed request would get under `mode = "enforce"`.
#[derive(Debug)]
pub(in crate::gate) enum ForetoldResult {
    /// The request could not be compared, for this reason.
    NotCompared(&'static str),
    /// This refusal.
    Refused(Refusal),
    /// An answer with this `Oncegate-Status`.
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
    /// The caller, hashed.
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
    head: request::Parts,
    origin: RequestOrigin,
    config: Arc<Config>,
    /// The service under which its key is stored. Observed keys have records of their own: a route that is enforced later starts with
    /// none.
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
        let service = format!("{} (observed)", gate.instance.config.service).into();
        let (head, origin, active) = (head.clone(), origin.clone(), active.clone());
        Self { gate: Arc::clone(gate), active, head, origin, config: Arc::clone(&live.config), service }
    }

    /// Logs the refusal of a request that would not come as far as its route, because of its path or the method that it names.
    pub(super) fn foretell(self, refusal: Refusal) {
        // The token that names the caller may take time to verify.
        tokio::spawn(async move {
            let clues = self.find_clues().await;
            self.log(&refusal.into(), &clues);
        });
    }

    /// The protocol of the request.
    pub(in crate::gate) fn protocol(&self) -> CallProtocol {
        CallProtocol::from_headers(&self.head.headers)
    }

    fn incoming<'a>(&'a self, path: &'a RequestPath<'a>) -> Incoming<'a> {
        let Self { gate, active, head, origin, config, service } = self;
        let realm = Realm { service, salt: gate.instance.salt.current().salt };
        let verifier = active.token_verifier.as_deref();
        Incoming { verifier, ..Incoming::new((head, path), origin, &active.route, realm, &config.secrets) }
    }

    /// Admits the request, with the steps of [`Gate::admit`](crate::gate::Gate) in the same order, but for the checks of the
    /// instance's own state. Waits for the copy of the body only where the head is good.
    ///
    /// # Errors
    /// The result of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn admit(
        &self,
        copy: oneshot::Receiver<CopyResult>,
    ) -> Result<Box<GuardedRequest>, ForetoldResult> {
        let Self { gate, head, active, origin, config, .. } = self;
        let route = &active.route;
        // Before the identity: what is found by a provisional salt must not be reserved.
        let is_provisional = gate.instance.salt.stored().is_none();
        let path = RequestPath::new(self.head.uri.path());
        check_nominated(&head.headers, route)?;
        let mut operation = None;
        let copy = match body_operation::is_needed(head, route) {
            true => {
                let (body, share) = copied_body(head, route, copy).await?;
                match body_operation::read(head, &body, route, &gate.fingerprinting).await {
                    BodyOperation::Passes { .. } => return Err(ForetoldResult::Unguarded),
                    BodyOperation::Refused(refusal) => return Err(refusal.into()),
                    BodyOperation::Call(call) => operation = Some(call.operation),
                    BodyOperation::Unnamed => {}
                }
                Copied::Whole(body, share)
            }
            false => Copied::Arriving(copy),
        };
        let incoming = Incoming { operation: operation.as_ref(), ..self.incoming(&path) };
        let whole = match &copy {
            Copied::Whole(body, _) if route.options.dialect.is_jsonrpc() => Some(&**body),
            Copied::Arriving(_) | Copied::Whole(..) => None,
        };
        let in_head = incoming.identify(whole).await?;
        self.check(&in_head)?;
        let (body, share) = match copy {
            Copied::Whole(body, share) => (body, share),
            Copied::Arriving(copy) => copied_body(head, route, copy).await?,
        };
        let found = match in_head {
            KeySearch::InBody => incoming.identify(Some(&body)).await?,
            found => found,
        };
        self.check(&found)?;
        let KeySearch::Found(identity) = found else {
            return Err(key_location::missing(&route.options.key, &head.headers).into());
        };
        let fingerprint = gate.fingerprinting.route_fingerprint(&incoming, &body).await;
        let reserve_request = gate.instance.reserve_request(head, route, identity, fingerprint);
        let request = (head.clone(), body, share, origin.clone());
        let guarded = GuardedRequest::new(&gate.instance, reserve_request, request, active, config);
        Ok(Box::new(GuardedRequest { is_provisional, ..guarded }))
    }

    /// Checks the request by what is known of its key.
    fn check(&self, search: &KeySearch<RequestIdentity>) -> Result<(), ForetoldResult> {
        let (headers, route) = (&self.head.headers, &self.active.route);
        match search {
            KeySearch::Found(_) => first_sent::check(headers, route, || self.gate.instance.store_clock.now())?,
            KeySearch::InBody => {}
            KeySearch::NoKey => {
                check_without_key(headers, route)?;
                return Err(match route.options.key.required {
                    true => key_location::missing(&route.options.key, headers).into(),
                    false => ForetoldResult::Unguarded,
                });
            }
        }
        Ok(())
    }

    /// The parts of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn find_clues(&self) -> RequestClues {
        let path = RequestPath::new(self.head.uri.path());
        let incoming = self.incoming(&path);
        if let Ok(KeySearch::Found(identity)) = incoming.identify(None).await {
            let record = Some(identity.record_id());
            let RequestIdentity { scope, key, .. } = identity;
            return RequestClues { key: Some(key), record, scope: Some(scope) };
        }
        let token = match incoming.verifier {
            Some(verifier) => Box::pin(verify_token(verifier, &self.head.headers)).await.unwrap_or(CallerToken::Unread),
            None => CallerToken::Unread,
        };
        let rule = &self.active.route.options.key;
        let sent = key_location::in_head(&self.head, rule).ok().flatten();
        let key = sent.and_then(|key| Key::parse(&key, rule.syntax, rule.limits).ok());
        RequestClues { key, record: None, scope: incoming.compute_scope(&token).ok() }
    }

    /// Logs the result that the request would have got.
    pub(in crate::gate) fn log(&self, foretold: &ForetoldResult, clues: &RequestClues) {
        let (would, refusal) = match foretold {
            ForetoldResult::NotCompared(reason) => (*reason, None),
            ForetoldResult::Refused(refusal) => (refusal.slug(), Some(refusal.slug())),
            ForetoldResult::Status(status) => (status.name(), None),
            ForetoldResult::Unguarded => ("passed without a key", None),
        };
        let RequestClues { key, record, scope } = clues;
        // Needed to find a client that has to change; the others are not to be found.
        let client = refusal.map(|_| client_address(&self.head, &self.origin, &self.config));
        tracing::info!(
            route = %self.active.route.name,
            would,
            refusal,
            key = key.as_ref().map(Key::prefix).map(display),
            record = record.as_ref().map(display),
            scope = scope.as_ref().map(display),
            client = client.map(display),
            "observed"
        );
    }
}

/// The copy of a request's body.
enum Copied {
    /// Not waited for yet.
    Arriving(oneshot::Receiver<CopyResult>),
    /// All of it is here.
    Whole(Bytes, BudgetShare),
}

/// Waits for the copy of a request's body.
async fn copied_body(
    head: &request::Parts,
    route: &Route,
    copy: oneshot::Receiver<CopyResult>,
) -> Result<(Bytes, BudgetShare), ForetoldResult> {
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > route.options.max_request_body as u64) {
        return Err(Refusal::RequestTooLarge(route.options.max_request_body).into());
    }
    match copy.await {
        Ok(Ok(copied)) => Ok(copied),
        Ok(Err(CopyFailure::TooLong)) => Err(Refusal::RequestTooLarge(route.options.max_request_body).into()),
        Ok(Err(CopyFailure::NoRoom)) => Err(ForetoldResult::NotCompared("not compared: the memory for bodies is full")),
        Err(_) => Err(ForetoldResult::NotCompared("not compared: the body did not pass whole")),
    }
}
