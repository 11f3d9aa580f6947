//! The day and the commit of a run.

use std::process::Command;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStamp {
    pub date: String,
    /// The commit of the sources; with `+` if they had changes that were not committed.
    pub commit: String,
}

impl RunStamp {
    pub fn now() -> Self {
        let mut date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        date.truncate("2026-11-25".len());
        let mark = if git(&["status", "--porcelain"]).is_empty() { "" } else { "+" };
        Self { date, commit: git(&["rev-parse", "--short=7", "HEAD"]) + mark }
    }
}

/// Returns what git prints; nothing where there is no repository.
fn git(arguments: &[&str]) -> String {
    let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
