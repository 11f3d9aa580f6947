//! Writes log lines to standard error without blocking the code that logs.
//!
//! Logging puts a line into a buffer; one thread writes the buffer, many lines with one call. A line after a quiet time
//! is written at once, and so is a warning or an error; others are gathered for [`GATHER_TIME`], so that the thread is
//! not woken for each of them. If standard error is too slow (a pipe that nobody reads, a disk that hangs), lines that
//! do not fit are dropped and counted: a request never waits for its own log.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The size of the buffer, 1 MiB: some thousand lines, or the lines of 30 ms at as many requests as two cores serve.
const BYTES_MAX: usize = 1 << 20;

/// The time between two writes while lines keep coming. To wake the thread for each line costs more than the line
/// itself; a reader of the log notices no 5 ms.
// See docs/decisions/0027-never-wait-for-the-log.md.
const GATHER_TIME: Duration = Duration::from_millis(5);

struct LogQueue {
    /// The limit for the lines that wait. Warnings and errors have as much again to themselves, so that a flood of
    /// lines does not hide its own cause.
    bytes_max: usize,
    state: Mutex<LogQueueState>,
    /// Wakes the thread when `is_due` becomes true.
    due: Condvar,
    /// Wakes those who flush after each write.
    written: Condvar,
}

#[derive(Default)]
struct LogQueueState {
    waiting: Vec<u8>,
    writer: WriterState,
    /// Whether the lines are to be written without gathering more: the thread sleeps, one of them is urgent, they are
    /// many, or somebody waits for them.
    is_due: bool,
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
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), due: Condvar::new(), written: Condvar::new() }
    }

    /// Adds a line unless the buffer is full. An urgent line may fill twice the buffer, and is written without delay:
    /// it may be the last before the process is killed.
    fn push(&self, line: &[u8], is_urgent: bool) {
        let mut state = self.state.lock();
        let bytes_max = if is_urgent { 2 * self.bytes_max } else { self.bytes_max };
        if state.waiting.len() + line.len() > bytes_max {
            state.dropped += 1;
            return;
        }
        state.waiting.extend_from_slice(line);
        // Well before the buffer is full: no line is dropped because of others that gather.
        let many = state.waiting.len() >= self.bytes_max / 4;
        if is_urgent || many || state.writer == WriterState::Idle {
            self.make_due(state);
        }
    }

    fn make_due(&self, mut state: MutexGuard<'_, LogQueueState>) {
        let was_due = std::mem::replace(&mut state.is_due, true);
        drop(state);
        if !was_due {
            self.due.notify_one();
        }
    }

    /// Writes lines as they arrive, for ever, and lets more of them gather for `gather_time` after each write. After
    /// lines were dropped, calls `report_dropped` with their number.
    fn write_forever(&self, mut out: impl Write, gather_time: Duration, report_dropped: impl Fn(u64)) {
        let mut lines = Vec::new();
        loop {
            {
                let mut state = self.state.lock();
                while state.waiting.is_empty() {
                    state.writer = WriterState::Idle;
                    state.is_due = false;
                    self.due.wait(&mut state);
                }
                std::mem::swap(&mut state.waiting, &mut lines);
                state.writer = WriterState::Writing;
                state.is_due = false;
            }
            // An error is ignored: there is no other place to report it.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            lines.shrink_to(BYTES_MAX);
            let dropped = {
                let mut state = self.state.lock();
                let all = state.dropped;
                all - std::mem::replace(&mut state.reported, all)
            };
            if dropped > 0 {
                report_dropped(dropped);
            }
            // Only now, so that a flush waits for the report too.
            let mut state = self.state.lock();
            state.writer = WriterState::Gathering;
            self.written.notify_all();
            self.due.wait_while_for(&mut state, |state| !state.is_due, gather_time);
        }
    }

    /// Waits until all lines are written, for at most `timeout`.
    fn flush(&self, timeout: Duration) {
        self.make_due(self.state.lock());
        let is_behind = |state: &mut LogQueueState| state.writer == WriterState::Writing || !state.waiting.is_empty();
        self.written.wait_while_for(&mut self.state.lock(), is_behind, timeout);
    }
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// A writer that puts lines into the process's log queue.
#[derive(Clone, Copy)]
pub(super) struct LogWriter {
    queue: &'static LogQueue,
    is_urgent: bool,
}

impl LogWriter {
    /// Starts the thread that writes, unless it runs already; there is one for the whole process.
    pub(super) fn new() -> io::Result<Self> {
        if QUEUE.set(LogQueue::new(BYTES_MAX)).is_ok() {
            let report = |dropped| tracing::warn!(dropped, "standard error is too slow: log lines were dropped");
            let write = move || QUEUE.wait().write_forever(io::stderr(), GATHER_TIME, report);
            thread::Builder::new().name("log".into()).spawn(write)?;
        }
        Ok(Self { queue: QUEUE.wait(), is_urgent: false })
    }
}

impl Write for LogWriter {
    /// Takes one whole line, as `tracing_subscriber` formats it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.push(line, self.is_urgent);
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
        Self { is_urgent: *metadata.level() <= Level::WARN, ..*self }
    }
}

/// Returns the number of lines that were dropped because standard error was too slow.
pub fn dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.state.lock().dropped)
}

/// Waits until all lines are written, for at most `timeout`. For the end of the process.
pub fn flush(timeout: Duration) {
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

    /// Starts a thread that writes the queue's lines. Returns the permits for its writes, and what it has written.
    fn start_writer(
        queue: &Arc<LogQueue>,
        gather_time: Duration,
        report_dropped: impl Fn(u64) + Send + 'static,
    ) -> (mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let ((allow, allowed), (out, written)) = (mpsc::channel(), mpsc::channel());
        let queue = Arc::clone(queue);
        thread::spawn(move || queue.write_forever(Slow(allowed, out), gather_time, report_dropped));
        (allow, written)
    }

    /// A queue whose writer gathers for ever, after a first line.
    fn gathering_queue() -> (Arc<LogQueue>, mpsc::Receiver<Vec<u8>>) {
        let queue = Arc::new(LogQueue::new(100));
        let (allow, written) = start_writer(&queue, Duration::MAX, |_| ());
        (0..10).for_each(|_| allow.send(()).unwrap());
        queue.push(b"first\n", false);
        assert_eq!(written.recv().unwrap(), b"first\n");
        (queue, written)
    }

    #[test]
    fn logging_never_waits_and_dropped_lines_are_counted_and_reported() {
        let queue = Arc::new(LogQueue::new(10));
        let (report, reports) = mpsc::channel();
        let (allow, written) = start_writer(&queue, GATHER_TIME, move |dropped| report.send(dropped).unwrap());
        queue.push(b"first\n", false);
        // Until the writer has taken the line, and is stuck.
        while queue.state.lock().writer != WriterState::Writing {
            thread::yield_now();
        }
        for line in ["1234\n", "5678\n", "lost\n", "lost\n"] {
            queue.push(line.as_bytes(), false);
        }
        queue.push(b"urgent\n", true);
        assert_eq!(queue.state.lock().dropped, 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"first\n");
        assert_eq!(reports.recv().unwrap(), 2);
        allow.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"1234\n5678\nurgent\n");
        queue.flush(Duration::from_secs(60));
        assert!(queue.state.lock().waiting.is_empty() && queue.state.lock().writer != WriterState::Writing);
    }

    #[test]
    fn lines_that_come_soon_after_another_are_gathered_until_somebody_waits_for_them() {
        let (queue, written) = gathering_queue();
        queue.push(b"one\n", false);
        // A thread that does not gather writes that line now.
        (0..100).for_each(|_| thread::yield_now());
        queue.push(b"two\n", false);
        queue.flush(Duration::from_secs(60));
        assert_eq!(written.recv().unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn an_urgent_line_ends_the_gathering() {
        let (queue, written) = gathering_queue();
        queue.push(b"one\n", false);
        queue.push(b"urgent\n", true);
        assert_eq!(written.recv().unwrap(), b"one\nurgent\n");
    }

    #[test]
    fn a_quarter_of_a_buffer_ends_the_gathering() {
        let (queue, written) = gathering_queue();
        queue.push(b"one\n", false);
        queue.push(b"a line of twenty one\n", false);
        assert_eq!(written.recv().unwrap(), b"one\na line of twenty one\n");
    }
}
