//! The permissions of authorizing services to replay, which count for a while.

use quick_cache::sync::Cache as Table;
use tokio::time::Instant;

/// The permissions that are remembered, about 100 bytes each.
const PERMISSIONS_MAX: usize = 16_384;

/// The hash of a question: route, service, caller's fields, method and target.
pub type QuestionDigest = [u8; 32];

/// The permissions of all workers and routes, each until its time.
pub struct ReplayPermissions(Table<QuestionDigest, Instant>);

impl Default for ReplayPermissions {
    fn default() -> Self {
        Self(Table::new(PERMISSIONS_MAX))
    }
}

impl ReplayPermissions {
    /// Whether the question was answered with a permission that still counts.
    pub fn is_granted(&self, question: &QuestionDigest) -> bool {
        self.0.get(question).is_some_and(|until| Instant::now() < until)
    }

    /// Remembers a permission.
    pub fn grant(&self, question: QuestionDigest, until: Instant) {
        self.0.insert(question, until);
    }

    /// Forgets a permission.
    pub fn withdraw(&self, question: &QuestionDigest) {
        self.0.remove(question);
    }
}
