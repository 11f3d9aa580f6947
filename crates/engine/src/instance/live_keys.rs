//! The number of live keys that a caller or an address may hold on a route.
//!
//! The store counts them, by an index. Each instance remembers the last count of each holder, with the keys that it has
//! allowed since, and asks the store again when these have taken a part of the room that was left, or after some
//! seconds.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::Cache as Table;

use super::boot_time::BootInstant;
use oncegate_domain::key_holder::KeyHolder;

/// The holders that are remembered, about 150 bytes each. One that is forgotten costs one more look at the store.
const HOLDERS_MAX: usize = 65_536;

/// The time for which a count is used: other instances allow keys too, and the reaper deletes some.
const COUNT_MAX_AGE: Duration = Duration::from_secs(5);

/// The time for which a full holder is refused without a look. Its next key is allowed within a second of its room.
const FULL_MAX_AGE: Duration = Duration::from_secs(1);

/// The part of the room that an instance takes before it asks again. While it does, other instances may take the whole
/// room: each further instance may exceed the limit by so much, and by the keys that are being reserved at that moment.
// See docs/decisions/0020-limit-new-keys.md.
const ROOM_SHARE: u32 = 8;

/// The time for which keys are allowed without a look after a look has failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// The live keys of holders, as far as this instance knows.
pub struct LiveKeyLimits(Table<KeyHolder, Arc<Mutex<HeldKeys>>>);

/// The result of asking for room for a new key.
#[derive(Debug)]
pub enum KeyRoom {
    /// There is room, and the key has taken it.
    Free(LiveKeyAllowance),
    /// There is none.
    Full,
    /// The store has to be asked.
    Unknown(CountRequest),
}

/// A new key that has taken room, until it is known whether it was new.
#[derive(Debug)]
pub struct LiveKeyAllowance {
    held: Arc<Mutex<HeldKeys>>,
}

/// A look at the store that has begun.
#[derive(Debug)]
pub struct CountRequest {
    held: Arc<Mutex<HeldKeys>>,
    limit: u32,
    begun: CountStart,
}

/// The number of allowed keys that a count cannot miss: all but those that may be stored after it began.
type CountStart = u64;

/// The live keys of one holder.
#[derive(Debug, Default)]
struct HeldKeys {
    /// The last count, with the keys that it may have missed, and its time in milliseconds of boot time.
    counted: Option<(u32, u64)>,
    /// The keys that were allowed since.
    since: u32,
    /// All keys that were allowed, ever.
    allowed: u64,
    /// Those of which it is not known yet whether they are new.
    pending: u32,
    /// The time until which nothing is asked, because the last look failed.
    unasked_until: u64,
}

impl HeldKeys {
    /// Takes room for a key, if that is known. `None`: the store has to be asked.
    fn try_take(&mut self, limit: u32, now: u64) -> Option<bool> {
        if now < self.unasked_until {
            self.take();
            return Some(true);
        }
        let (counted, at) = self.counted?;
        let age = Duration::from_millis(now.saturating_sub(at));
        let room = limit.saturating_sub(counted);
        if room == 0 {
            return (age < FULL_MAX_AGE).then_some(false);
        }
        if age >= COUNT_MAX_AGE || self.since >= (room / ROOM_SHARE).max(1) {
            return None;
        }
        self.take();
        Some(true)
    }

    fn take(&mut self) {
        self.since = self.since.saturating_add(1);
        self.allowed += 1;
        self.pending += 1;
    }

    fn begin_count(&self) -> CountStart {
        self.allowed - u64::from(self.pending)
    }

    /// Notes keys that have come from another holder. The last count has missed them, and a count that has begun may
    /// miss them.
    fn note_moved(&mut self, keys: u32) {
        self.allowed += u64::from(keys);
        if let Some((counted, _)) = &mut self.counted {
            *counted = counted.saturating_add(keys);
        }
    }

    /// Notes a count. Keys that were allowed and not stored when it began, and those that were allowed since, may be
    /// missing.
    fn note_count(&mut self, begun: CountStart, counted: u32, now: u64) {
        let missed = u32::try_from(self.allowed - begun).unwrap_or(u32::MAX);
        self.counted = Some((counted.saturating_add(missed), now));
        self.since = 0;
    }
}

impl Default for LiveKeyLimits {
    fn default() -> Self {
        Self(Table::new(HOLDERS_MAX))
    }
}

impl LiveKeyLimits {
    /// Asks for room for a new key.
    pub fn try_take(&self, holder: KeyHolder, limit: u32) -> KeyRoom {
        let Ok(held) = self.0.get_or_insert_with(&holder, || Ok::<_, Infallible>(Arc::default()));
        let mut keys = held.lock();
        let (taken, begun) = (keys.try_take(limit, now()), keys.begin_count());
        drop(keys);
        match taken {
            Some(true) => KeyRoom::Free(LiveKeyAllowance { held }),
            Some(false) => KeyRoom::Full,
            None => KeyRoom::Unknown(CountRequest { held, limit, begun }),
        }
    }

    /// Notes that keys of another holder count for this one now.
    pub fn note_moved(&self, holder: KeyHolder, keys: u32) {
        if let Some(held) = self.0.get(&holder) {
            held.lock().note_moved(keys);
        }
    }
}

impl CountRequest {
    /// Notes the store's count. Returns whether there is room, which the key has then taken.
    pub fn note_count(self, counted: u32) -> Option<LiveKeyAllowance> {
        let mut keys = self.held.lock();
        let now = now();
        keys.note_count(self.begun, counted, now);
        let has_room = keys.try_take(self.limit, now) == Some(true);
        drop(keys);
        // An allowance that is made and dropped gives back what nobody has taken.
        has_room.then(|| LiveKeyAllowance { held: self.held })
    }

    /// Notes that the store gave no count, and allows the key: its reservation will show whether the store works.
    pub fn note_failure(self) -> LiveKeyAllowance {
        let mut keys = self.held.lock();
        keys.unasked_until = now() + FAILURE_PAUSE.as_millis() as u64;
        keys.take();
        drop(keys);
        LiveKeyAllowance { held: self.held }
    }
}

impl LiveKeyAllowance {
    /// Gives the room back: the key was not new.
    pub fn give_back(self) {
        let mut keys = self.held.lock();
        keys.since = keys.since.saturating_sub(1);
    }
}

impl Drop for LiveKeyAllowance {
    fn drop(&mut self) {
        self.held.lock().pending -= 1;
    }
}

fn now() -> u64 {
    BootInstant::now().millis()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 20;

    /// A step of one of several instances, or of time.
    #[derive(Clone, Copy, Debug)]
    enum ReplicaStep {
        /// A new key asks for room, and a look begins if it is needed.
        Ask(usize),
        /// The oldest look reads the store.
        Read(usize),
        /// The oldest look that has read ends.
        Answer(usize),
        /// The oldest allowed key is stored.
        Store(usize),
        /// The oldest stored key's request ends.
        End(usize),
        /// The reaper deletes a key.
        Reap,
        Wait(u64),
    }

    #[derive(Default)]
    struct Replica {
        keys: HeldKeys,
        looks: Vec<CountStart>,
        reads: Vec<(CountStart, u32)>,
        allowed: u32,
        stored: u32,
    }

    fn steps(instances: usize) -> impl Strategy<Value = Vec<ReplicaStep>> {
        let instance = 0..instances;
        let step = prop_oneof![
            6 => instance.clone().prop_map(ReplicaStep::Ask),
            4 => instance.clone().prop_map(ReplicaStep::Read),
            4 => instance.clone().prop_map(ReplicaStep::Answer),
            6 => instance.clone().prop_map(ReplicaStep::Store),
            4 => instance.prop_map(ReplicaStep::End),
            1 => Just(ReplicaStep::Reap),
            1 => (0..6_000_u64).prop_map(ReplicaStep::Wait),
        ];
        prop::collection::vec(step, 0..400)
    }

    /// The most keys that were live at once.
    fn most_live(steps: &[ReplicaStep], instances: usize) -> u32 {
        let mut replicas: Vec<Replica> = (0..instances).map(|_| Replica::default()).collect();
        let (mut live, mut most, mut now) = (0_u32, 0, 1_u64);
        for step in steps {
            match *step {
                ReplicaStep::Ask(index) => {
                    let replica = &mut replicas[index];
                    match replica.keys.try_take(LIMIT, now) {
                        Some(true) => replica.allowed += 1,
                        Some(false) => {}
                        None => replica.looks.push(replica.keys.begin_count()),
                    }
                }
                ReplicaStep::Read(index) if !replicas[index].looks.is_empty() => {
                    let begun = replicas[index].looks.remove(0);
                    replicas[index].reads.push((begun, live.min(LIMIT)));
                }
                ReplicaStep::Answer(index) if !replicas[index].reads.is_empty() => {
                    let replica = &mut replicas[index];
                    let (begun, counted) = replica.reads.remove(0);
                    replica.keys.note_count(begun, counted, now);
                    replica.allowed += u32::from(replica.keys.try_take(LIMIT, now) == Some(true));
                }
                ReplicaStep::Store(index) if replicas[index].allowed > 0 => {
                    replicas[index].allowed -= 1;
                    replicas[index].stored += 1;
                    live += 1;
                    most = most.max(live);
                }
                ReplicaStep::End(index) if replicas[index].stored > 0 => {
                    replicas[index].stored -= 1;
                    replicas[index].keys.pending -= 1;
                }
                ReplicaStep::Reap => live = live.saturating_sub(1),
                ReplicaStep::Wait(millis) => now += millis,
                ReplicaStep::Read(_) | ReplicaStep::Answer(_) | ReplicaStep::Store(_) | ReplicaStep::End(_) => {}
            }
        }
        most
    }

    proptest! {
        #[test]
        fn one_instance_never_exceeds_the_limit(steps in steps(1)) {
            prop_assert!(most_live(&steps, 1) <= LIMIT);
        }
    }

    #[test]
    fn a_key_that_is_refused_or_was_not_new_takes_no_room() {
        let (limits, holder) = (LiveKeyLimits::default(), KeyHolder::from_bytes([1; 16]));
        let pending = || limits.0.get(&holder).unwrap().lock().pending;
        let KeyRoom::Unknown(look) = limits.try_take(holder, LIMIT) else { panic!("nothing is known yet") };
        assert!(look.note_count(LIMIT).is_none());
        assert!(matches!(limits.try_take(holder, LIMIT), KeyRoom::Full));
        assert_eq!(pending(), 0);
        // Another limit, as after a reload: there is room for one key at a time.
        for _ in 0..10 {
            let KeyRoom::Free(allowance) = limits.try_take(holder, LIMIT + 1) else { panic!("there is room") };
            assert_eq!(pending(), 1);
            allowance.give_back();
        }
        let KeyRoom::Free(allowance) = limits.try_take(holder, LIMIT + 1) else { panic!("there is room") };
        drop(allowance);
        assert_eq!(pending(), 0);
        let KeyRoom::Unknown(look) = limits.try_take(holder, LIMIT + 1) else { panic!("the room is taken") };
        drop(look.note_failure());
        assert!(
            matches!(limits.try_take(holder, LIMIT + 1), KeyRoom::Free(_)),
            "a failed look is not repeated at once"
        );
    }

    #[test]
    fn a_full_holder_is_asked_about_once_a_second() {
        let mut keys = HeldKeys::default();
        assert_eq!(keys.try_take(LIMIT, 1_000), None);
        keys.note_count(keys.begin_count(), LIMIT, 1_000);
        assert_eq!(keys.try_take(LIMIT, 1_999), Some(false));
        assert_eq!(keys.try_take(LIMIT, 2_000), None);
    }

    #[test]
    fn a_count_serves_an_eighth_of_the_room_and_five_seconds() {
        let mut keys = HeldKeys::default();
        keys.note_count(keys.begin_count(), 4, 1_000);
        assert_eq!([(); 3].map(|()| keys.try_take(LIMIT, 1_000)), [Some(true), Some(true), None]);
        keys.note_count(keys.begin_count(), 4, 1_000);
        assert_eq!(keys.try_take(LIMIT, 5_999), Some(true));
        assert_eq!(keys.try_take(LIMIT, 6_000), None);
    }
}
