#![doc = include_str!("../README.md")]

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::chunked::{ChunkedParser, ChunkedStep};
use self::deadline::{Deadline, WaitPurpose};
use self::head::{BodyLength, HeadParser, HeadStep};

pub use self::verdict::{FramingError, Verdicts};

mod chunked;
mod deadline;
mod head;
pub mod http2;
mod text;
mod verdict;

/// The request that hyper gets in place of a refused one: it makes hyper call the service, and close the connection
/// afterwards.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";
/// The bytes of one read. Also the least room in hyper's buffer for reading a head directly into it: hyper offers as
/// much, except for the 24 bytes in which it first looks for HTTP/2.
const READ_BYTES: usize = 8 * 1024;
/// The time for which bytes are discarded after a close. A client that is still sending when we close gets a TCP reset,
/// which may destroy our answer before the client has read it (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(1);
/// The bytes that are discarded after a close: more than any head, and than most bodies that are sent without waiting
/// for an answer.
const LINGER_BYTES_MAX: usize = 256 * 1024;

/// The time limits of the guard's waits for a client. A limit of zero has passed at once; `Duration::MAX` is no limit.
///
/// No time limit applies over HTTP/2 and after an upgrade.
///
/// ```
/// use std::time::Duration;
/// use framing_guard::FramingTimeouts;
///
/// let timeouts = FramingTimeouts { body: Duration::from_secs(10), ..FramingTimeouts::default() };
/// assert_eq!(timeouts.head, Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FramingTimeouts {
    /// From the first byte of a head to its last, 30 s by default. Then the request is refused with
    /// [`FramingError::HeadTimeout`].
    pub head: Duration,
    /// For the next bytes of a body while the service reads it, 60 s by default. Then reading it ends with
    /// [`FramingError::BodyTimeout`]. Time in which the service does not read does not count.
    pub body: Duration,
    /// For the first byte of a head, 75 s by default. Then the connection is closed without an answer.
    pub idle: Duration,
}

/// The client's stream as hyper sees it: only valid requests. The crate's page has the rules and the requirements on
/// the server.
///
/// Bodies are read directly into hyper's buffer, and so is a head that arrives in one piece. Written bytes pass
/// unchanged. Shutting the stream down over HTTP/1.x first shuts down the direction to the client, and then discards
/// the bytes that the client still sends, for up to 1 s and 256 KiB.
///
/// # Errors
///
/// Reading fails with the errors of the client's stream. It also fails with an [`io::Error`] that holds a
/// [`FramingError`] if the framing of a body is wrong, or its next bytes do not arrive in time;
/// [`FramingError::found_in`] finds it. Such errors have the kind `InvalidData` or `TimedOut`.
/// Each further read fails likewise.
///
/// # Panics
///
/// Reading and shutting down panic outside of a tokio runtime whose time is enabled. No
/// bytes of a client make them panic.
#[derive(Debug)]
// See docs/decisions/0021-find-where-messages-end.md.
pub struct GuardedStream<S> {
    stream: S,
    timeouts: FramingTimeouts,
    verdicts: Verdicts,
    state: FramingState,
    held: HeldBytes,
    deadline: Deadline,
    /// The heads that were passed on or refused so far: the number of the newest.
    heads: u64,
    /// The number of a complete request with `Upgrade` that was passed on: the bytes after it may not be HTTP.
    pending_upgrade: Option<u64>,
    /// Whether the client's direction of the stream has ended.
    read_ended: bool,
    /// Whether our direction of the stream was shut down.
    write_ended: bool,
    discarded_bytes: usize,
}

/// The part of the stream to which the next byte from the client belongs.
#[derive(Debug)]
enum FramingState {
    Chunked(ChunkedParser),
    /// The framing of a body that hyper is reading is wrong.
    Failed(FramingError),
    Head(HeadParser),
    /// HTTP/2, or the protocol after an upgrade: passes unread.
    Opaque,
    /// A request was refused: the stand-in is hyper's last request of this connection.
    Refused,
    /// A body of which this many bytes are left.
    Sized(u64),
}

/// Bytes that were read and not passed on yet: first valid ones, then the beginning of a head.
#[derive(Debug, Default)]
struct HeldBytes {
    bytes: Vec<u8>,
    /// The bytes that were passed on.
    passed: usize,
    /// The bytes that may be passed on.
    valid: usize,
}

impl Default for FramingTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            // A streamed body is produced while it is sent, and may pause; a server that
            // buffers bodies should wait less.
            body: Duration::from_secs(60),
            idle: Duration::from_secs(75),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> GuardedStream<S> {
    /// Guards a connection from its first byte on: nothing may have been read from `stream` before. The stream goes to
    /// hyper, the verdicts to the connection's service.
    #[must_use]
    pub fn new(stream: S, timeouts: FramingTimeouts) -> (Self, Verdicts) {
        let verdicts = Verdicts::new();
        let guarded = Self {
            stream,
            timeouts,
            verdicts: verdicts.clone(),
            state: FramingState::Head(HeadParser::new(true)),
            held: HeldBytes::default(),
            deadline: Deadline::default(),
            heads: 0,
            pending_upgrade: None,
            read_ended: false,
            write_ended: false,
            discarded_bytes: 0,
        };
        (guarded, verdicts)
    }

    /// Parses `bytes`, the client's next after those parsed before, and returns how many of them hyper may have.
    ///
    /// The rest is the beginning of a head, or may not be HTTP (after an `Upgrade`), or is useless (after a refusal).
    fn parse(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        // The start of the current message's head if hyper has not seen it: it can still be refused.
        let mut unseen_head = None;
        while passed < bytes.len() {
            let rest = &bytes[passed..];
            match &mut self.state {
                FramingState::Head(_) if self.pending_upgrade.is_some() => break,
                FramingState::Head(parser) => match parser.advance(rest) {
                    Err(error) => {
                        self.refuse(error);
                        break;
                    }
                    Ok(HeadStep::More) => break,
                    Ok(HeadStep::Blank(length)) => passed += length,
                    Ok(HeadStep::Preface) => {
                        self.verdicts.mark_http2();
                        self.state = FramingState::Opaque;
                    }
                    Ok(HeadStep::Done(length, head)) => {
                        self.heads += 1;
                        self.verdicts.push(Ok(()), matches!(head.body, BodyLength::Sized(0)));
                        self.pending_upgrade = head.upgrade.then_some(self.heads);
                        self.state = match head.body {
                            BodyLength::Chunked => FramingState::Chunked(ChunkedParser::new()),
                            BodyLength::Sized(0) => FramingState::Head(HeadParser::new(false)),
                            BodyLength::Sized(left) => FramingState::Sized(left),
                        };
                        unseen_head = Some(passed);
                        passed += length;
                    }
                },
                FramingState::Sized(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.verdicts.mark_complete();
                        self.state = FramingState::Head(HeadParser::new(false));
                    }
                    passed += taken;
                }
                FramingState::Chunked(parser) => match (parser.advance(rest), unseen_head) {
                    (ChunkedStep::More, _) => passed = bytes.len(),
                    (ChunkedStep::Done(length), _) => {
                        self.verdicts.mark_complete();
                        self.state = FramingState::Head(HeadParser::new(false));
                        passed += length;
                    }
                    (ChunkedStep::Bad(_), Some(head)) => {
                        self.verdicts.replace_newest(Err(FramingError::BadChunk));
                        self.state = FramingState::Refused;
                        passed = head;
                    }
                    (ChunkedStep::Bad(valid), None) => {
                        self.state = FramingState::Failed(FramingError::BadChunk);
                        passed += valid;
                    }
                },
                FramingState::Opaque => passed = bytes.len(),
                FramingState::Failed(_) | FramingState::Refused => break,
            }
        }
        passed
    }

    fn refuse(&mut self, error: FramingError) {
        self.heads += 1;
        self.verdicts.push(Err(error), false);
        self.state = FramingState::Refused;
    }

    /// Parses the held bytes. Must be called only when all valid ones have been passed on.
    fn parse_held(&mut self) {
        let bytes = mem::take(&mut self.held.bytes);
        self.held.valid = self.parse(&bytes);
        self.held.bytes = bytes;
        self.hold_stand_in();
    }

    /// After a refusal, replaces all bytes that are not valid by the stand-in.
    fn hold_stand_in(&mut self) {
        match self.state {
            FramingState::Refused => {
                self.held.bytes.truncate(self.held.valid);
                self.held.bytes.extend_from_slice(STAND_IN);
                self.held.valid = self.held.bytes.len();
            }
            FramingState::Failed(_) => self.held.bytes.truncate(self.held.valid),
            FramingState::Chunked(_) | FramingState::Head(_) | FramingState::Opaque | FramingState::Sized(_) => {}
        }
    }

    /// Decides whether the bytes after a request with `Upgrade` are HTTP; hyper has asked for them, so the service has
    /// answered. Returns false while there are no bytes to decide about.
    fn resolve_upgrade(&mut self, request: u64) -> bool {
        if self.verdicts.is_upgraded_by(request) {
            self.state = FramingState::Opaque;
        } else if self.held.bytes.is_empty() {
            return false;
        }
        self.pending_upgrade = None;
        self.parse_held();
        true
    }

    /// Reads into hyper's buffer, parses there, and takes back the bytes that hyper may not have.
    fn read_in_place(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let fresh = &buffer.filled()[start..];
        self.read_ended = fresh.is_empty();
        let passed = self.parse(fresh);
        if passed < fresh.len() {
            self.held.bytes.extend_from_slice(&fresh[passed..]);
            buffer.set_filled(start + passed);
        }
        // Nothing was held before, so none of the held bytes is valid: a stand-in replaces them all.
        self.hold_stand_in();
        Poll::Ready(Ok(()))
    }

    /// Reads into a buffer of our own, behind the beginning of a head that is held already.
    fn read_aside(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        let mut fresh = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut fresh))?;
        self.read_ended = fresh.filled().is_empty();
        self.held.bytes.extend_from_slice(fresh.filled());
        self.parse_held();
        Poll::Ready(Ok(()))
    }

    /// Called while no bytes arrive. Ready when the current wait has lasted too long.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            FramingState::Head(_) if self.held.bytes.is_empty() => {
                ready!(self.deadline.poll(context, WaitPurpose::Idle, self.timeouts.idle));
                self.read_ended = true;
            }
            FramingState::Head(_) => {
                ready!(self.deadline.poll(context, WaitPurpose::Head, self.timeouts.head));
                self.refuse(FramingError::HeadTimeout);
                self.hold_stand_in();
            }
            FramingState::Chunked(_) | FramingState::Sized(_) => {
                ready!(self.deadline.poll(context, WaitPurpose::Body, self.timeouts.body));
                self.state = FramingState::Failed(FramingError::BodyTimeout);
            }
            FramingState::Failed(_) | FramingState::Opaque | FramingState::Refused => return Poll::Pending,
        }
        Poll::Ready(())
    }

    /// Discards the bytes that the client still sends, for a bounded time. Our last answer is sent already.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Between two requests there is nothing to wait for, unless the client has sent bytes that were not read.
        let is_between = matches!(self.state, FramingState::Head(_)) && self.held.bytes.is_empty();
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        while !self.read_ended && self.discarded_bytes < LINGER_BYTES_MAX {
            let mut discarded = ReadBuf::uninit(&mut room);
            match Pin::new(&mut self.stream).poll_read(context, &mut discarded) {
                Poll::Ready(Ok(())) if !discarded.filled().is_empty() => {
                    self.discarded_bytes += discarded.filled().len()
                }
                Poll::Ready(_) => self.read_ended = true,
                Poll::Pending if is_between && self.discarded_bytes == 0 => break,
                Poll::Pending => return self.deadline.poll(context, WaitPurpose::Linger, LINGER),
            }
        }
        Poll::Ready(())
    }
}

impl HeldBytes {
    /// Moves valid bytes into `buffer`. Returns whether there were any.
    fn move_valid_to(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let due = &self.bytes[self.passed..self.valid];
        if due.is_empty() {
            return false;
        }
        let fits = due.len().min(buffer.remaining());
        buffer.put_slice(&due[..fits]);
        self.passed += fits;
        if self.passed == self.valid {
            self.bytes.drain(..self.valid);
            (self.passed, self.valid) = (0, 0);
            if self.bytes.is_empty() {
                // An idle connection should not keep a buffer.
                self.bytes = Vec::new();
            }
        }
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let start = buffer.filled().len();
        loop {
            if buffer.filled().len() > start || buffer.remaining() == 0 || this.held.move_valid_to(buffer) {
                this.deadline.clear();
                return Poll::Ready(Ok(()));
            }
            if let (FramingState::Head(_), Some(request)) = (&this.state, this.pending_upgrade)
                && this.resolve_upgrade(request)
            {
                continue;
            }
            match this.state {
                FramingState::Failed(error) => {
                    this.verdicts.set_body_error(this.heads, error);
                    return Poll::Ready(Err(error.into()));
                }
                // Not an end of stream: hyper might conclude that the client has left, and drop the answer. hyper does
                // not need the end either, as the stand-in says `close`.
                FramingState::Refused => return Poll::Pending,
                FramingState::Chunked(_) | FramingState::Head(_) | FramingState::Opaque | FramingState::Sized(_) => {}
            }
            if this.read_ended {
                return Poll::Ready(Ok(()));
            }
            let in_head = matches!(this.state, FramingState::Head(_));
            let read = if in_head && (!this.held.bytes.is_empty() || buffer.remaining() < READ_BYTES) {
                this.read_aside(context)
            } else {
                this.read_in_place(context, buffer)
            };
            match read {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    this.read_ended = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => ready!(this.poll_timeout(context)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    /// Shuts our direction down at once and then, over HTTP/1.x, discards the client's bytes for up to 1 s.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.write_ended {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            this.write_ended = true;
        }
        if !matches!(this.state, FramingState::Opaque) {
            ready!(this.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}
