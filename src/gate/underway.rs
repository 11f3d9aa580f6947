//! The attempts that this process is running, by token.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::attempt::Token;

/// What stands in the store under this instance's name and is not in here was never started: its reservation committed
/// after the request had given up on it. See `tasks::strays`.
#[derive(Debug, Default)]
pub struct Underway(Mutex<HashSet<Token>>);

impl Underway {
    /// The attempt may be reserved from now on. Entered before the reservation is sent, so that no reservation of a
    /// living request is ever taken for a stray.
    pub fn enter(self: &Arc<Self>, token: Token) -> Entry {
        self.lock().insert(token);
        Entry { underway: Arc::clone(self), token, standing: Standing::Reserved }
    }

    /// Those underway at this moment.
    pub fn tokens(&self) -> HashSet<Token> {
        self.lock().clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<Token>> {
        // A set is whole between any two statements; a panic elsewhere is no reason to stop guarding.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt's place among those underway. Given up when the attempt's end is durable, or when it never began.
#[derive(Debug)]
pub struct Entry {
    underway: Arc<Underway>,
    token: Token,
    standing: Standing,
}

/// What the store knows of an attempt that is underway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was never asked: there is nothing to settle.
    Absent,
    /// The reservation failed, and may have been committed all the same, or may be yet.
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

    /// What the store knows of it.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The attempt's end is not durable, and nobody tries any more. It counts as underway for as long as this process
    /// lives: out of the table it would be taken for one that was never sent, and released. The sweeper makes it unknown.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.underway.lock().remove(&self.token);
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
}
