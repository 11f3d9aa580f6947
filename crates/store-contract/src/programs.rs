//! Programs of this machine that a test needs, and what is said where one is missing.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

/// The first of these programs that is installed, also one for administrators alone.
pub fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).collect();
    let programs = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    programs.into_iter().find(|program| program.is_file())
}

/// Prints why a test is skipped, each reason once. Panics where `ONCEGATE_NO_SKIPS` is set: in the check of a release,
/// what is not installed fails. Test vectors that are no part of the repository may be absent there too.
pub fn skip(reason: impl std::fmt::Display) {
    assert!(std::env::var_os("ONCEGATE_NO_SKIPS").is_none(), "this test must not be skipped: {reason}");
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap().insert(reason.to_string()) {
        // Not by `eprintln!`, whose text a test that passes does not show.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
    }
}
