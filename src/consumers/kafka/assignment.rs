//! The records of the assigned partitions that are not settled: which may start, and which offset may be committed. Pure: the time is
//! a parameter.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::{KafkaRecord, PartitionId};
use crate::consumers::disposition::{SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX};
use crate::instance::consumer_states::RecordCounts;
use oncegate_settings::RecordOrder;

/// The records between the first one that is not settled and the last one that is read, of one partition. After a crash, those are read
/// again: a hundred thousand replays take seconds.
const WINDOW_MAX: i64 = 100_000;

/// The records of all assigned partitions.
pub(super) struct Assignment {
    order: RecordOrder,
    /// The records that are executed at once.
    at_once: usize,
    partitions: BTreeMap<PartitionId, PartitionRecords>,
    /// The partition whose record was started last: the next one comes from another.
    last_started: Option<PartitionId>,
    epochs: u64,
    active: RecordTotals,
    parked: RecordTotals,
    running: usize,
    /// Those of them that are parked, and take no place.
    running_parked: usize,
}

/// A number of records, and the bytes that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecordTotals {
    records: usize,
    bytes: usize,
}

/// The records of one partition.
struct PartitionRecords {
    /// The number of this assignment: a partition that was taken and given back has another one.
    epoch: u64,
    /// The offset behind the last record that was read.
    next: Option<i64>,
    committed: Option<i64>,
    /// The records that are not settled, with the time at which they were read.
    unsettled: BTreeMap<i64, UnsettledRecord>,
    lanes: HashMap<LaneId, Lane>,
    /// The lanes whose first record may start.
    ready: VecDeque<LaneId>,
    /// The greatest offset that is settled.
    settled_up_to: Arc<AtomicI64>,
    /// Cancelled when the partition is taken.
    leaving: CancellationToken,
    running: usize,
    running_parked: usize,
    /// The records that run or wait, without those that are parked.
    active: usize,
    /// The next batch cannot be decoded.
    is_stuck: bool,
}

struct UnsettledRecord {
    read_at: Instant,
    lane: LaneId,
    bytes: usize,
}

/// The records that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LaneId {
    Key(Bytes),
    Partition,
    Alone(i64),
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<KafkaRecord>,
    is_parked: bool,
}

/// A record that starts, and what its task needs of its partition.
pub(super) struct StartedRecord {
    pub(super) record: KafkaRecord,
    /// The time at which it was read.
    pub(super) read_at: Instant,
    pub(super) id: RecordPlace,
    pub(super) leaving: CancellationToken,
    pub(super) settled_up_to: Arc<AtomicI64>,
}

/// The place of a record in an assignment.
#[derive(Clone, Debug)]
pub(super) struct RecordPlace {
    pub(super) partition: PartitionId,
    pub(super) offset: i64,
    epoch: u64,
}

impl RecordTotals {
    fn add(&mut self, bytes: usize) {
        (self.records, self.bytes) = (self.records + 1, self.bytes + bytes);
    }

    fn remove(&mut self, bytes: usize) {
        (self.records, self.bytes) = (self.records - 1, self.bytes - bytes);
    }
}

impl PartitionRecords {
    /// The offset up to which everything is settled; `None` before the first record.
    fn settled_before(&self) -> Option<i64> {
        self.unsettled.keys().next().copied().or(self.next)
    }

    fn is_window_full(&self) -> bool {
        self.next.zip(self.settled_before()).is_some_and(|(next, first)| next - first >= WINDOW_MAX)
    }
}

impl Assignment {
    pub(super) fn new(order: RecordOrder, at_once: u16) -> Self {
        let (active, parked) = (RecordTotals::default(), RecordTotals::default());
        let (partitions, last_started) = (BTreeMap::new(), None);
        Self {
            order,
            at_once: at_once.into(),
            partitions,
            last_started,
            epochs: 0,
            active,
            parked,
            running: 0,
            running_parked: 0,
        }
    }

    /// Adds partitions that the group gives.
    pub(super) fn add(&mut self, partitions: impl IntoIterator<Item = PartitionId>) {
        for partition in partitions {
            self.remove(&partition);
            self.epochs += 1;
            let records = PartitionRecords {
                epoch: self.epochs,
                next: None,
                committed: None,
                unsettled: BTreeMap::new(),
                lanes: HashMap::new(),
                ready: VecDeque::new(),
                settled_up_to: Arc::new(AtomicI64::new(-1)),
                leaving: CancellationToken::new(),
                running: 0,
                running_parked: 0,
                active: 0,
                is_stuck: false,
            };
            self.partitions.insert(partition, records);
        }
    }

    /// Starts nothing of a partition any more. What runs is awaited; what is held ends.
    pub(super) fn leave(&mut self, partition: &PartitionId) {
        if let Some(records) = self.partitions.get_mut(partition) {
            records.leaving.cancel();
            records.ready.clear();
        }
    }

    /// Starts nothing of any partition any more.
    pub(super) fn leave_all(&mut self) {
        let all: Vec<_> = self.partitions.keys().cloned().collect();
        all.iter().for_each(|partition| self.leave(partition));
    }

    /// Forgets a partition with its records.
    pub(super) fn remove(&mut self, partition: &PartitionId) {
        let Some(records) = self.partitions.remove(partition) else { return };
        records.leaving.cancel();
        self.running -= records.running;
        self.running_parked -= records.running_parked;
        for record in records.unsettled.values() {
            let is_parked = records.lanes.get(&record.lane).is_some_and(|lane| lane.is_parked);
            if is_parked { &mut self.parked } else { &mut self.active }.remove(record.bytes);
        }
    }

    /// The records that run, of these partitions.
    pub(super) fn running(&self, partitions: &[PartitionId]) -> usize {
        partitions.iter().filter_map(|partition| self.partitions.get(partition)).map(|records| records.running).sum()
    }

    /// The records that run.
    pub(super) fn all_running(&self) -> usize {
        self.running
    }

    /// Adds a record that was read.
    pub(super) fn push(&mut self, record: KafkaRecord, now: Instant) {
        let Some(records) = self.partitions.get_mut(&record.partition) else { return };
        // A record that is not taken must not move the offset that is committed.
        if records.leaving.is_cancelled() || records.unsettled.contains_key(&record.offset) {
            return;
        }
        records.next = Some(record.offset + 1);
        records.is_stuck = false;
        let lane = match (self.order, &record.key) {
            (RecordOrder::Key, Some(key)) => LaneId::Key(key.clone()),
            (RecordOrder::Partition, _) => LaneId::Partition,
            (RecordOrder::Key, None) | (RecordOrder::None, _) => LaneId::Alone(record.offset),
        };
        let bytes = record.bytes();
        records.unsettled.insert(record.offset, UnsettledRecord { read_at: now, lane: lane.clone(), bytes });
        let is_new = !records.lanes.contains_key(&lane);
        let entry = records.lanes.entry(lane.clone()).or_default();
        if entry.is_parked { &mut self.parked } else { &mut self.active }.add(bytes);
        records.active += usize::from(!entry.is_parked);
        entry.waiting.push_back(record);
        if is_new {
            records.ready.push_back(lane);
        }
    }

    /// Takes a record that may start, of each partition in turn.
    pub(super) fn start_next(&mut self) -> Option<StartedRecord> {
        if self.running - self.running_parked >= self.at_once {
            return None;
        }
        let is_ready = |(_, records): &(&PartitionId, &PartitionRecords)| !records.ready.is_empty();
        let after = self.last_started.as_ref();
        let behind = self.partitions.iter().find(|(id, records)| after < Some(id) && is_ready(&(id, records)));
        let partition = behind.or_else(|| self.partitions.iter().find(is_ready))?.0.clone();
        let records = self.partitions.get_mut(&partition)?;
        let lane = records.ready.pop_front()?;
        let record = records.lanes.get_mut(&lane)?.waiting.pop_front()?;
        records.running += 1;
        self.running += 1;
        self.last_started = Some(partition.clone());
        Some(StartedRecord {
            read_at: records.unsettled.get(&record.offset).map_or_else(Instant::now, |unsettled| unsettled.read_at),
            id: RecordPlace { partition, offset: record.offset, epoch: records.epoch },
            record,
            leaving: records.leaving.clone(),
            settled_up_to: Arc::clone(&records.settled_up_to),
        })
    }

    /// The records of a partition, if it is still the same assignment.
    fn records_of(&mut self, place: &RecordPlace) -> Option<&mut PartitionRecords> {
        self.partitions.get_mut(&place.partition).filter(|records| records.epoch == place.epoch)
    }

    /// Parks a running record of unknown outcome, and all that wait behind it: they leave their places to others.
    pub(super) fn park(&mut self, place: &RecordPlace) {
        self.set_parked(place, true);
    }

    fn set_parked(&mut self, place: &RecordPlace, is_parked: bool) {
        let Some(records) = self.records_of(place) else { return };
        let Some(lane) = records.unsettled.get(&place.offset).map(|record| record.lane.clone()) else { return };
        let entry = records.lanes.entry(lane.clone()).or_default();
        if std::mem::replace(&mut entry.is_parked, is_parked) == is_parked {
            return;
        }
        let change = |count: usize| if is_parked { count + 1 } else { count - 1 };
        records.running_parked = change(records.running_parked);
        let moved: Vec<_> = records.unsettled.values().filter(|one| one.lane == lane).map(|one| one.bytes).collect();
        records.active = match is_parked {
            true => records.active - moved.len(),
            false => records.active + moved.len(),
        };
        for bytes in moved {
            let (from, to) =
                if is_parked { (&mut self.active, &mut self.parked) } else { (&mut self.parked, &mut self.active) };
            from.remove(bytes);
            to.add(bytes);
        }
        self.running_parked = change(self.running_parked);
    }

    /// Notes that a running record is settled: its offset counts, and the next one of its lane may start.
    pub(super) fn settle(&mut self, place: &RecordPlace) {
        self.set_parked(place, false);
        let Some(records) = self.records_of(place) else { return };
        let Some(record) = records.unsettled.remove(&place.offset) else { return };
        records.settled_up_to.fetch_max(place.offset, Ordering::Relaxed);
        records.running -= 1;
        records.active -= 1;
        match records.lanes.get(&record.lane).is_some_and(|lane| !lane.waiting.is_empty()) {
            true if !records.leaving.is_cancelled() => records.ready.push_back(record.lane),
            true => {}
            false => drop(records.lanes.remove(&record.lane)),
        }
        self.running -= 1;
        self.active.remove(record.bytes);
    }

    /// Notes that a running record was given back: it stays unsettled, and its partition is leaving.
    pub(super) fn give_back(&mut self, place: &RecordPlace) {
        self.set_parked(place, false);
        if let Some(records) = self.records_of(place) {
            records.running -= 1;
            self.running -= 1;
        }
    }

    /// The partitions of which nothing more should be read.
    pub(super) fn paused(&self) -> BTreeSet<PartitionId> {
        let is_full =
            self.parked.records >= SET_ASIDE_MAX || self.active.bytes + self.parked.bytes >= SET_ASIDE_BYTES_MAX;
        // Each partition has as many as may run at once: one whose records wait for each other stops no other one.
        let is_paused = |records: &PartitionRecords| {
            is_full || records.active >= self.at_once || records.is_window_full() || records.leaving.is_cancelled()
        };
        let paused = self.partitions.iter().filter(|(_, records)| is_paused(records));
        paused.map(|(partition, _)| partition.clone()).collect()
    }

    /// Notes that the next batch of a partition cannot be decoded.
    pub(super) fn note_stuck(&mut self, partition: &PartitionId) {
        if let Some(records) = self.partitions.get_mut(partition) {
            records.is_stuck = true;
        }
    }

    /// Whether no more records may be parked.
    pub(super) fn is_full_of_parked(&self) -> bool {
        self.parked.records >= SET_ASIDE_MAX || self.parked.bytes >= SET_ASIDE_BYTES_MAX
    }

    /// The offsets that may be committed and are not: up to the first record that is not settled. The first record that is read is
    /// committed as the place to begin at, before it is settled: a group without a committed offset may begin at the end of the topic.
    pub(super) fn committable(&self) -> Vec<(PartitionId, i64)> {
        let offsets = self.partitions.iter().filter_map(|(partition, records)| {
            let offset = records.settled_before()?;
            (records.committed != Some(offset)).then(|| (partition.clone(), offset))
        });
        offsets.collect()
    }

    /// Notes what was committed.
    pub(super) fn note_committed(&mut self, offsets: &[(PartitionId, i64)]) {
        for (partition, offset) in offsets {
            if let Some(records) = self.partitions.get_mut(partition) {
                records.committed = Some(*offset);
            }
        }
    }

    /// The first offset of a partition that is not settled; `None` before its first record.
    pub(super) fn settled_before(&self, partition: &PartitionId) -> Option<i64> {
        self.partitions.get(partition)?.settled_before()
    }

    /// The counts of the records at this time.
    pub(super) fn counts(&self, now: Instant) -> RecordCounts {
        let read_at = |records: &'_ PartitionRecords| records.unsettled.values().map(|record| record.read_at).min();
        let oldest = self.partitions.values().filter_map(read_at).min();
        RecordCounts {
            partitions: self.partitions.len(),
            stuck_partitions: self.partitions.values().filter(|records| records.is_stuck).count(),
            oldest_seconds: oldest.map_or(0, |oldest| (now - oldest).as_secs()),
            parked: self.parked.records,
            ..RecordCounts::default()
        }
    }
}

#[cfg(test)]
pub(super) use tests::started_record;

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: i32) -> PartitionId {
        PartitionId { topic: "t".into(), number }
    }

    fn record(number: i32, offset: i64, key: &'static str) -> KafkaRecord {
        KafkaRecord {
            partition: partition(number),
            topic_id: "".into(),
            offset,
            timestamp: 0,
            key: (!key.is_empty()).then(|| Bytes::from_static(key.as_bytes())),
            value: Bytes::from_static(b"12345"),
            headers: Vec::new(),
            is_unread: false,
        }
    }

    /// A record that has started.
    pub(in crate::consumers::kafka) fn started_record() -> StartedRecord {
        assignment(RecordOrder::Key, 1, &[(0, 0, "a")]).start_next().unwrap()
    }

    fn assignment(order: RecordOrder, at_once: u16, records: &[(i32, i64, &'static str)]) -> Assignment {
        let mut assignment = Assignment::new(order, at_once);
        assignment.add([partition(0), partition(1)]);
        for (number, offset, key) in records {
            assignment.push(record(*number, *offset, key), Instant::now());
        }
        assignment
    }

    fn start_all(assignment: &mut Assignment) -> Vec<RecordPlace> {
        std::iter::from_fn(|| assignment.start_next()).map(|started| started.id).collect()
    }

    fn places(started: &[RecordPlace]) -> Vec<(i32, i64)> {
        started.iter().map(|place| (place.partition.number, place.offset)).collect()
    }

    #[test]
    fn records_wait_for_each_other_as_the_order_says() {
        let records = [(0, 0, "a"), (0, 1, "a"), (0, 2, "b"), (0, 3, ""), (0, 4, ""), (1, 0, "a")];
        for (order, first) in [
            (RecordOrder::Key, vec![(0, 0), (1, 0), (0, 2), (0, 3), (0, 4)]),
            (RecordOrder::Partition, vec![(0, 0), (1, 0)]),
            (RecordOrder::None, vec![(0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (0, 4)]),
        ] {
            let mut assignment = assignment(order, 100, &records);
            let started = start_all(&mut assignment);
            assert_eq!(places(&started), first, "{order:?}");
            let zero = started.iter().find(|place| places(&[(*place).clone()]) == [(0, 0)]).unwrap().clone();
            assignment.settle(&zero);
            let next = if order == RecordOrder::None { vec![] } else { vec![(0, 1)] };
            assert_eq!(places(&start_all(&mut assignment)), next, "{order:?}");
        }
    }

    #[test]
    fn a_record_that_comes_while_its_partition_leaves_is_left_to_the_next_member() {
        let mut assignment = assignment(RecordOrder::None, 100, &[(0, 10, "")]);
        let started = start_all(&mut assignment);
        assignment.leave_all();
        assignment.push(record(0, 11, ""), Instant::now());
        assert_eq!(assignment.paused(), BTreeSet::from([partition(0), partition(1)]));
        assignment.settle(&started[0]);
        assert_eq!(assignment.committable(), [(partition(0), 11)]);
    }

    #[test]
    fn no_offset_beyond_an_unsettled_record_may_be_committed() {
        let mut assignment = assignment(RecordOrder::None, 100, &[(0, 5, ""), (0, 6, ""), (0, 9, "")]);
        let started = start_all(&mut assignment);
        assert_eq!(assignment.committable(), [(partition(0), 5)], "the place to begin at, before anything is settled");
        assignment.note_committed(&[(partition(0), 5)]);
        for (index, committable) in [(1, None), (0, Some(9)), (2, Some(10))] {
            assignment.settle(&started[index]);
            let expected: Vec<_> = committable.map(|offset| (partition(0), offset)).into_iter().collect();
            assert_eq!(assignment.committable(), expected);
        }
        assignment.note_committed(&[(partition(0), 10)]);
        assert_eq!(assignment.committable(), []);
    }

    #[test]
    fn a_parked_key_leaves_its_places_to_other_keys_and_keeps_its_order() {
        let records = [(0, 0, "a"), (0, 1, "a"), (0, 2, "b"), (0, 3, "b")];
        let mut assignment = assignment(RecordOrder::Key, 1, &records);
        let [first] = start_all(&mut assignment).try_into().unwrap();
        assert!(!assignment.paused().is_empty());
        assignment.park(&first);
        assert_eq!(assignment.counts(Instant::now()).parked, 2, "with the one behind it");
        let [other] = start_all(&mut assignment).try_into().unwrap();
        assert_eq!(other.offset, 2);
        assignment.settle(&other);
        let [other] = start_all(&mut assignment).try_into().unwrap();
        assignment.settle(&other);
        assert_eq!((assignment.committable(), assignment.paused().len()), (vec![(partition(0), 0)], 0));
        assignment.settle(&first);
        assert_eq!((assignment.counts(Instant::now()).parked, assignment.committable()), (0, vec![(partition(0), 1)]));
        assert_eq!(places(&start_all(&mut assignment)), [(0, 1)]);
    }

    #[test]
    fn a_partition_that_was_taken_and_given_back_counts_no_earlier_record() {
        let mut assignment = assignment(RecordOrder::Key, 10, &[(0, 0, "a"), (0, 1, "a"), (0, 2, "b")]);
        let started = start_all(&mut assignment);
        assignment.leave(&partition(0));
        assignment.settle(&started[0]);
        assert!(start_all(&mut assignment).is_empty(), "nothing starts");
        assert_eq!((assignment.running(&[partition(0)]), assignment.committable()), (1, vec![(partition(0), 1)]));
        assignment.remove(&partition(0));
        assignment.add([partition(0)]);
        assignment.settle(&started[1]);
        assignment.give_back(&started[1]);
        assert_eq!((assignment.all_running(), assignment.committable()), (0, vec![]));
        assert_eq!((assignment.active, assignment.parked), Default::default());
    }

    #[test]
    fn a_partition_that_is_full_or_stuck_stops_no_other_one() {
        let records = [(0, 0, "a"), (0, 1, "a")];
        let mut assignment = assignment(RecordOrder::Key, 2, &records);
        assert_eq!(assignment.paused(), BTreeSet::from([partition(0)]));
        let [first] = start_all(&mut assignment).try_into().unwrap();
        assignment.push(record(1, 0, "a"), Instant::now());
        assert_eq!(places(&start_all(&mut assignment)), [(1, 0)], "it has a place of its own");
        assignment.park(&first);
        assert_eq!(assignment.paused(), BTreeSet::new());
        assignment.settle(&first);
        assert_eq!((assignment.paused(), assignment.counts(Instant::now()).parked), (BTreeSet::new(), 0));
        assignment.note_stuck(&partition(0));
        assert_eq!(assignment.counts(Instant::now()).stuck_partitions, 1);
        assignment.push(record(0, 2, "b"), Instant::now());
        assert_eq!(assignment.counts(Instant::now()).stuck_partitions, 0);
    }

    #[test]
    fn reading_stops_at_each_limit() {
        let full = |at_once: u16, records: i64, parks: bool| {
            let mut assignment = Assignment::new(RecordOrder::None, at_once);
            assignment.add([partition(0)]);
            for offset in 0..records {
                assignment.push(record(0, offset, ""), Instant::now());
                while let Some(started) = assignment.start_next() {
                    match parks || offset == 0 {
                        true => assignment.park(&started.id),
                        false => assignment.settle(&started.id),
                    }
                }
            }
            !assignment.paused().is_empty()
        };
        let parked = SET_ASIDE_MAX as i64;
        assert_eq!([full(10, parked - 1, true), full(10, parked, true)], [false, true]);
        assert_eq!([full(10, WINDOW_MAX - 1, false), full(10, WINDOW_MAX, false)], [false, true]);
        let waiting = |count| {
            let records: Vec<_> = (0..count).map(|offset| (0, offset, "a")).collect();
            !assignment(RecordOrder::Key, 10, &records).paused().is_empty()
        };
        assert_eq!([waiting(9), waiting(10)], [false, true]);
    }
}
