//! Takes a request on its route from its head to its key and its body.
//!
//! Requests come here while they come in, copies of observed requests beside them, and one that `oncegate explain`
//! explains as a whole. The order of the steps and the rules are the same for all of them.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use tokio::sync::oneshot;

use super::body_operation::{self, BodyOperation};
use super::fingerprinting::LARGE_BODY;
use super::identity::{KeySearch, RequestIdentity};
use super::incoming::Incoming;
use super::key_location;
use super::read_body::BodyReader;
use super::rules;
use crate::gate::pass::BODY_BROKE_OFF;
use crate::gate::response_context::ResponseContext;
use crate::gate::state::{Gate, log_and_refuse};
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::execution_risk::RecordSummary;
use oncegate_http::body::body_budget::BudgetShare;
use oncegate_http::body::{CopyFailure, CopyResult};
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};
use oncegate_settings::BODY_BYTES_MAX;
use oncegate_store::StoreError;
use oncegate_trust::webhook::SignatureRule;

/// A request whose head is there, while the rest of it is read.
pub(super) struct Arrival<'a> {
    /// The gate that has the store and the clock; `None` where nothing is asked of a store.
    pub(super) gate: Option<&'a Gate>,
    /// The context of a client's own request.
    pub(super) context: Option<&'a mut ResponseContext>,
    pub(super) is_provisional: bool,
    pub(super) body: BodySource,
}

/// The body of a request that arrives.
pub(super) enum BodySource {
    /// It comes in, and counts in this part of the memory for bodies.
    Client(BodyReader, BudgetShare),
    /// It passes to the service and is copied.
    Copied(CopiedBody),
    Whole(Bytes),
}

/// The copy of an observed request's body.
pub(super) struct CopiedBody {
    /// `None` once the copy was asked for.
    pub(super) copy: Option<oneshot::Receiver<CopyResult>>,
    /// The part of the memory for bodies that the copy takes.
    pub(super) share: BudgetShare,
    /// The reason why there is no copy, although a guarded request would have its body.
    pub(super) failure: Option<&'static str>,
}

/// A request that is read as far as its route needs.
pub(super) enum ArrivedRequest {
    Keyed(KeyedRequest),
    /// The parts of a batch, each with its own key.
    Batch(Vec<KeyedRequest>),
    /// The request has no key and needs none, or its route does not guard the operation.
    Unkeyed {
        body: Option<Bytes>,
        /// Whether the operation changes nothing, as far as its route says.
        only_reads: bool,
    },
}

/// A request that has a key.
pub(super) struct KeyedRequest {
    pub(super) identity: RequestIdentity,
    pub(super) body: Bytes,
    /// The refusal that the request gets unless its key's record answers it.
    pub(super) broken_rule: Option<Refusal>,
}

impl Arrival<'_> {
    /// Reads a request as far as its route needs. The body is read only where the head breaks no rule: a client that
    /// waits for `100 Continue` then sends no body in vain.
    ///
    /// # Errors
    /// The refusal of the request.
    pub(super) async fn read(&mut self, incoming: Incoming<'_>) -> Result<ArrivedRequest, Refusal> {
        let Incoming { head, route, .. } = incoming;
        rules::check_head(&incoming)?;
        // The body and the operation of a request whose key may be in both of its parts, or whose operation is a part
        // of its space.
        let (mut whole, mut operation) = (None, None);
        if let Some(rule) = &route.signature {
            whole = Some(self.read_signed(&incoming, rule).await?);
        }
        if let Some(batch) = &route.options.split {
            return self.read_batch(&incoming, batch, whole).await;
        }
        if body_operation::is_needed(head, route) {
            if whole.is_none() {
                whole = self.read_body(&head.headers, route.options.max_request_body).await?;
            }
            match &whole {
                None if route.options.dialect.is_jsonrpc() => return Err(rules::too_large(route)),
                None => {}
                Some(body) => match self.read_operation(&incoming, body).await {
                    BodyOperation::Passes { only_reads } => {
                        return Ok(ArrivedRequest::Unkeyed { body: whole, only_reads });
                    }
                    BodyOperation::Refused(refusal) => return Err(refusal),
                    BodyOperation::Call(call) => {
                        if let Some(context) = &mut self.context {
                            context.rpc_id = Some(call.id);
                        }
                        operation = Some(call.operation);
                    }
                    BodyOperation::Unnamed => {}
                },
            }
        }
        let incoming = Incoming { operation: operation.as_ref(), ..incoming };
        let has_body = whole.is_some();
        let (mut search, mut broken_rule) = self.find_key(&incoming, whole.as_ref()).await?;
        if search == KeySearch::NoKey {
            return Ok(ArrivedRequest::Unkeyed { body: whole, only_reads: false });
        }
        if whole.is_none() {
            whole = self.read_body(&head.headers, route.options.max_request_body).await?;
        }
        if let (None, KeySearch::Found(identity)) = (&whole, &search) {
            broken_rule = Some(self.check_stored(&incoming, identity, rules::too_large(route)).await?);
            whole = self.read_body(&head.headers, BODY_BYTES_MAX).await?;
        }
        // Without the whole body there is no key in it to look up.
        let body = whole.ok_or_else(|| rules::too_large(route))?;
        // A key in the head must be the same as one in the body.
        if search == KeySearch::InBody || (!has_body && route.options.key.may_be_in_body()) {
            let (found, broken) = self.find_key(&incoming, Some(&body)).await?;
            (search, broken_rule) = (found, broken_rule.or(broken));
        }
        match search {
            KeySearch::Found(identity) => {
                // A drain may have begun while the body came in.
                self.may_guard()?;
                Ok(ArrivedRequest::Keyed(KeyedRequest { identity, body, broken_rule }))
            }
            KeySearch::InBody | KeySearch::NoKey => Ok(ArrivedRequest::Unkeyed { body: Some(body), only_reads: false }),
        }
    }

    /// Reads the body of a request whose sender must have signed it. Nothing else of the request is believed before.
    async fn read_signed(&mut self, incoming: &Incoming<'_>, rule: &Arc<SignatureRule>) -> Result<Bytes, Refusal> {
        let Incoming { head, route, .. } = *incoming;
        let now = self.now();
        rule.check_head(rules::signed_request(head, &[]), now).map_err(Refusal::SignatureInvalid)?;
        let body = self.read_body(&head.headers, route.options.max_request_body).await?;
        let body = body.ok_or_else(|| rules::too_large(route))?;
        let (rule, head, signed) = (Arc::clone(rule), head.clone(), body.clone());
        let verify = move || rule.verify(rules::signed_request(&head, &signed), now);
        let verified = self.run_beside(body.len(), verify).await;
        verified.map(|()| body).map_err(Refusal::SignatureInvalid)
    }

    /// Does work on a body of this length: for a large one on another thread, so that no other request waits for it.
    async fn run_beside<T: Send + 'static>(&self, length: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self.gate.filter(|_| length >= LARGE_BODY) {
            None => work(),
            Some(gate) => gate.fingerprinting.run_on_thread(work).await,
        }
    }

    /// Reads a batch, of which each part must have a key: one part without a key refuses the whole. An empty batch has
    /// nothing to guard.
    async fn read_batch(
        &mut self,
        incoming: &Incoming<'_>,
        batch: &BatchPlace,
        whole: Option<Bytes>,
    ) -> Result<ArrivedRequest, Refusal> {
        let (headers, bytes_max) = (&incoming.head.headers, incoming.route.options.max_request_body);
        let whole = match whole {
            Some(whole) => whole,
            None => self.read_body(headers, bytes_max).await?.ok_or_else(|| rules::too_large(incoming.route))?,
        };
        // The brackets around each part may make them a little longer than the whole.
        let (place, body) = (batch.clone(), whole.clone());
        let bodies = self.run_beside(whole.len(), move || place.split(&body, 2 * bytes_max)).await;
        let bodies = bodies.map_err(rules::no_batch)?;
        if bodies.is_empty() {
            return Ok(ArrivedRequest::Unkeyed { body: Some(whole), only_reads: false });
        }
        let mut parts = Vec::with_capacity(bodies.len());
        for body in bodies {
            let (search, broken_rule) = self.find_key(incoming, Some(&body)).await?;
            self.context.iter_mut().for_each(|context| context.forget_key());
            let KeySearch::Found(identity) = search else {
                return Err(key_location::missing(&incoming.route.options.key, headers));
            };
            parts.push(KeyedRequest { identity, body, broken_rule });
        }
        Ok(ArrivedRequest::Batch(parts))
    }

    /// Finds the key in what was read, and the refusal of a new request that breaks a rule which may be newer than the
    /// key.
    async fn find_key(
        &mut self,
        incoming: &Incoming<'_>,
        body: Option<&Bytes>,
    ) -> Result<(KeySearch<RequestIdentity>, Option<Refusal>), Refusal> {
        let search = incoming.identify(body, self.gate.map(|gate| &gate.fingerprinting)).await?;
        if search != KeySearch::NoKey {
            self.may_guard()?;
        }
        if let (KeySearch::Found(identity), Some(context)) = (&search, &mut self.context) {
            context.note_key(&identity.key, incoming.route);
        }
        let broken_rule = match (rules::check_key(incoming, &search, || self.now()), &search) {
            (Err(refusal), KeySearch::Found(identity)) if rules::may_be_newer_than_key(&refusal) => {
                Some(Box::pin(self.check_stored(incoming, identity, refusal)).await?)
            }
            (checked, _) => {
                checked?;
                None
            }
        };
        Ok((search, broken_rule))
    }

    /// The time by the store's clock, where there is a store.
    fn now(&self) -> SystemTime {
        self.gate.map_or_else(SystemTime::now, |gate| gate.instance.store_clock.now())
    }

    fn may_guard(&self) -> Result<(), Refusal> {
        let is_draining = self.context.is_some() && self.gate.is_some_and(|gate| gate.draining.is_cancelled());
        if is_draining { Err(Refusal::Draining) } else { Ok(()) }
    }

    /// Reads the body whole. `None` if it is over `bytes_max`, or over the limit of its copy.
    async fn read_body(&mut self, headers: &HeaderMap, bytes_max: usize) -> Result<Option<Bytes>, Refusal> {
        match &mut self.body {
            BodySource::Client(reader, share) => reader.read(bytes_max, share).await,
            BodySource::Copied(copied) => copied.read(headers, bytes_max).await,
            BodySource::Whole(body) => Ok((body.len() <= bytes_max).then(|| body.clone())),
        }
    }

    async fn read_operation(&self, incoming: &Incoming<'_>, body: &Bytes) -> BodyOperation {
        match self.gate {
            Some(gate) => body_operation::read(incoming.head, body, incoming.route, &gate.fingerprinting).await,
            None => body_operation::read_at_once(incoming.head, body, incoming.route),
        }
    }

    /// Looks up the key of a request that breaks a rule of its route which a reload or a start may have made narrower.
    /// A retry of a key that was made under the wider rule gets its answer. Returns the refusal that a new request
    /// gets.
    ///
    /// The lookup reads, and reserves nothing: a request within the rules costs more, so that a caller gains nothing by
    /// breaking them. A body over the limit is read for keys with such a record alone, and counts in
    /// `limits.held_bodies` like any other.
    ///
    /// # Errors
    /// The refusal, if the key has no record or one that the next attempt may take over. [`Refusal::StoreUnavailable`]
    /// without the store: a client that took the refusal for the answer might send the operation with a new key.
    async fn check_stored(
        &self,
        incoming: &Incoming<'_>,
        identity: &RequestIdentity,
        refusal: Refusal,
    ) -> Result<Refusal, Refusal> {
        let Some(gate) = self.gate else { return Err(refusal) };
        let (instance, route, id) = (&gate.instance, incoming.route, identity.record_id());
        let record = match instance.in_flight.find(&id) {
            Some(record) => Some(record),
            // The store has no record by this id, and may have one of the key.
            None if self.is_provisional => return Err(Refusal::StoreUnavailable),
            None => instance.find_record(id).await.map_err(|error| self.refuse(error))?,
        };
        let Some(record) = record else { return Err(refusal) };
        let record = instance.store_clock.certain(record, instance.attempt_time_limit(route));
        let rule = route.retry_rule();
        let summary = RecordSummary::from(&record);
        // The caller of an accepted request is answered while it waits for its delivery.
        let is_answered = summary.is_accepted && !summary.past_ttl;
        if is_answered || !summary.may_be_executed(&rule) { Ok(refusal) } else { Err(refusal) }
    }

    /// The refusal of a request for which the store has failed. Nothing is logged for a copy, which is not refused.
    fn refuse(&self, error: StoreError) -> Refusal {
        match error {
            error if self.context.is_some() => log_and_refuse(error),
            StoreError::Corrupt(_) => Refusal::ResponseCorrupt,
            StoreError::Failed(_) | StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
                Refusal::StoreUnavailable
            }
        }
    }
}

impl CopiedBody {
    async fn read(&mut self, headers: &HeaderMap, bytes_max: usize) -> Result<Option<Bytes>, Refusal> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let Some(copy) = self.copy.take_if(|_| announced.is_none_or(|length| length <= bytes_max as u64)) else {
            return Ok(None);
        };
        match copy.await {
            Ok(Ok((body, share))) => {
                self.share = share;
                Ok(Some(body))
            }
            Ok(Err(CopyFailure::TooLong)) => Ok(None),
            Ok(Err(CopyFailure::NoRoom)) => {
                self.failure = Some("not compared: the memory for bodies is full");
                Err(Refusal::Overloaded(ReachedLimit::HeldBodies))
            }
            Err(_) => {
                self.failure = Some("not compared: the body did not pass whole");
                Err(BODY_BROKE_OFF)
            }
        }
    }
}
