//! The newest started attempt of each key: a duplicate joins it without a question to the store.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::ids::{RecordId, Token};
use crate::domain::record::Record;
use crate::instance::boot_time::BootInstant;

/// An attempt with its record: as the reservation made it, or with its outcome once the attempt has ended.
#[derive(Clone, Debug)]
pub struct StartedAttempt {
    pub record: Arc<Record>,
    pub started_at: BootInstant,
}

impl StartedAttempt {
    /// An attempt that starts now.
    pub fn new(record: Arc<Record>) -> Self {
        Self { record, started_at: BootInstant::now() }
    }
}

/// Running attempts by key.
#[derive(Debug, Default)]
pub struct NewestAttempts(HashMap<RecordId, StartedAttempt>);

impl NewestAttempts {
    pub fn get(&self, id: &RecordId) -> Option<&StartedAttempt> {
        self.0.get(id)
    }

    pub fn insert(&mut self, attempt: StartedAttempt) {
        self.0.insert(attempt.record.id, attempt);
    }

    /// Removes the key's attempt if it is the one with this token.
    pub fn remove(&mut self, id: &RecordId, token: Token) -> Option<StartedAttempt> {
        self.0.get(id).filter(|attempt| attempt.record.token == token)?;
        self.0.remove(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &StartedAttempt> {
        self.0.values()
    }
}
