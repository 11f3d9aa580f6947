//! Readers of HTTP/1.x requests: a strict one, and those that forgive what the strict one refuses.

/// The things that a reader forgives, or reads in its own way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leniency {
    /// LF alone ends a line.
    pub bare_line_feed: bool,
    /// CR alone ends a line.
    pub bare_return: bool,
    /// A line that begins with a space or tab goes on with the value before it.
    pub folds: bool,
    /// Spaces around a field's name do not count.
    pub name_spaces: bool,
    /// `_` in a field's name is `-`.
    pub underscores: bool,
    /// `Content-Length` counts where there is `Transfer-Encoding` too.
    pub length_first: bool,
    /// The last of several lengths counts, otherwise the first.
    pub last_length: bool,
    /// A number ends where its digits end, and may have a sign before it.
    pub loose_numbers: bool,
    /// Every `Transfer-Encoding` that contains `chunked` means chunks.
    pub chunked_anywhere: bool,
    /// A `Transfer-Encoding` that is not exactly `chunked`, in lower case or not, does not count.
    pub chunked_only: bool,
    /// HTTP/1.0 has no `Transfer-Encoding`.
    pub old_version: bool,
}

/// A request, as far as readers can differ about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The request line.
    pub line: Vec<u8>,
    /// The values of `Host`.
    pub hosts: Vec<Vec<u8>>,
    /// The body, its chunks joined.
    pub body: Vec<u8>,
}

/// The reason for which a reader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The bytes end where a request does, or before one.
    Complete,
    /// The bytes end within a request.
    Cut,
    /// The strict reader refuses, or a lenient one cannot go on.
    Refused,
}

/// The strict reader, each leniency alone, and all of them.
pub fn readers() -> Vec<Leniency> {
    let strict = Leniency::default();
    let all = Leniency {
        bare_line_feed: true,
        bare_return: true,
        folds: true,
        name_spaces: true,
        underscores: true,
        length_first: true,
        last_length: true,
        loose_numbers: true,
        chunked_anywhere: true,
        chunked_only: false,
        old_version: true,
    };
    vec![
        strict,
        Leniency { bare_line_feed: true, ..strict },
        Leniency { bare_return: true, ..strict },
        Leniency { folds: true, ..strict },
        Leniency { name_spaces: true, ..strict },
        Leniency { underscores: true, ..strict },
        Leniency { length_first: true, ..strict },
        Leniency { last_length: true, ..strict },
        Leniency { loose_numbers: true, ..strict },
        Leniency { chunked_anywhere: true, ..strict },
        Leniency { chunked_only: true, ..strict },
        Leniency { old_version: true, ..strict },
        all,
        Leniency { chunked_anywhere: false, chunked_only: true, length_first: false, ..all },
    ]
}

/// Reads all complete requests.
pub fn read_requests(bytes: &[u8], leniency: Leniency) -> (Vec<ReadRequest>, ReadEnd) {
    let (mut requests, mut rest) = (Vec::new(), bytes);
    loop {
        while let Ok((line, after)) = next_line(rest, leniency)
            && line.is_empty()
        {
            rest = after;
        }
        if rest.is_empty() || rest == b"\r" {
            return (requests, ReadEnd::Complete);
        }
        match read_request(rest, leniency) {
            Ok((request, after)) => {
                requests.push(request);
                rest = after;
            }
            Err(end) => return (requests, end),
        }
    }
}

type ReadResult<'a, T> = Result<(T, &'a [u8]), ReadEnd>;

fn read_request<'a>(bytes: &'a [u8], leniency: Leniency) -> ReadResult<'a, ReadRequest> {
    let (line, rest) = next_line(bytes, leniency)?;
    let (fields, rest) = read_fields(rest, leniency)?;
    let values = |name: &str| {
        let is_named = move |field: &&(Vec<u8>, Vec<u8>)| field.0 == name.as_bytes();
        fields.iter().filter(is_named).map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let (codings, lengths) = (values("transfer-encoding"), values("content-length"));
    let is_chunked = |value: &Vec<u8>| match () {
        () if leniency.chunked_anywhere => value.to_ascii_lowercase().windows(7).any(|part| part == b"chunked"),
        () => value.eq_ignore_ascii_case(b"chunked"),
    };
    let codings_count = !(leniency.old_version && line.ends_with(b"HTTP/1.0"));
    let has_chunks = codings_count && codings.iter().any(is_chunked) && (lengths.is_empty() || !leniency.length_first);
    let is_strict =
        !leniency.chunked_anywhere && !leniency.chunked_only && !leniency.old_version && !leniency.length_first;
    if is_strict && (codings.len() > 1 || !codings.iter().all(is_chunked) || (has_chunks && !lengths.is_empty())) {
        return Err(ReadEnd::Refused);
    }
    let length = if leniency.last_length { lengths.last() } else { lengths.first() };
    let (body, rest) = match length {
        _ if has_chunks => read_chunks(rest, leniency)?,
        None => (Vec::new(), rest),
        Some(length) => {
            let length = number(length, 10, leniency).ok_or(ReadEnd::Refused)?;
            let length = usize::try_from(length).map_err(|_| ReadEnd::Cut)?;
            let (body, rest) = rest.split_at_checked(length).ok_or(ReadEnd::Cut)?;
            (body.to_vec(), rest)
        }
    };
    Ok((ReadRequest { line: line.to_vec(), hosts: values("host"), body }, rest))
}

/// A line without its end, and what comes after it.
fn next_line<'a>(bytes: &'a [u8], leniency: Leniency) -> ReadResult<'a, &'a [u8]> {
    for (at, byte) in bytes.iter().enumerate() {
        match (byte, bytes.get(at + 1)) {
            (b'\r', Some(b'\n')) => return Ok((&bytes[..at], &bytes[at + 2..])),
            (b'\r', Some(_)) if leniency.bare_return => return Ok((&bytes[..at], &bytes[at + 1..])),
            (b'\n', _) if leniency.bare_line_feed => return Ok((&bytes[..at], &bytes[at + 1..])),
            (b'\n', _) | (b'\r', Some(_)) if !leniency.bare_line_feed && !leniency.bare_return => {
                return Err(ReadEnd::Refused);
            }
            _ => {}
        }
    }
    Err(ReadEnd::Cut)
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Field lines up to the empty line, their names in lower case.
fn read_fields<'a>(mut rest: &'a [u8], leniency: Leniency) -> ReadResult<'a, Fields> {
    let mut fields: Fields = Vec::new();
    loop {
        let (line, after) = next_line(rest, leniency)?;
        rest = after;
        if line.is_empty() {
            return Ok((fields, rest));
        }
        if leniency.folds && matches!(line[0], b' ' | b'\t') {
            let (_, value) = fields.last_mut().ok_or(ReadEnd::Refused)?;
            value.extend_from_slice(line);
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(ReadEnd::Refused)?;
        let mut name = line[..colon].to_ascii_lowercase();
        if leniency.name_spaces {
            name = name.trim_ascii().to_vec();
        }
        if leniency.underscores {
            name.iter_mut().filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
        }
        if name.is_empty() || name.iter().any(|byte| !byte.is_ascii_graphic()) {
            return Err(ReadEnd::Refused);
        }
        fields.push((name, line[colon + 1..].trim_ascii().to_vec()));
    }
}

fn read_chunks<'a>(mut rest: &'a [u8], leniency: Leniency) -> ReadResult<'a, Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (line, after) = next_line(rest, leniency)?;
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = usize::try_from(number(size, 16, leniency).ok_or(ReadEnd::Refused)?).map_err(|_| ReadEnd::Cut)?;
        if size == 0 {
            let (_, after) = read_fields(after, leniency)?;
            return Ok((body, after));
        }
        let (data, after) = after.split_at_checked(size).ok_or(ReadEnd::Cut)?;
        body.extend_from_slice(data);
        let (end, after) = next_line(after, leniency)?;
        if !end.is_empty() {
            return Err(ReadEnd::Refused);
        }
        rest = after;
    }
}

fn number(text: &[u8], radix: u32, leniency: Leniency) -> Option<u64> {
    let mut text = std::str::from_utf8(text).ok()?;
    if leniency.loose_numbers {
        text = text.strip_prefix('+').unwrap_or(text);
        text = text.split(|digit: char| !digit.is_digit(radix)).next()?;
    }
    // Not `parse`, which takes a sign.
    (!text.is_empty() && text.chars().all(|digit| digit.is_digit(radix)))
        .then(|| u64::from_str_radix(text, radix).ok())?
}
