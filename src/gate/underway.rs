//! The attempts that this process is running, by token and by key.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::tenure::Moment;
use crate::domain::attempt::{Ending, Lease, Settlement, Token};
use crate::domain::record::{Completed, Record, RecordId, State};

/// What stands in the store under this instance's name and is not in here was never started: its reservation committed
/// after the request had given up on it. Or its end was stored and the store has lost it: those that may have acted are
/// remembered for a while. See `tasks::strays`.
#[derive(Debug, Default)]
pub struct Underway(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    tokens: HashSet<Token>,
    /// Of each key the newest of those that have begun: a duplicate that comes here need not ask the store.
    begun: HashMap<RecordId, Begun>,
    /// Those that may have acted, the first to leave first.
    acted: VecDeque<Acted>,
}

/// How many of those that may have acted are remembered: 8 MiB at most. It takes two thousand a second to forget one that
/// ended five minutes ago, and at ten thousand a second a minute is left.
const ACTED_MAX: usize = 700_000;

/// The first half of a token, in two pieces, and the second in which its attempt left. There are many of these, and another
/// token with the same half would only make somebody ask who need not have.
#[derive(Clone, Copy, Debug)]
struct Acted([u32; 3]);

impl Acted {
    fn new(token: Token, left: Moment) -> Self {
        let [high, low] = Self::half(token);
        Self([high, low, Self::second(left)])
    }

    fn half(token: Token) -> [u32; 2] {
        let half = token.as_bytes().first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        [(half >> 32) as u32, half as u32]
    }

    fn second(time: Moment) -> u32 {
        // A hundred and thirty years after the machine was started.
        u32::try_from(time.millis() / 1_000).unwrap_or(u32::MAX)
    }

    fn left_for(self, time: Moment) -> Duration {
        Duration::from_secs(Self::second(time).saturating_sub(self.0[2]).into())
    }
}

#[derive(Debug)]
struct Begun {
    /// As it stood in the store right after the reservation, or would have; with its end, once it has one that is not
    /// durable yet.
    record: Arc<Record>,
    since: Instant,
}

impl Begun {
    fn is_of(&self, token: Token) -> bool {
        self.record.token == token
    }
}

impl Underway {
    /// The attempt may be reserved from now on. Entered before the reservation is sent, so that no reservation of a
    /// living request is ever taken for a stray.
    pub fn enter(self: &Arc<Self>, token: Token) -> Entry {
        self.lock().tokens.insert(token);
        let (underway, entered) = (Arc::clone(self), Moment::now());
        Entry { underway, token, standing: Standing::Reserved, record: None, acted: false, entered }
    }

    /// Those underway at this moment.
    pub fn tokens(&self) -> HashSet<Token> {
        self.lock().tokens.clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().tokens.len()
    }

    /// Those of these attempts that have ended and may have acted. It looks at all that have, and everybody waits.
    pub fn acted(&self, of: impl IntoIterator<Item = Token>) -> HashSet<Token> {
        let wanted: HashMap<[u32; 2], Token> = of.into_iter().map(|token| (Acted::half(token), token)).collect();
        if wanted.is_empty() {
            return HashSet::new();
        }
        let table = self.lock();
        table.acted.iter().filter_map(|acted| wanted.get(&[acted.0[0], acted.0[1]]).copied()).collect()
    }

    /// Remembers no more those that may have acted and had left for so long at that time.
    pub fn forget(&self, time: Moment, after: Duration) {
        let acted = &mut self.lock().acted;
        while acted.pop_front_if(|acted| acted.left_for(time) > after).is_some() {}
    }

    /// The key's record, if its newest attempt that this process knows of is running here, or has ended and its end is
    /// still to be stored: the store may not know of it, and it is not to be executed again meanwhile. Another instance may
    /// have begun one after it, where the route allows that: then there are two, and the answer is the same.
    pub fn known(&self, id: &RecordId) -> Option<Record> {
        let table = self.lock();
        let Begun { record, since } = table.begun.get(id)?;
        let (record, running_for) = (Arc::clone(record), since.elapsed());
        drop(table);
        let deadline_in_ms = record.deadline_in_ms - i64::try_from(running_for.as_millis()).unwrap_or(i64::MAX);
        Some(Record { running_for, deadline_in_ms, ..Record::clone(&record) })
    }

    /// The deliveries of which that is so: none of them is to be picked up.
    pub fn deliveries(&self) -> Vec<RecordId> {
        let table = self.lock();
        table.begun.iter().filter(|(_, begun)| begun.record.accepted_at.is_some()).map(|(id, _)| *id).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        // The table is whole between any two statements; a panic elsewhere is no reason to stop guarding.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remember(&mut self, token: Token, at_most: usize) {
        if self.acted.len() >= at_most {
            self.acted.pop_front();
        }
        self.acted.push_back(Acted::new(token, Moment::now()));
    }
}

/// An attempt's place among those underway. Given up when the attempt's end is durable, or when it never began.
#[derive(Debug)]
pub struct Entry {
    underway: Arc<Underway>,
    token: Token,
    standing: Standing,
    record: Option<Arc<Record>>,
    acted: bool,
    entered: Moment,
}

/// What the store knows of an attempt that is underway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It could not reserve. It was never asked, or the reservation may have been committed all the same, or may be yet.
    InDoubt,
    /// Reserved, or about to be.
    Reserved,
}

impl Entry {
    /// The same attempt, of which the store knows something else than usual.
    pub fn standing_as(mut self, standing: Standing) -> Self {
        self.standing = standing;
        self
    }

    /// When it came in: before it was reserved.
    pub fn entered(&self) -> Moment {
        self.entered
    }

    /// What the store knows of it.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The attempt runs from now on, unless another of its key has begun here since this one was looked for: the one
    /// with the token `before`, or none. Says whether it does.
    pub fn runs(&mut self, lease: &Lease, before: Option<Token>) -> bool {
        let ask = &lease.ask;
        let record = Arc::new(Record {
            id: ask.id,
            attempt: lease.attempt,
            token: ask.token,
            recipe: ask.recipe.clone(),
            fingerprint: ask.fingerprint,
            running_for: Duration::ZERO,
            deadline_in_ms: i64::try_from(ask.time_limit.as_millis()).unwrap_or(i64::MAX),
            past_ttl: false,
            late: false,
            recovery_point: lease.recovery_point.clone(),
            accepted_at: lease.delivery.map(|delivery| delivery.accepted_at),
            state: State::InFlight,
        });
        let begun = Begun { record: Arc::clone(&record), since: Instant::now() };
        {
            let mut table = self.underway.lock();
            if table.begun.get(&ask.id).map(|begun| begun.record.token) != before {
                return false;
            }
            table.begun.insert(ask.id, begun);
        }
        self.record = Some(record);
        true
    }

    /// The record as the attempt's reservation made it; `None` before it runs.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// This is to be stored of it. Where it may have acted, it is remembered past its place here, in case the store loses
    /// what it has stored; a key to be tried again is as good as one that was never sent.
    pub fn ends_so(&mut self, settlement: &Settlement) {
        self.acted = settlement.to_restore().is_some();
    }

    /// The attempt runs no more, and this is its end, which is still to be stored.
    pub fn ended(&mut self, ending: &Ending) {
        let Some(record) = &self.record else { return };
        let state = match ending {
            Ending::Completed { response, .. } => {
                State::Completed(Completed { response: response.clone(), expires_at: None })
            }
            Ending::Retryable { .. } => State::Retryable,
            Ending::Unknown => State::Unknown,
        };
        if let Some(begun) = self.underway.lock().begun.get_mut(&record.id).filter(|begun| begun.is_of(self.token)) {
            begun.record = Arc::new(Record { state, ..Record::clone(record) });
        }
    }

    /// What the attempt has come to, the store says from now on.
    pub fn ends(&mut self) {
        let mut table = self.underway.lock();
        if let Some(record) = self.record.take()
            && table.begun.get(&record.id).is_some_and(|begun| begun.is_of(self.token))
        {
            table.begun.remove(&record.id);
        }
    }

    /// The attempt's end is not durable, and nobody tries any more. It counts as underway for as long as this process
    /// lives: out of the table it would be taken for one that was never sent, and released. The sweeper makes it unknown.
    pub fn stay(mut self) {
        self.ends();
        std::mem::forget(self);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ends();
        let mut table = self.underway.lock();
        table.tokens.remove(&self.token);
        if self.acted {
            table.remember(self.token, ACTED_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_whose_end_is_not_durable_is_never_taken_for_one_that_was_not_sent() {
        let underway = Arc::new(Underway::default());
        let [ended, given_up] = [1, 2].map(|byte| Token::from_random([byte; 16]));
        drop(underway.enter(ended));
        underway.enter(given_up).stay();
        assert_eq!(underway.tokens(), HashSet::from([given_up]));
    }

    #[test]
    fn an_attempt_that_may_have_acted_is_remembered_past_its_end_and_one_that_has_not_is_forgotten() {
        let underway = Arc::new(Underway::default());
        let [acted, released, running] = [1, 2, 3].map(|byte| Token::from_random([byte; 16]));
        drop(underway.enter(released));
        let _runs = underway.enter(running).that_acted();
        assert_eq!(underway.acted([acted, running]), HashSet::new(), "what runs still has its place");
        drop(underway.enter(acted).that_acted());
        assert_eq!(underway.acted([acted, released]), HashSet::from([acted]));
        let ended = Moment::now();
        underway.forget(Moment::of_millis(ended.millis() + 1_000), Duration::from_secs(2));
        assert_eq!(underway.acted([acted]), HashSet::from([acted]));
        underway.forget(Moment::of_millis(ended.millis() + 3_000), Duration::from_secs(2));
        assert_eq!(underway.acted([acted]), HashSet::new());
    }

    #[test]
    fn of_too_many_that_may_have_acted_the_oldest_are_forgotten() {
        let mut table = Table::default();
        let tokens = [1, 2, 3, 4].map(|byte| Token::from_random([byte; 16]));
        tokens.into_iter().for_each(|token| table.remember(token, 2));
        let kept = table.acted.iter().map(|acted| [acted.0[0], acted.0[1]]).collect::<Vec<_>>();
        assert_eq!(kept, [tokens[2], tokens[3]].map(Acted::half));
    }

    impl Entry {
        fn that_acted(mut self) -> Self {
            self.acted = true;
            self
        }
    }
}
