//! The head of one HTTP/1.x request, judged line by line as its bytes come in.
//!
//! Stricter than RFC 9112 demands of a server, on purpose: wherever two parsers are known to read the same bytes
//! differently, the head is refused instead of repaired. Whatever is accepted here, hyper and `http` accept too, so
//! that every refusal is worded by us and not by them (a test holds that).

use std::net::Ipv6Addr;

use memchr::{memchr, memrchr};

use super::text::{decimal, is_tchar, is_token, split_field, trim};
use super::verdict::Malformed;

/// Room for every header field a client has reason to send; contract section 2.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// As many as hyper has slots for; contract section 2.
pub(super) const FIELDS_MAX: usize = 100;
/// RFC 9110 section 4.1 asks for 8000 octets at least.
pub(super) const TARGET_BYTES_MAX: usize = 8 * 1024;
/// The longest registered method, `UPDATEREDIRECTREF`, has 17.
const METHOD_BYTES_MAX: usize = 32;
const REQUEST_LINE_BYTES_MAX: usize = METHOD_BYTES_MAX + " ".len() + TARGET_BYTES_MAX + " HTTP/1.1\r".len();
/// RFC 9112 section 2.2 wants at least one before a request line ignored: old clients end a body with one too many.
const BLANK_LINES_MAX: u8 = 2;
/// What a client that speaks HTTP/2 without asking sends first (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Where the judging of a head has got to.
#[derive(Debug)]
pub(super) struct HeadJudge {
    /// Bytes of this head that were looked at already: a head that drips in is not read again and again.
    seen: usize,
    line_start: usize,
    /// Nothing came before it on the connection, so it may be the preface of HTTP/2.
    first: bool,
    blank_lines: u8,
    version: Option<Version>,
    fields: usize,
    hosts: usize,
    length: Option<u64>,
    codings: Option<Codings>,
    upgrade: bool,
}

/// What [`HeadJudge::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadStep {
    /// So many bytes are an empty line before the head, no part of it.
    Blank(usize),
    /// So many bytes are a whole head, and it is sound.
    Done(usize, Head),
    /// Not complete, nothing wrong so far.
    More,
    /// The connection speaks HTTP/2.
    Preface,
}

/// What the guard must know of a sound head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) body: BodyLength,
    /// It asks for another protocol on this connection (RFC 9110 section 7.8).
    pub(super) upgrade: bool,
}

/// How the end of the body is found (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Chunked,
    Sized(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

/// Every `Transfer-Encoding` of a head, read as the one list that it is (RFC 9110 section 5.3).
#[derive(Debug, Default)]
struct Codings {
    chunked: usize,
    chunked_is_last: bool,
    /// An empty member, a parameter of `chunked`, something that is no token, or `identity`.
    improper: bool,
    others: bool,
}

impl HeadJudge {
    /// `first`: the head opens its connection.
    pub(super) fn new(first: bool) -> Self {
        Self {
            seen: 0,
            line_start: 0,
            first,
            blank_lines: 0,
            version: None,
            fields: 0,
            hosts: 0,
            length: None,
            codings: None,
            upgrade: false,
        }
    }

    /// Goes on with `bytes`, which start where the head does and may hold more than it.
    ///
    /// A wrong line is told when its end is seen: there is no waiting for the rest of a head that cannot be saved.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<HeadStep, Malformed> {
        if self.first && self.version.is_none() {
            if bytes.starts_with(PREFACE) {
                return Ok(HeadStep::Preface);
            }
            if PREFACE.starts_with(bytes) {
                return Ok(HeadStep::More);
            }
        }
        while let Some(ahead) = memchr(b'\n', &bytes[self.seen..]) {
            let line_feed = self.seen + ahead;
            if line_feed >= HEAD_BYTES_MAX {
                return Err(self.too_large());
            }
            if line_feed == 0 || bytes[line_feed - 1] != b'\r' {
                return Err(Malformed::BareLineFeed);
            }
            let line = &bytes[self.line_start..line_feed - 1];
            let next = line_feed + 1;
            (self.seen, self.line_start) = (next, next);
            match (self.version, line.is_empty()) {
                (None, true) => return self.blank_line(next),
                (None, false) => self.version = Some(request_line(line)?),
                (Some(version), true) => return Ok(HeadStep::Done(next, self.whole(version)?)),
                (Some(_), false) => self.field_line(line)?,
            }
        }
        self.seen = bytes.len();
        // A client that speaks TLS, or nothing known, to this port hears so at once and not when its time is up.
        if self.version.is_none() && bytes.first().is_some_and(|&first| first != b'\r' && !is_tchar(first)) {
            return Err(Malformed::BadRequestLine);
        }
        if bytes.len() >= HEAD_BYTES_MAX || (self.version.is_none() && bytes.len() > REQUEST_LINE_BYTES_MAX) {
            return Err(self.too_large());
        }
        Ok(HeadStep::More)
    }

    fn too_large(&self) -> Malformed {
        // Nothing but a target can make a request line long: methods are short, and judged when their line is whole.
        if self.version.is_none() { Malformed::TargetTooLong } else { Malformed::HeadTooLarge }
    }

    fn blank_line(&mut self, end: usize) -> Result<HeadStep, Malformed> {
        if self.blank_lines == BLANK_LINES_MAX {
            return Err(Malformed::BadRequestLine);
        }
        // The caller passes the line on, and the head starts behind it.
        *self = Self { blank_lines: self.blank_lines + 1, ..Self::new(false) };
        Ok(HeadStep::Blank(end))
    }

    fn field_line(&mut self, line: &[u8]) -> Result<(), Malformed> {
        if matches!(line[0], b' ' | b'\t') {
            return Err(Malformed::ObsFold);
        }
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err(Malformed::TooManyFields);
        }
        let (name, value) = split_field(line).ok_or(Malformed::BadHeader)?;
        // By length first: of twenty fields, one or two are looked at twice.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host(trim(value)),
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.upgrade = true;
                Ok(())
            }
            14 if is_or_resembles(name, b"content", b"length") => self.content_length(name, trim(value)),
            17 if is_or_resembles(name, b"transfer", b"encoding") => self.transfer_encoding(name, trim(value)),
            _ => Ok(()),
        }
    }

    /// RFC 9112 section 3.2: several are refused, and whatever is no authority.
    fn host(&mut self, value: &[u8]) -> Result<(), Malformed> {
        self.hosts += 1;
        if self.hosts > 1 {
            return Err(Malformed::SeveralHosts);
        }
        if is_authority(value) { Ok(()) } else { Err(Malformed::BadHost) }
    }

    /// RFC 9110 section 8.6 lets a recipient take `2, 2` for `2`. Not every recipient behind us does, so it is refused.
    fn content_length(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if name[7] != b'-' {
            return Err(Malformed::BadHeader);
        }
        let length = decimal(value).ok_or(Malformed::BadLength)?;
        match self.length.replace(length) {
            None => Ok(()),
            Some(before) if before == length => Err(Malformed::BadLength),
            Some(_) => Err(Malformed::DifferingLengths),
        }
    }

    fn transfer_encoding(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if name[8] != b'-' {
            return Err(Malformed::BadHeader);
        }
        self.codings.get_or_insert_default().add(value);
        Ok(())
    }

    /// What only the whole head can tell.
    fn whole(&self, version: Version) -> Result<Head, Malformed> {
        if version == Version::Http11 && self.hosts == 0 {
            return Err(Malformed::NoHost);
        }
        let body = match (&self.codings, self.length) {
            (None, length) => BodyLength::Sized(length.unwrap_or(0)),
            (Some(_), _) if version == Version::Http10 => return Err(Malformed::TransferEncodingInHttp10),
            (Some(_), Some(_)) => return Err(Malformed::BothLengths),
            (Some(codings), None) => {
                codings.judge()?;
                BodyLength::Chunked
            }
        };
        // HTTP/1.0 knows no upgrade (RFC 9110 section 7.8), nor does hyper offer one there.
        Ok(Head { body, upgrade: self.upgrade && version == Version::Http11 })
    }
}

impl Codings {
    fn add(&mut self, value: &[u8]) {
        for member in value.split(|&byte| byte == b',') {
            let member = trim(member);
            let parameters = memchr(b';', member).unwrap_or(member.len());
            let name = trim(&member[..parameters]);
            self.chunked_is_last = name.eq_ignore_ascii_case(b"chunked");
            if self.chunked_is_last {
                self.chunked += 1;
                // RFC 9112 section 7.1: it takes none.
                self.improper |= parameters < member.len();
            } else {
                self.others = true;
                // Not a coding since RFC 7230; those who still know it read the body as unframed.
                self.improper |= name.eq_ignore_ascii_case(b"identity") || !is_token(name);
            }
        }
    }

    /// Exactly `chunked`, or an error that says how it is not (RFC 9112 sections 6.1 and 6.3).
    fn judge(&self) -> Result<(), Malformed> {
        if self.chunked > 1 {
            return Err(Malformed::ChunkedTwice);
        }
        if self.improper || (self.chunked == 1 && !self.chunked_is_last) {
            return Err(Malformed::BadTransferEncoding);
        }
        if self.others { Err(Malformed::TransferCoding) } else { Ok(()) }
    }
}

/// RFC 9112 section 3.
fn request_line(line: &[u8]) -> Result<Version, Malformed> {
    let (first, last) = (memchr(b' ', line), memrchr(b' ', line));
    let (Some(first), Some(last)) = (first, last) else { return Err(Malformed::BadRequestLine) };
    if first == last {
        return Err(Malformed::BadRequestLine);
    }
    let (method, target, version) = (&line[..first], &line[first + 1..last], &line[last + 1..]);
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(Malformed::Version),
        _ => return Err(Malformed::BadRequestLine),
    };
    if target.len() > TARGET_BYTES_MAX {
        return Err(Malformed::TargetTooLong);
    }
    if is_method(method) && is_target(method, target) { Ok(version) } else { Err(Malformed::BadRequestLine) }
}

/// `post` is not `POST` (RFC 9110 section 9.1), but many a service takes it for that: it would go past every route that
/// guards `POST`, and be executed. `CONNECT` is for forward proxies.
pub(super) fn is_method(method: &[u8]) -> bool {
    method.len() <= METHOD_BYTES_MAX
        && is_token(method)
        && !method.iter().any(u8::is_ascii_lowercase)
        && method != b"CONNECT"
}

/// Origin-form, absolute-form of `http` and `https`, or `OPTIONS *` (RFC 9112 section 3.2).
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

/// Visible ASCII, but what no URI may hold and `http` refuses (`" < > `` ` ``), and `#`, which hyper would cut off
/// together with all that follows. Without early exit: the compiler makes vectors of it.
pub(super) fn is_target_text(target: &[u8]) -> bool {
    !target
        .iter()
        .fold(false, |bad, &byte| bad | !matches!(byte, 0x21..=0x7E) | matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`'))
}

/// `uri-host [":" port]`, a name, an IPv4 or a bracketed IPv6 address (RFC 3986 section 3.2.2). Not empty: every
/// `http` URI has a host (RFC 9110 section 4.2.1). No user, no percent sign (`http` takes none), no comma.
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

/// `unreserved` and `sub-delims` of RFC 3986, without the comma: a list of hosts is no host.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&byte)
}

/// `Content_Length` is a field of its own to us and `Content-Length` to a CGI-like service, which would then count
/// another body than we do. The caller looks at what joins the halves and refuses all but the hyphen.
pub(super) fn is_or_resembles(name: &[u8], start: &[u8], end: &[u8]) -> bool {
    name[..start.len()].eq_ignore_ascii_case(start) && name[start.len() + 1..].eq_ignore_ascii_case(end)
}

#[cfg(test)]
mod tests;
