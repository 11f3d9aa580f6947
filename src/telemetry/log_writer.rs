//! Writes log lines to standard error without blocking the code that logs.
//!
//! Logging puts a line into a buffer; one thread writes the buffer, many lines with one call. A line after a quiet time is
//! written at once, later ones are gathered for [`GATHER_TIME`], so that the thread is not woken for each of them. If standard
//! error is too slow (a pipe that nobody reads, a disk that hangs), lines that do not fit are dropped and counted: a request
//! never waits for its own log.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The size of the buffer, 1 MiB: some thousand lines, or a tenth of a second at more requests than one machine serves.
const BYTES_MAX: usize = 1 << 20;

/// The limit for warnings and errors: they have another 1 MiB to themselves, so that a flood of lines does not hide its own
/// cause.
const URGENT_BYTES_MAX: usize = 2 * BYTES_MAX;

/// The time between two writes while lines keep coming. To wake the thread for each line costs more than the line itself; a
/// reader of the log notices no 5 ms, and at most so much of it is lost when the process is killed.
const GATHER_TIME: Duration = Duration::from_millis(5);

#[derive(Default)]
struct LogQueue {
    state: Mutex<LogQueueState>,
    /// There is a first line for the thread, or somebody waits for `written`.
    wanted: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct LogQueueState {
    waiting: Vec<u8>,
    writer: WriterState,
    /// Whether somebody waits until all lines are written.
    is_flushing: bool,
    dropped: u64,
    /// The dropped lines that were reported already.
    reported: u64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum WriterState {
    /// It sleeps until a line comes.
    #[default]
    Idle,
    /// It is writing lines that it took from `waiting`.
    Writing,
    /// It has written, and leaves the lines that come to gather.
    Gathering,
}

impl LogQueue {
    /// Adds a line unless the buffer would exceed `bytes_max`.
    fn push(&self, line: &[u8], bytes_max: usize) {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > bytes_max {
            state.dropped += 1;
            return;
        }
        state.waiting.extend_from_slice(line);
        let is_idle = state.writer == WriterState::Idle;
        drop(state);
        if is_idle {
            self.wanted.notify_one();
        }
    }

    /// Writes lines as they arrive, for ever, and lets more of them gather for `gather_time` after each write. After lines were
    /// dropped, calls `report_dropped` with their number.
    fn write_forever(&self, mut out: impl Write, gather_time: Duration, report_dropped: impl Fn(u64)) {
        let mut lines = Vec::new();
        loop {
            {
                let mut state = self.lock();
                while state.waiting.is_empty() {
                    state.writer = WriterState::Idle;
                    state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::swap(&mut state.waiting, &mut lines);
                state.writer = WriterState::Writing;
            }
            // An error is ignored: there is no other place to report it.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            lines.shrink_to(BYTES_MAX);
            let dropped = {
                let mut state = self.lock();
                state.writer = WriterState::Gathering;
                self.written.notify_all();
                let all = state.dropped;
                all - std::mem::replace(&mut state.reported, all)
            };
            if dropped > 0 {
                report_dropped(dropped);
            }
            let gathering = self.wanted.wait_timeout_while(self.lock(), gather_time, |state| !state.is_flushing);
            drop(gathering.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits until all lines are written, for at most `timeout`.
    fn flush(&self, timeout: Duration) {
        let mut state = self.lock();
        state.is_flushing = true;
        self.wanted.notify_one();
        let is_behind = |state: &mut LogQueueState| state.writer == WriterState::Writing || !state.waiting.is_empty();
        let waited = self.written.wait_timeout_while(state, timeout, is_behind);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_flushing = false;
    }

    fn lock(&self) -> MutexGuard<'_, LogQueueState> {
        // Consistent between any two statements, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// A writer that puts lines into the process's log queue.
#[derive(Clone, Copy)]
pub(super) struct LogWriter {
    queue: &'static LogQueue,
    bytes_max: usize,
}

impl LogWriter {
    /// Starts the thread that writes, unless it runs already; there is one for the whole process.
    pub(super) fn new() -> io::Result<Self> {
        if QUEUE.set(LogQueue::default()).is_ok() {
            let report = |dropped| tracing::warn!(dropped, "standard error is too slow: log lines were dropped");
            let write = move || QUEUE.wait().write_forever(io::stderr(), GATHER_TIME, report);
            thread::Builder::new().name("log".into()).spawn(write)?;
        }
        Ok(Self { queue: QUEUE.wait(), bytes_max: BYTES_MAX })
    }
}

impl Write for LogWriter {
    /// Takes one whole line, as `tracing_subscriber` formats it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.push(line, self.bytes_max);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self {
        let urgent = *metadata.level() <= Level::WARN;
        Self { bytes_max: if urgent { URGENT_BYTES_MAX } else { BYTES_MAX }, ..*self }
    }
}

/// Returns the number of dropped lines.
pub(super) fn dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.lock().dropped)
}

/// Waits until all lines are written, for at most `timeout`. For the end of the process.
pub(super) fn flush(timeout: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.flush(timeout);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    /// Completes a write only when the test allows it.
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
    fn logging_never_waits_and_dropped_lines_are_counted_and_reported() {
        let queue = Arc::new(LogQueue::default());
        let ((allow, allowed), (out, written), (report, reports)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let writer = Arc::clone(&queue);
        let report = move |dropped| report.send(dropped).unwrap();
        thread::spawn(move || writer.write_forever(Slow(allowed, out), GATHER_TIME, report));
        queue.push(b"first\n", 10);
        // Until the writer has taken the line, and is stuck.
        while queue.lock().writer != WriterState::Writing {
            thread::yield_now();
        }
        for line in ["1234\n", "5678\n", "lost\n", "lost\n"] {
            queue.push(line.as_bytes(), 10);
        }
        queue.push(b"urgent\n", 20);
        assert_eq!(queue.lock().dropped, 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"first\n");
        assert_eq!(reports.recv().unwrap(), 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"1234\n5678\nurgent\n");
        queue.flush(Duration::from_secs(60));
        assert!(queue.lock().waiting.is_empty() && queue.lock().writer != WriterState::Writing);
    }

    #[test]
    fn lines_that_come_soon_after_another_are_gathered_into_one_write() {
        let queue = Arc::new(LogQueue::default());
        let ((allow, allowed), (out, written)) = (mpsc::channel(), mpsc::channel());
        let writer = Arc::clone(&queue);
        thread::spawn(move || writer.write_forever(Slow(allowed, out), Duration::MAX, |_| ()));
        for _ in 0..3 {
            allow.send(()).unwrap();
        }
        queue.push(b"at once\n", BYTES_MAX);
        assert_eq!(written.recv().unwrap(), b"at once\n");
        queue.push(b"one\n", BYTES_MAX);
        // A thread that did not gather would write that line now.
        for _ in 0..100 {
            thread::yield_now();
        }
        queue.push(b"two\n", BYTES_MAX);
        queue.flush(Duration::from_secs(60));
        assert_eq!(written.recv().unwrap(), b"one\ntwo\n");
    }
}
