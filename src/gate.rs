//! A request's whole journey.
//!
//! Read `Gate::journey` and `Gate::guarded` from top to bottom and you have seen every way a request can end. The
//! chapters lie in the folder: `admit` (is it ours?), `decide` (what was found), the arms `forward`, `refuse` and
//! `replay`, and `settle` (how the attempt is written down).

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::config::Config;
use crate::domain::record::Reservation;
use crate::domain::scope::Salt;
use crate::store::{Store, StoreError};
use crate::upstream::Upstream;
use admit::{Admission, Guarded};
use decide::{Decision, Rules, decide};
use pace::Pace;
use refuse::{Refusal, RetryAfter};
use routing::Router;
use status::Told;
use tenure::Tenure;
use underway::Underway;

pub mod admit;
pub mod decide;
pub mod fields;
pub mod forward;
mod oversize;
pub mod pace;
pub mod pass;
pub mod problem_pages;
pub mod refuse;
pub mod replay;
pub mod routing;
pub mod settle;
pub mod status;
pub mod tenure;
pub mod underway;

/// What every worker's gate shares.
pub struct Shared {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// How long each route's attempts take, in the order of the routes.
    pub paces: Vec<Arc<Pace>>,
    /// The one place that decides who executes.
    pub store: Arc<dyn Store>,
    /// The store's salt, read once.
    pub salt: Salt,
    /// This instance's right to start attempts.
    pub tenure: Tenure,
    /// The attempts that this process is running.
    pub underway: Arc<Underway>,
    /// What must end before the process does: attempts and their settlements.
    pub tracker: TaskTracker,
    /// The door is closed: nothing new is begun.
    pub draining: CancellationToken,
    /// The drain's time is up: what is not settled by now is left to the store's other readers.
    pub giving_up: CancellationToken,
}

/// One worker's gate: the shared parts, and connections of its own.
pub struct Gate {
    shared: Arc<Shared>,
    router: Router,
    pass: Upstream,
}

/// How often one request tries to take a key over from a record that keeps changing under its hands.
const TAKE_OVERS_MAX: usize = 3;

impl Gate {
    /// A gate with connection pools of its own; to be made on the runtime that will use it.
    pub fn new(shared: Arc<Shared>) -> Self {
        let router = Router::new(&shared.config, &shared.paces);
        let top = &shared.config.pass;
        let pass = Upstream::new(&top.upstream, top.connect_timeout, top.upstream_idle_timeout);
        Self { shared, router, pass }
    }

    /// Answers a request, come what may.
    pub async fn handle(self: &Arc<Self>, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        let mut stamp = Stamp::new(request.headers());
        match self.journey(request, peer, &mut stamp).await {
            Ok(response) => response,
            Err(refusal) => self.refuse(refusal, &stamp),
        }
    }

    /// An answer in our own name.
    pub fn refuse(&self, refusal: Refusal, stamp: &Stamp) -> Response<Body> {
        let mut response = refusal.response(&self.shared.config.problem_base);
        stamp.put(response.headers_mut(), refusal.told());
        response
    }

    async fn journey(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: IpAddr,
        stamp: &mut Stamp,
    ) -> Result<Response<Body>, Refusal> {
        if let Some(page) = problem_pages::answer(&request, &self.shared.config.problem_base) {
            return Ok(page);
        }
        let guarded = match self.admit(request, peer, stamp).await? {
            Admission::Unguarded(request) => return self.pass(request).await,
            Admission::Guarded(guarded) => *guarded,
        };
        // hyper drops this future when the client goes away. From here on the work belongs to the key, not to the client.
        let (gate, stamp) = (Arc::clone(self), stamp.clone());
        let work = self.shared.tracker.spawn(async move { gate.guarded(guarded, stamp).await });
        work.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "a guarded request panicked; its key is settled by what is known of it");
            Err(Refusal::OutcomeUnknown(RetryAfter::new(decide::ASK_AGAIN)))
        })
    }

    async fn guarded(self: Arc<Self>, guarded: Guarded, stamp: Stamp) -> Result<Response<Body>, Refusal> {
        let Shared { store, tenure, underway, .. } = &*self.shared;
        if !tenure.may_start() {
            return Err(Refusal::StoreUnavailable);
        }
        let rules = Rules {
            on_unknown: guarded.route().on_unknown,
            quiet_after: guarded.route().quiet_after,
            usual: guarded.pace().usual(),
        };
        let entry = underway.enter(guarded.ask.token);
        let mut reservation = store.reserve(guarded.ask.clone()).await.map_err(refusal_of)?;
        for _ in 0..=TAKE_OVERS_MAX {
            let record = match reservation {
                Reservation::Fresh(lease) => return self.forward(guarded, lease, entry, &stamp).await,
                Reservation::Taken(record) => record,
            };
            let same = guarded.is_what(&record);
            match decide(record, same, &rules) {
                Decision::Refuse(refusal) => return Err(refusal),
                Decision::Replay(completed) => return Ok(replay::replay(completed, &stamp)),
                Decision::TakeOver(seen) => {
                    reservation = store.take_over(guarded.ask.clone(), seen).await.map_err(refusal_of)?;
                }
            }
        }
        // Others keep taking it over before us: one of them is running.
        Err(Refusal::InFlight(RetryAfter::new(rules.usual)))
    }
}

/// Told here, once, with its causes: whoever turns an error into a refusal is its last reader.
fn refusal_of(error: StoreError) -> Refusal {
    let cause = std::error::Error::source(&error).map(tracing::field::display);
    match error {
        StoreError::Corrupt(_) => {
            tracing::error!(cause, "{error}; its key stays closed");
            Refusal::ResponseCorrupt
        }
        StoreError::TimedOut | StoreError::Unavailable(_) => {
            tracing::warn!(cause, "{error}; the request is refused");
            Refusal::StoreUnavailable
        }
    }
}

/// What every answer on a route that guards gets: what Oncegate did, the key as it was received, and no trailers for a
/// client that does not know what to do with them.
#[derive(Clone, Debug, Default)]
pub struct Stamp {
    guarded: bool,
    accepts_trailers: bool,
    key_field: Option<(HeaderName, HeaderValue)>,
}

impl Stamp {
    /// For a request with these fields.
    pub fn new(headers: &HeaderMap) -> Self {
        Self { accepts_trailers: fields::accepts_trailers(headers), ..Self::default() }
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

    /// A route guards the request.
    pub fn guard(&mut self) {
        self.guarded = true;
    }

    /// It has no key, and the route does not require one.
    pub fn unguard(&mut self) {
        self.guarded = false;
    }

    /// Its key is well-formed, and will be echoed as it was received.
    pub fn echo(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.key_field = Some((name.clone(), value.clone()));
    }

    /// Puts the fields on an answer.
    pub fn put(&self, headers: &mut HeaderMap, told: Told) {
        if self.guarded {
            headers.insert(fields::ONCEGATE_STATUS, told.value());
        }
        if let Some((name, value)) = &self.key_field {
            headers.insert(name, value.clone());
        }
    }
}
