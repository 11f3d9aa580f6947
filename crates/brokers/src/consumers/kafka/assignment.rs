//! The records of the assigned partitions that are not settled, and which of them may start. Pure: the time is a
//! parameter.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::committable_offset::{PartitionProgress, UnsettledRecord};
use super::record::{KafkaRecord, LaneId, PartitionId};
use crate::consumers::disposition::{SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX};
use oncegate_engine::instance::consumer_states::RecordCounts;
use oncegate_settings::RecordOrder;

/// The records of all assigned partitions.
pub(super) struct Assignment {
    order: RecordOrder,
    /// The records that are executed at once.
    at_once: usize,
    partitions: BTreeMap<PartitionId, PartitionRecords>,
    /// The partition whose record was started last: the next one comes from another.
    last_started: Option<PartitionId>,
    epochs: u64,
}

#[derive(Default)]
struct PartitionRecords {
    /// The number of this assignment: a partition that was taken and given back has another one.
    epoch: u64,
    progress: PartitionProgress,
    lanes: HashMap<LaneId, Lane>,
    /// The lanes whose first record may start.
    ready: VecDeque<LaneId>,
    /// Cancelled when the partition is taken.
    leaving: CancellationToken,
    running: usize,
    /// Those of them that are parked, and take no place.
    running_parked: usize,
    /// The records that run or wait, without those that are parked.
    active: RecordTotals,
    parked: RecordTotals,
    is_stuck: bool,
}

/// The records that wait for each other.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<KafkaRecord>,
    is_parked: bool,
}

/// A number of records, and the bytes that they take.
#[derive(Default)]
struct RecordTotals {
    records: usize,
    bytes: usize,
}

/// A record that starts, and what its task needs of its partition.
pub(super) struct StartedRecord {
    pub(super) record: KafkaRecord,
    pub(super) read_at: Instant,
    pub(super) id: RecordPlace,
    pub(super) leaving: CancellationToken,
    pub(super) settled_up_to: Arc<AtomicI64>,
}

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
    /// Starts nothing any more. What runs is awaited; what is held ends.
    fn leave(&mut self) {
        self.leaving.cancel();
        self.ready.clear();
    }

    /// Parks a running record with all that wait behind it, or ends that.
    fn set_parked(&mut self, offset: i64, is_parked: bool) {
        let Some(lane) = self.progress.unsettled.get(&offset).map(|record| record.lane.clone()) else { return };
        let entry = self.lanes.entry(lane.clone()).or_default();
        if std::mem::replace(&mut entry.is_parked, is_parked) == is_parked {
            return;
        }
        let Self { active, parked, running_parked, .. } = self;
        let (from, to) = if is_parked { (active, parked) } else { (parked, active) };
        for record in self.progress.unsettled.values().filter(|record| record.lane == lane) {
            from.remove(record.bytes);
            to.add(record.bytes);
        }
        *running_parked = if is_parked { *running_parked + 1 } else { *running_parked - 1 };
    }
}

impl Assignment {
    pub(super) fn new(order: RecordOrder, at_once: u16) -> Self {
        Self { order, at_once: at_once.into(), partitions: BTreeMap::new(), last_started: None, epochs: 0 }
    }

    pub(super) fn add(&mut self, partitions: impl IntoIterator<Item = PartitionId>) {
        for partition in partitions {
            self.remove(&partition);
            self.epochs += 1;
            self.partitions.insert(partition, PartitionRecords { epoch: self.epochs, ..PartitionRecords::default() });
        }
    }

    /// Starts nothing of a partition any more.
    pub(super) fn leave(&mut self, partition: &PartitionId) {
        if let Some(records) = self.partitions.get_mut(partition) {
            records.leave();
        }
    }

    pub(super) fn leave_all(&mut self) {
        self.partitions.values_mut().for_each(PartitionRecords::leave);
    }

    pub(super) fn remove(&mut self, partition: &PartitionId) {
        if let Some(records) = self.partitions.remove(partition) {
            records.leaving.cancel();
        }
    }

    /// The records that run, of these partitions.
    pub(super) fn running(&self, partitions: &[PartitionId]) -> usize {
        partitions.iter().filter_map(|partition| self.partitions.get(partition)).map(|records| records.running).sum()
    }

    pub(super) fn all_running(&self) -> usize {
        self.sum(|records| records.running)
    }

    fn sum(&self, count: impl Fn(&PartitionRecords) -> usize) -> usize {
        self.partitions.values().map(count).sum()
    }

    pub(super) fn push(&mut self, record: KafkaRecord, now: Instant) {
        let Some(records) = self.partitions.get_mut(&record.partition) else { return };
        // A record that is not taken must not move the offset that is committed.
        if records.leaving.is_cancelled() || records.progress.unsettled.contains_key(&record.offset) {
            return;
        }
        records.is_stuck = false;
        let (lane, bytes) = (record.lane(self.order), record.bytes());
        records.progress.add(record.offset, UnsettledRecord { read_at: now, lane: lane.clone(), bytes });
        let is_new = !records.lanes.contains_key(&lane);
        let entry = records.lanes.entry(lane.clone()).or_default();
        if entry.is_parked { &mut records.parked } else { &mut records.active }.add(bytes);
        entry.waiting.push_back(record);
        if is_new {
            records.ready.push_back(lane);
        }
    }

    /// Takes a record that may start, of each partition in turn.
    pub(super) fn start_next(&mut self) -> Option<StartedRecord> {
        if self.sum(|records| records.running - records.running_parked) >= self.at_once {
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
        self.last_started = Some(partition.clone());
        let unsettled = records.progress.unsettled.get(&record.offset);
        Some(StartedRecord {
            read_at: unsettled.map_or_else(Instant::now, |unsettled| unsettled.read_at),
            id: RecordPlace { partition, offset: record.offset, epoch: records.epoch },
            record,
            leaving: records.leaving.clone(),
            settled_up_to: Arc::clone(&records.progress.settled_up_to),
        })
    }

    /// The records of a partition, if it is still the same assignment.
    fn records_of(&mut self, place: &RecordPlace) -> Option<&mut PartitionRecords> {
        self.partitions.get_mut(&place.partition).filter(|records| records.epoch == place.epoch)
    }

    /// Parks a running record of unknown outcome, and all that wait behind it: they leave their places to others.
    pub(super) fn park(&mut self, place: &RecordPlace) {
        if let Some(records) = self.records_of(place) {
            records.set_parked(place.offset, true);
        }
    }

    /// Notes that a running record is settled: its offset counts, and the next one of its lane may start.
    pub(super) fn settle(&mut self, place: &RecordPlace) {
        let Some(records) = self.records_of(place) else { return };
        records.set_parked(place.offset, false);
        let Some(record) = records.progress.settle(place.offset) else { return };
        records.running -= 1;
        records.active.remove(record.bytes);
        match records.lanes.get(&record.lane).is_some_and(|lane| !lane.waiting.is_empty()) {
            true if !records.leaving.is_cancelled() => records.ready.push_back(record.lane),
            true => {}
            false => drop(records.lanes.remove(&record.lane)),
        }
    }

    /// Notes that a running record was given back: it stays unsettled, and its partition is leaving.
    pub(super) fn give_back(&mut self, place: &RecordPlace) {
        if let Some(records) = self.records_of(place) {
            records.set_parked(place.offset, false);
            records.running -= 1;
        }
    }

    /// The partitions of which nothing more should be read.
    pub(super) fn paused(&self) -> BTreeSet<PartitionId> {
        let is_full = self.sum(|records| records.parked.records) >= SET_ASIDE_MAX
            || self.sum(|records| records.active.bytes + records.parked.bytes) >= SET_ASIDE_BYTES_MAX;
        // Each partition has as many as may run at once: one whose records wait for each other stops no other one.
        let is_paused = |records: &PartitionRecords| {
            is_full
                || records.active.records >= self.at_once
                || records.progress.is_window_full()
                || records.leaving.is_cancelled()
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

    pub(super) fn is_full_of_parked(&self) -> bool {
        self.sum(|records| records.parked.records) >= SET_ASIDE_MAX
            || self.sum(|records| records.parked.bytes) >= SET_ASIDE_BYTES_MAX
    }

    /// The offsets that may be committed and are not.
    pub(super) fn committable(&self) -> Vec<(PartitionId, i64)> {
        let committable = |(partition, records): (&PartitionId, &PartitionRecords)| {
            Some((partition.clone(), records.progress.committable()?))
        };
        self.partitions.iter().filter_map(committable).collect()
    }

    pub(super) fn note_committed(&mut self, offsets: &[(PartitionId, i64)]) {
        for (partition, offset) in offsets {
            if let Some(records) = self.partitions.get_mut(partition) {
                records.progress.committed = Some(*offset);
            }
        }
    }

    /// The first offset of a partition that is not settled; `None` before its first record.
    pub(super) fn settled_before(&self, partition: &PartitionId) -> Option<i64> {
        self.partitions.get(partition)?.progress.settled_before()
    }

    pub(super) fn counts(&self, now: Instant) -> RecordCounts {
        let read_at =
            |records: &'_ PartitionRecords| records.progress.unsettled.values().map(|record| record.read_at).min();
        let oldest = self.partitions.values().filter_map(read_at).min();
        RecordCounts {
            partitions: self.partitions.len(),
            stuck_partitions: self.partitions.values().filter(|records| records.is_stuck).count(),
            oldest_seconds: oldest.map_or(0, |oldest| (now - oldest).as_secs()),
            parked: self.sum(|records| records.parked.records),
            ..RecordCounts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::committable_offset::WINDOW_MAX;
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
        assert_eq!(assignment.sum(|records| records.active.records + records.parked.records), 0);
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
