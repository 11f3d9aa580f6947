//! The migrations that a store's schema has, and those that it lacks. Each store applies them itself.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::OpenError;

/// A migration as `oncegate migrate --print` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The file's name without its extension, or `functions` or `distribution`.
    pub name: String,
    /// A script that applies and records the migration in one transaction.
    pub sql: String,
}

/// A migration that this program knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct MigrationStep {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
}

impl MigrationStep {
    pub const fn new(version: i32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql }
    }

    /// The recorded hash, which detects a file that was changed after it was applied.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(self.sql).into()
    }

    /// The script for applying the migration by hand; the store gives the statement that records it.
    pub fn script(&self, record: &str) -> Migration {
        Migration { name: self.name.to_owned(), sql: format!("begin;\n\n{}\n{record}\n\ncommit;\n", self.sql) }
    }

    pub fn sha256_hex(&self) -> String {
        HEXLOWER.encode(&self.sha256())
    }
}

/// A migration that a store has applied.
#[derive(Clone, Debug)]
pub(super) struct AppliedMigration {
    pub version: i32,
    pub name: String,
    pub sha256: Vec<u8>,
}

/// Returns the migrations that are missing. The applied ones must be the first of the known ones, byte for byte.
pub(super) fn missing_steps<'a>(
    known: &'a [MigrationStep],
    applied: &[AppliedMigration],
) -> Result<&'a [MigrationStep], OpenError> {
    for (i, applied) in applied.iter().enumerate() {
        let Some(step) = known.get(i) else {
            return Err(OpenError::SchemaForeign(format!("{} is newer than this program", applied.name)));
        };
        if step.version != applied.version || step.name != applied.name {
            return Err(OpenError::SchemaForeign(format!("{} is in the place of {}", applied.name, step.name)));
        }
        if step.sha256()[..] != applied.sha256 {
            return Err(OpenError::SchemaForeign(format!("{} was changed after it was applied", applied.name)));
        }
    }
    Ok(&known[applied.len()..])
}

/// Fails with [`OpenError::SchemaOld`] if a migration is pending.
pub(super) fn check_none_missing(pending: &[Migration]) -> Result<(), OpenError> {
    if pending.is_empty() {
        return Ok(());
    }
    Err(OpenError::SchemaOld { pending: pending.iter().map(|migration| migration.name.clone()).collect() })
}

/// Fails if a file of `migrations/FOLDER` is no step.
#[cfg(test)]
pub(super) fn assert_each_file_is_a_step(folder: &str, steps: &[MigrationStep]) {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("migrations").join(folder);
    let files =
        std::fs::read_dir(folder).expect("it has the migrations").map(|file| file.expect("it can be read").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let names: Vec<_> = files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
    assert_eq!(names, steps.iter().map(|step| step.name).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_after_the_applied_ones_are_missing() {
        let known = [MigrationStep::new(1, "0001_a", "a"), MigrationStep::new(2, "0002_b", "b")];
        let applied = AppliedMigration { version: 1, name: "0001_a".to_owned(), sha256: known[0].sha256().to_vec() };
        let names: Vec<_> = missing_steps(&known, &[applied]).unwrap().iter().map(|step| step.name).collect();
        assert_eq!(names, ["0002_b"]);
    }
}
