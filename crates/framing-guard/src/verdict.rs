//! The guard's verdicts, and the queue by which they reach the connection's service.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The verdicts on a connection's requests, shared by its guard and its service: one for each request head that hyper was
/// given, in order.
///
/// hyper calls the service of an HTTP/1.x connection once for each head, one after the other, so the n-th call belongs to
/// the n-th verdict. On HTTP/2 there are none, and [`Verdicts::next`] always returns `Ok`.
#[derive(Clone, Debug)]
pub struct Verdicts(Arc<Mutex<VerdictQueue>>);

#[derive(Debug, Default)]
struct VerdictQueue {
    waiting: VecDeque<Result<(), Malformed>>,
    /// The verdicts that the service has taken so far: the number of its current request.
    taken: u64,
    /// Whether the newest request has arrived completely, with its body.
    is_complete: bool,
    /// The number of the request whose body ended with an error, and the error.
    body_error: Option<(u64, Malformed)>,
    /// The number of the request whose answer handed the connection over to another protocol.
    upgraded: Option<u64>,
    is_http2: bool,
}

/// The reason why a request's framing is refused.
///
/// Also the source of the I/O error with which a body ends when its framing turns out wrong after its head was passed on;
/// [`Malformed::found_in`] finds it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A chunk's size, extension or end, or a trailer, is not as RFC 9112 section 7.1 has it.
    BadChunk,
    /// A field line is not a token, a colon and a value without control characters (RFC 9112 section 5).
    BadHeader,
    /// `Host` is not `host [":" port]` (RFC 9112 section 3.2).
    BadHost,
    /// `Content-Length` is not a decimal number, or is present twice (RFC 9110 section 8.6).
    BadLength,
    /// The request line is not `METHOD SP target SP version` with a target for this server (RFC 9112 section 3).
    BadRequestLine,
    /// `Transfer-Encoding` is not well-formed, or does not end in `chunked` (RFC 9112 section 6.3).
    BadTransferEncoding,
    /// A line ends in LF without CR. RFC 9112 section 2.2 lets a recipient accept it; many do not.
    BareLineFeed,
    /// No byte of the body arrived within [`FramingTimeouts::body`](crate::FramingTimeouts::body).
    BodyTimeout,
    /// The head has both `Content-Length` and `Transfer-Encoding` (RFC 9112 section 6.1).
    BothLengths,
    /// `chunked` is applied twice (RFC 9112 section 6.1).
    ChunkedTwice,
    /// Two `Content-Length` fields differ (RFC 9112 section 6.3).
    DifferingLengths,
    /// The head did not end within [`FramingTimeouts::head`](crate::FramingTimeouts::head).
    HeadTimeout,
    /// The head is larger than 64 KiB.
    HeadTooLarge,
    /// A request has no `Host` (RFC 9112 section 3.2).
    NoHost,
    /// A field value continues on the next line (RFC 9112 section 5.2).
    ObsFold,
    /// There is more than one `Host` (RFC 9112 section 3.2).
    SeveralHosts,
    /// The request target is longer than 8 KiB.
    TargetTooLong,
    /// There are more than 100 field lines.
    TooManyFields,
    /// A well-formed transfer coding other than `chunked`, which this server does not support (RFC 9112 section 6.1).
    TransferCoding,
    /// An HTTP/1.0 request has `Transfer-Encoding` (RFC 9112 section 6.1).
    TransferEncodingInHttp10,
    /// hyper read a request where the guard read none. This has never been observed; it is refused because it is what
    /// request smuggling is.
    Unjudged,
    /// Neither HTTP/1.0 nor HTTP/1.1 (RFC 9110 section 15.6.6).
    Version,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the verdict on the request that the service was just called with. The service must call this once for each
    /// request, before it looks at the request.
    ///
    /// # Errors
    /// On `Err` the request is not the client's but a stand-in (`GET /`). Answer it with [`Malformed::status`] and
    /// `Connection: close`, and forward nothing.
    pub fn next(&self) -> Result<(), Malformed> {
        let mut shared = self.lock();
        if shared.is_http2 {
            return Ok(());
        }
        shared.taken += 1;
        shared.waiting.pop_front().unwrap_or(Err(Malformed::Unjudged))
    }

    /// Says that the current request is about to be answered with 101, so that the bytes after it are not HTTP.
    ///
    /// Call this before the response is given to hyper. It does nothing if the request had no `Upgrade`.
    pub fn mark_upgraded(&self) {
        let mut shared = self.lock();
        shared.upgraded = Some(shared.taken);
    }

    /// Whether the client opened the connection with the preface of HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.lock().is_http2
    }

    /// Returns the error with which the guard has ended the body of the current request, if it has.
    ///
    /// It is set before hyper sees the error, and so before hyper polls its service the next time.
    pub fn body_error(&self) -> Option<Malformed> {
        let shared = self.lock();
        shared.body_error.filter(|(request, _)| *request == shared.taken).map(|(_, malformed)| malformed)
    }

    /// Whether the newest request of an HTTP/1.x connection has arrived completely, with its body.
    pub fn is_request_complete(&self) -> bool {
        self.lock().is_complete
    }

    pub(super) fn push(&self, verdict: Result<(), Malformed>, is_complete: bool) {
        let mut shared = self.lock();
        shared.waiting.push_back(verdict);
        shared.is_complete = is_complete;
    }

    pub(super) fn mark_complete(&self) {
        self.lock().is_complete = true;
    }

    pub(super) fn set_body_error(&self, request: u64, malformed: Malformed) {
        self.lock().body_error = Some((request, malformed));
    }

    /// Replaces the newest verdict. Allowed only while hyper has not seen the end of its head.
    pub(super) fn replace_newest(&self, verdict: Result<(), Malformed>) {
        if let Some(newest) = self.lock().waiting.back_mut() {
            *newest = verdict;
        }
    }

    pub(super) fn is_upgraded_by(&self, request: u64) -> bool {
        self.lock().upgraded == Some(request)
    }

    pub(super) fn mark_http2(&self) {
        self.lock().is_http2 = true;
    }

    fn lock(&self) -> MutexGuard<'_, VerdictQueue> {
        // Nothing here can panic half-way, so a poisoned lock guards consistent data.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Malformed {
    /// Returns the status for the answer: 400, 408, 414, 431, 501 or 505.
    pub fn status(self) -> u16 {
        self.row().0
    }

    /// Returns a sentence for the client's developers. It contains no data of the request.
    pub fn detail(self) -> &'static str {
        self.row().1
    }

    /// Finds the framing error behind `error`, along its sources; `None` if there is none.
    pub fn found_in(error: &(dyn Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| error.source()).find_map(|error| {
            // `source` of an `io::Error` is the source of its content, and would skip the content itself.
            let inside = error.downcast_ref::<io::Error>()?.get_ref()?;
            inside.downcast_ref::<Self>().copied()
        })
    }

    fn row(self) -> (u16, &'static str) {
        match self {
            Self::BadChunk => (400, "The chunked body is not framed as RFC 9112 section 7.1 requires."),
            Self::BadHeader => (
                400,
                "A header field line must be a name, a colon directly after it, and a value without control characters. The name of a field that frames the request has hyphens.",
            ),
            Self::BadHost => (400, "The Host field must be a host with an optional port."),
            Self::BadLength => (400, "Content-Length must be present once and be a decimal number."),
            Self::BadRequestLine => {
                (400, "The request line must be a method, a target and a version that this server supports.")
            }
            Self::BadTransferEncoding => (400, "Transfer-Encoding must be exactly \"chunked\"."),
            Self::BareLineFeed => (400, "Lines must end in CR LF."),
            Self::BodyTimeout => (408, "The request's body stopped arriving."),
            Self::BothLengths => (400, "A request may not have both Content-Length and Transfer-Encoding."),
            Self::ChunkedTwice => (400, "The transfer coding \"chunked\" may be applied only once."),
            Self::DifferingLengths => (400, "The Content-Length fields differ."),
            Self::HeadTimeout => (408, "The request's head did not arrive in time."),
            Self::HeadTooLarge => (431, "The request's head is larger than 64 KiB."),
            Self::NoHost => (400, "A request must have a Host field."),
            Self::ObsFold => (400, "A header field may not be continued on another line."),
            Self::SeveralHosts => (400, "A request must have only one Host field."),
            Self::TargetTooLong => (414, "The request target is longer than 8 KiB."),
            Self::TooManyFields => (431, "The request has more than 100 header fields."),
            Self::TransferCoding => (501, "Only the transfer coding \"chunked\" is supported."),
            Self::TransferEncodingInHttp10 => (400, "A request in HTTP/1.0 may not have Transfer-Encoding."),
            Self::Unjudged => (400, "The boundaries of this request could not be determined."),
            Self::Version => (505, "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported."),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.detail())
    }
}

impl Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        let kind = match malformed {
            Malformed::BodyTimeout | Malformed::HeadTimeout => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, malformed)
    }
}
