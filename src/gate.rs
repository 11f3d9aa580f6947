//! A request's whole journey.
//!
//! Read `Gate::journey` and `Gate::guarded` from top to bottom and you have seen every way a request can end. The
//! chapters lie in the folder: `admit` (is it ours?), `decide` (what was found), the arms `forward`, `refuse` and
//! `replay`, and `settle` (how the attempt is written down).

use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::cache::Cache;
use crate::config::Config;
use crate::domain::attempt::Lease;
use crate::domain::record::{Record, RecordId, Reservation};
use crate::domain::scope::Salt;
use crate::store::breaker::was_not_asked;
use crate::store::{Breaker, Store, StoreError};
use crate::telemetry::logs::causes;
use crate::upstream::Upstream;
use admit::{Admission, Guarded};
use bypass::Lacking;
use client::Client;
use decide::{Decision, Rules, decide};
use meters::{Found, Meters, Tier, Verb};
use pace::Paces;
use refuse::{Refusal, RetryAfter};
use routing::Router;
use status::Told;
use tenure::{Moment, Tenure};
use trail::{Stage, Trail};
use underway::{Entry, Underway};
use wait::{Patience, Waiters};
use watch::Watch;

pub mod admit;
mod bypass;
pub mod client;
pub mod decide;
pub mod deliver;
pub mod fields;
pub mod forward;
mod forwarded_key;
mod letter;
pub mod lookup;
pub mod message;
pub mod meters;
pub mod observe;
mod operations;
mod oversize;
pub mod pace;
pub mod pass;
mod prefer;
pub mod problem_pages;
mod queue;
pub mod refuse;
pub mod replay;
pub mod routing;
mod said;
pub mod settle;
pub mod status;
pub mod tenure;
mod trail;
pub mod underway;
pub mod wait;
pub mod watch;

/// What every worker's gate shares.
pub struct Shared {
    /// The configuration at start: what of it only a restart can change. The rest is each gate's [`Live`].
    pub config: Arc<Config>,
    /// How long each route's attempts take.
    pub paces: Paces,
    /// The one place that decides who executes, behind the breaker.
    pub store: Arc<dyn Store>,
    /// How the store has answered lately.
    pub breaker: Arc<Breaker>,
    /// How many requests were forwarded unguarded, because the store could not reserve and their routes said so.
    pub bypassed: AtomicU64,
    /// What is told of requests: numbers, lines, spans.
    pub watch: Arc<Watch>,
    /// The store's salt, read once.
    pub salt: Salt,
    /// This instance's right to start attempts.
    pub tenure: Tenure,
    /// The attempts that this process is running.
    pub underway: Arc<Underway>,
    /// The duplicates that wait for one of those, here or on another instance.
    pub waiters: Arc<Waiters>,
    /// Something was accepted here, and is due to be delivered.
    pub due: Notify,
    /// Deliveries for which an attempt was begun and nothing sent: it is not to count.
    pub unsent: Mutex<Vec<RecordId>>,
    /// What is completed, as far as it is remembered here.
    pub cache: Cache,
    /// What must end before the process does: attempts and their settlements.
    pub tracker: TaskTracker,
    /// The door is closed: nothing new is begun.
    pub draining: CancellationToken,
    /// The drain's time is up: what is not settled by now is left to the store's other readers.
    pub giving_up: CancellationToken,
}

impl Shared {
    /// The key's record as far as this instance knows it without asking.
    fn known(&self, id: &RecordId) -> Option<Record> {
        self.remembered(id).or_else(|| self.underway.known(id))
    }

    /// The key's record, if it is completed and remembered. Only as long as a purge elsewhere would have been heard of.
    fn remembered(&self, id: &RecordId) -> Option<Record> {
        self.tenure.is_in_touch().then(|| self.recalled(id)).flatten()
    }

    /// The same, however long ago this instance has heard of the store.
    fn recalled(&self, id: &RecordId) -> Option<Record> {
        let found = self.cache.get(id, self.tenure.store_now());
        found.inspect(|_| self.watch.meters.cache_hits.count(Tier::Memory))
    }

    /// The key's record, wherever it is; kept in memory if it is completed.
    async fn look_up(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        if let Some(record) = self.remembered(&id) {
            return Ok(Some(record));
        }
        let asked = self.cache.begin();
        let found = self.store.find(id).await?;
        found.iter().for_each(|record| self.cache.put(record, asked));
        Ok(found)
    }
}

/// One worker's gate: the shared parts, and connections of its own.
pub struct Gate {
    shared: Arc<Shared>,
    /// That of all, as this worker looks at it without waiting for another.
    draining: CancellationToken,
    live: RwLock<Arc<Live>>,
}

/// What a reload replaces as a whole. A request keeps the one that it came in under.
pub struct Live {
    config: Arc<Config>,
    router: Router,
    pass: Upstream,
}

impl Live {
    fn new(config: Arc<Config>, paces: &Paces, meters: &Meters) -> Self {
        let router = Router::new(&config, paces, meters);
        let top = &config.pass;
        let pass = Upstream::new(&top.upstream, top.connect_timeout, top.upstream_idle_timeout, &config.trust);
        Self { config, router, pass }
    }
}

/// How often one request tries to take a key over from a record that keeps changing under its hands.
const TAKE_OVERS_MAX: usize = 3;

impl Gate {
    /// A gate with connection pools of its own; to be made on the runtime that will use it.
    pub fn new(shared: Arc<Shared>) -> Self {
        let live = RwLock::new(Arc::new(Live::new(Arc::clone(&shared.config), &shared.paces, &shared.watch.meters)));
        let draining = shared.draining.child_token();
        Self { shared, draining, live }
    }

    /// Takes another configuration over for all requests from now on.
    pub fn reload(&self, config: Arc<Config>) {
        let live = Arc::new(Live::new(config, &self.shared.paces, &self.shared.watch.meters));
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = live;
    }

    fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What clients are to be spoken to with from now on; `None` for cleartext.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.live().config.tls.as_ref().map(|tls| Arc::clone(&tls.server))
    }

    /// Answers a request, come what may.
    pub async fn handle(self: &Arc<Self>, request: Request<Incoming>, client: &Client) -> Response<Body> {
        let mut stamp = Stamp::new(request.headers());
        stamp.trail = self.shared.watch.follow(&request, stamp.began());
        let live = self.live();
        let response = match self.journey(request, client, &live, &mut stamp).await {
            Ok(response) => response,
            Err(refusal) => refuse(refusal, &live.config, &stamp),
        };
        if let Some(trail) = &stamp.trail {
            trail.answered(response.status());
        }
        response
    }

    /// An answer in our own name to what was never a request.
    pub fn refuse(&self, refusal: Refusal) -> Response<Body> {
        refuse(refusal, &self.live().config, &Stamp::default())
    }

    async fn journey(
        self: &Arc<Self>,
        request: Request<Incoming>,
        client: &Client,
        live: &Live,
        stamp: &mut Stamp,
    ) -> Result<Response<Body>, Refusal> {
        if let Some(name) = operations::asked(&request) {
            return Box::pin(self.operation(&name, request, client, live)).await;
        }
        if let Some(page) = problem_pages::answer(&request, &live.config.problem_base) {
            return Ok(page);
        }
        let guarded = match self.admit(request, client, live, stamp).await? {
            Admission::Guarded(guarded) => guarded,
            Admission::Observed(mut observed) => {
                stamp.go_on(&mut observed.head.headers);
                return stamp.timed(Stage::Upstream, Box::pin(self.observe(*observed)).as_mut()).await;
            }
            Admission::Unguarded(mut passing) => {
                let verb = Verb::of(passing.request.method());
                if verb.changes_state() {
                    self.shared.watch.passes_unguarded(verb, passing.request.uri().path());
                }
                stamp.go_on(passing.request.headers_mut());
                return stamp.timed(Stage::Upstream, pin!(pass::pass(passing))).await;
            }
        };
        self.take_up(guarded, stamp).await
    }

    /// From the door to the answer, whoever it is for.
    async fn take_up(self: &Arc<Self>, guarded: Box<Guarded>, stamp: &Stamp) -> Result<Response<Body>, Refusal> {
        // What this instance has completed, is running or has yet to store itself, it can tell without the store.
        let known = self.shared.known(&guarded.ask.id).map(|record| {
            let same = guarded.is_what(&record);
            decide(record, same, &guarded.rules())
        });
        let known = match known {
            Some(decision @ (Decision::Refuse(_) | Decision::Replay(_))) => {
                return self.tell(&guarded, decision, stamp).await;
            }
            Some(decision @ (Decision::Accepted(_) | Decision::Join(_))) => Some(decision),
            // Nothing is known of it, or not enough: the store decides.
            Some(Decision::TakeOver(_)) | None => None,
        };
        // hyper drops this future when the client goes away. From here on the work belongs to the key, not to the client.
        let (gate, stamp) = (Arc::clone(self), stamp.clone());
        let work = self.shared.tracker.spawn(async move {
            match known {
                Some(decision) => gate.tell(&guarded, decision, &stamp).await,
                None if guarded.is_for_later() => Box::pin(gate.enqueue(&guarded, &stamp)).await,
                None => gate.guarded(guarded, stamp).await,
            }
        });
        work.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a guarded request panicked; its key is settled by what is known of it");
            Err(Refusal::OutcomeUnknown(RetryAfter::new(decide::ASK_AGAIN)))
        })
    }

    async fn guarded(self: Arc<Self>, mut guarded: Box<Guarded>, stamp: Stamp) -> Result<Response<Body>, Refusal> {
        let Shared { store, tenure, underway, .. } = &*self.shared;
        let rules = guarded.rules();
        let cached = self.shared.cache.begin();
        let mut entry = underway.enter(guarded.ask.token);
        let mut begun = Moment::now();
        let may_start = tenure.may_start() && !self.shared.giving_up.is_cancelled();
        let asked = match may_start {
            true => {
                let reserving = store.reserve(guarded.ask.clone());
                stamp.timed(Stage::Reserve, pin!(reserving)).await.map_err(Lacking::Failed)
            }
            // Without a lease nothing is begun; what others have done can still be told.
            false => match stamp.timed(Stage::Reserve, pin!(store.find(guarded.ask.id))).await {
                Ok(Some(record)) => Ok(Reservation::Taken(record)),
                none => Err(Lacking::Lease(none.err())),
            },
        };
        let mut reservation = match asked {
            Ok(reservation) => reservation,
            Err(lacking) => return Box::pin(self.without_reservation(guarded, lacking, entry, &stamp)).await,
        };
        for _ in 0..=TAKE_OVERS_MAX {
            let record = match reservation {
                Reservation::Fresh(lease) => match self.begins(&guarded, &lease, &mut entry) {
                    None => {
                        let found = if lease.attempt == 1 { Found::Created } else { Found::FailedRetry };
                        self.shared.watch.found(&guarded.guard.meters, &guarded.ask.scope, found);
                        return self.forward(guarded, lease, entry, begun, &stamp).await;
                    }
                    // The store has not heard of one that has begun here meanwhile.
                    Some(decision) => {
                        settle::file(&self.shared, lease.release(guarded.route().ttl), entry).await;
                        return self.tell(&guarded, decision, &stamp).await;
                    }
                },
                Reservation::Taken(record) => record,
            };
            self.shared.cache.put(&record, cached);
            let same = guarded.is_what(&record);
            match decide(record, same, &rules) {
                Decision::TakeOver(_) if !may_start => return Err(Refusal::StoreUnavailable),
                Decision::TakeOver(seen) => {
                    if seen.token == guarded.ask.token {
                        // Our own reservation, in doubt and swept meanwhile: a token stands for one attempt.
                        guarded.ask.token = admit::fresh_token();
                        entry = underway.enter(guarded.ask.token);
                    }
                    begun = Moment::now();
                    let taking = store.take_over(guarded.ask.clone(), seen);
                    reservation = stamp.timed(Stage::Reserve, pin!(taking)).await.map_err(refusal_of)?;
                }
                decision => return self.tell(&guarded, decision, &stamp).await,
            }
        }
        // Others keep taking it over before us: one of them is running.
        self.shared.watch.found(&guarded.guard.meters, &guarded.ask.scope, Found::InFlight);
        Err(Refusal::InFlight(RetryAfter::new(rules.usual)))
    }

    /// The attempt runs from now on, unless one of its key has begun here that stands against it: then that decides.
    fn begins(&self, guarded: &Guarded, lease: &Lease, entry: &mut Entry) -> Option<Decision> {
        let mut before = None;
        while !entry.runs(lease, before) {
            let known = self.shared.underway.known(&lease.ask.id);
            before = known.as_ref().map(|record| record.token);
            let decision = known.map(|record| {
                let same = guarded.is_what(&record);
                decide(record, same, &guarded.rules())
            });
            match decision {
                None | Some(Decision::TakeOver(_)) => {}
                decision => return decision,
            }
        }
        None
    }

    /// Nothing is begun: this is what has been decided instead.
    async fn tell(&self, guarded: &Guarded, decision: Decision, stamp: &Stamp) -> Result<Response<Body>, Refusal> {
        self.found(guarded, &decision);
        let rules = guarded.rules();
        match decision {
            Decision::Accepted(wait) => Box::pin(self.accepted(guarded, wait, stamp)).await,
            Decision::Join(wait) => Box::pin(self.join(guarded, &rules, wait, stamp)).await,
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Replay(completed) => Ok(replay::replay(completed, stamp)),
            Decision::TakeOver(_) => Err(Refusal::InFlight(RetryAfter::new(rules.usual))),
        }
    }

    /// Counts what a request has found; once for each, where it is decided.
    fn found(&self, guarded: &Guarded, decision: &Decision) {
        if let Some(found) = Found::of(decision) {
            self.shared.watch.found(&guarded.guard.meters, &guarded.ask.scope, found);
        }
    }

    /// Another attempt is running. A waiter never becomes one itself: when the first attempt is released, or its time is
    /// up, it is told to come again.
    async fn join(
        &self,
        guarded: &Guarded,
        rules: &Rules,
        wait: RetryAfter,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        let patience = Patience::of(guarded.route(), &guarded.head.headers);
        let settled = tokio::select! {
            settled = self.shared.waiters.wait(&self.shared, guarded.ask.id, patience.until) => settled,
            () = self.shared.draining.cancelled() => None,
        };
        let decision = settled.map(|record| {
            let same = guarded.is_what(&record);
            decide(record, same, rules)
        });
        match decision {
            Some(Decision::Replay(completed)) => Ok(replay::replay(completed, stamp)),
            Some(Decision::Refuse(refusal)) => Err(refusal),
            Some(Decision::Accepted(wait)) => self.accepted(guarded, wait, stamp).await,
            Some(Decision::Join(wait)) => patience.end(wait, stamp),
            Some(Decision::TakeOver(_)) => Err(Refusal::InFlight(RetryAfter::new(rules.usual))),
            None => patience.end(wait, stamp),
        }
    }
}

fn refuse(refusal: Refusal, config: &Config, stamp: &Stamp) -> Response<Body> {
    let mut response = refusal.response(&config.problem_base);
    stamp.put(response.headers_mut(), refusal.told());
    response
}

/// Told here, once, with its causes: whoever turns an error into a refusal is its last reader.
fn refusal_of(error: StoreError) -> Refusal {
    let cause = causes(&error);
    match error {
        StoreError::Corrupt(_) => {
            tracing::error!(cause, "{error}; its key stays closed");
            Refusal::ResponseCorrupt
        }
        // The breaker has said so for all of them.
        error if was_not_asked(&error) => Refusal::StoreUnavailable,
        StoreError::Taken(_) | StoreError::TimedOut | StoreError::Unavailable(_) => {
            tracing::warn!(cause, "{error}; the request is refused");
            Refusal::StoreUnavailable
        }
    }
}

/// What every answer on a route that guards gets: what Oncegate did, the key as it was received, and no trailers for a
/// client that does not know what to do with them.
#[derive(Clone, Default)]
pub struct Stamp {
    guarded: bool,
    bypassed: bool,
    accepts_trailers: bool,
    key_field: Option<(HeaderName, HeaderValue)>,
    began: Option<Instant>,
    trail: Option<Arc<Trail>>,
}

impl Stamp {
    /// For a request with these fields.
    pub fn new(headers: &HeaderMap) -> Self {
        Self { accepts_trailers: fields::accepts_trailers(headers), began: Some(Instant::now()), ..Self::default() }
    }

    /// A body with its trailers, if the client has said that it understands them (RFC 9110 section 6.5.1). They are
    /// announced in `headers`: HTTP/1.1 sends none that are not.
    pub fn body(&self, data: Bytes, trailers: HeaderMap, headers: &mut HeaderMap) -> Body {
        if trailers.is_empty() || !self.accepts_trailers {
            return Body::whole(data);
        }
        for name in trailers.keys() {
            headers.append(TRAILER, HeaderValue::from_name(name.clone()));
        }
        Body::with_trailers(data, trailers)
    }

    /// A route guards it, and cannot: whatever comes of it, no more is promised than that it was forwarded.
    pub fn bypassed(self) -> Self {
        Self { bypassed: true, ..self }
    }

    /// Its key is well-formed, and will be echoed as it was received.
    pub fn echo(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.key_field = Some((name.clone(), value.clone()));
    }

    /// Puts the fields on an answer.
    pub fn put(&self, headers: &mut HeaderMap, told: Told) {
        if self.guarded {
            let told = if self.bypassed { Told::Bypassed } else { told };
            self.with_trail(|trail| trail.told(told));
            headers.insert(fields::ONCEGATE_STATUS, told.value());
        }
        if let Some((name, value)) = &self.key_field {
            headers.insert(name, value.clone());
        }
    }
}
