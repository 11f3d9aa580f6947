//! A process that ends with the test, however the test ends.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};

use super::postgres::{as_owner, owner};

/// Starts the program, prints its process id, and waits for the end of its standard input. Then it kills the program,
/// cleans up and deletes the folder. Until then the dead program's id is not given to another process. It ignores
/// interrupts, which the terminal sends to the whole process group.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
at_end=$1
shift
"$@" >>log 2>&1 </dev/null &
echo $!
cat >/dev/null
kill -9 $! 2>/dev/null
eval "$at_end" >/dev/null 2>&1
rm -rf "$PWD"
"#;

/// The number of log lines that a failed run prints of each program.
const LAST_LINES: usize = 60;

/// A running program with a folder of its own.
pub struct GuardedProcess {
    home: PathBuf,
    pid: Pid,
    /// The guardian's standard input is a pipe that closes when this process ends in any way.
    guardian: Child,
}

/// A new folder for a program that does not run as root.
pub fn new_home(name: &str) -> PathBuf {
    let home = tempfile::Builder::new().prefix(&format!("oncegate-ha-{name}-")).tempdir().unwrap().keep();
    if let Some((uid, gid)) = owner() {
        chown(&home, Some(uid), Some(gid)).unwrap();
    }
    home
}

impl GuardedProcess {
    /// Starts a program in its folder, as the user that PostgreSQL runs as. `at_end` is a command for the end.
    pub fn start(home: &Path, command: &[&str], at_end: &str) -> Self {
        let mut guardian = as_owner(Path::new("sh"), owner())
            .args(["-c", GUARDIAN, "guardian", at_end])
            .args(command)
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut pid = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        Self { home: home.to_owned(), pid, guardian }
    }

    /// Kills it, and leaves its children alive.
    pub fn kill9(&self) {
        kill_process(self.pid, Signal::KILL).unwrap();
    }
}

impl Drop for GuardedProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
            let last = log.lines().count().saturating_sub(LAST_LINES);
            eprintln!("{}:", self.home.display());
            log.lines().skip(last).for_each(|line| eprintln!("  {line}"));
        }
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}
