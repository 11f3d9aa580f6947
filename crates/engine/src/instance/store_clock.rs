//! The store's clock, as this instance can judge it: compared with boot time at each heartbeat, and believed only after
//! it was watched.
//!
//! The store's clock decides when leases, quiet times and TTLs end. A failover to a server with another time, a
//! restored machine or a correction by NTP makes it jump. A jump forward ends all of them at once. So an instance
//! believes that a time has passed only if it has watched the clock without a jump since that time began, or for as
//! long as an attempt may take.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::boot_time::BootInstant;
use super::metrics::JumpDirection;
use oncegate_domain::execution_risk::RecordSummary;
use oncegate_domain::record::Record;
use oncegate_domain::state::StateKind;
use oncegate_store::ReapScope;

/// Two clocks differ by one millisecond more in each of these milliseconds: ntpd corrects a clock by at most 500 ppm,
/// and the two may be corrected in opposite directions.
const DRIFT_PERIOD_MS: i64 = 1_000;

/// The times that the instance's judgement depends on.
#[derive(Clone, Copy, Debug)]
pub struct ClockLimits {
    /// The largest jump that does no harm: the margin with which an instance counts its own lease.
    pub tolerance: Duration,
    /// The longest time from a reservation until its attempt is quiet, of all routes.
    pub longest_quiet_time: Duration,
    /// The longest time for which a settled key is remembered, of all routes.
    pub longest_ttl: Duration,
}

/// The store's time, and the call that has read it.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The start of the call.
    pub started: BootInstant,
    /// The end of the call.
    pub ended: BootInstant,
    /// The store's time, read in between.
    pub store_time: SystemTime,
}

/// A jump of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// The direction.
    pub direction: JumpDirection,
    /// The size, as exactly as two calls can measure it.
    pub size: Duration,
}

impl ClockJump {
    /// The size in milliseconds; negative for a jump backward.
    pub fn signed_millis(&self) -> i64 {
        let size = i64::try_from(self.size.as_millis()).unwrap_or(i64::MAX);
        match self.direction {
            JumpDirection::Backward => -size,
            JumpDirection::Forward => size,
        }
    }
}

/// The judgement on the store's clock at one moment: a jump that is noticed later changes neither the time nor the
/// watch.
#[derive(Clone, Copy, Debug)]
pub struct ClockView {
    /// The store's time, extrapolated from the last reading: not before the true one.
    pub as_of: SystemTime,
    watched_for: Duration,
    watch: ClockWatch,
}

/// The store's clock.
#[derive(Debug)]
pub struct StoreClock {
    /// The upper end of [`ClockWatch::offset`], for those who only want the time.
    latest_offset: AtomicI64,
    watch: Mutex<ClockWatch>,
}

/// The result of all readings.
#[derive(Clone, Copy, Debug)]
struct ClockWatch {
    limits: ClockLimits,
    offset: OffsetRange,
    /// When `offset` was measured.
    measured_at: BootInstant,
    /// Since then the clock has not jumped, as far as this instance knows.
    watched_since: BootInstant,
    /// The jump at `watched_since`; `None` where the instance started then.
    last_jump: Option<ClockJump>,
    /// No record is taken for past its TTL before this time of the store.
    ttls_held_until: SystemTime,
}

impl ClockWatch {
    fn new(limits: ClockLimits, first: &ClockReading) -> Self {
        Self {
            limits,
            offset: OffsetRange::from_reading(first),
            measured_at: first.ended,
            watched_since: first.ended,
            last_jump: None,
            ttls_held_until: SystemTime::UNIX_EPOCH,
        }
    }
}

/// The milliseconds by which the store's time is ahead of boot time: a range, because a reading happens at some moment
/// between the start and the end of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetRange {
    low: i64,
    high: i64,
}

impl OffsetRange {
    fn from_reading(reading: &ClockReading) -> Self {
        let store_time = reading.store_time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, signed_millis);
        let boot = |time: BootInstant| time.millis().cast_signed();
        Self { low: store_time - boot(reading.ended), high: store_time - boot(reading.started) }
    }

    fn widened(self, by: i64) -> Self {
        Self { low: self.low - by, high: self.high + by }
    }

    /// The part that both have; `None` where they do not meet.
    fn intersection(self, other: Self) -> Option<Self> {
        let both = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (both.low <= both.high).then_some(both)
    }

    /// The distance to a range that this one does not meet: the least jump that explains it.
    fn gap_to(self, other: Self) -> i64 {
        (other.low - self.high).max(self.low - other.high).max(0)
    }

    fn jump_to(self, other: Self) -> ClockJump {
        let by = (other.low + other.high - self.low - self.high) / 2;
        let direction = if by < 0 { JumpDirection::Backward } else { JumpDirection::Forward };
        ClockJump { direction, size: Duration::from_millis(by.unsigned_abs()) }
    }
}

impl StoreClock {
    /// The clock after the first reading. From then on it is watched.
    pub fn new(limits: ClockLimits, first: &ClockReading) -> Self {
        let watch = ClockWatch::new(limits, first);
        Self { latest_offset: AtomicI64::new(watch.offset.high), watch: Mutex::new(watch) }
    }

    /// Begins anew with the first reading of the store: what came before was another clock.
    pub fn restart(&self, first: &ClockReading) {
        let mut watch = self.watch.lock();
        *watch = ClockWatch::new(watch.limits, first);
        self.latest_offset.store(watch.offset.high, Ordering::Release);
    }

    /// Judges by other limits: a reload may have changed the routes.
    pub fn set_limits(&self, limits: ClockLimits) {
        self.watch.lock().limits = limits;
    }

    /// Compares a reading with the earlier ones. Returns the jump, if there was one.
    ///
    /// Jumps of at most the tolerance, and the drift since the last reading, are followed without notice.
    pub fn observe(&self, reading: &ClockReading) -> Option<ClockJump> {
        let new = OffsetRange::from_reading(reading);
        let mut watch = self.watch.lock();
        let drift = signed_millis(reading.ended.since(watch.measured_at)) / DRIFT_PERIOD_MS;
        let known = watch.offset.widened(drift);
        let jump = (known.gap_to(new) > signed_millis(watch.limits.tolerance)).then(|| known.jump_to(new));
        if let Some(jump) = jump {
            watch.watched_since = reading.ended;
            watch.last_jump = Some(jump);
            // The TTLs that the jump has ended get the skipped time back. None lasts longer than the longest one.
            let skipped = Duration::from_millis(u64::try_from(new.high - known.low).unwrap_or(0));
            let held_until = reading.store_time + skipped.min(watch.limits.longest_ttl);
            if jump.direction == JumpDirection::Forward && held_until > watch.ttls_held_until {
                watch.ttls_held_until = held_until;
            }
        }
        // A slow call measures badly: what the calls before it have measured stays true.
        watch.offset = known.intersection(new).unwrap_or(new);
        watch.measured_at = reading.ended;
        self.latest_offset.store(watch.offset.high, Ordering::Release);
        jump
    }

    /// Notes the time until which the store has the ends of TTLs held, for all instances.
    pub fn note_stored_hold(&self, until: SystemTime) {
        let mut watch = self.watch.lock();
        watch.ttls_held_until = watch.ttls_held_until.max(until);
    }

    /// The time until which the store is to hold the ends of TTLs; `None` once it has passed.
    // Also where the store has it: a failover may take it back, and who knows of it may end before the next heartbeat.
    pub fn hold_to_store(&self) -> Option<SystemTime> {
        let view = self.view();
        (view.as_of < view.watch.ttls_held_until).then_some(view.watch.ttls_held_until)
    }

    /// The store's time, extrapolated from the last reading: not before the true one.
    pub fn now(&self) -> SystemTime {
        store_time(BootInstant::now(), self.latest_offset.load(Ordering::Acquire))
    }

    /// The record without the passed times that are not certain, see [`ClockView::certain`].
    pub fn certain(&self, record: Record, time_limit: Duration) -> Record {
        self.certain_summary(RecordSummary::from(&record), time_limit).apply_to(record)
    }

    /// The summary without the passed times that are not certain, see [`ClockView::certain`].
    // See docs/decisions/0004-watch-the-stores-clock.md.
    pub fn certain_summary(&self, record: RecordSummary, time_limit: Duration) -> RecordSummary {
        let depends_on_clock =
            record.past_ttl || record.late || matches!(record.state, StateKind::Dead | StateKind::Unknown);
        if depends_on_clock { self.view().certain(record, time_limit) } else { record }
    }

    /// The judgement at this moment.
    pub fn view(&self) -> ClockView {
        let (watch, now) = (*self.watch.lock(), BootInstant::now());
        ClockView { as_of: store_time(now, watch.offset.high), watched_for: now.since(watch.watched_since), watch }
    }
}

impl ClockView {
    /// Whether the clock was watched for long enough to believe that an attempt is quiet which it says is: `quiet_time`
    /// is the time from a reservation of its route until then.
    pub fn is_watched_for(&self, quiet_time: Duration) -> bool {
        self.watched_for >= quiet_time
    }

    /// Whether a jump may have ended leases and deadlines early: it was seen a short time ago, and attempts from before
    /// it may be running. The start of the instance is no jump.
    pub fn has_jumped_lately(&self) -> bool {
        self.watch.last_jump.is_some() && self.watched_for < self.watch.limits.longest_quiet_time
    }

    /// Whether a jump may have ended times early that count in hours: those that end a delivery.
    pub fn has_skipped_time(&self) -> bool {
        self.has_jumped_lately() || self.as_of < self.watch.ttls_held_until
    }

    /// The records that may be taken for past their TTL.
    pub fn reap_scope(&self) -> ReapScope {
        let settled_since = match self.ends_ttls_at(self.as_of, self.watched_for) {
            true => SystemTime::UNIX_EPOCH,
            false => store_time(self.watch.watched_since, self.watch.offset.high),
        };
        ReapScope { as_of: self.as_of, settled_since }
    }

    /// The record without the passed times that are not certain: its TTL has not ended, and its attempt counts as
    /// reserved when the watch began. `time_limit` is the attempt's.
    pub fn certain(&self, record: RecordSummary, time_limit: Duration) -> RecordSummary {
        let Some(reading) = record.reading else { return record };
        let watched_for = self.watched_until(reading.at);
        let has_ended = watched_for >= reading.settled_for || self.ends_ttls_at(reading.at, watched_for);
        let deadline_in_ms = match watched_for >= record.running_for {
            true => record.deadline_in_ms,
            false => record.deadline_in_ms.max(signed_millis(time_limit) - signed_millis(watched_for)),
        };
        RecordSummary {
            past_ttl: record.past_ttl && has_ended,
            // The response of an expired key is gone.
            late: record.late && (has_ended || record.state == StateKind::Expired),
            deadline_in_ms,
            ..record
        }
    }

    /// The time for which the clock was watched without a jump.
    pub fn watched_for(&self) -> Duration {
        self.watched_for
    }

    /// The last jump that this instance has seen.
    pub fn last_jump(&self) -> Option<ClockJump> {
        self.watch.last_jump
    }

    /// The time for which the clock was watched until a reading. A reading from the future shows that the clock has
    /// jumped since the last heartbeat.
    fn watched_until(&self, read_at: SystemTime) -> Duration {
        let is_ahead = read_at > self.as_of + self.watch.limits.tolerance;
        if is_ahead { Duration::ZERO } else { self.watched_for }
    }

    /// Whether TTLs that began before the watch have ended when the store's clock says so at that time.
    fn ends_ttls_at(&self, time: SystemTime, watched_for: Duration) -> bool {
        watched_for >= self.watch.limits.longest_quiet_time && time >= self.watch.ttls_held_until
    }
}

fn store_time(at: BootInstant, offset: i64) -> SystemTime {
    let since_1970 = at.millis().saturating_add_signed(offset);
    SystemTime::UNIX_EPOCH + Duration::from_millis(since_1970)
}

fn signed_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::fingerprint::{Fingerprint, FingerprintRules, Recipe};
    use oncegate_domain::ids::{RecordId, Token};
    use oncegate_domain::record::RecordReading;
    use oncegate_domain::state::KeyState;
    use oncegate_machine::SimulatedMachine;

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const MINUTE: Duration = Duration::from_secs(60);
    const LIMITS: ClockLimits = ClockLimits {
        tolerance: Duration::from_secs(1),
        longest_quiet_time: MINUTE,
        longest_ttl: Duration::from_secs(24 * 60 * 60),
    };
    const JUMPS: fn(JumpDirection, u64) -> Option<ClockJump> =
        |direction, seconds| Some(ClockJump { direction, size: Duration::from_secs(seconds) });

    /// A clock that was first read `ago`, when the store's time was the boot time.
    fn clock(ago: Duration) -> StoreClock {
        StoreClock::new(LIMITS, &reading(boot() - signed_millis(ago), 0, 0))
    }

    /// The boot time of a machine that has been up for ten days: one that has just started has no hour to look back on.
    fn boot() -> i64 {
        const TEN_DAYS_MS: u64 = 10 * 24 * 60 * 60 * 1_000;
        SimulatedMachine { boot_millis: || TEN_DAYS_MS, fill_random: |_| unreachable!("nothing random is needed") }
            .install();
        BootInstant::now().millis().cast_signed()
    }

    /// A call at that boot time that took so long, after which the store was ahead by so much.
    fn reading(ended_ms: i64, took_ms: i64, ahead_ms: i64) -> ClockReading {
        ClockReading {
            started: BootInstant::from_millis((ended_ms - took_ms).unsigned_abs()),
            ended: BootInstant::from_millis(ended_ms.unsigned_abs()),
            store_time: store_time(BootInstant::from_millis(ended_ms.unsigned_abs()), ahead_ms),
        }
    }

    /// An unknown key's record, or a completed one past its TTL, as read now.
    fn record(state: KeyState, age: Duration, ahead: Duration) -> Record {
        Record {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            attempt: 1,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: age,
            deadline_in_ms: 30_000 - signed_millis(age),
            past_ttl: true,
            late: true,
            recovery_point: None,
            accepted_at: None,
            state,
            reading: Some(RecordReading {
                at: store_time(BootInstant::now(), signed_millis(ahead)),
                settled_for: age,
                cause: None,
                inquire_at: None,
            }),
        }
    }

    fn retryable(clock: &StoreClock, age: Duration, ahead: Duration) -> (bool, bool) {
        let certain = clock.certain(record(KeyState::Retryable, age, ahead), Duration::from_secs(30));
        (certain.past_ttl, certain.late)
    }

    #[test]
    fn a_jump_is_what_neither_the_round_trip_nor_drift_explains() {
        let now = boot();
        let clock = |ago| StoreClock::new(LIMITS, &reading(now - signed_millis(ago), 0, 0));
        let second = |clock: &StoreClock, took, ahead| clock.observe(&reading(now, took, ahead));
        let before = Duration::from_secs(2);
        assert_eq!(second(&clock(before), 0, 0), None);
        assert_eq!(second(&clock(before), 0, 1_000), None, "the tolerance");
        assert_eq!(second(&clock(before), 0, 3_600_000), JUMPS(JumpDirection::Forward, 3_600));
        assert_eq!(second(&clock(before), 0, -3_600_000), JUMPS(JumpDirection::Backward, 3_600));
        // The store's time is from any moment of a call of 5 s.
        assert_eq!(second(&clock(before), 5_000, -5_500), None);
        assert!(second(&clock(before), 5_000, -6_500).is_some());
        // After an hour without a reading, the two clocks may be 3.6 s apart.
        assert_eq!(second(&clock(HOUR), 0, 4_500), None);
        assert!(second(&clock(HOUR), 0, 4_700).is_some());
    }

    #[test]
    fn a_slow_call_does_not_hide_a_jump_from_the_next_one() {
        let (clock, now) = (clock(Duration::from_secs(9)), boot());
        assert_eq!(clock.observe(&reading(now - 4_000, 4_000, -3_000)), None, "it fits the call's start");
        assert_eq!(clock.observe(&reading(now, 0, -3_000)), JUMPS(JumpDirection::Backward, 3));
        assert_eq!(clock.view().last_jump().map(|jump| jump.signed_millis()), Some(-3_000));
    }

    #[test]
    fn after_a_start_passed_times_are_believed_if_they_began_since_or_were_watched_for_long_enough() {
        for (watched, age, is_believed) in
            [(MINUTE, HOUR, true), (MINUTE / 2, HOUR, false), (MINUTE / 2, MINUTE / 3, true)]
        {
            let clock = clock(watched);
            assert_eq!(retryable(&clock, age, Duration::ZERO), (is_believed, is_believed), "{watched:?}, {age:?}");
            let view = clock.view();
            assert!(!view.has_jumped_lately() && !view.has_skipped_time(), "a start is no jump");
        }
        let expired = clock(Duration::ZERO).certain(record(KeyState::Expired, HOUR, Duration::ZERO), MINUTE);
        assert_eq!((expired.past_ttl, expired.late), (false, true), "there is no response to replay");
    }

    #[test]
    fn an_attempt_from_before_the_watch_counts_as_reserved_when_it_began() {
        let limit = Duration::from_secs(30);
        let deadline =
            |watched, age| clock(watched).certain(record(KeyState::Unknown, age, Duration::ZERO), limit).deadline_in_ms;
        assert_eq!(deadline(MINUTE, MINUTE / 2), 0, "as the store says");
        assert!((-31_000..=-30_000).contains(&deadline(MINUTE, HOUR)));
        assert!((19_000..=20_000).contains(&deadline(MINUTE / 6, HOUR)));
    }

    #[test]
    fn a_reading_from_the_future_shows_a_jump_before_the_heartbeat() {
        let clock = clock(HOUR);
        assert_eq!(retryable(&clock, HOUR / 2, Duration::from_secs(1)), (true, true), "the tolerance");
        assert_eq!(retryable(&clock, HOUR / 2, Duration::from_secs(2)), (false, false));
        let unknown = record(KeyState::Unknown, HOUR, Duration::from_secs(2));
        assert_eq!(clock.certain(unknown, MINUTE).deadline_in_ms, 60_000);
    }

    #[test]
    fn after_a_jump_forward_ttls_are_held_for_the_skipped_time_and_the_tasks_wait_for_the_attempts() {
        let (clock, now) = (clock(HOUR), boot());
        let skipped = signed_millis(HOUR);
        assert!(clock.observe(&reading(now - 70_000, 0, skipped)).is_some());
        let view = clock.view();
        assert!(!view.has_jumped_lately(), "no attempt takes so long");
        assert!(view.is_watched_for(MINUTE) && view.has_skipped_time());
        let age = 2 * HOUR;
        let held = clock.hold_to_store().unwrap();
        assert_eq!(retryable(&clock, age, HOUR), (false, false), "an hour has not passed yet");
        assert_eq!(
            clock.view().reap_scope().settled_since,
            store_time(BootInstant::from_millis((now - 70_000) as u64), skipped)
        );
        clock.note_stored_hold(held - HOUR);
        assert_eq!(clock.hold_to_store(), Some(held), "a failover has taken it back");
        assert!(clock.observe(&reading(now, 0, 3 * skipped)).is_some());
        assert!(clock.view().has_jumped_lately());
        assert!(clock.hold_to_store().is_some_and(|until| until > held));
    }

    #[test]
    fn a_jump_backward_holds_no_ttl_and_suspends_the_tasks() {
        let clock = clock(HOUR);
        assert!(clock.observe(&reading(boot(), 0, -signed_millis(HOUR))).is_some());
        assert!(clock.view().has_jumped_lately());
        assert_eq!(clock.hold_to_store(), None);
    }

    #[test]
    fn an_instance_that_starts_learns_of_the_hold_from_the_store_and_keeps_it_there() {
        let clock = clock(MINUTE);
        assert_eq!(clock.view().reap_scope().settled_since, SystemTime::UNIX_EPOCH);
        clock.note_stored_hold(clock.now() + HOUR);
        assert_eq!(retryable(&clock, HOUR, Duration::ZERO), (false, false));
        assert_ne!(clock.view().reap_scope().settled_since, SystemTime::UNIX_EPOCH);
        assert!(clock.view().has_skipped_time());
        assert!(clock.hold_to_store().is_some(), "a failover may take it back");
        let ended = self::clock(MINUTE);
        ended.note_stored_hold(ended.now() - MINUTE);
        assert_eq!(ended.hold_to_store(), None);
    }
}
