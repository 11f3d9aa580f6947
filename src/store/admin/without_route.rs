//! The keys of routes that are not configured any more.

use std::collections::BTreeMap;

use super::{KeyCount, KeyCounts};
use crate::domain::state::StateKind;

/// Keys that wait for something, of a route that is not configured any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysWithoutRoute {
    /// The route's name.
    pub route: String,
    /// The numbers of its keys, by their states.
    pub keys: BTreeMap<StateKind, u64>,
}

impl KeyCounts {
    /// The unsettled keys of each route for which `is_configured` is false, in the order of the names.
    pub fn list_without_route(&self, is_configured: impl Fn(&str) -> bool) -> Vec<KeysWithoutRoute> {
        let mut found = BTreeMap::<&str, BTreeMap<StateKind, u64>>::new();
        for KeyCount { route, state, keys, .. } in &self.counts {
            let waits = match state {
                StateKind::Dead | StateKind::InFlight | StateKind::Queued | StateKind::Unknown => true,
                StateKind::Completed | StateKind::Expired | StateKind::Retryable => false,
            };
            if waits && !is_configured(route) {
                found.entry(route).or_default().insert(*state, *keys);
            }
        }
        found.into_iter().map(|(route, keys)| KeysWithoutRoute { route: route.to_owned(), keys }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unsettled_keys_of_routes_that_are_gone_are_listed() {
        let count = |route: &str, state, keys| KeyCount { route: route.into(), state, keys, exact: true };
        let counts = vec![
            count("gone", StateKind::Completed, 9),
            count("gone", StateKind::Queued, 2),
            count("gone", StateKind::Unknown, 1),
            count("here", StateKind::Dead, 1),
            count("settled", StateKind::Retryable, 1),
        ];
        let counts = KeyCounts { counts, sampled: 0, share: 1.0 };
        let found = counts.list_without_route(|route| route == "here");
        let keys = BTreeMap::from([(StateKind::Queued, 2), (StateKind::Unknown, 1)]);
        assert_eq!(found, [KeysWithoutRoute { route: "gone".into(), keys }]);
    }
}
