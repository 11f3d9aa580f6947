//! How an attempt is written down.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Shared;
use super::meters::Late;
use super::underway::{Entry, Standing};
use crate::cache::Begun;
use crate::domain::attempt::{Ending, Lease, Settlement};
use crate::domain::record::{Ask, Completed, Record, Reservation, State};
use crate::store::{Settled, StoreError};
use crate::telemetry::logs::causes;

/// What became of a settlement.
pub enum Filed {
    /// Nothing guards it, so that nobody waits for it. It is stored beside, when there is a store again.
    Bypassed,
    /// Durable.
    Done {
        /// Until when it is kept, where it has a TTL.
        expires_at: Option<SystemTime>,
    },
    /// Somebody else has decided, and this is what stands there now.
    Fenced(Option<Box<Record>>),
    /// Not yet: it is tried again in the background, and the key stays closed meanwhile.
    Unstored,
}

/// Between two tries of a settlement that failed: at once after a hiccup, and seldom enough in an outage. No pause is
/// longer than half a lease either, so that a lease after the store's return every key is settled, swept or free.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// Writes an attempt's end down, before its answer goes out.
pub(super) async fn file(shared: &Arc<Shared>, settlement: Settlement, mut entry: Entry) -> Filed {
    if entry.standing() == Standing::InDoubt {
        keep_settling(shared, settlement, entry);
        return Filed::Bypassed;
    }
    entry.ends_so(&settlement);
    let (id, begun) = (settlement.id, shared.cache.begin());
    let settled = shared.store.settle(settlement.clone()).await;
    // In this order, so that a duplicate finds the one or the other: what is completed is remembered, the attempt runs no
    // more, and those who wait for it look.
    if let (Ok(settled), false) = (&settled, shared.tenure.has_held_since(entry.entered())) {
        count_late(shared, &settlement, settled);
    }
    match &settled {
        Ok(Settled::Done { expires_at }) => remember(shared, settlement.ending.clone(), *expires_at, &entry, begun),
        Ok(Settled::Fenced(Some(record))) => shared.cache.put(record, begun),
        Ok(Settled::Fenced(None)) | Err(_) => {}
    }
    if settled.is_ok() {
        entry.ends();
        shared.waiters.nudge(id);
    }
    match settled {
        Ok(Settled::Done { expires_at }) => Filed::Done { expires_at },
        Ok(Settled::Fenced(record)) => Filed::Fenced(record.map(Box::new)),
        Err(error) => {
            let cause = causes(&error);
            tracing::warn!(record = %settlement.id, cause, "{error}; the attempt's end is stored as soon as it can be");
            keep_settling(shared, settlement, entry);
            Filed::Unstored
        }
    }
}

fn remember(shared: &Shared, ending: Ending, expires_at: Option<SystemTime>, entry: &Entry, begun: Begun) {
    if let (Ending::Completed { response, .. }, Some(expires_at), Some(record)) = (ending, expires_at, entry.record()) {
        let state = State::Completed(Completed { response, expires_at: Some(expires_at) });
        shared.cache.put(&Record { state, ..record.clone() }, begun);
    }
}

/// Tries until it works or the drain gives up. The entry goes with it: until it is durable, the attempt is underway, and
/// its end is told from there.
fn keep_settling(shared: &Arc<Shared>, settlement: Settlement, mut entry: Entry) {
    entry.ends_so(&settlement);
    entry.ended(&settlement.ending);
    shared.waiters.nudge(settlement.id);
    let shared_in_task = Arc::clone(shared);
    shared.tracker.spawn(async move {
        let shared = shared_in_task;
        let (mut pause, begun) = (RETRY_FIRST, Instant::now());
        let longest = RETRY_CAP.min(shared.tenure.expiry() / 2);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shared.giving_up.cancelled() => {
                    tracing::error!(record = %settlement.id, "an attempt's end could not be stored; its key will be unknown");
                    return entry.stay();
                }
            }
            let remembered = shared.cache.begin();
            match settle(&shared, &settlement, entry.standing()).await {
                // It was never made, and nothing is to be remembered. Should it come yet, it may be taken for a stray.
                Ok(Settled::Fenced(None)) if entry.standing() == Standing::InDoubt => return,
                Ok(settled) => {
                    count_late(&shared, &settlement, &settled);
                    if let Settled::Done { expires_at } = settled {
                        remember(&shared, settlement.ending.clone(), expires_at, &entry, remembered);
                    }
                    drop(entry);
                    shared.waiters.nudge(settlement.id);
                    return tell(&settlement, &settled);
                }
                Err(StoreError::Corrupt(what)) => {
                    tracing::error!(record = %settlement.id, %what, "an attempt's end cannot be stored; its key stays closed");
                    return entry.stay();
                }
                Err(_) if settlement.ttl().is_some_and(|ttl| begun.elapsed() > ttl) => {
                    tracing::error!(record = %settlement.id, "an attempt's end could not be stored within its TTL");
                    return entry.stay();
                }
                Err(_) => pause = (pause * 2).min(longest),
            }
        }
    });
}

/// Settles it. What was begun without a reservation has a key, too, that somebody else has had and given back meanwhile:
/// nobody is to take that for one of which nothing was sent.
async fn settle(shared: &Shared, settlement: &Settlement, standing: Standing) -> Result<Settled, StoreError> {
    let settled = shared.store.settle(settlement.clone()).await?;
    let (Standing::InDoubt, Some(lease), Settled::Fenced(Some(record))) = (standing, settlement.to_restore(), &settled)
    else {
        return Ok(settled);
    };
    if !matches!(record.state, State::Retryable) {
        return Ok(settled);
    }
    match shared.store.take_over(Ask::clone(&lease.ask), record.into()).await? {
        Reservation::Fresh(_) => shared.store.settle(settlement.clone()).await,
        Reservation::Taken(record) => Ok(Settled::Fenced(Some(record))),
    }
}

/// Two attempts of which both have come to something are told: whoever clears up needs to know of both.
fn tell(settlement: &Settlement, settled: &Settled) {
    let id = settlement.id;
    match settled {
        Settled::Fenced(Some(record)) if !has_its_word(record, settlement) => {
            let stands = record.state.name();
            tracing::warn!(record = %id, stands, "an attempt's end differs from what the store has of its key, and is not stored");
        }
        Settled::Done { .. } | Settled::Fenced(_) => {
            tracing::info!(record = %id, "an attempt's end is stored after all")
        }
    }
}

/// Counts an end that comes when others may have given the attempt up: its lease had run out meanwhile, or the store was
/// away.
fn count_late(shared: &Shared, settlement: &Settlement, settled: &Settled) {
    let late = match settled {
        Settled::Done { .. } => Late::Taken,
        Settled::Fenced(Some(record)) if has_its_word(record, settlement) => Late::Taken,
        Settled::Fenced(_) => Late::Dropped,
    };
    shared.watch.meters.late_completions.count(late);
}

/// Whether the record is of this attempt, and has no other response.
fn has_its_word(record: &Record, settlement: &Settlement) -> bool {
    record.token == settlement.token
        && match (&record.state, &settlement.ending) {
            (State::Completed(stored), Ending::Completed { response, .. }) => stored.response == *response,
            _ => true,
        }
}

/// An attempt that has begun. Should its task end without having settled it (a panic), it is settled by what is known:
/// nothing sent is a release, anything else is unknown.
pub(super) struct Attempt {
    shared: Arc<Shared>,
    held: Option<(Lease, Entry)>,
    sent: bool,
    ttl: Duration,
}

impl Attempt {
    /// Takes the lease into care. `ttl` is how long a released key is remembered.
    pub(super) fn new(shared: &Arc<Shared>, lease: Lease, entry: Entry, ttl: Duration) -> Self {
        Self { shared: Arc::clone(shared), held: Some((lease, entry)), sent: false, ttl }
    }

    /// From here on bytes may have left.
    pub(super) fn sending(&mut self) {
        self.sent = true;
    }

    /// The lease, to be settled now.
    pub(super) fn end(mut self) -> (Lease, Entry) {
        self.held.take().expect("an attempt ends once, and ending takes it")
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some((lease, entry)) = self.held.take() {
            let settlement = if self.sent { lease.unknown() } else { lease.release(self.ttl) };
            keep_settling(&self.shared, settlement, entry);
        }
    }
}
