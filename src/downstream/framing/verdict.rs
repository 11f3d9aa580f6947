//! What the guard found, and the way it reaches the connection's service.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One verdict per request head that hyper was given, in order: shared by a connection's guard and its service.
///
/// hyper calls the service of an HTTP/1.x connection once per head, one after the other, so the n-th call belongs to
/// the n-th verdict. On HTTP/2 there are none, and every request is sound.
#[derive(Clone, Debug)]
pub struct Verdicts(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    given: VecDeque<Result<(), Malformed>>,
    /// Verdicts handed to the service so far; its current request is the one of that number.
    taken: u64,
    /// The newest request has come whole, with its body.
    whole: bool,
    /// The request whose body ended with an error, and why.
    broken: Option<(u64, Malformed)>,
    /// The request whose answer handed the connection over to another protocol.
    upgraded: Option<u64>,
    http2: bool,
}

/// Why a request's framing is refused.
///
/// Also the source of the I/O error that a body ends with when its framing turns out wrong after its head was let
/// through; [`Malformed::found_in`] gets it back out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A chunk's size, extension or end, or a trailer, is not as RFC 9112 section 7.1 has it.
    BadChunk,
    /// A field line is no token, colon and value without control characters (RFC 9112 section 5).
    BadHeader,
    /// `Host` is not `host [":" port]` (RFC 9112 section 3.2).
    BadHost,
    /// `Content-Length` is no decimal number, or stands twice (RFC 9110 section 8.6).
    BadLength,
    /// The request line is not `METHOD SP target SP version` with a target for us (RFC 9112 section 3).
    BadRequestLine,
    /// `Transfer-Encoding` is none, or does not end in `chunked` (RFC 9112 section 6.3).
    BadTransferEncoding,
    /// A line ends in LF without CR. RFC 9112 section 2.2 lets a recipient take it; many do not.
    BareLineFeed,
    /// Nothing more of the body has come, and its time ran out.
    BodyTimeout,
    /// `Content-Length` and `Transfer-Encoding` together (RFC 9112 section 6.1).
    BothLengths,
    /// `chunked` applied twice (RFC 9112 section 6.1).
    ChunkedTwice,
    /// Two `Content-Length`, which differ (RFC 9112 section 6.3).
    DifferingLengths,
    /// The head was begun, and its time ran out.
    HeadTimeout,
    /// The head is over 64 KiB.
    HeadTooLarge,
    /// HTTP/1.1 without `Host` (RFC 9112 section 3.2).
    NoHost,
    /// A field value goes on in the next line (RFC 9112 section 5.2).
    ObsFold,
    /// More than one `Host` (RFC 9112 section 3.2).
    SeveralHosts,
    /// The request target is over 8 KiB.
    TargetTooLong,
    /// More than 100 field lines.
    TooManyFields,
    /// A transfer coding other than `chunked`, in good form, that nobody here can undo (RFC 9112 section 6.1).
    TransferCoding,
    /// HTTP/1.0 knows no `Transfer-Encoding` (RFC 9112 section 6.1).
    TransferEncodingInHttp10,
    /// hyper made a request of bytes in which the guard saw none. Never seen; refused, for that is what smuggling is.
    Unjudged,
    /// Neither HTTP/1.0 nor HTTP/1.1 (RFC 9110 section 15.6.6).
    Version,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// The verdict on the request that the service was just called with; to be asked once per call, before all else.
    ///
    /// On `Err` the request in hand is not the client's but a stand-in (`GET /`). Answer it with
    /// [`Malformed::status`] and `Connection: close`, and forward nothing.
    pub fn next(&self) -> Result<(), Malformed> {
        let mut shared = self.lock();
        if shared.http2 {
            return Ok(());
        }
        shared.taken += 1;
        shared.given.pop_front().unwrap_or(Err(Malformed::Unjudged))
    }

    /// The request last asked about is about to be answered with 101: whatever follows it is not HTTP.
    ///
    /// To be called before the response is given to hyper. It does nothing where the request had no `Upgrade`.
    pub fn upgraded(&self) {
        let mut shared = self.lock();
        shared.upgraded = Some(shared.taken);
    }

    /// Whether the client opened the connection with the preface of HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.lock().http2
    }

    /// Why the body of the request last asked about broke off, if the guard ended it.
    ///
    /// It is set before hyper hears of it, and so before its service is polled the next time.
    pub fn broken(&self) -> Option<Malformed> {
        let shared = self.lock();
        shared.broken.filter(|(request, _)| *request == shared.taken).map(|(_, malformed)| malformed)
    }

    /// Whether the newest request of an HTTP/1.x connection has come whole, with its body.
    pub fn is_whole(&self) -> bool {
        self.lock().whole
    }

    pub(super) fn push(&self, verdict: Result<(), Malformed>, whole: bool) {
        let mut shared = self.lock();
        shared.given.push_back(verdict);
        shared.whole = whole;
    }

    pub(super) fn ended(&self) {
        self.lock().whole = true;
    }

    pub(super) fn breaks(&self, request: u64, malformed: Malformed) {
        self.lock().broken = Some((request, malformed));
    }

    /// The newest verdict is another one after all. Only while hyper has not seen the end of its head.
    pub(super) fn revise(&self, verdict: Result<(), Malformed>) {
        if let Some(newest) = self.lock().given.back_mut() {
            *newest = verdict;
        }
    }

    pub(super) fn is_upgraded_by(&self, request: u64) -> bool {
        self.lock().upgraded == Some(request)
    }

    pub(super) fn speaks_http2(&self) {
        self.lock().http2 = true;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing here can panic half-way, so what a panic elsewhere left behind is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Malformed {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        self.row().0
    }

    /// What is wrong, for whoever wrote the client. No data of the request.
    pub fn detail(self) -> &'static str {
        self.row().1
    }

    /// The reason why a body broke off, if it was its framing: looked for along the sources of `error`.
    pub fn found_in(error: &(dyn Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| error.source()).find_map(|error| {
            // An `io::Error` is not its content's parent: `source` would step over it.
            let inside = error.downcast_ref::<io::Error>()?.get_ref()?;
            inside.downcast_ref::<Self>().copied()
        })
    }

    fn row(self) -> (u16, &'static str) {
        match self {
            Self::BadChunk => (400, "The chunked body is not framed as RFC 9112 section 7.1 has it."),
            Self::BadHeader => (
                400,
                "A header field line is not a name, a colon at once after it, and a value without control characters.",
            ),
            Self::BadHost => (400, "The Host field is not a host with an optional port."),
            Self::BadLength => (400, "Content-Length must stand once and be a decimal number."),
            Self::BadRequestLine => {
                (400, "The request line is not a method, a target and a version that this server takes.")
            }
            Self::BadTransferEncoding => (400, "Transfer-Encoding must be exactly \"chunked\"."),
            Self::BareLineFeed => (400, "Lines must end in CR LF."),
            Self::BodyTimeout => (408, "The request's body stalled."),
            Self::BothLengths => (400, "Content-Length and Transfer-Encoding exclude each other."),
            Self::ChunkedTwice => (400, "The transfer coding \"chunked\" may be applied only once."),
            Self::DifferingLengths => (400, "The Content-Length fields differ."),
            Self::HeadTimeout => (408, "The request's head did not arrive in time."),
            Self::HeadTooLarge => (431, "The request's head is larger than 64 KiB."),
            Self::NoHost => (400, "An HTTP/1.1 request must have a Host field."),
            Self::ObsFold => (400, "A header field may not be continued on another line."),
            Self::SeveralHosts => (400, "A request must have one Host field only."),
            Self::TargetTooLong => (414, "The request target is longer than 8 KiB."),
            Self::TooManyFields => (431, "The request has more than 100 header fields."),
            Self::TransferCoding => (501, "No transfer coding but \"chunked\" is supported."),
            Self::TransferEncodingInHttp10 => (400, "HTTP/1.0 has no Transfer-Encoding."),
            Self::Unjudged => (400, "The boundaries of this request could not be established."),
            Self::Version => (505, "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here."),
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
