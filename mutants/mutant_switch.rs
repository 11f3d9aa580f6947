//! The question that the switches of the mutants and of the seeded bugs ask. Only the copies that
//! `mutants/copy-sources` makes have this file.
//!
//! The variable is read once: a test program is started for each mutant. A test is in the name of its thread, so the
//! file that `ONCEGATE_MUTANTS_REACHED` names tells which tests come to which mutants.

use std::{cell::RefCell, collections::HashSet, env, fs::File, io::Write, sync::LazyLock, thread};

static ACTIVE: LazyLock<Option<u32>> = LazyLock::new(|| env::var("ONCEGATE_MUTANT").ok()?.parse().ok());
static REACHED: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = env::var_os("ONCEGATE_MUTANTS_REACHED")?;
    Some(File::options().append(true).create(true).open(path).unwrap())
});

/// Whether the mutant with this number is active.
pub fn on(number: u32) -> bool {
    if let Some(file) = &*REACHED {
        note(number, file);
    }
    *ACTIVE == Some(number)
}

fn note(number: u32, mut file: &File) {
    thread_local! { static NOTED: RefCell<HashSet<u32>> = RefCell::default(); }
    if NOTED.try_with(|noted| noted.borrow_mut().insert(number)).unwrap_or(true) {
        let line = format!("{number} {}\n", thread::current().name().unwrap_or("?"));
        // A test may have forbidden its process to write.
        let _ = file.write_all(line.as_bytes());
    }
}
