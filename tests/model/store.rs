//! The store's statements, as `reserve.sql`, `take_over.sql`, `settle.sql`, `resolve.sql` and `sweep.sql` have them, and whoever watches
//! the row.

use crate::breach::{Breach, Weakness};
use crate::protocol::{OnUnknown, Oncegate};
use crate::state::{Body, Life, Outcome, Record, Said, Seen, State, Token, Upstream, World};

impl Outcome {
    /// What a settlement of it makes of the key.
    pub fn state(self, token: Token) -> State {
        match self {
            Self::Answered => State::Completed(Body::Heard(token)),
            Self::Declined | Self::Abandoned | Self::NeverSent => State::Retryable,
            Self::Broken => State::Unknown,
        }
    }

    /// Whether a settlement of it that finds no row writes one.
    pub fn is_restored(self) -> bool {
        matches!(self, Self::Answered | Self::Broken)
    }
}

impl State {
    /// The states' names are the same, as the store's column has them.
    pub fn is_named_as(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    pub fn is_completed(self) -> bool {
        matches!(self, Self::Completed(_))
    }
}

impl Oncegate {
    /// `insert … on conflict do nothing`: says whether it inserted.
    pub fn insert(&self, world: &mut World, token: Token) -> bool {
        let free = world.record.is_none();
        if free {
            let same_life = world.life.number == self.bounds.ttls - world.left.ttls;
            world.breaches.note(Breach::Forgotten, same_life && world.life.filed);
            self.begin(world, token, true);
        }
        free
    }

    /// Starts the next attempt if the record is as it was seen.
    pub fn overwrite(&self, world: &mut World, token: Token, seen: Seen) -> bool {
        let Some(record) = world.record else { return false };
        let as_seen = record.token == seen.token && record.state.is_named_as(seen.state);
        let allowed = match record.state {
            State::Dead | State::InFlight => false,
            State::Completed(_) => seen.past_ttl,
            State::Retryable | State::Unknown => true,
        };
        let fits = match self.weakness {
            Some(Weakness::TakeOverUnseen) => !record.state.is_completed(),
            Some(Weakness::TakeOverLapsed) => as_seen,
            _ => as_seen && allowed && (!seen.past_ttl || record.past_ttl),
        };
        if fits {
            self.begin(world, token, seen.past_ttl);
        }
        fits
    }

    /// `resolve.sql`: what the service has said, while the key is unknown and the attempt is the newest.
    pub fn resolve(&self, world: &mut World) {
        let (token, state) = match std::mem::replace(&mut world.said, Said::Nothing) {
            Said::Executed(token) => (token, State::Completed(Body::Said(token))),
            Said::Absent(token) => (token, State::Retryable),
            Said::Nothing => return,
        };
        let Some(record) = world.record else { return };
        let newest = record.token == token || self.weakness == Some(Weakness::VerdictWithoutToken);
        let open = record.state == State::Unknown || self.weakness == Some(Weakness::VerdictOverSettled);
        if newest && open {
            self.put(world, Some(Record { state, ..record }));
        }
    }

    fn begin(&self, world: &mut World, token: Token, new_life: bool) {
        if new_life {
            self.count_lives(world);
        }
        let request = &mut world.requests[usize::from(token)];
        request.life = world.life.number;
        let instance = request.at;
        let state = State::InFlight;
        self.put(world, Some(Record { token, instance, state, past_ttl: false, quiet: false }));
    }

    /// A row where there was none: in a new life if a TTL has ended. One that the store has lost is no end of a life, and
    /// what was promised in it is promised.
    fn count_lives(&self, world: &mut World) {
        let number = self.bounds.ttls - world.left.ttls;
        if world.life.number != number {
            world.life = Life { number, told: None, first: false, filed: false, ..world.life };
        }
    }

    /// Ends an attempt: by the newest one's token, and where nothing is completed. Where there is no row, a response or
    /// an unknown outcome is written as a whole one.
    pub fn settle(&self, world: &mut World, token: Token, state: State) -> bool {
        let Some(record) = world.record else {
            let restores = state != State::Retryable && !self.is(Weakness::LostIsLost);
            if restores {
                let instance = world.requests[usize::from(token)].at;
                self.count_lives(world);
                self.put(world, Some(Record { token, instance, state, past_ttl: false, quiet: false }));
            }
            return restores;
        };
        let newest = record.token == token || self.weakness == Some(Weakness::SettleWithoutToken);
        // A response counts whatever its key has become. Anything else undoes nothing that was decided since.
        let open = match state {
            State::Completed(_) => !record.state.is_completed(),
            State::Retryable => matches!(record.state, State::Dead | State::InFlight | State::Unknown),
            State::Dead | State::InFlight | State::Unknown => record.state == State::InFlight,
        } || self.weakness == Some(Weakness::SettleOverCompleted);
        let fits = newest && open && !record.state.is_named_as(state);
        if fits || (newest && self.weakness == Some(Weakness::SettleOverCompleted) && record.state != state) {
            self.put(world, Some(Record { state, past_ttl: false, ..record }));
            return true;
        }
        fits
    }

    /// Every write goes through here.
    pub fn put(&self, world: &mut World, new: Option<Record>) {
        let old = world.record;
        let lost = |old: Record| match old.state {
            State::Completed(_) if !old.past_ttl => new.is_none_or(|new| new.state != old.state),
            _ => false,
        };
        world.breaches.note(Breach::CompletedChanged, old.is_some_and(lost));
        world.breaches.note(Breach::IllegalStep, !self.is_legal(old, new));
        if let Some(Record { token, state: State::Completed(body), .. }) = new {
            let made = world.requests[usize::from(token)].upstream == Upstream::Executed && body.token() == token;
            world.breaches.note(Breach::ForeignToken, old != new && !made);
        }
        world.record = new;
    }

    fn is_legal(&self, old: Option<Record>, new: Option<Record>) -> bool {
        let (old, new) = match (old, new) {
            (None, None) => return true,
            // Reserved, or written anew.
            (None, Some(new)) => return !matches!(new.state, State::Dead | State::Retryable),
            (Some(old), None) if self.bounds.losses > 0 && old.state == State::InFlight => return true,
            (Some(old), None) => {
                return old.past_ttl && !matches!(old.state, State::Dead | State::InFlight | State::Unknown);
            }
            (Some(old), Some(new)) => (old, new),
        };
        let next_attempt = new.state == State::InFlight;
        let same_attempt = new.token == old.token && !next_attempt;
        match old.state {
            State::Dead | State::InFlight => same_attempt,
            // A late response counts; one that says "unknown" would take back what was decided.
            State::Retryable => (same_attempt && new.state != State::Unknown) || next_attempt,
            State::Unknown => same_attempt || (next_attempt && self.may_retry(&old)),
            State::Completed(_) => next_attempt && old.past_ttl,
        }
    }

    /// Whether the policy lets an unknown attempt be followed by another.
    pub fn may_retry(&self, record: &Record) -> bool {
        self.on_unknown == OnUnknown::RetryWhenQuiet && record.quiet
    }
}
