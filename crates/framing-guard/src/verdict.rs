//! The guard's verdicts, and the queue by which they reach the connection's service.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;

/// The verdicts on the requests of one connection, shared by its guard and its service.
///
/// The guard adds one verdict for each request head that it gives to hyper, in order. hyper calls the service of an
/// HTTP/1.x connection once for each head, one after the other. So the n-th call of the service belongs to the n-th
/// verdict. On HTTP/2 there are no verdicts, and [`Verdicts::next`] always returns `Ok`.
///
/// [`GuardedStream::new`](crate::GuardedStream::new) makes them. A clone is another handle to the same verdicts.
#[derive(Clone, Debug)]
pub struct Verdicts(Arc<Mutex<VerdictQueue>>);

#[derive(Debug, Default)]
struct VerdictQueue {
    waiting: VecDeque<Result<(), FramingError>>,
    /// The verdicts that the service has taken so far: the number of its current request.
    taken: u64,
    /// Whether the newest request has arrived completely, with its body.
    is_complete: bool,
    /// The number of the request whose body ended with an error, and the error.
    body_error: Option<(u64, FramingError)>,
    /// The number of the request whose answer handed the connection over to another protocol.
    upgraded: Option<u64>,
    is_http2: bool,
}

/// The reason why a request is refused.
///
/// It comes from [`Verdicts::next`] and from [`http2::check_request`](crate::http2::check_request). It is also inside
/// the I/O error with which a body ends when its framing turns out wrong after its head was passed on;
/// [`FramingError::found_in`] finds it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FramingError {
    /// A chunk's size, extension or end, or a trailer, breaks RFC 9112 section 7.1 or a limit of the guard.
    BadChunk,
    /// A field line is not a token, a colon and a value without control characters (RFC 9112 section 5), or its name
    /// resembles `Content-Length` or `Transfer-Encoding`, such as `Content_Length`.
    BadHeader,
    /// `Host`, or over HTTP/2 `:authority`, is not `host [":" port]` (RFC 9112 section 3.2).
    BadHost,
    /// `Content-Length` is not a decimal number up to 2^63 - 1, or is present twice (RFC 9110 section 8.6).
    BadLength,
    /// The request line is not `METHOD SP target SP version` with a target for an origin server (RFC 9112 section 3).
    /// Also for `CONNECT`, a method with a lower-case letter or of more than 32 bytes, and a third empty line before
    /// the request.
    BadRequestLine,
    /// `Transfer-Encoding` is not well-formed, names `identity`, or has a coding after
    /// `chunked` (RFC 9112 section 6.3).
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
    /// A request has no `Host` (RFC 9112 section 3.2), or over HTTP/2 neither that nor `:authority`. Also in HTTP/1.0.
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
    /// hyper read a request where the guard read none, or the service asked for a verdict without a request. The former
    /// has never been observed; it is refused because it is what request smuggling is.
    Unjudged,
    /// The version is neither HTTP/1.0 nor HTTP/1.1 (RFC 9110 section 15.6.6).
    Version,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Takes the verdict on the request that the service was just called with. The service must call this exactly once
    /// for each request, before it looks at the request.
    ///
    /// # Errors
    /// The reason why the client's request is refused. The request that the service sees is then not the client's but a
    /// stand-in (`GET /`). Answer it with [`FramingError::status`] and `Connection: close`, and forward nothing. A call
    /// without a request, and so a second call for one request, returns [`FramingError::Unjudged`].
    pub fn next(&self) -> Result<(), FramingError> {
        let mut shared = self.lock();
        if shared.is_http2 {
            return Ok(());
        }
        shared.taken += 1;
        shared.waiting.pop_front().unwrap_or(Err(FramingError::Unjudged))
    }

    /// Records that the service answers the current request with 101, so that the bytes after the request are not HTTP
    /// (RFC 9110 section 7.8).
    ///
    /// The service must call this before it returns that response to hyper. Otherwise the guard goes on to read the
    /// bytes as HTTP, and refuses them. It does nothing if the request had no `Upgrade`.
    pub fn mark_upgraded(&self) {
        let mut shared = self.lock();
        shared.upgraded = Some(shared.taken);
    }

    /// Whether the client opened the connection with the preface of HTTP/2 (RFC 9113 section 3.4). It is known before
    /// the service is called for the first time.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.lock().is_http2
    }

    /// Returns the error with which the guard has ended the body of the current request, or `None` if it has not.
    ///
    /// It is for a service that does not read the body itself but forwards it as a stream: the error which it gets
    /// there may be another one. The guard sets it before hyper sees the error, and so before hyper polls the service
    /// the next time. The current request is that of the newest call of [`Verdicts::next`].
    #[must_use]
    pub fn body_error(&self) -> Option<FramingError> {
        let shared = self.lock();
        shared.body_error.filter(|(request, _)| *request == shared.taken).map(|(_, error)| error)
    }

    /// Whether the newest request of an HTTP/1.x connection has arrived completely, with its body. The newest request
    /// is the one whose head hyper got last; with pipelining the service may not have been called for it yet. False
    /// before the first request, after a refusal, and on HTTP/2.
    #[must_use]
    pub fn is_request_complete(&self) -> bool {
        self.lock().is_complete
    }

    pub(super) fn push(&self, verdict: Result<(), FramingError>, is_complete: bool) {
        let mut shared = self.lock();
        shared.waiting.push_back(verdict);
        shared.is_complete = is_complete;
    }

    pub(super) fn mark_complete(&self) {
        self.lock().is_complete = true;
    }

    pub(super) fn set_body_error(&self, request: u64, error: FramingError) {
        self.lock().body_error = Some((request, error));
    }

    /// Replaces the newest verdict. Allowed only while hyper has not seen the end of its head.
    pub(super) fn replace_newest(&self, verdict: Result<(), FramingError>) {
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

impl FramingError {
    /// Returns the status code for the answer (RFC 9110 section 15, RFC 6585 section 5):
    /// 400, 408, 414, 431, 501 or 505.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::BodyTimeout | Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::HeadTooLarge | Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::TransferCoding => StatusCode::NOT_IMPLEMENTED,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns a sentence in English for the client's developers, which is also what `Display` writes. It contains no
    /// data of the request, so that it may be sent and logged.
    #[must_use]
    pub fn detail(self) -> &'static str {
        match self {
            Self::BadChunk => "The chunked body is not framed as RFC 9112 section 7.1 requires.",
            Self::BadHeader => {
                "A header field line must be a name, a colon directly after it, and a value without control characters. The name of a field that frames the request has hyphens."
            }
            Self::BadHost => "The Host field must be a host with an optional port.",
            Self::BadLength => "Content-Length must be present once and be a decimal number.",
            Self::BadRequestLine => {
                "The request line must be a method, a target and a version that this server supports."
            }
            Self::BadTransferEncoding => "Transfer-Encoding must be exactly \"chunked\".",
            Self::BareLineFeed => "Lines must end in CR LF.",
            Self::BodyTimeout => "The request's body stopped arriving.",
            Self::BothLengths => "A request may not have both Content-Length and Transfer-Encoding.",
            Self::ChunkedTwice => "The transfer coding \"chunked\" may be applied only once.",
            Self::DifferingLengths => "The Content-Length fields differ.",
            Self::HeadTimeout => "The request's head did not arrive in time.",
            Self::HeadTooLarge => "The request's head is larger than 64 KiB.",
            Self::NoHost => "A request must have a Host field.",
            Self::ObsFold => "A header field may not be continued on another line.",
            Self::SeveralHosts => "A request must have only one Host field.",
            Self::TargetTooLong => "The request target is longer than 8 KiB.",
            Self::TooManyFields => "The request has more than 100 header fields.",
            Self::TransferCoding => "Only the transfer coding \"chunked\" is supported.",
            Self::TransferEncodingInHttp10 => "A request in HTTP/1.0 may not have Transfer-Encoding.",
            Self::Unjudged => "The boundaries of this request could not be determined.",
            Self::Version => "Only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported.",
        }
    }

    /// Finds the framing error behind `error`, such as hyper's error from reading a body, along its
    /// [sources](Error::source). Returns `None` if the cause is another one, such as a client that left.
    #[must_use]
    pub fn found_in(error: &(dyn Error + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| cause(error))
            .find_map(|error| error.downcast_ref::<Self>().copied())
    }
}

/// Returns the next error of a chain of sources. `source` of an `io::Error` is the source of its content, and would
/// skip the content itself.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(content) => Some(content),
        None => error.source(),
    }
}

impl fmt::Display for FramingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.detail())
    }
}

impl Error for FramingError {}

/// Wraps the error, as [`FramingError::found_in`] unwraps it: of kind `TimedOut` if a time limit has passed,
/// `InvalidData` otherwise.
impl From<FramingError> for io::Error {
    fn from(error: FramingError) -> Self {
        let kind = match error {
            FramingError::BodyTimeout | FramingError::HeadTimeout => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framing_error_is_found_alone_and_within_io_errors() {
        let error = FramingError::BadChunk;
        assert_eq!(FramingError::found_in(&error), Some(error));
        assert_eq!(FramingError::found_in(&io::Error::from(error)), Some(error));
        assert_eq!(FramingError::found_in(&io::Error::other(io::Error::from(error))), Some(error));
        assert_eq!(FramingError::found_in(&io::Error::from(io::ErrorKind::UnexpectedEof)), None);
        assert_eq!(FramingError::found_in(&io::Error::other("another")), None);
    }
}
