//! A request with its key, its body and its reservation: what the rest of the journey works with.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request;

use super::fingerprinting::Fingerprinting;
use super::identity::RequestIdentity;
use super::incoming::client_address;
use super::key_location;
use crate::gate::authorize::{Authorizer, ReplayQuestion};
use crate::gate::response_context::ResponseContext;
use crate::gate::routing::ActiveRoute;
use crate::gate::state::Gate;
use crate::instance::Instance;
use crate::instance::metrics::ReservationResult;
use crate::instance::observability::Observability;
use crate::instance::request_trace::MessageBroker;
use crate::instance::store_clock::StoreClock;
use crate::instance::weekly_counts::WeeklyKind;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::decision::{DecisionRules, RequestComparison};
use oncegate_domain::differing_parts::DifferingParts;
use oncegate_domain::fingerprint::{FingerprintInput, Recipe, Secrets};
use oncegate_domain::ids::Token;
use oncegate_domain::kept_path;
use oncegate_domain::lookup::LookupHashes;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::part_bits::{PartBits, PartKey};
use oncegate_domain::place::{Place, RequestPlaces};
use oncegate_domain::record::Record;
use oncegate_domain::request_part::RequestPart;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::urlencoded;
use oncegate_http::body::body_budget::BudgetShare;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::prefer;
use oncegate_http::protocol::refusal::{Refusal, RetryAfter};
use oncegate_machine::fill_random;
use oncegate_settings::{Config, DeliveryMode, Route, RouteMode, StoreDownPolicy};
use oncegate_telemetry::traces::TraceId;

pub(in crate::gate) struct ReceivedRequest {
    pub(in crate::gate) head: request::Parts,
    pub(in crate::gate) body: Bytes,
    pub(in crate::gate) share: BudgetShare,
    pub(in crate::gate) origin: RequestOrigin,
}

/// A guarded request with its whole body and its reservation.
pub struct GuardedRequest {
    /// The reservation that the store is asked for.
    pub reserve_request: ReserveRequest,
    /// The head as received: a record may have been made with another recipe, which needs all of it.
    pub(in crate::gate) head: request::Parts,
    pub(in crate::gate) body: Bytes,
    /// The part of the memory for bodies that this request's body and its response take.
    pub(in crate::gate) share: BudgetShare,
    /// The time for which the attempt of its key has run, of an observed request.
    pub(in crate::gate) observed_beside: Option<Duration>,
    /// The bits of its parts, where they are not stored.
    pub(in crate::gate) own_parts: Option<PartBits>,
    pub(in crate::gate) origin: RequestOrigin,
    /// The address that the request comes from, where its route limits new keys.
    pub(in crate::gate) client_address: Option<IpAddr>,
    pub(in crate::gate) active: ActiveRoute,
    pub(in crate::gate) secrets: Secrets,
    /// Whether it takes over a key that it may, because its route redelivers.
    pub(in crate::gate) is_redelivery: bool,
    /// Whether the sender can wait until the store is back. Such a request is never forwarded unguarded.
    pub(in crate::gate) can_wait_for_store: bool,
    /// The refusal that the request gets unless its key's record decides: it breaks a rule of its route, and the key
    /// may have been made before the rule was. Such a request starts no attempt, and is never forwarded unguarded.
    pub(in crate::gate) broken_rule: Option<Refusal>,
    /// Whether its record's id comes from a salt that is not the store's: it must not get into the store.
    pub(in crate::gate) is_provisional: bool,
    /// The judge of the times in the key's record.
    pub(in crate::gate) store_clock: Arc<StoreClock>,
}

impl Gate {
    /// The guarded request that reserves the key of this identity. The record has the id of its trace.
    pub(super) async fn guard(
        &self,
        identity: RequestIdentity,
        received: Box<ReceivedRequest>,
        path: &RequestPath<'_>,
        active: &ActiveRoute,
        config: &Config,
        trace: Option<TraceId>,
    ) -> GuardedRequest {
        let (ReceivedRequest { head, body, .. }, route) = (&*received, &active.route);
        let id = identity.record_id();
        let part_key = PartKey::new(active.salt.current().salt, &id);
        let known = self.instance.cache.fingerprint(&id, self.instance.store_clock.now());
        let fingerprinting =
            self.fingerprinting.fingerprint_with_bits(route, (head, path), body, &config.secrets, (part_key, known));
        let (fingerprint, parts) = fingerprinting.await;
        let lookups = self.read_lookups(active, head, body).await;
        let client_address = route.options.keep_client_address.then(|| client_address(head, &received.origin, config));
        let RequestIdentity { service, scope, space, key, key_length: _ } = identity;
        let reserve_request = ReserveRequest {
            id,
            service,
            scope,
            space,
            key,
            path: kept_path(route, head),
            route: Arc::clone(&route.name),
            recipe: route.recipe.clone(),
            fingerprint,
            parts,
            trace_id: trace.map(|trace| trace.0),
            client_address,
            lookups,
            instance: self.instance.instance_lease.id(),
            token: fresh_token(),
            time_limit: self.instance.attempt_time_limit(route),
            holder: None,
        };
        GuardedRequest::new(&self.instance, reserve_request, *received, active, config)
    }

    /// The values by which operators look the request's key up: those of a large body are read on another thread. A
    /// value that is not there, or cannot be read, is none.
    async fn read_lookups(&self, active: &ActiveRoute, head: &request::Parts, body: &Bytes) -> Option<LookupHashes> {
        let route = &active.route;
        if route.options.index.is_empty() {
            return None;
        }
        let (service, salt) = (Arc::clone(&route.service.name), active.salt.current().salt.clone());
        let (path, of_route) = (RequestPath::new(head.uri.path()), Arc::clone(route));
        let look = move |_: &Recipe, input: &FingerprintInput<'_>| {
            let FingerprintInput { pattern, path, query, headers, body, .. } = *input;
            let reader = RequestPlaces { pattern, path, query, headers };
            let value = |place| key_location::read_place(place, &reader, body).ok().flatten();
            let values = of_route.options.index.iter().filter_map(|place| Some((place, value(place)?)));
            LookupHashes::join(values.map(|(place, value)| salt.lookup(&service, place, &value)))
        };
        self.fingerprinting.look_at(&route.recipe, route, (head, &path), body, look).await
    }
}

impl GuardedRequest {
    pub(in crate::gate) fn new(
        instance: &Instance,
        mut reserve_request: ReserveRequest,
        ReceivedRequest { head, body, share, origin }: ReceivedRequest,
        active: &ActiveRoute,
        config: &Config,
    ) -> Self {
        let client_address = active.route.limits_new_keys().then(|| client_address(&head, &origin, config));
        // Without a secret, a reader of the store could test guesses of each part alone.
        let own_parts = reserve_request.parts.take_if(|_| config.secrets.is_empty());
        Self {
            reserve_request,
            head,
            body,
            share,
            own_parts,
            observed_beside: None,
            origin,
            client_address,
            active: active.clone(),
            secrets: config.secrets.clone(),
            is_redelivery: false,
            can_wait_for_store: false,
            broken_rule: None,
            is_provisional: false,
            store_clock: Arc::clone(&instance.store_clock),
        }
    }

    pub fn route(&self) -> &Route {
        &self.active.route
    }

    /// The route's part in a decision.
    pub fn rules(&self) -> DecisionRules {
        let ActiveRoute { route, latency, .. } = &self.active;
        let (average_latency, reconciles) = (latency.average(), route.reconcile.is_some());
        DecisionRules { retry: route.retry_rule(), average_latency, reconciles }
    }

    pub(in crate::gate) fn is_for_later(&self) -> bool {
        match self.route().options.delivery {
            DeliveryMode::Async => true,
            DeliveryMode::Prefer => prefer::prefers_async(&self.head.headers),
            DeliveryMode::Sync => false,
        }
    }

    /// Whether Oncegate repeats it at the vendor while its outcome is unknown. It keeps no request that it observes.
    pub(in crate::gate) fn is_repeated(&self) -> bool {
        self.route().options.on_unknown == OnUnknown::Vendor && !self.is_observed()
    }

    /// A copy that waits for the end of the repetitions, where the route keeps requests for them.
    pub(in crate::gate) fn copy_if_kept(&self, instance: &Instance) -> Option<Box<Self>> {
        self.is_repeated().then(|| {
            Box::new(Self {
                reserve_request: self.reserve_request.clone(),
                head: self.head.clone(),
                body: self.body.clone(),
                // The attempt and its copy share the bytes.
                share: instance.bodies.share_of(0),
                own_parts: None,
                observed_beside: None,
                origin: self.origin.clone(),
                client_address: None,
                active: self.active.clone(),
                secrets: self.secrets.clone(),
                is_redelivery: false,
                can_wait_for_store: false,
                broken_rule: None,
                is_provisional: false,
                store_clock: Arc::clone(&self.store_clock),
            })
        })
    }

    /// Compares the request with the one that a record was made for, by the record's own recipe.
    pub(in crate::gate) async fn compare(&self, record: &Record, fingerprinting: &Fingerprinting) -> RequestComparison {
        let Self { head, body, secrets, reserve_request, .. } = self;
        let path = RequestPath::new(head.uri.path());
        let fingerprint = if record.recipe == reserve_request.recipe {
            Some(reserve_request.fingerprint)
        } else {
            // Only after a change of the configuration.
            Box::pin(fingerprinting.fingerprint(&record.recipe, &self.active.route, (head, &path), body, secrets)).await
        };
        match fingerprint {
            None => RequestComparison::Impossible,
            Some(fingerprint) if fingerprint == record.fingerprint => RequestComparison::Same,
            Some(_) if body.is_empty() => RequestComparison::DifferentWithoutBody,
            Some(_) => RequestComparison::Different,
        }
    }

    /// The parts in which the request differs from the first one of its key, which has these bits by this recipe.
    pub(in crate::gate) async fn compare_parts(
        &self,
        (recipe, bits): (&Recipe, PartBits),
        part_key: PartKey,
        fingerprinting: &Fingerprinting,
    ) -> DifferingParts {
        let Self { head, body, active, .. } = self;
        let path = RequestPath::new(head.uri.path());
        let key_fields = key_document_fields(&active.route);
        let look = move |recipe: &Recipe, input: &FingerprintInput<'_>| {
            let included = recipe.body(input);
            let holds_key = |part: &RequestPart<'_>| key_fields.contains(&part.place());
            bits.compare(&part_key, recipe.parts(input, &included), holds_key)
        };
        fingerprinting.look_at(recipe, &active.route, (head, &path), body, look).await
    }

    /// Notes the bits of its parts that are not stored: the request has got its key.
    pub(in crate::gate) fn note_parts(&mut self, instance: &Instance) {
        if let Some(parts) = self.own_parts.take() {
            instance.recent_parts.note(self.reserve_request.id, self.reserve_request.fingerprint, parts);
        }
    }

    /// Checks that the request breaks no rule of its route.
    pub(in crate::gate) fn check_rules(&self) -> Result<(), Refusal> {
        self.broken_rule.clone().map_or(Ok(()), Err)
    }

    /// Whether the request may be forwarded unguarded while the store is away.
    pub(in crate::gate) fn may_bypass(&self) -> bool {
        let is_allowed = !self.can_wait_for_store && self.broken_rule.is_none();
        is_allowed && self.route().options.store_down == StoreDownPolicy::Bypass
    }

    /// The question whether this request's caller may read a stored response, where the route has it asked.
    pub(in crate::gate) fn replay_question(&self) -> Option<(Arc<Authorizer>, ReplayQuestion)> {
        let authorizer = self.active.authorizer.as_ref()?;
        Some((Arc::clone(authorizer), ReplayQuestion::new(&self.head, self.route(), &self.origin)))
    }

    /// Refuses a new key, and counts that.
    pub(in crate::gate) fn refuse_new_key(&self, wait: RetryAfter) -> Refusal {
        self.active.metrics.rate_limited.inc();
        Refusal::TooManyKeys(wait)
    }

    /// Whether this is the copy of a request on a route that only observes.
    pub(in crate::gate) fn is_observed(&self) -> bool {
        self.route().options.mode == RouteMode::Observe
    }

    /// Counts the start of an attempt of this request, or its acceptance for delivery.
    pub(in crate::gate) fn count_start(&self, is_first: bool, instance: &Instance) {
        let result = match is_first {
            _ if self.is_redelivery => ReservationResult::Redelivery,
            true => ReservationResult::Created,
            false => ReservationResult::FailedRetry,
        };
        self.count(result, instance);
    }

    /// Logs that a redelivery has got its key. One line for each: a person has asked for it.
    pub(in crate::gate) fn note_redelivery(&self) {
        if self.is_redelivery {
            tracing::info!(record = %self.reserve_request.id, route = %self.route().name,
                "a redelivery: the same request came after `replay.until`, and is executed anew");
        }
    }

    /// Counts the result of this request's reservation.
    pub(in crate::gate) fn count(&self, result: ReservationResult, instance: &Instance) {
        let (route, scope) = (&self.active.metrics, &self.reserve_request.scope);
        // A consumer tries a message again and again while it waits: that is no retry of a client.
        let is_held = |kind| self.can_wait_for_store && matches!(kind, WeeklyKind::InFlight | WeeklyKind::Unknown);
        let kind = result.weekly_kind(self.is_observed()).filter(|kind| !is_held(*kind));
        instance.observability.count_reservation(route, (scope, kind), result);
    }

    /// The context of a request that no client waits for.
    pub(in crate::gate) fn context_without_client(
        &self,
        broker: Option<MessageBroker>,
        observability: &Arc<Observability>,
    ) -> ResponseContext {
        let mut context = ResponseContext::default();
        context.guard(observability, &self.head, &self.active.metrics);
        context.note(|state| {
            state.key = self.reserve_request.key.prefix();
            state.record = Some(self.reserve_request.id);
            (state.has_no_client, state.broker) = (true, broker);
        });
        context
    }
}

/// The places of the fields that may have a route's key in a document, such as a payment. The same key in another
/// document makes another fingerprint.
pub(super) fn key_document_fields(route: &Route) -> Vec<String> {
    let field = |place: &Place| match place {
        Place::Header(name, Some(_)) => Some(Place::Header(name.clone(), None).to_string()),
        _ => None,
    };
    route.options.key.places().filter_map(field).collect()
}

/// The part of the request's target that the record keeps: the path and query if `reconcile.url` uses them, else the
/// path for people. Nobody looks at the keys of a route that observes. A secret that is the key is not kept.
fn kept_path(route: &Route, head: &request::Parts) -> Option<Bytes> {
    let url_uses_path = route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.names_path());
    let mut path = Cow::Borrowed(head.uri.path());
    let mut query = head.uri.query().map(Cow::Borrowed);
    if route.options.key.hash {
        for place in route.options.key.places() {
            match place {
                Place::Path(name) => {
                    let without = route.path.without_segment(name, &RequestPath::new(&path));
                    path = without.map_or(path, Cow::Owned);
                }
                Place::Query(name) => query = query.map(|query| urlencoded::without(&query, name).into()),
                _ => {}
            }
        }
    }
    match (route.options.mode, query) {
        (_, Some(query)) if url_uses_path => Some(kept_path::keep_target(&[&path, "?", &query].concat())),
        (_, None) if url_uses_path => Some(kept_path::keep_target(&path)),
        (RouteMode::Enforce, _) => Some(kept_path::keep_path(&path)),
        (RouteMode::Observe | RouteMode::Off, _) => None,
    }
}

/// A token: 128 bits from the operating system's generator.
pub fn fresh_token() -> Token {
    thread_local! {
        /// Tokens are drawn many at once: one system call for each token took a twentieth of a replay's time.
        static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.is_empty() {
            drawn.resize(TOKENS_AT_ONCE, [0; 16]);
            fill_random(drawn.as_flattened_mut()).expect("the operating system has random numbers");
        }
        Token::from_random(drawn.pop().expect("some were just drawn"))
    })
}

/// A kibibyte for each thread.
const TOKENS_AT_ONCE: usize = 64;
