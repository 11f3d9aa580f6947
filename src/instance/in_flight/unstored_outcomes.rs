//! Outcomes of ended attempts that the store does not have yet.

use std::collections::HashMap;

use super::newest_attempts::StartedAttempt;
use crate::domain::ids::{RecordId, Token};

/// The outcomes that wait for the store in memory, of all keys and attempts. During an outage a route with
/// `store_down = "bypass"` adds one with each request.
#[derive(Debug, Default)]
pub struct WaitingOutcomes {
    count: usize,
    bytes: usize,
}

/// With its task, record and fields an outcome takes about 4 KiB: 64 MiB of them, and as much of responses, leave room for
/// the rest in 384 MiB. At 50 bypassed requests a second the number lasts for five minutes.
const OUTCOMES_MAX: usize = 16 * 1024;
const BYTES_MAX: usize = 64 * 1024 * 1024;

impl WaitingOutcomes {
    pub fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    /// Whether a limit is reached. The attempts that run then may still exceed it.
    pub fn is_full(&self) -> bool {
        self.count >= OUTCOMES_MAX || self.bytes >= BYTES_MAX
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_that_wait_are_limited_in_number_and_bytes() {
        let mut waiting = WaitingOutcomes::default();
        (1..OUTCOMES_MAX).for_each(|_| waiting.add(0));
        assert!(!waiting.is_full());
        waiting.add(0);
        assert!(waiting.is_full(), "the number");
        waiting.remove(0);
        assert!(!waiting.is_full());
        waiting.remove(0);
        waiting.add(BYTES_MAX);
        assert!(waiting.is_full(), "the bytes");
    }
}
