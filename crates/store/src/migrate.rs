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

#[derive(Clone, Copy, Debug)]
pub(super) struct MigrationStep {
    pub version: i32,
    pub name: &'static str,
    /// The newest step that a program must know at least to work on a store that has this one. A step that only adds
    /// parts leaves the number as it was; one that drops a part names the first step whose program does without it.
    pub oldest_program: i32,
    pub sql: &'static str,
}

impl MigrationStep {
    pub const fn new(version: i32, name: &'static str, oldest_program: i32, sql: &'static str) -> Self {
        Self { version, name, oldest_program, sql }
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

/// The migrations, in order, of the store that has this folder.
macro_rules! steps {
    ($folder:literal) => {
        &[MigrationStep::new(
            1,
            "0001_init",
            1,
            include_str!(concat!("../../../migrations/", $folder, "/0001_init.sql")),
        )]
    };
}

pub(super) const POSTGRES_STEPS: &[MigrationStep] = steps!("postgres");
pub(super) const SQLITE_STEPS: &[MigrationStep] = steps!("sqlite");

/// Returns the newest migration that this program knows; [`open`](crate::open()) makes sure that the store has it.
pub fn schema() -> &'static str {
    POSTGRES_STEPS.last().expect("there is a first step").name
}

#[derive(Clone, Debug)]
pub(super) struct AppliedMigration {
    pub version: i32,
    pub name: String,
    pub sha256: Vec<u8>,
    pub oldest_program: i32,
}

pub(super) fn newer_steps<'a>(known: &[MigrationStep], applied: &'a [AppliedMigration]) -> &'a [AppliedMigration] {
    applied.get(known.len()..).unwrap_or_default()
}

/// Returns the sentence that a start says of migrations that this program does not know.
pub(super) fn newer_warning(known: &[MigrationStep], applied: &[AppliedMigration]) -> Option<String> {
    let newest = &newer_steps(known, applied).last()?.name;
    Some(format!(
        "the store's schema is newer than this program: a later version has applied {newest}. This program works on it; a version \
         after that one may not let it start any more"
    ))
}

/// Returns the migrations that are missing. The applied ones must be the first of the known ones, byte for byte; after
/// these there may be newer ones that let this program work on the store.
pub(super) fn missing_steps<'a>(
    known: &'a [MigrationStep],
    applied: &[AppliedMigration],
) -> Result<&'a [MigrationStep], OpenError> {
    let newest_known = known.last().map_or(0, |step| step.version);
    if let Some(step) = newer_steps(known, applied).iter().find(|step| step.oldest_program > newest_known) {
        return Err(OpenError::SchemaForeign(format!(
            "{} is newer than this program, and needs one that knows migration {} at least, where this one knows {newest_known}",
            step.name, step.oldest_program
        )));
    }
    for (applied, step) in applied.iter().zip(known) {
        if step.version != applied.version || step.name != applied.name {
            return Err(OpenError::SchemaForeign(format!("{} is in the place of {}", applied.name, step.name)));
        }
        if step.sha256()[..] != applied.sha256 {
            return Err(OpenError::SchemaForeign(format!("{} was changed after it was applied", applied.name)));
        }
    }
    Ok(known.get(applied.len()..).unwrap_or_default())
}

/// Fails with [`OpenError::SchemaOld`] if a migration is pending.
pub(super) fn check_none_missing(pending: &[Migration]) -> Result<(), OpenError> {
    if pending.is_empty() {
        return Ok(());
    }
    Err(OpenError::SchemaOld { pending: pending.iter().map(|migration| migration.name.clone()).collect() })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_file_of_migrations_is_a_step_of_its_store() {
        for (folder, steps) in [("postgres", POSTGRES_STEPS), ("sqlite", SQLITE_STEPS)] {
            let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations")).join(folder);
            let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
            files.sort();
            let names: Vec<_> = files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
            assert_eq!(names, steps.iter().map(|step| step.name).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_migrations_after_the_applied_ones_are_missing() {
        let applied = as_applied(&KNOWN[..1]);
        let names: Vec<_> = missing_steps(&KNOWN, &applied).unwrap().iter().map(|step| step.name).collect();
        assert_eq!(names, ["0002_b"]);
        assert_eq!(newer_warning(&KNOWN, &applied), None);
    }

    const KNOWN: [MigrationStep; 2] =
        [MigrationStep::new(1, "0001_a", 1, "a"), MigrationStep::new(2, "0002_b", 1, "b")];

    fn as_applied(steps: &[MigrationStep]) -> Vec<AppliedMigration> {
        let applied = |step: &MigrationStep| AppliedMigration {
            version: step.version,
            name: step.name.to_owned(),
            sha256: step.sha256().to_vec(),
            oldest_program: step.oldest_program,
        };
        steps.iter().map(applied).collect()
    }

    #[test]
    fn a_newer_store_is_taken_as_far_as_its_steps_let_this_program_work() {
        for (oldest_programs, is_taken) in
            [(&[1][..], true), (&[2], true), (&[3], false), (&[1, 2], true), (&[2, 3], false), (&[3, 1], false)]
        {
            let mut applied = as_applied(&KNOWN);
            applied.extend(oldest_programs.iter().zip(3..).map(|(oldest_program, version)| AppliedMigration {
                version,
                name: format!("000{version}_later"),
                sha256: vec![0; 32],
                oldest_program: *oldest_program,
            }));
            match missing_steps(&KNOWN, &applied) {
                Ok(missing) => assert!(missing.is_empty() && is_taken, "{oldest_programs:?}"),
                Err(OpenError::SchemaForeign(why)) => {
                    assert!(!is_taken && why.contains("needs one that knows migration 3"), "{why}");
                }
                Err(error) => panic!("{error:?}"),
            }
            assert!(newer_warning(&KNOWN, &applied).unwrap().contains("_later"));
        }
    }
}
