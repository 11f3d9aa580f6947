//! Arm: hold a duplicate until its first attempt is settled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::refuse::{Refusal, RetryAfter};
use super::status::Told;
use super::{Shared, Stamp, prefer};
use crate::body::Body;
use crate::config::{InFlight, Route};
use crate::domain::record::{Record, RecordId, State};

/// How long one duplicate waits, and what it gets if that was too short.
pub struct Patience {
    /// Until then.
    pub until: Instant,
    accepted: bool,
}

impl Patience {
    /// What the route says, and the client: `Prefer: wait=N` (RFC 7240 section 4.3) is honoured in every mode, up to the
    /// route's own limit.
    pub fn of(route: &Route, headers: &HeaderMap) -> Self {
        let own = match route.in_flight {
            InFlight::Wait => route.wait_timeout,
            InFlight::Accepted | InFlight::Conflict => Duration::ZERO,
        };
        let wait = prefer::wait(headers).map_or(own, |wait| wait.min(route.wait_timeout));
        Self { until: Instant::now() + wait, accepted: route.in_flight == InFlight::Accepted }
    }

    /// The attempt is still running.
    ///
    /// # Errors
    /// The refusal, where the route does not say 202 instead.
    pub fn end(&self, wait: RetryAfter, stamp: &Stamp) -> Result<Response<Body>, Refusal> {
        if !self.accepted {
            return Err(Refusal::InFlight(wait));
        }
        let mut response = Response::new(Body::whole("{\"state\":\"in_flight\"}"));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        stamp.put(headers, Told::InFlight);
        Ok(response)
    }
}

/// Between two looks at a key that another instance is executing: soon at first, when most attempts end, and then no more
/// often than a client would ask.
const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_CAP: Duration = Duration::from_secs(1);

/// Who waits for what. However many wait for one key, one task looks at the store for all of them, and it looks at once
/// when the attempt ends on this instance. A lost nudge costs a second, never an answer.
#[derive(Default)]
pub struct Waiters(Mutex<HashMap<RecordId, Weak<Room>>>);

/// Those who wait for one key.
struct Room {
    settled: watch::Sender<Option<Found>>,
    nudge: Notify,
}

/// The record once it is settled; `None` if it is gone.
type Found = Option<Arc<Record>>;

impl Waiters {
    /// Waits until the key's attempt is settled, at the longest until `deadline`; `None` if it is still running then, or
    /// the record is gone.
    pub async fn wait(&self, shared: &Arc<Shared>, id: RecordId, deadline: Instant) -> Option<Record> {
        if deadline <= Instant::now() {
            return None;
        }
        let room = self.room(shared, id);
        let mut settled = room.settled.subscribe();
        let found = timeout_at(deadline, settled.wait_for(Option::is_some)).await.ok()?.ok()?.clone();
        found.flatten().map(|record| (*record).clone())
    }

    /// The key's attempt has been settled by this instance, or by its service through it.
    pub fn nudge(&self, id: RecordId) {
        if let Some(room) = self.lock().get(&id).and_then(Weak::upgrade) {
            room.nudge.notify_one();
        }
    }

    fn room(&self, shared: &Arc<Shared>, id: RecordId) -> Arc<Room> {
        let mut rooms = self.lock();
        if let Some(room) = rooms.get(&id).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(Room { settled: watch::Sender::new(None), nudge: Notify::new() });
        rooms.insert(id, Arc::downgrade(&room));
        tokio::spawn(look(Arc::clone(shared), id, Arc::downgrade(&room)));
        room
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RecordId, Weak<Room>>> {
        // The map is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the key until it is settled or nobody waits any more.
async fn look(shared: Arc<Shared>, id: RecordId, room: Weak<Room>) {
    let waiters = &shared.waiters;
    let mut pause = LOOK_FIRST;
    loop {
        let nudged = {
            let Some(room) = room.upgrade() else { break };
            tokio::select! {
                () = sleep(pause) => {
                    pause = (pause * 2).min(LOOK_CAP);
                    false
                }
                () = room.nudge.notified() => true,
            }
        };
        let found = match shared.underway.known(&id) {
            // It is running here, and its service may have completed the key before it has answered.
            Some(record) if nudged && matches!(record.state, State::InFlight) => {
                let found = shared.look_up(id).await.ok().flatten();
                found.filter(|found| matches!(found.state, State::Completed(_))).or(Some(record))
            }
            // It is running here, and its end nudges; or it has ended, and the store may not know.
            Some(record) => Some(record),
            // An error is the store's trouble of the moment: the next look tries again, and the waiters have their deadlines.
            None => match shared.look_up(id).await {
                Ok(found) => found,
                Err(_) => continue,
            },
        };
        if found.as_ref().is_some_and(|record| matches!(record.state, State::InFlight | State::Queued)) {
            continue;
        }
        // Out of the table before it is told, so that whoever comes now begins anew.
        waiters.lock().remove(&id);
        if let Some(room) = room.upgrade() {
            room.settled.send_replace(Some(found.map(Arc::new)));
        }
        return;
    }
    let mut rooms = waiters.lock();
    // Another room may stand there by now.
    if rooms.get(&id).is_some_and(|room| room.strong_count() == 0) {
        rooms.remove(&id);
    }
}
