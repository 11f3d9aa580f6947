//! Parses the head of one HTTP/1.x request line by line as its bytes arrive.
//!
//! It is stricter than RFC 9112 requires of a server, on purpose: wherever two parsers are known to read the same bytes
//! differently, the head is refused instead of repaired. hyper and `http` accept every head that is accepted here, so
//! that every refusal has our words and not theirs (a test holds that).

use std::net::Ipv6Addr;

use memchr::{memchr, memrchr};

use super::text::{decimal, is_tchar, is_token, split_field, trim};
use super::verdict::FramingError;

/// The bytes of a head: room for every header field that a client has reason to send.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The field lines of a head: as many as hyper has slots for.
pub(super) const FIELDS_MAX: usize = 100;
/// The bytes of a request target. RFC 9110 section 4.1 recommends at least 8000.
pub(super) const TARGET_BYTES_MAX: usize = 8 * 1024;
/// The bytes of a method. The longest registered one, `UPDATEREDIRECTREF`, has 17.
const METHOD_BYTES_MAX: usize = 32;
const REQUEST_LINE_BYTES_MAX: usize = METHOD_BYTES_MAX + " ".len() + TARGET_BYTES_MAX + " HTTP/1.1\r".len();
/// The empty lines that are ignored before a request line. RFC 9112 section 2.2 asks for at least one: old clients send
/// one too many after a body.
const BLANK_LINES_MAX: u8 = 2;
/// The first bytes of a client that speaks HTTP/2 with prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The state of parsing one head.
#[derive(Debug)]
pub(super) struct HeadParser {
    /// The bytes of this head that were parsed already, so that a head that arrives slowly is not read again and again.
    parsed: usize,
    line_start: usize,
    /// Whether the head is the first of its connection, so that it may be the preface of HTTP/2.
    is_first: bool,
    blank_lines: u8,
    version: Option<HttpVersion>,
    fields: usize,
    hosts: usize,
    length: Option<u64>,
    codings: Option<TransferCodings>,
    upgrade: bool,
}

/// The result of [`HeadParser::advance`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadStep {
    /// This many bytes are an empty line before the head, not part of it.
    Blank(usize),
    /// This many bytes are a complete, valid head.
    Done(usize, FramedHead),
    /// The head is incomplete, with nothing wrong so far.
    More,
    /// The connection speaks HTTP/2.
    Preface,
}

/// The facts about a valid head that the guard needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FramedHead {
    pub(super) body: BodyLength,
    /// Whether it asks for another protocol on this connection (RFC 9110 section 7.8).
    pub(super) upgrade: bool,
}

/// The end of the body (RFC 9112 section 6.3): by chunks, or after this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Chunked,
    Sized(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpVersion {
    Http10,
    Http11,
}

/// All `Transfer-Encoding` fields of a head, read as one list (RFC 9110 section 5.3).
#[derive(Debug, Default)]
struct TransferCodings {
    chunked: usize,
    chunked_is_last: bool,
    /// Whether there is an empty member, a parameter of `chunked`, a member that is no token, or `identity`.
    improper: bool,
    /// Whether there is a coding other than `chunked`.
    others: bool,
}

impl HeadParser {
    /// `is_first` says whether the head opens its connection.
    pub(super) fn new(is_first: bool) -> Self {
        Self {
            parsed: 0,
            line_start: 0,
            is_first,
            blank_lines: 0,
            version: None,
            fields: 0,
            hosts: 0,
            length: None,
            codings: None,
            upgrade: false,
        }
    }

    /// Continues with `bytes`, which start where the head does and may hold more than it.
    ///
    /// A wrong line is refused as soon as its end is there, without waiting for the rest of the head.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<HeadStep, FramingError> {
        if self.is_first && self.version.is_none() {
            if bytes.starts_with(PREFACE) {
                return Ok(HeadStep::Preface);
            }
            if PREFACE.starts_with(bytes) {
                return Ok(HeadStep::More);
            }
        }
        while let Some(ahead) = memchr(b'\n', &bytes[self.parsed..]) {
            let line_feed = self.parsed + ahead;
            if line_feed >= HEAD_BYTES_MAX {
                return Err(self.too_large());
            }
            if line_feed == 0 || bytes[line_feed - 1] != b'\r' {
                return Err(FramingError::BareLineFeed);
            }
            let line = &bytes[self.line_start..line_feed - 1];
            let next = line_feed + 1;
            (self.parsed, self.line_start) = (next, next);
            match (self.version, line.is_empty()) {
                (None, true) => return self.skip_blank_line(next),
                (None, false) => self.version = Some(parse_request_line(line)?),
                (Some(version), true) => return Ok(HeadStep::Done(next, self.finish(version)?)),
                (Some(_), false) => self.parse_field_line(line)?,
            }
        }
        self.parsed = bytes.len();
        // A client that speaks TLS or another protocol to this port is refused at once, not after its timeout.
        if self.version.is_none() && bytes.first().is_some_and(|&first| first != b'\r' && !is_tchar(first)) {
            return Err(FramingError::BadRequestLine);
        }
        if bytes.len() >= HEAD_BYTES_MAX || (self.version.is_none() && bytes.len() > REQUEST_LINE_BYTES_MAX) {
            return Err(self.too_large());
        }
        Ok(HeadStep::More)
    }

    fn too_large(&self) -> FramingError {
        // Only a target can make a request line this long: methods are checked when their line is complete.
        if self.version.is_none() { FramingError::TargetTooLong } else { FramingError::HeadTooLarge }
    }

    fn skip_blank_line(&mut self, end: usize) -> Result<HeadStep, FramingError> {
        if self.blank_lines == BLANK_LINES_MAX {
            return Err(FramingError::BadRequestLine);
        }
        // The caller passes the empty line on, and the head starts after it.
        *self = Self { blank_lines: self.blank_lines + 1, ..Self::new(false) };
        Ok(HeadStep::Blank(end))
    }

    fn parse_field_line(&mut self, line: &[u8]) -> Result<(), FramingError> {
        if matches!(line[0], b' ' | b'\t') {
            return Err(FramingError::ObsFold);
        }
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err(FramingError::TooManyFields);
        }
        let (name, value) = split_field(line).ok_or(FramingError::BadHeader)?;
        // By length first: of twenty fields, one or two are compared.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.add_host(trim(value)),
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.upgrade = true;
                Ok(())
            }
            14 if is_or_resembles(name, b"content", b"length") => self.add_content_length(name, trim(value)),
            17 if is_or_resembles(name, b"transfer", b"encoding") => self.add_transfer_encoding(name, trim(value)),
            _ => Ok(()),
        }
    }

    /// Refuses a second `Host` and one that is no authority (RFC 9112 section 3.2).
    fn add_host(&mut self, value: &[u8]) -> Result<(), FramingError> {
        self.hosts += 1;
        if self.hosts > 1 {
            return Err(FramingError::SeveralHosts);
        }
        if is_authority(value) { Ok(()) } else { Err(FramingError::BadHost) }
    }

    /// RFC 9110 section 8.6 lets a recipient read `2, 2` as `2`. Not every recipient behind us does, so it is refused.
    fn add_content_length(&mut self, name: &[u8], value: &[u8]) -> Result<(), FramingError> {
        if name[7] != b'-' {
            return Err(FramingError::BadHeader);
        }
        let length = decimal(value).ok_or(FramingError::BadLength)?;
        match self.length.replace(length) {
            None => Ok(()),
            Some(before) if before == length => Err(FramingError::BadLength),
            Some(_) => Err(FramingError::DifferingLengths),
        }
    }

    fn add_transfer_encoding(&mut self, name: &[u8], value: &[u8]) -> Result<(), FramingError> {
        if name[8] != b'-' {
            return Err(FramingError::BadHeader);
        }
        self.codings.get_or_insert_default().add(value);
        Ok(())
    }

    /// Checks the rules that need the complete head.
    fn finish(&self, version: HttpVersion) -> Result<FramedHead, FramingError> {
        // HTTP/1.0 allows it, but the request goes on in HTTP/1.1, and a route may be for one host.
        if self.hosts == 0 {
            return Err(FramingError::NoHost);
        }
        let body = match (&self.codings, self.length) {
            (None, length) => BodyLength::Sized(length.unwrap_or(0)),
            (Some(_), _) if version == HttpVersion::Http10 => return Err(FramingError::TransferEncodingInHttp10),
            (Some(_), Some(_)) => return Err(FramingError::BothLengths),
            (Some(codings), None) => {
                codings.check()?;
                BodyLength::Chunked
            }
        };
        // HTTP/1.0 has no upgrade (RFC 9110 section 7.8), and hyper offers none there.
        Ok(FramedHead { body, upgrade: self.upgrade && version == HttpVersion::Http11 })
    }
}

impl TransferCodings {
    fn add(&mut self, value: &[u8]) {
        for member in value.split(|&byte| byte == b',') {
            let member = trim(member);
            let parameters = memchr(b';', member).unwrap_or(member.len());
            let name = trim(&member[..parameters]);
            self.chunked_is_last = name.eq_ignore_ascii_case(b"chunked");
            if self.chunked_is_last {
                self.chunked += 1;
                // RFC 9112 section 7.1: `chunked` has no parameters.
                self.improper |= parameters < member.len();
            } else {
                self.others = true;
                // `identity` is no coding since RFC 7230; recipients that still know it read the body as unframed.
                self.improper |= name.eq_ignore_ascii_case(b"identity") || !is_token(name);
            }
        }
    }

    /// Accepts exactly `chunked` (RFC 9112 sections 6.1 and 6.3).
    fn check(&self) -> Result<(), FramingError> {
        if self.chunked > 1 {
            return Err(FramingError::ChunkedTwice);
        }
        if self.improper || (self.chunked == 1 && !self.chunked_is_last) {
            return Err(FramingError::BadTransferEncoding);
        }
        if self.others { Err(FramingError::TransferCoding) } else { Ok(()) }
    }
}

/// Parses a request line (RFC 9112 section 3).
fn parse_request_line(line: &[u8]) -> Result<HttpVersion, FramingError> {
    let (first, last) = (memchr(b' ', line), memrchr(b' ', line));
    let (Some(first), Some(last)) = (first, last) else { return Err(FramingError::BadRequestLine) };
    if first == last {
        return Err(FramingError::BadRequestLine);
    }
    let (method, target, version) = (&line[..first], &line[first + 1..last], &line[last + 1..]);
    let version = match version {
        b"HTTP/1.1" => HttpVersion::Http11,
        b"HTTP/1.0" => HttpVersion::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(FramingError::Version),
        _ => return Err(FramingError::BadRequestLine),
    };
    if target.len() > TARGET_BYTES_MAX {
        return Err(FramingError::TargetTooLong);
    }
    if is_method(method) && is_target(method, target) { Ok(version) } else { Err(FramingError::BadRequestLine) }
}

/// Whether a method is a token of at most 32 bytes without lower-case letters, and not `CONNECT`.
///
/// `post` is not `POST` (RFC 9110 section 9.1), but many services treat it as that: it would pass every route that
/// guards `POST`, and be executed. `CONNECT` is for forward proxies.
pub(super) fn is_method(method: &[u8]) -> bool {
    method.len() <= METHOD_BYTES_MAX
        && is_token(method)
        && !method.iter().any(u8::is_ascii_lowercase)
        && method != b"CONNECT"
}

/// Whether a target is in origin-form, in absolute-form of `http` or `https`, or `*` for
/// `OPTIONS` (RFC 9112 section 3.2).
fn is_target(method: &[u8], target: &[u8]) -> bool {
    if !is_target_text(target) {
        return false;
    }
    match target {
        [b'/', ..] => true,
        b"*" => method == b"OPTIONS",
        _ => after_scheme(target).is_some_and(|rest| {
            let authority = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            is_authority(&rest[..authority])
        }),
    }
}

fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], &b"https://"[..]].into_iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Whether a target is visible ASCII without the characters that no URI may hold and `http` refuses (`" < > `` ` ``),
/// and without `#`, which hyper would cut off together with all that follows. Without an early exit, so that the
/// compiler vectorizes it.
pub(super) fn is_target_text(target: &[u8]) -> bool {
    !target
        .iter()
        .fold(false, |bad, &byte| bad | !matches!(byte, 0x21..=0x7E) | matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`'))
}

/// Whether a value is `uri-host [":" port]` with a name, an IPv4 or a bracketed IPv6 address (RFC 3986 section 3.2.2).
/// It must not be empty: every `http` URI has a host (RFC 9110 section 4.2.1). A user, a percent sign (`http` refuses
/// it) and a comma are refused.
pub(super) fn is_authority(value: &[u8]) -> bool {
    let host_end = match value.first() {
        Some(b'[') => match memchr(b']', value) {
            Some(end) if is_ipv6(&value[1..end]) => end + 1,
            _ => return false,
        },
        _ => value.iter().position(|&byte| !is_name_byte(byte)).unwrap_or(value.len()),
    };
    if host_end == 0 {
        return false;
    }
    match &value[host_end..] {
        [] => true,
        [b':', port @ ..] => port.is_empty() || decimal(port).is_some_and(|port| port <= u64::from(u16::MAX)),
        _ => false,
    }
}

fn is_ipv6(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Whether a byte is in `unreserved` or `sub-delims` of RFC 3986. The comma is left out: a list of hosts is no host.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&byte)
}

/// Whether a name consists of `start`, any one byte and `end`.
///
/// `Content_Length` is an unknown field to us, but `Content-Length` to a CGI-like service, which would then read
/// another body length. The caller refuses every joining byte but the hyphen.
pub(super) fn is_or_resembles(name: &[u8], start: &[u8], end: &[u8]) -> bool {
    name[..start.len()].eq_ignore_ascii_case(start) && name[start.len() + 1..].eq_ignore_ascii_case(end)
}

#[cfg(test)]
mod tests;
