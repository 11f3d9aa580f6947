//! A strict guard of HTTP/1.x framing, between the client's stream and hyper.
//!
//! hyper repairs or lets through what a service can no longer see: it takes the `Content-Length` away that stood
//! beside a `Transfer-Encoding`, reads lines that end in a bare LF, passes on two `Host` fields. For a proxy this is
//! how requests are smuggled. So [`Guarded`] reads along, byte for byte. It promises:
//!
//! - A request head is held back until it is complete and judged. hyper sees it unchanged, or not at all: in place of
//!   a refused one it gets a stand-in, and the service learns from [`Verdicts`] what to answer.
//! - Where a body ends, hyper and the guard agree. A body whose framing is found wrong together with its head is
//!   refused with it; found later, reading it ends with an I/O error that holds the [`Malformed`].
//! - After a refusal nothing more of the connection reaches hyper, and the connection is closed in a way that lets the
//!   client read the answer.
//! - A connection without a request, a head that does not come to its end, and a body of which nothing more comes run
//!   out of time.
//!
//! HTTP/2 (known by its preface) and what follows an upgrade pass through unread. Left to others: the time a
//! whole body takes and its size, what a target or a field means, `Connection` that names fields, responses.
//!
//! It relies on hyper for two things: one service call per head, in order; and that nothing is read for the next head
//! while a request is in work. The latter is so with `half_close(true)`, which the server must set: without it the idle
//! time would also run while a service thinks. Two settings it must leave alone: `header_read_timeout` knows no 408,
//! and `pipeline_flush` loses the last answer of a connection when requests stand behind it (hyper 1.12).

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::alarm::{Alarm, Purpose};
use self::chunked::{Chunked, ChunkedStep};
use self::head::{BodyLength, HeadJudge, HeadStep};

pub use self::verdict::{Malformed, Verdicts};

mod alarm;
mod chunked;
mod head;
pub mod http2;
mod text;
mod verdict;

/// What hyper gets to see of a refused request: enough to call the service, and to close the connection afterwards.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";
/// One read. Also the least room in which a head is worth judging in place: hyper has as much, but for the 24 bytes in
/// which it first looks for HTTP/2.
const READ_BYTES: usize = 8 * 1024;
/// A client that is still sending when we close gets a reset for it, which may destroy our answer in its hands before
/// it was read. So what it sends is thrown away for a while (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(1);
/// More than any head, and than most bodies that were sent without waiting for an answer.
const LINGER_BYTES_MAX: usize = 256 * 1024;

/// How long the guard waits for a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the first byte of a head to its last; then the request is refused with [`Malformed::HeadTimeout`].
    pub head: Duration,
    /// For the next bytes of a body that is asked for; then reading it ends with [`Malformed::BodyTimeout`].
    pub body: Duration,
    /// For the first byte of a head; then the connection ends without a word.
    pub idle: Duration,
}

/// The client's stream, as hyper may see it.
///
/// Needs a tokio runtime with time. Bodies are read straight into hyper's buffer, and so is a head that comes whole.
#[derive(Debug)]
pub struct Guarded<S> {
    stream: S,
    limits: Limits,
    verdicts: Verdicts,
    state: State,
    held: Held,
    alarm: Alarm,
    /// Heads handed on or refused so far: the number of the newest.
    heads: u64,
    /// A whole message with `Upgrade` was handed on, of this number: what comes next may be no HTTP.
    undecided: Option<u64>,
    /// Nothing more comes from the client.
    ended: bool,
    /// Our direction of the stream was shut down.
    shut: bool,
    lingered_bytes: usize,
}

/// What the next byte from the client belongs to.
#[derive(Debug)]
enum State {
    Chunked(Chunked),
    /// The framing of a body that hyper is reading is wrong.
    Failed(Malformed),
    Head(HeadJudge),
    Opaque,
    /// The stand-in is hyper's last request of this connection.
    Refused,
    Sized(u64),
}

/// Bytes that were read and not yet handed on: first judged ones, then the begin of a head.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    given: usize,
    judged: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            // What streams is made while it is sent, and may rest in between; reading a body whole has less patience.
            body: Duration::from_secs(60),
            idle: Duration::from_secs(75),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Guarded<S> {
    /// Guards a connection from its first byte on. The verdicts are for its service.
    pub fn new(stream: S, limits: Limits) -> (Self, Verdicts) {
        let verdicts = Verdicts::new();
        let guarded = Self {
            stream,
            limits,
            verdicts: verdicts.clone(),
            state: State::Head(HeadJudge::new(true)),
            held: Held::default(),
            alarm: Alarm::default(),
            heads: 0,
            undecided: None,
            ended: false,
            shut: false,
            lingered_bytes: 0,
        };
        (guarded, verdicts)
    }

    /// Judges `bytes`, the client's next after those judged before, and says how many of them hyper may have.
    ///
    /// The rest is the begin of a head, or undecided, or (after a refusal) of no use to anybody.
    fn judge(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        // Where the head of the current message starts, if hyper has not seen it: it can still be refused.
        let mut unseen_head = None;
        while passed < bytes.len() {
            let rest = &bytes[passed..];
            match &mut self.state {
                State::Head(_) if self.undecided.is_some() => break,
                State::Head(judge) => match judge.take(rest) {
                    Err(malformed) => {
                        self.refuse(malformed);
                        break;
                    }
                    Ok(HeadStep::More) => break,
                    Ok(HeadStep::Blank(length)) => passed += length,
                    Ok(HeadStep::Preface) => {
                        self.verdicts.speaks_http2();
                        self.state = State::Opaque;
                    }
                    Ok(HeadStep::Done(length, head)) => {
                        self.heads += 1;
                        self.verdicts.push(Ok(()), matches!(head.body, BodyLength::Sized(0)));
                        self.undecided = head.upgrade.then_some(self.heads);
                        self.state = match head.body {
                            BodyLength::Chunked => State::Chunked(Chunked::new()),
                            BodyLength::Sized(0) => State::Head(HeadJudge::new(false)),
                            BodyLength::Sized(left) => State::Sized(left),
                        };
                        unseen_head = Some(passed);
                        passed += length;
                    }
                },
                State::Sized(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.verdicts.ended();
                        self.state = State::Head(HeadJudge::new(false));
                    }
                    passed += taken;
                }
                State::Chunked(chunked) => match (chunked.take(rest), unseen_head) {
                    (ChunkedStep::More, _) => passed = bytes.len(),
                    (ChunkedStep::Done(length), _) => {
                        self.verdicts.ended();
                        self.state = State::Head(HeadJudge::new(false));
                        passed += length;
                    }
                    (ChunkedStep::Bad(_), Some(head)) => {
                        self.verdicts.revise(Err(Malformed::BadChunk));
                        self.state = State::Refused;
                        passed = head;
                    }
                    (ChunkedStep::Bad(sound), None) => {
                        self.state = State::Failed(Malformed::BadChunk);
                        passed += sound;
                    }
                },
                State::Opaque => passed = bytes.len(),
                State::Failed(_) | State::Refused => break,
            }
        }
        passed
    }

    fn refuse(&mut self, malformed: Malformed) {
        self.heads += 1;
        self.verdicts.push(Err(malformed), false);
        self.state = State::Refused;
    }

    /// Judges what is held. To be called when all of it that was judged before has been given away.
    fn judge_held(&mut self) {
        let bytes = mem::take(&mut self.held.bytes);
        self.held.judged = self.judge(&bytes);
        self.held.bytes = bytes;
        self.hold_stand_in();
    }

    /// After a refusal: the stand-in takes the place of all that was not judged sound.
    fn hold_stand_in(&mut self) {
        match self.state {
            State::Refused => {
                self.held.bytes.truncate(self.held.judged);
                self.held.bytes.extend_from_slice(STAND_IN);
                self.held.judged = self.held.bytes.len();
            }
            State::Failed(_) => self.held.bytes.truncate(self.held.judged),
            State::Chunked(_) | State::Head(_) | State::Opaque | State::Sized(_) => {}
        }
    }

    /// hyper asks for more behind a message with `Upgrade`. Whether that is HTTP is known at the latest when there are
    /// bytes to judge: by then the service has answered. False: there are none yet.
    fn decide(&mut self, request: u64) -> bool {
        if self.verdicts.is_upgraded_by(request) {
            self.state = State::Opaque;
        } else if self.held.bytes.is_empty() {
            return false;
        }
        self.undecided = None;
        self.judge_held();
        true
    }

    /// Reads into hyper's buffer, judges there, and takes back what hyper may not have.
    fn read_in_place(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let fresh = &buffer.filled()[start..];
        self.ended = fresh.is_empty();
        let passed = self.judge(fresh);
        if passed < fresh.len() {
            self.held.bytes.extend_from_slice(&fresh[passed..]);
            buffer.set_filled(start + passed);
        }
        // Nothing was held before, so nothing of it is judged: a stand-in replaces it all.
        self.hold_stand_in();
        Poll::Ready(Ok(()))
    }

    /// Reads to where hyper does not look, behind the begin of a head that is there already.
    fn read_aside(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        let mut fresh = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut fresh))?;
        self.ended = fresh.filled().is_empty();
        self.held.bytes.extend_from_slice(fresh.filled());
        self.judge_held();
        Poll::Ready(Ok(()))
    }

    /// The client has nothing to say right now. Ready when that has lasted too long.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            State::Head(_) if self.held.bytes.is_empty() => {
                ready!(self.alarm.poll(context, Purpose::Idle, self.limits.idle));
                self.ended = true;
            }
            State::Head(_) => {
                ready!(self.alarm.poll(context, Purpose::Head, self.limits.head));
                self.refuse(Malformed::HeadTimeout);
                self.hold_stand_in();
            }
            State::Chunked(_) | State::Sized(_) => {
                ready!(self.alarm.poll(context, Purpose::Body, self.limits.body));
                self.state = State::Failed(Malformed::BodyTimeout);
            }
            State::Failed(_) | State::Opaque | State::Refused => return Poll::Pending,
        }
        Poll::Ready(())
    }

    /// Throws away what the client still sends, for a bounded while. Our last word is out already.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Between two requests there is nothing to wait for, unless something was sent that nobody has read.
        let between = matches!(self.state, State::Head(_)) && self.held.bytes.is_empty();
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        while !self.ended && self.lingered_bytes < LINGER_BYTES_MAX {
            let mut waste = ReadBuf::uninit(&mut room);
            match Pin::new(&mut self.stream).poll_read(context, &mut waste) {
                Poll::Ready(Ok(())) if !waste.filled().is_empty() => self.lingered_bytes += waste.filled().len(),
                Poll::Ready(_) => self.ended = true,
                Poll::Pending if between && self.lingered_bytes == 0 => break,
                Poll::Pending => return self.alarm.poll(context, Purpose::Linger, LINGER),
            }
        }
        Poll::Ready(())
    }
}

impl Held {
    /// Gives judged bytes away, if there are any.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let due = &self.bytes[self.given..self.judged];
        if due.is_empty() {
            return false;
        }
        let fits = due.len().min(buffer.remaining());
        buffer.put_slice(&due[..fits]);
        self.given += fits;
        if self.given == self.judged {
            self.bytes.drain(..self.judged);
            (self.given, self.judged) = (0, 0);
            if self.bytes.is_empty() {
                // A connection that idles should not cost a buffer.
                self.bytes = Vec::new();
            }
        }
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let start = buffer.filled().len();
        loop {
            if buffer.filled().len() > start || buffer.remaining() == 0 || this.held.give(buffer) {
                this.alarm.calm();
                return Poll::Ready(Ok(()));
            }
            if let (State::Head(_), Some(request)) = (&this.state, this.undecided)
                && this.decide(request)
            {
                continue;
            }
            match this.state {
                State::Failed(malformed) => {
                    this.verdicts.breaks(this.heads, malformed);
                    return Poll::Ready(Err(malformed.into()));
                }
                // No end of stream: hyper might take it for the client having left, and drop the answer. It has no use
                // for it either, as the stand-in says `close`.
                State::Refused => return Poll::Pending,
                State::Chunked(_) | State::Head(_) | State::Opaque | State::Sized(_) => {}
            }
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            let in_head = matches!(this.state, State::Head(_));
            let read = if in_head && (!this.held.bytes.is_empty() || buffer.remaining() < READ_BYTES) {
                this.read_aside(context)
            } else {
                this.read_in_place(context, buffer)
            };
            match read {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => ready!(this.poll_patience(context)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
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

    /// Ends our direction at once and, over HTTP/1.x, then listens a little longer.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            this.shut = true;
        }
        if !matches!(this.state, State::Opaque) {
            ready!(this.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}
