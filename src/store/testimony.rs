//! The services' side of the store: what they say of their own attempts, beside their responses.

use std::sync::Arc;

use super::Pending;
use crate::domain::record::RecordId;
use crate::domain::testimony::{Heard, Terms, Word};

/// What services ask of a store.
///
/// A response that a service gives outside of its answer is a [settlement](super::Store::settle) like any other.
pub trait Testimony: Send + Sync {
    /// Takes a service's word on its own attempt, as long as no later one has begun and the key is not completed.
    ///
    /// "Not executed" is taken at once where nobody waits for the attempt any more. While it is in flight it is noted, and
    /// counts once the attempt has ended without a response, see [`Self::heed`]: a proxy still waits for the answer to that
    /// very attempt, perhaps on another instance, and of two attempts of a key there is never one beside the other.
    fn hear(&self, word: Word) -> Pending<'_, Heard>;

    /// Makes retryable what was denied while it was running, has ended since, and is unknown; at most so many. Returns
    /// which.
    fn heed(&self, limit: u32) -> Pending<'_, Vec<RecordId>>;

    /// Leaves what the routes of a service say about what is kept, for services that complete their keys in the database
    /// itself. Where nobody can, there is nobody to leave it for.
    fn leave_terms(&self, service: Arc<str>, terms: Vec<Terms>) -> Pending<'_, ()>;
}

/// The answer where the row was found in this state; `held` where somebody's transaction has it.
pub(super) fn heard(state: &str, held: bool) -> Heard {
    match state {
        "completed" => Heard::Completed,
        "expired" => Heard::Gone,
        _ if held => Heard::Held,
        "in_flight" => Heard::Noted,
        _ => Heard::Taken,
    }
}
