//! Standard error, without anybody waiting for it.
//!
//! Whoever logs puts a line into memory and goes on; one thread writes what waits, many lines with one call. Where standard
//! error takes them too slowly (a pipe that nobody reads, a disk that hangs), what does not fit is dropped and counted:
//! requests are not held up by their own log.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// What may wait: some thousand lines, a tenth of a second at more requests than one machine serves.
const BYTES_MAX: usize = 1 << 20;

/// Warnings and errors have as much room again for themselves: the trouble that a flood of lines is about is told.
const URGENT_BYTES_MAX: usize = 2 * BYTES_MAX;

#[derive(Default)]
struct Lines {
    state: Mutex<State>,
    arrived: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Some of it is being written.
    writing: bool,
    dropped: u64,
    /// Of those dropped, how many have been told of.
    told: u64,
}

impl Lines {
    fn push(&self, line: &[u8], at_most: usize) {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > at_most {
            state.dropped += 1;
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.arrived.notify_one();
    }

    /// Writes what comes, for ever; after what was dropped, `tell` is asked to say how much.
    fn write(&self, mut out: impl Write, tell: impl Fn(u64)) {
        let mut lines = Vec::new();
        loop {
            {
                let mut state = self.lock();
                state.writing = false;
                self.written.notify_all();
                while state.waiting.is_empty() {
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::swap(&mut state.waiting, &mut lines);
                state.writing = true;
            }
            // Nobody is there to be told that it cannot be told.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            lines.shrink_to(BYTES_MAX);
            let dropped = {
                let mut state = self.lock();
                let all = state.dropped;
                all - std::mem::replace(&mut state.told, all)
            };
            if dropped > 0 {
                tell(dropped);
            }
        }
    }

    /// Waits until all is written, for so long at most.
    fn flush(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        let mut state = self.lock();
        while state.writing || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static LINES: OnceLock<Lines> = OnceLock::new();

/// Where lines are put.
#[derive(Clone, Copy)]
pub(super) struct Pen {
    lines: &'static Lines,
    at_most: usize,
}

impl Pen {
    /// Starts the thread that writes; there is one for the whole process.
    pub(super) fn new() -> io::Result<Self> {
        if LINES.set(Lines::default()).is_ok() {
            let tell = |dropped| tracing::warn!(dropped, "standard error is too slow: log lines were dropped");
            let write = move || LINES.wait().write(io::stderr(), tell);
            thread::Builder::new().name("log".into()).spawn(write)?;
        }
        Ok(Self { lines: LINES.wait(), at_most: BYTES_MAX })
    }
}

impl Write for Pen {
    /// A whole line, as `tracing_subscriber` formats it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.push(line, self.at_most);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Pen {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self {
        let urgent = *metadata.level() <= Level::WARN;
        Self { at_most: if urgent { URGENT_BYTES_MAX } else { BYTES_MAX }, ..*self }
    }
}

/// How many lines were dropped.
pub(super) fn dropped() -> u64 {
    LINES.get().map_or(0, |lines| lines.lock().dropped)
}

/// Waits until what was logged is written, for so long at most: before the process ends.
pub(super) fn flush(at_most: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(at_most);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    /// Takes a write when it is allowed to.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.1.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_never_waits_and_what_does_not_fit_is_counted_and_told() {
        let lines = Arc::new(Lines::default());
        let ((allow, allowed), (out, written), (say, said)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let writer = Arc::clone(&lines);
        thread::spawn(move || writer.write(Slow(allowed, out), move |dropped| say.send(dropped).unwrap()));
        lines.push(b"first\n", 10);
        // The writer has taken it, and is stuck.
        while !lines.lock().writing {
            thread::yield_now();
        }
        for line in ["1234\n", "5678\n", "lost\n", "lost\n"] {
            lines.push(line.as_bytes(), 10);
        }
        lines.push(b"urgent\n", 20);
        assert_eq!(lines.lock().dropped, 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"first\n");
        assert_eq!(said.recv().unwrap(), 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"1234\n5678\nurgent\n");
        lines.flush(Duration::from_secs(60));
        assert!(lines.lock().waiting.is_empty() && !lines.lock().writing);
    }
}
