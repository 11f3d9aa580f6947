//! Outcomes of ended attempts that the store does not have yet.

use std::collections::HashMap;

use super::newest_attempts::StartedAttempt;
use crate::domain::ids::{RecordId, Token};

/// Ended attempts by key. Each leaves the table when its outcome is durable, or when the key's next attempt starts.
#[derive(Debug, Default)]
pub struct UnstoredOutcomes(HashMap<RecordId, StartedAttempt>);

impl UnstoredOutcomes {
    pub fn get(&self, id: &RecordId) -> Option<&StartedAttempt> {
        self.0.get(id)
    }

    pub fn insert(&mut self, attempt: StartedAttempt) {
        self.0.insert(attempt.record.id, attempt);
    }

    /// Removes the key's outcome, of whichever attempt it is.
    pub fn remove(&mut self, id: &RecordId) {
        self.0.remove(id);
    }

    /// Removes the key's outcome if it is of the attempt with this token.
    pub fn remove_attempt(&mut self, id: &RecordId, token: Token) {
        if self.0.get(id).is_some_and(|attempt| attempt.record.token == token) {
            self.0.remove(id);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &StartedAttempt> {
        self.0.values()
    }
}
