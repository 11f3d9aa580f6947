//! System call faults by strace: at the n-th call of one kind, a thread's process is killed or the call fails. The
//! process is the unmodified binary.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// The fault and the call that it hits.
#[derive(Clone, Copy, Debug)]
pub struct SyscallFault {
    /// The system call.
    pub call: &'static str,
    /// Each thread's calls are counted from the tracer's start, beginning with 1.
    pub nth: usize,
    /// In strace's notation: `signal=KILL` before the call is done, `error=EIO` instead of doing it.
    pub what: &'static str,
}

impl SyscallFault {
    /// The words that start a program, which follows them, with its threads traced from the beginning. The process is
    /// then the program's own; the calls are written to this file. (With --seccomp-bpf signals would get lost.)
    pub fn launcher(self, trace: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["strace", "-D", "-f", "-o"].map(Into::into).into();
        words.push(trace.into());
        words.extend(self.arguments());
        words
    }

    fn arguments(self) -> impl Iterator<Item = OsString> {
        let Self { call, nth, what } = self;
        let filters = [format!("trace={call}"), format!("inject={call}:{what}:when={nth}")];
        filters.into_iter().flat_map(|filter| ["-e".into(), filter.into()])
    }
}

/// A tracer of some threads. It ends with them, or when this value is dropped.
pub struct Tracer {
    child: Child,
    folder: TempDir,
}

impl Tracer {
    /// Whether tracing is permitted here. If not, this prints a message, and the test is skipped.
    pub async fn is_permitted() -> bool {
        static PERMITTED: OnceCell<Result<(), String>> = OnceCell::const_new();
        let permitted = PERMITTED.get_or_init(async || {
            let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = sleeper.id().cast_signed();
            let attached =
                Self::try_attach(vec![pid], SyscallFault { call: "close", nth: 1, what: "signal=KILL" }).await;
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
            attached.map(drop)
        });
        match permitted.await {
            Ok(()) => true,
            Err(reason) => {
                super::skip(format_args!("no process can be struck at its system calls here: {reason}"));
                false
            }
        }
    }

    /// Traces these threads from now on.
    pub async fn attach(threads: Vec<i32>, fault: SyscallFault) -> Self {
        Self::try_attach(threads, fault).await.unwrap()
    }

    async fn try_attach(threads: Vec<i32>, fault: SyscallFault) -> Result<Self, String> {
        tokio::task::spawn_blocking(move || Self::attach_now(&threads, fault)).await.unwrap()
    }

    fn attach_now(threads: &[i32], fault: SyscallFault) -> Result<Self, String> {
        assert!(!threads.is_empty(), "nobody to be struck: {fault:?}");
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.arg("-yy").arg("-o").arg(folder.path().join("trace"));
        command.args(fault.arguments());
        command.args(threads.iter().flat_map(|thread| ["-p".to_owned(), thread.to_string()]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("strace: {error}"))?;
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let tracer = Self { child, folder };
        for _ in threads {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            if !line.contains("attached") {
                return Err(line);
            }
        }
        // Later output does not matter, but the pipe must not fill.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Ok(tracer)
    }

    /// Waits for the traced process to end, and returns the calls in strace's notation.
    pub fn calls(mut self) -> Vec<String> {
        self.child.wait().unwrap();
        let trace = std::fs::read_to_string(self.trace()).unwrap();
        // With several threads, each line begins with a thread id.
        let call = |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').to_owned();
        trace.lines().filter(|line| line.contains('(')).map(call).collect()
    }

    /// Detaches from the threads, which continue. Returns the calls as [`Self::calls`] does.
    pub async fn detach(self) -> Vec<String> {
        // It may have ended with the traced process.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        tokio::task::spawn_blocking(|| self.calls()).await.unwrap()
    }

    fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // It may have ended with the traced process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
