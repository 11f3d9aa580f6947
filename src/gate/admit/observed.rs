//! Admits the copy of an observed request as `mode = "enforce"` would admit the request.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request;
use tokio::sync::oneshot;

use super::fingerprinting::FingerprintSource;
use super::identity::{Incoming, KeySearch, RequestIdentity};
use super::read_only::{may_only_read, only_reads};
use super::scope::{self, CallerProofs};
use super::token::{CallerToken, verify_token};
use super::{check_nominated, check_without_key, first_sent, key_location};
use crate::body::body_budget::BudgetShare;
use crate::body::{CopyFailure, CopyResult};
use crate::config::Route;
use crate::domain::attempt::ReserveRequest;
use crate::domain::ids::RecordId;
use crate::domain::key::Key;
use crate::domain::scope::Scope;
use crate::gate::worker::Gate;
use crate::protocol::refusal::Refusal;
use crate::protocol::status::OncegateStatus;

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

/// An observed request with the copy of its body, and the memory that the copy counts in.
pub(in crate::gate) type ObservedReservation = (ReserveRequest, Bytes, BudgetShare);

impl Gate {
    /// Admits an observed request, with the checks of [`Gate::admit`](crate::gate::Gate) in the same order, but for those of the
    /// instance's own state. Waits for the copy of the body only where the head is good.
    ///
    /// # Errors
    /// The result of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn admit_observed(
        &self,
        incoming: &Incoming<'_>,
        copy: oneshot::Receiver<CopyResult>,
    ) -> Result<ObservedReservation, ForetoldResult> {
        let Incoming { head, route, secrets, .. } = *incoming;
        check_nominated(&head.headers, route)?;
        let copy = match may_only_read(head, route) {
            true => {
                let (body, share) = copied_body(head, route, copy).await?;
                if only_reads(head, &body, route, &self.fingerprinting).await {
                    return Err(ForetoldResult::Unguarded);
                }
                Copied::Whole(body, share)
            }
            false => Copied::Arriving(copy),
        };
        let in_head = incoming.identify(None).await?;
        self.check_observed(&in_head, incoming)?;
        let (body, share) = match copy {
            Copied::Whole(body, share) => (body, share),
            Copied::Arriving(copy) => copied_body(head, route, copy).await?,
        };
        let found = match in_head {
            KeySearch::InBody => incoming.identify(Some(&body)).await?,
            found => found,
        };
        self.check_observed(&found, incoming)?;
        let KeySearch::Found(identity) = found else {
            return Err(key_location::missing(&route.key, &head.headers).into());
        };
        let source = FingerprintSource { head, body: &body, secrets };
        let fingerprint = self.fingerprinting.route_fingerprint(route, source).await;
        let reserve_request = self.instance.reserve_request(head, route, identity, fingerprint);
        Ok((reserve_request, body, share))
    }

    /// Checks an observed request by what is known of its key.
    fn check_observed(
        &self,
        search: &KeySearch<RequestIdentity>,
        incoming: &Incoming<'_>,
    ) -> Result<(), ForetoldResult> {
        let (headers, route) = (&incoming.head.headers, incoming.route);
        match search {
            KeySearch::Found(_) => first_sent::check(headers, route, || self.instance.store_clock.now())?,
            KeySearch::InBody => {}
            KeySearch::NoKey => {
                check_without_key(headers, route)?;
                return Err(match route.key.required {
                    true => key_location::missing(&route.key, headers).into(),
                    false => ForetoldResult::Unguarded,
                });
            }
        }
        Ok(())
    }
}

impl Incoming<'_> {
    /// The parts of a request that would not come as far as its reservation.
    pub(in crate::gate) async fn find_clues(&self) -> RequestClues {
        let Self { head, origin, route, salt, .. } = *self;
        if let Ok(KeySearch::Found(identity)) = self.identify(None).await {
            let record = Some(identity.record_id());
            let RequestIdentity { scope, key, .. } = identity;
            return RequestClues { key: Some(key), record, scope: Some(scope) };
        }
        let token = match self.verifier {
            Some(verifier) => Box::pin(verify_token(verifier, &head.headers)).await.unwrap_or(CallerToken::Unread),
            None => CallerToken::Unread,
        };
        let scope = scope::compute_scope(salt, &route.scope, head, CallerProofs::new(origin, &token)).ok();
        let sent = key_location::in_head(head, &route.key).ok().flatten();
        let key = sent.and_then(|key| Key::parse(&key, route.key.syntax, route.key.limits).ok());
        RequestClues { key, record: None, scope }
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
    if announced.is_some_and(|length| length > route.max_request_body as u64) {
        return Err(Refusal::RequestTooLarge(route.max_request_body).into());
    }
    match copy.await {
        Ok(Ok(copied)) => Ok(copied),
        Ok(Err(CopyFailure::TooLong)) => Err(Refusal::RequestTooLarge(route.max_request_body).into()),
        Ok(Err(CopyFailure::NoRoom)) => Err(ForetoldResult::NotCompared("not compared: the memory for bodies is full")),
        Err(_) => Err(ForetoldResult::NotCompared("not compared: the body did not pass whole")),
    }
}
