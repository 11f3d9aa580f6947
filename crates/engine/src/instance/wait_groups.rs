//! Duplicates that wait until the attempt of their key is settled: all duplicates of a key share one wait group.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Instance;
use super::running_stream::RunningStream;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::state::KeyState;

/// The pauses between two looks at a key that another instance executes: short at first, because most attempts end
/// soon, and then no shorter than a client would wait.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The wait groups by key. One task looks at the store for all duplicates of a key, and it looks at once when the
/// attempt ends on this instance. A lost wake-up costs one second, never an answer.
pub struct WaitGroups {
    groups: Mutex<HashMap<RecordId, Weak<WaitGroup>>>,
    began: Instant,
}

impl Default for WaitGroups {
    fn default() -> Self {
        Self { groups: Mutex::default(), began: Instant::now() }
    }
}

/// The duplicates that wait for one key.
struct WaitGroup {
    /// Wakes the duplicates in the order in which they came.
    settled: SetOnce<SettledRecord>,
    /// The response of the attempt, if it streams.
    stream: SetOnce<Arc<RunningStream>>,
    wake_up: Notify,
}

/// The record once it is settled; `None` if it is gone.
type SettledRecord = Option<Arc<Record>>;

impl WaitGroups {
    /// Waits until the key's attempt is settled, until `deadline` at the latest. `None` if the attempt is still running
    /// then, or if the record is gone.
    pub async fn wait(&self, instance: &Arc<Instance>, id: RecordId, deadline: Instant) -> Option<Record> {
        if deadline <= Instant::now() {
            return None;
        }
        let group = self.join(instance, id);
        let settled = timeout_at(deadline, group.settled.wait()).await.ok()?;
        settled.as_deref().cloned()
    }

    /// Waits until the response of the key's attempt on this instance streams.
    pub async fn stream(&self, instance: &Arc<Instance>, id: RecordId) -> Arc<RunningStream> {
        // The group first: a stream that begins now is in the registry or comes to the group.
        let group = self.join(instance, id);
        match instance.in_flight.find_stream(&id) {
            Some(stream) => stream,
            None => Arc::clone(group.stream.wait().await),
        }
    }

    /// Tells the key's group that the response streams.
    pub fn begin_stream(&self, id: RecordId, stream: &Arc<RunningStream>) {
        if let Some(group) = self.groups.lock().get(&id).and_then(Weak::upgrade) {
            // A group that outlives its attempt keeps the first stream, whose body has ended: it joins no second one.
            let _ = group.stream.set(Arc::clone(stream));
        }
    }

    /// Waits until no duplicate waits for the key.
    pub async fn unawaited(&self, id: RecordId) {
        // A duplicate that leaves tells nobody.
        while self.is_awaited(id) {
            sleep(PAUSE_MAX).await;
        }
    }

    fn is_awaited(&self, id: RecordId) -> bool {
        self.groups.lock().get(&id).is_some_and(|group| group.strong_count() > 0)
    }

    /// Wakes the key's group: this instance, or the service through it, has settled the attempt.
    pub fn wake(&self, id: RecordId) {
        if let Some(group) = self.groups.lock().get(&id).and_then(Weak::upgrade) {
            group.wake_up.notify_one();
        }
    }

    /// The end of a pause that begins now. All groups look at the same moments, so that the store reads many keys at
    /// once.
    fn next_look(&self, pause: Duration) -> Instant {
        let elapsed = self.began.elapsed().as_millis();
        let pauses = elapsed / pause.as_millis() + 1;
        self.began + pause * u32::try_from(pauses).unwrap_or(u32::MAX)
    }

    fn join(&self, instance: &Arc<Instance>, id: RecordId) -> Arc<WaitGroup> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(&id).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(WaitGroup { settled: SetOnce::new(), stream: SetOnce::new(), wake_up: Notify::new() });
        groups.insert(id, Arc::downgrade(&group));
        tokio::spawn(watch_key(Arc::clone(instance), id, Arc::downgrade(&group)));
        group
    }

    /// Removes a group, but not another one that the key has by now.
    fn remove(&self, id: RecordId, group: &Weak<WaitGroup>) {
        let mut groups = self.groups.lock();
        if groups.get(&id).is_some_and(|current| current.ptr_eq(group)) {
            groups.remove(&id);
        }
    }
}

/// Looks at the key until it is settled or the group is empty.
async fn watch_key(instance: Arc<Instance>, id: RecordId, group: Weak<WaitGroup>) {
    let wait_groups = &instance.wait_groups;
    let mut pause = PAUSE_FIRST;
    loop {
        let woken = {
            let Some(group) = group.upgrade() else { break };
            tokio::select! {
                biased;
                () = group.wake_up.notified() => true,
                () = sleep_until(wait_groups.next_look(pause)) => {
                    pause = (pause * 2).min(PAUSE_MAX);
                    false
                }
            }
        };
        let found = match instance.in_flight.find(&id) {
            // The attempt runs here, and its service may have completed the key before it responds.
            Some(record) if woken && matches!(record.state, KeyState::InFlight) => {
                let found = instance.find_record(id).await.ok().flatten();
                found.filter(|found| matches!(found.state, KeyState::Completed(_))).or(Some(record))
            }
            // The attempt runs here and its end wakes this group; or it has ended, and the store may not know.
            Some(record) => Some(record),
            // After an error the next look tries again; the waiting requests have deadlines of their own.
            None => match instance.find_record(id).await {
                Ok(found) => found,
                Err(_) => continue,
            },
        };
        if found.as_ref().is_some_and(|record| matches!(record.state, KeyState::InFlight | KeyState::Queued)) {
            continue;
        }
        // Remove the group before it gets its answer: a duplicate that comes now must start a new group.
        wait_groups.remove(id, &group);
        if let Some(group) = group.upgrade() {
            let set = group.settled.set(found.map(Arc::new));
            debug_assert!(set.is_ok(), "a group has one task, which ends here");
        }
        return;
    }
    wait_groups.remove(id, &group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_group_leaves_a_later_group_of_its_key() {
        let (groups, id) = (WaitGroups::default(), RecordId::from_stored(&[7; 32]).expect("it is 32 bytes long"));
        let new_group =
            || Arc::new(WaitGroup { settled: SetOnce::new(), stream: SetOnce::new(), wake_up: Notify::new() });
        let earlier = Arc::downgrade(&new_group());
        let later = new_group();
        groups.groups.lock().insert(id, Arc::downgrade(&later));
        groups.remove(id, &earlier);
        assert!(groups.groups.lock().contains_key(&id), "its duplicates would not be woken");
        groups.remove(id, &Arc::downgrade(&later));
        assert!(!groups.groups.lock().contains_key(&id));
    }
}
