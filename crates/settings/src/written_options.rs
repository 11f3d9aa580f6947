//! The options that a file writes, by which a reload says what has changed.

use std::collections::{BTreeMap, BTreeSet};

/// The hash of each value as the file writes it, by its table in a list (empty for all others) and its option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenOptions(pub BTreeMap<(String, String), [u8; 32]>);

impl WrittenOptions {
    /// The same without the files that have them, so that those of two folders can be compared.
    pub fn without_files(&self) -> Self {
        let strip = |name: &str| name.rsplit(": ").next().unwrap_or_default().to_owned();
        Self(self.0.iter().map(|((of, option), hash)| ((strip(of), strip(option)), *hash)).collect())
    }

    /// The options that differ, and the tables of lists that only one of both has.
    pub fn list_changes(&self, newer: &Self) -> BTreeSet<String> {
        let has_table = |options: &Self, of: &str| options.0.keys().any(|(other, _)| other == of);
        let keys = self.0.keys().chain(newer.0.keys()).filter(|key| self.0.get(*key) != newer.0.get(*key));
        keys.map(|(of, option)| match has_table(self, of) && has_table(newer, of) {
            _ if of.is_empty() => option.clone(),
            true => format!("{of}.{option}"),
            false => of.clone(),
        })
        .collect()
    }
}
