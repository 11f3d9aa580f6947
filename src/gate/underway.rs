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
        Entry { underway: Arc::clone(self), token }
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
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.underway.lock().remove(&self.token);
    }
}
