//! Delivers what was accepted, as long as there is something due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Delivery};
use crate::domain::attempt::Token;
use crate::domain::job::{PickUp, Terms};
use crate::domain::record::RecordId;
use crate::gate::deliver::Delivered;
use crate::gate::tenure::Moment;
use crate::gate::{Gate, Shared};
use crate::store::StoreError;
use crate::telemetry::logs::causes;

/// Deliveries that one instance runs at once. A queue is there to keep a burst from a service: ten thousand requests come to
/// it over as many connections as a busy hour's clients would hold, and 64 bodies of the usual largest size are 64 MiB.
const AT_ONCE: usize = 64;

/// Picked up by one statement: what one commit reserves, others cannot take meanwhile.
const BATCH: usize = 32;

/// How often it is looked whether something is due that another instance has accepted, or that is to be tried again. What
/// this one accepts it is told of at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same where no route is asynchronous: one may have been, before a reload or a restart.
const LOOK_SELDOM: Duration = Duration::from_secs(10);

/// The deliveries of one route that run at once, where there are several routes.
const OF_A_ROUTE: usize = AT_ONCE / 2;

/// How many deliveries of each route are running.
#[derive(Default)]
struct Running(Mutex<HashMap<Arc<str>, usize>>);

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves out the routes that have no room, and tells how many any of the others may still begin.
    fn room(&self, terms: &mut Vec<Terms>) -> usize {
        let running = self.lock();
        let left = |terms: &Terms| OF_A_ROUTE.saturating_sub(running.get(&terms.route).copied().unwrap_or(0));
        terms.retain(|terms| left(terms) > 0);
        terms.iter().map(left).min().unwrap_or(0)
    }
}

/// A delivery's place among those of its route.
struct Place {
    shared: Arc<Shared>,
    running: Arc<Running>,
    route: Arc<str>,
}

impl Place {
    fn take(shared: &Arc<Shared>, running: &Arc<Running>, route: &Arc<str>) -> Self {
        *running.lock().entry(Arc::clone(route)).or_default() += 1;
        Self { shared: Arc::clone(shared), running: Arc::clone(running), route: Arc::clone(route) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        let Some(count) = running.get_mut(&self.route) else { return };
        *count -= 1;
        let was_full = *count + 1 >= OF_A_ROUTE;
        if *count == 0 {
            running.remove(&self.route);
        }
        drop(running);
        if was_full {
            // It was left out, and may have more.
            self.shared.due.notify_one();
        }
    }
}

/// One loop for each instance.
pub struct Deliverer {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    /// The configuration as it was last reloaded.
    live: watch::Receiver<Arc<Config>>,
    slots: Arc<Semaphore>,
    /// What has been delivered since the store was last told.
    delivered: Arc<Mutex<Vec<RecordId>>>,
    running: Arc<Running>,
}

impl Deliverer {
    /// With a gate of its own, made on the runtime that runs it.
    pub fn new(shared: Arc<Shared>, gate: Arc<Gate>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self {
            shared,
            gate,
            live,
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            delivered: Arc::default(),
            running: Arc::default(),
        }
    }

    /// Runs until told to stop, and then until what it has begun has ended. It is to be tracked: a drain waits for it.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let free = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                free = self.free() => free,
            };
            let found = match self.pass(free).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(task = "deliverer", cause = causes(&error), "{error}; the next pass tries again");
                    0
                }
            };
            if found > 0 {
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.due.notified() => {}
                () = tokio::time::sleep(self.period()) => {}
            }
        }
        let all = u32::try_from(AT_ONCE).expect("they are few");
        tokio::select! {
            _ = self.slots.acquire_many(all) => {}
            () = self.shared.giving_up.cancelled() => return,
        }
        if let Err(error) = self.pass(Vec::new()).await {
            tracing::info!(
                cause = causes(&error),
                "{error}; delivered requests stay in the store as long as their keys"
            );
        }
    }

    /// At least one slot, and up to a batch.
    async fn free(&self) -> Vec<OwnedSemaphorePermit> {
        let first = Arc::clone(&self.slots).acquire_owned().await;
        let more = std::iter::repeat_with(|| Arc::clone(&self.slots).try_acquire_owned()).take(BATCH - 1);
        first.into_iter().chain(more.map_while(Result::ok)).collect()
    }

    /// Picks up what is due for the free slots, and starts it. Tells how many things it found to do.
    async fn pass(&self, free: Vec<OwnedSemaphorePermit>) -> Result<usize, StoreError> {
        let Shared { store, tenure, underway, config, tracker, .. } = &*self.shared;
        self.forgive().await?;
        let mut terms = self.terms();
        // Where there are several, none takes all slots: a service that hangs is not to starve the others.
        let room = if terms.len() > 1 { self.running.room(&mut terms) } else { AT_ONCE };
        let delivered = std::mem::take(&mut *self.lock());
        let idle = delivered.is_empty() && (terms.is_empty() || free.is_empty());
        if !tenure.may_start() || idle {
            self.lock().extend(delivered);
            return Ok(0);
        }
        // Entered before they are reserved, so that none is ever taken for a stray.
        let mut entries: Vec<_> =
            free.iter().take(room).map(|_| fresh_token()).map(|token| (token, underway.enter(token))).collect();
        let begun = Moment::now();
        let order = PickUp {
            service: Arc::clone(&config.service),
            instance: tenure.id(),
            tokens: entries.iter().map(|(token, _)| *token).collect(),
            terms,
            delivered: delivered.clone(),
            busy: underway.deliveries(),
            unsent: Vec::new(),
        };
        let picked = store.pick_up(order).await.inspect_err(|_| self.lock().extend(delivered))?;
        let found = picked.jobs.len() + picked.dead.len();
        for dead in picked.dead {
            tracing::warn!(record = %dead.id, route = %dead.route, said = dead.note,
                "not delivered: given up, an operator must decide");
            self.shared.waiters.nudge(dead.id);
        }
        for (job, slot) in picked.jobs.into_iter().zip(free) {
            let (id, token) = (job.lease.ask.id, job.lease.ask.token);
            let Some(place) = entries.iter().position(|(entered, _)| *entered == token) else { continue };
            let (_, entry) = entries.swap_remove(place);
            let (gate, delivered) = (Arc::clone(&self.gate), Arc::clone(&self.delivered));
            let place = Place::take(&self.shared, &self.running, &job.lease.ask.route);
            tracker.spawn(async move {
                if gate.deliver(job, entry, begun).await == Delivered::Completed {
                    delivered.lock().unwrap_or_else(PoisonError::into_inner).push(id);
                }
                drop((slot, place));
            });
        }
        Ok(found)
    }

    /// Tells the store which attempts were not sent. In a statement before: what is due now is judged by it.
    async fn forgive(&self) -> Result<(), StoreError> {
        let lock = || self.shared.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let unsent = std::mem::take(&mut *lock());
        if unsent.is_empty() {
            return Ok(());
        }
        let order = PickUp {
            service: Arc::clone(&self.shared.config.service),
            instance: self.shared.tenure.id(),
            tokens: Vec::new(),
            terms: Vec::new(),
            delivered: Vec::new(),
            busy: Vec::new(),
            unsent: unsent.clone(),
        };
        self.shared.store.pick_up(order).await.map(drop).inspect_err(|_| lock().extend(unsent))
    }

    /// Of every route: one that is not asynchronous any more still owes what it has accepted.
    fn terms(&self) -> Vec<Terms> {
        let config = self.live.borrow();
        if config.secrets.current().is_none() {
            return Vec::new();
        }
        let terms = |route: &Arc<crate::config::Route>| Terms {
            route: Arc::clone(&route.name),
            on_unknown: route.on_unknown,
            quiet_after: route.quiet_after,
            time_limit: self.shared.time_limit(route),
            retry: route.retry,
        };
        let mut terms: Vec<_> = config.routes.iter().map(terms).collect();
        // In another order each time: no route comes always after one that has more than is picked up.
        if !terms.is_empty() {
            let turn = getrandom::u32().unwrap_or_default() as usize % terms.len();
            terms.rotate_left(turn);
        }
        terms
    }

    fn period(&self) -> Duration {
        let is_async = self.live.borrow().routes.iter().any(|route| route.delivery != Delivery::Sync);
        if is_async { LOOK_EVERY } else { LOOK_SELDOM }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RecordId>> {
        // Whole between any two statements.
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fresh_token() -> Token {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    Token::from_random(bytes)
}
