//! The last reload of the configuration, as operators see it.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;

/// The problems of a refused reload that are kept: more than anybody corrects before the next try.
const PROBLEMS_MAX: usize = 50;

/// A reload that was refused: the configuration before it still runs.
#[derive(Debug)]
pub struct RefusedReload {
    /// When it was refused.
    pub at: SystemTime,
    /// The first problems, each a sentence without secrets.
    pub problems: Vec<String>,
    /// The number of further problems.
    pub more: usize,
}

impl RefusedReload {
    /// The number of all problems.
    pub fn count(&self) -> usize {
        self.problems.len() + self.more
    }
}

/// Whether the last reload was refused. A successful one forgets the refusal.
#[derive(Debug, Default)]
pub struct ReloadState(RwLock<Option<Arc<RefusedReload>>>);

impl ReloadState {
    /// Notes that the newest configuration is the running one.
    pub fn note_success(&self) {
        *self.0.write() = None;
    }

    /// Notes that the newest configuration has these problems.
    pub fn note_refusal(&self, mut problems: Vec<String>) {
        let more = problems.len().saturating_sub(PROBLEMS_MAX);
        problems.truncate(PROBLEMS_MAX);
        *self.0.write() = Some(Arc::new(RefusedReload { at: SystemTime::now(), problems, more }));
    }

    /// The refusal of the last reload; `None` if it succeeded, or there was none.
    pub fn refusal(&self) -> Option<Arc<RefusedReload>> {
        self.0.read().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_refusal_is_kept_until_a_reload_succeeds() {
        let state = ReloadState::default();
        assert!(state.refusal().is_none());
        state.note_refusal(vec!["one".into()]);
        state.note_refusal((0..=PROBLEMS_MAX).map(|number| number.to_string()).collect());
        let refusal = state.refusal().unwrap();
        assert_eq!((refusal.problems.len(), refusal.more), (PROBLEMS_MAX, 1));
        state.note_success();
        assert!(state.refusal().is_none());
    }
}
