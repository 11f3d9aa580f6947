//! Which steps a store's schema has taken, and which it lacks. Applying them is the stores' business.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::OpenError;

/// A step of the schema, as `oncegate migrate --print` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its file's name, without the ending.
    pub name: String,
    /// A script that takes the step and records it, in one transaction; or one that builds an index, and runs in none.
    pub sql: String,
}

/// A step that this program knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
    /// What is built after its transaction, in no transaction.
    pub indexes: &'static [Index],
}

/// An index on a table that is in use, and may be large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    /// Its name in the schema.
    pub name: &'static str,
    /// Its file's name, without the ending.
    pub file: &'static str,
    /// One statement.
    pub sql: &'static str,
}

impl Step {
    pub const fn new(version: i32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql, indexes: &[] }
    }

    pub const fn with(self, indexes: &'static [Index]) -> Self {
        Self { indexes, ..self }
    }

    /// What is recorded, so that a file that was changed after it was applied is found out: the hash of the step's files
    /// one after the other, those of its indexes included. Of the indexes it says what they have to be; whether they are
    /// there, the database says.
    pub fn sha256(&self) -> [u8; 32] {
        let hash =
            self.indexes.iter().fold(Sha256::new_with_prefix(self.sql), |hash, index| hash.chain_update(index.sql));
        hash.finalize().into()
    }

    /// The step for whoever applies it by hand; the line that records it is spelt by the store.
    pub fn script(&self, record: &str) -> Migration {
        Migration { name: self.name.to_owned(), sql: format!("begin;\n\n{}\n{record}\n\ncommit;\n", self.sql) }
    }

    pub fn sha256_hex(&self) -> String {
        self.sha256().iter().fold(String::new(), |mut hex, byte| {
            // Writing into a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// A step that a store has taken.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub version: i32,
    pub name: String,
    pub sha256: Vec<u8>,
}

/// The steps that are missing. What the store has must be the beginning of what we know, byte for byte.
pub(super) fn outstanding<'a>(known: &'a [Step], applied: &[Applied]) -> Result<&'a [Step], OpenError> {
    for (i, applied) in applied.iter().enumerate() {
        let Some(step) = known.get(i) else {
            return Err(OpenError::SchemaForeign(format!("{} is newer than this program", applied.name)));
        };
        if step.version != applied.version || step.name != applied.name {
            return Err(OpenError::SchemaForeign(format!("{} stands where {} should", applied.name, step.name)));
        }
        if step.sha256()[..] != applied.sha256 {
            return Err(OpenError::SchemaForeign(format!("{} was changed after it was applied", applied.name)));
        }
    }
    Ok(&known[applied.len()..])
}

/// [`OpenError::SchemaOld`], unless nothing is missing.
pub(super) fn none_missing(outstanding: &[Step]) -> Result<(), OpenError> {
    if outstanding.is_empty() {
        return Ok(());
    }
    Err(OpenError::SchemaOld { pending: outstanding.iter().map(|step| step.name.to_owned()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Step; 2] = [
        Step::new(1, "0001_a", "a"),
        Step::new(2, "0002_b", "b").with(&[Index { name: "i", file: "0002_b.i", sql: "i" }]),
    ];

    fn applied(steps: &[Step]) -> Vec<Applied> {
        let applied =
            |step: &Step| Applied { version: step.version, name: step.name.to_owned(), sha256: step.sha256().to_vec() };
        steps.iter().map(applied).collect()
    }

    #[test]
    fn what_a_store_has_must_be_the_beginning_of_what_we_know() {
        let missing = |has: &[Applied]| outstanding(&KNOWN, has).map(<[Step]>::len).map_err(|why| why.to_string());
        assert_eq!(missing(&[]), Ok(2));
        assert_eq!(missing(&applied(&KNOWN[..1])), Ok(1));
        assert_eq!(missing(&applied(&KNOWN)), Ok(0));
        for (has, why) in [
            (applied(&[KNOWN[0], KNOWN[1], Step::new(3, "0003_c", "c")]), "is newer than"),
            (applied(&KNOWN[1..]), "0002_b stands where 0001_a should"),
            (applied(&[Step { sql: "A", ..KNOWN[0] }]), "was changed after it was applied"),
            (applied(&[KNOWN[0], Step { indexes: &[], ..KNOWN[1] }]), "was changed after it was applied"),
        ] {
            assert!(missing(&has).unwrap_err().contains(why));
        }
    }
}
