//! The store's statements, as in `reserve.sql`, `take_over.sql`, `settle.sql`, `resolve.sql` and `sweep.sql`, and the
//! checks on every change of the row.

use crate::breaches::{Breach, Weakness};
use crate::protocol::{OnUnknown, Oncegate};
use crate::state::{
    Body, ClockWatch, ExpectedRecord, Life, Outcome, Record, Request, ServiceReply, State, Token, Upstream, World,
};

impl Outcome {
    /// The key's state after a settlement of this outcome.
    pub fn state(self, token: Token) -> State {
        match self {
            Self::Answered => State::Completed(Body::Answered(token)),
            Self::Declined | Self::Abandoned | Self::NeverSent => State::Retryable,
            Self::Broken => State::Unknown,
        }
    }

    /// Whether a settlement of this outcome that finds no row inserts one.
    pub fn is_restored(self) -> bool {
        matches!(self, Self::Answered | Self::Broken)
    }
}

impl State {
    /// Compares only the states' names, as in the store's column.
    pub fn is_named_as(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    pub fn is_completed(self) -> bool {
        matches!(self, Self::Completed(_))
    }

    pub fn has_ttl(self) -> bool {
        matches!(self, Self::Completed(_) | Self::Retryable)
    }
}

impl Record {
    pub fn new(token: Token, instance: u8, state: State) -> Self {
        Self {
            token,
            instance,
            state,
            past_ttl: false,
            quiet: false,
            overtaken: false,
            is_repeat: false,
            replaced: None,
        }
    }

    pub fn is_past_ttl_by_clock(&self) -> bool {
        self.past_ttl || (self.overtaken && self.state.has_ttl())
    }
}

/// A proxy's view of a record's times. A time that has truly passed has also passed by the store's clock. After a jump
/// of the clock, other times have passed by it too.
impl Oncegate {
    /// Whether this proxy believes a time that has passed only by the store's clock.
    fn believes_clock(&self, world: &World, proxy: u8) -> bool {
        let Some(proxy) = world.proxies.get(usize::from(proxy)) else { return false };
        match proxy.watch {
            ClockWatch::Steady => true,
            ClockWatch::Unnoticed => self.is(Weakness::JumpsSeenByHeartbeatsAlone) || self.is(Weakness::JumpsIgnored),
            ClockWatch::Doubt => self.is(Weakness::JumpsIgnored),
        }
    }

    /// Whether this proxy takes the record's attempt for over.
    pub fn believes_quiet(&self, world: &World, proxy: u8, record: &Record) -> bool {
        record.quiet || (record.overtaken && self.believes_clock(world, proxy))
    }

    /// Whether this proxy takes the record for past its TTL.
    pub fn believes_past_ttl(&self, world: &World, proxy: u8, record: &Record) -> bool {
        let held = world.ttls_held && !self.is(Weakness::TtlsNotHeld);
        record.past_ttl || (record.is_past_ttl_by_clock() && !held && self.believes_clock(world, proxy))
    }

    /// Whether a proxy believes this about the record: any of them may run a task.
    pub fn any_believes(
        &self,
        world: &World,
        believes: fn(&Self, &World, u8, &Record) -> bool,
        record: &Record,
    ) -> bool {
        (0..self.proxies).any(|proxy| believes(self, world, proxy, record))
    }
}

impl Oncegate {
    /// `insert … on conflict do nothing`: returns whether it inserted.
    pub fn insert(&self, world: &mut World, token: Token) -> bool {
        let free = world.record.is_none();
        if free {
            world.breaches.record_if(Breach::Forgotten, self.is_same_life(world) && world.life.response_stored);
            self.begin(world, token, true);
        }
        free
    }

    /// Starts the next attempt if the record is the expected one.
    pub fn overwrite(&self, world: &mut World, token: Token, seen: ExpectedRecord) -> bool {
        let Some(record) = world.record else { return false };
        let as_seen = record.token == seen.token && record.state.is_named_as(seen.state);
        let allowed = match record.state {
            State::Dead | State::InFlight => false,
            State::Completed(_) => seen.past_ttl,
            // The statement that starts a repetition looks at the time itself.
            State::Unknown if self.on_unknown == OnUnknown::Vendor => self.may_retry(world, false),
            State::Retryable | State::Unknown => true,
        };
        let fits = match self.weakness {
            Some(Weakness::TakeOverUnchecked) => !record.state.is_completed(),
            Some(Weakness::TakeOverLapsed) => as_seen,
            // Past its TTL at the time of the read: a jump since then ends nothing.
            _ => as_seen && allowed && (!seen.past_ttl || record.past_ttl || (record.overtaken && seen.overtaken)),
        };
        if fits {
            let is_forgotten = !seen.past_ttl || self.is_same_life(world);
            world.breaches.record_if(Breach::Forgotten, is_forgotten && world.life.response_stored);
            self.begin(world, token, seen.past_ttl);
            let may_be_lost = self.bounds.lost_take_overs > 0 && !seen.past_ttl;
            if let Some(begun) = world.record.as_mut().filter(|_| may_be_lost) {
                begun.replaced = Some((record.token, record.state));
                world.requests[usize::from(token)].taken_from = Some(record.token);
            }
        }
        fits
    }

    /// `resolve.sql`: writes an inquiry's result while the key is unknown and the attempt is the newest.
    pub fn resolve(&self, world: &mut World) {
        let (token, state) = match std::mem::replace(&mut world.service_reply, ServiceReply::Nothing) {
            ServiceReply::Executed(token) => (token, State::Completed(Body::ServiceReply(token))),
            ServiceReply::Absent(token) => (token, State::Retryable),
            ServiceReply::Nothing => return,
        };
        let Some(record) = world.record else { return };
        let newest = record.token == token || self.weakness == Some(Weakness::VerdictWithoutToken);
        let open = record.state == State::Unknown || self.weakness == Some(Weakness::VerdictOverSettled);
        if newest && open {
            self.write_record(world, Some(Record { state, ..record }));
        }
    }

    fn begin(&self, world: &mut World, token: Token, new_life: bool) {
        if new_life {
            self.count_lives(world);
        }
        let request = &mut world.requests[usize::from(token)];
        request.life = world.life.number;
        let instance = request.at;
        let repeats = |record: Record| {
            self.on_unknown == OnUnknown::Vendor && (record.state == State::Unknown || record.is_repeat)
        };
        let is_repeat = !new_life && world.record.is_some_and(repeats);
        self.write_record(world, Some(Record { is_repeat, ..Record::new(token, instance, State::InFlight) }));
    }

    /// Whether no TTL has ended since the current life began.
    fn is_same_life(&self, world: &World) -> bool {
        world.life.number == self.bounds.ttls - world.left.ttls
    }

    /// Starts a new life if a row is inserted after the end of a TTL. A row that the store has lost does not end a
    /// life, and the promises of that life remain.
    fn count_lives(&self, world: &mut World) {
        let number = self.bounds.ttls - world.left.ttls;
        if world.life.number != number {
            world.life = Life { number, promised: None, first: false, response_stored: false, ..world.life };
        }
    }

    /// Ends the newest attempt by its token, unless it is completed. Without a row, a response or an unknown outcome is
    /// inserted as a complete one. It also replaces the record that the attempt's own takeover has replaced before: a
    /// failover has lost the takeover.
    pub fn settle(&self, world: &mut World, token: Token, state: State) -> bool {
        let Some(record) = world.record else {
            let restores = state != State::Retryable && !self.is(Weakness::LostIsLost);
            if restores {
                let instance = world.requests[usize::from(token)].at;
                self.count_lives(world);
                self.write_record(world, Some(Record::new(token, instance, state)));
            }
            return restores;
        };
        let repairs = match self.weakness {
            Some(Weakness::LostTakeOverIsLost) => false,
            Some(Weakness::RepairUnchecked) => {
                record.token != token && matches!(record.state, State::Retryable | State::Unknown)
            }
            _ => world.lost_take_over_of(token),
        };
        if repairs && state != State::Retryable {
            let instance = world.requests[usize::from(token)].at;
            self.write_record(world, Some(Record::new(token, instance, state)));
            return true;
        }
        // A repetition that was not executed says nothing of the attempt before.
        let state = match state {
            State::Retryable if record.is_repeat && !self.is(Weakness::RepeatFrees) => State::Unknown,
            state => state,
        };
        let newest = record.token == token || self.weakness == Some(Weakness::SettleWithoutToken);
        // A response counts in every state of its key. Any other outcome overwrites no later decision.
        let open = match state {
            State::Completed(_) => !record.state.is_completed(),
            State::Retryable => matches!(record.state, State::Dead | State::InFlight | State::Unknown),
            State::Dead | State::InFlight | State::Unknown => record.state == State::InFlight,
        } || self.weakness == Some(Weakness::SettleOverCompleted);
        let fits = newest && open && !record.state.is_named_as(state);
        if fits || (newest && self.weakness == Some(Weakness::SettleOverCompleted) && record.state != state) {
            self.write_record(world, Some(Record { state, past_ttl: false, ..record }));
            return true;
        }
        fits
    }

    /// Writes the record and checks the change. Every write uses this.
    pub fn write_record(&self, world: &mut World, new: Option<Record>) {
        let old = world.record;
        let lost = |old: Record| match old.state {
            State::Completed(_) if !old.past_ttl => new.is_none_or(|new| new.state != old.state),
            _ => false,
        };
        world.breaches.record_if(Breach::CompletedChanged, old.is_some_and(lost));
        world.breaches.record_if(Breach::IllegalStep, !self.is_legal(world, old, new));
        if let Some(Record { token, state: State::Completed(body), .. }) = new {
            let made = world.requests[usize::from(token)].upstream == Upstream::Executed && body.token() == token;
            // A vendor has one effect for all attempts.
            let made = made || world.vendor.executed.is_some();
            world.breaches.record_if(Breach::ForeignToken, old != new && !made);
        }
        world.record = new;
        let has_new_ttl = |new: &Record| new.state.has_ttl() && old.is_none_or(|old| old.state != new.state);
        if let Some(record) = world.record.as_mut().filter(|new| has_new_ttl(new)) {
            // The attempt's own times matter no more, and nobody has read the new one.
            record.overtaken = false;
            world.requests.iter_mut().flat_map(Request::expected_mut).for_each(|seen| seen.overtaken = false);
        }
    }

    fn is_legal(&self, world: &World, old: Option<Record>, new: Option<Record>) -> bool {
        let (old, new) = match (old, new) {
            (None, None) => return true,
            // Reserved, or inserted again.
            (None, Some(new)) => return !matches!(new.state, State::Dead | State::Retryable),
            (Some(old), None) if self.bounds.losses > 0 && old.state == State::InFlight => return true,
            (Some(old), None) => {
                return old.past_ttl && !matches!(old.state, State::Dead | State::InFlight | State::Unknown);
            }
            (Some(old), Some(new)) => (old, new),
        };
        if old.token != new.token && world.lost_take_over_of(new.token) && new.state != State::InFlight {
            return matches!(new.state, State::Completed(_) | State::Unknown);
        }
        let next_attempt = new.state == State::InFlight;
        let same_attempt = new.token == old.token && !next_attempt;
        match old.state {
            State::Dead | State::InFlight => same_attempt,
            // A late response counts; a late "unknown" would overwrite a decision.
            State::Retryable => (same_attempt && new.state != State::Unknown) || next_attempt,
            State::Unknown => same_attempt || (next_attempt && self.may_retry(world, old.quiet)),
            State::Completed(_) => next_attempt && old.past_ttl,
        }
    }

    /// Whether the policy lets an unknown attempt be followed by another.
    pub fn may_retry(&self, world: &World, quiet: bool) -> bool {
        match self.on_unknown {
            OnUnknown::Hold => false,
            OnUnknown::RetryWhenQuiet => quiet,
            OnUnknown::Vendor => !world.vendor.repeats_ended || self.is(Weakness::WindowUnchecked),
        }
    }

    /// The attempt whose effect is in the response to this one: a vendor's first.
    pub fn answering(&self, world: &World, token: Token) -> Token {
        world.vendor.executed.unwrap_or(token)
    }
}
