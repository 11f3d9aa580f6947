//! Multipart bodies: the parts, whatever separates them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use oncegate_domain::fingerprint::{FingerprintInput, FingerprintRules, IncludedContent, Recipe};
use oncegate_domain::normal_path::RequestPath;

use super::bytes_reader::BytesReader;

/// A body as its canonical form shows it.
#[derive(Debug)]
struct Multipart {
    subtype: Vec<u8>,
    parameters: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether a line end is before the first delimiter.
    has_preamble: bool,
    parts: Vec<MultipartPart>,
}

#[derive(Debug)]
enum MultipartPart {
    Bytes(Vec<u8>),
    /// The header fields before and after `Content-Type`, and the parts.
    Nested(Vec<u8>, Vec<u8>, Multipart),
}

/// Checks a body whose canonical form is that of its parts. The input's first line is the
/// parameters of its `Content-Type`.
///
/// - A strict reader finds the same parts in the body, and the boundary between them and nowhere else, so that two
///   bodies with one canonical form are the same.
/// - The same parts with other boundaries have the same canonical form.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let (parameters, body) = (input.line(), input.rest());
    let content_type = [b"multipart/mixed", parameters].concat();
    let Some(canonical) = canonical(&content_type, body) else { return };
    let mut rest = &canonical[..];
    let multipart = decode(&mut rest);
    assert!(rest.is_empty());
    check_parts(&multipart, &content_type, body);

    let mut other = "b".repeat(60).into_bytes();
    while body.windows(other.len()).any(|part| part == other) {
        let last = other.last_mut().expect("it is long");
        *last = if *last < b'z' { *last + 1 } else { return };
    }
    let mut boundaries = 0..;
    let mut next = || [&other[..], format!("{:03}", boundaries.next().expect("it is endless")).as_bytes()].concat();
    let (content_type, written) = write(&multipart, &mut next);
    assert_eq!(self::canonical(&content_type, &written), Some(canonical), "{}", written.escape_ascii());
}

fn canonical(content_type: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_bytes(content_type).ok()?)]);
    let recipe = Recipe::new(FingerprintRules::default(), None);
    let input = FingerprintInput {
        method: "POST",
        path: &RequestPath::new("/"),
        pattern: None,
        host: None,
        query: None,
        headers: &headers,
        body,
    };
    let included = recipe.body(&input);
    match included.content {
        IncludedContent::Parts(parts) if included.form == "multipart" => {
            parts.into_iter().next().map(|part| part.value)
        }
        _ => None,
    }
}

/// Takes the canonical form apart: each field has its length before it, and each part its kind.
fn decode(canonical: &mut &[u8]) -> Multipart {
    fn number(canonical: &mut &[u8]) -> usize {
        let (number, rest) = canonical.split_at(8);
        *canonical = rest;
        usize::try_from(u64::from_be_bytes(number.try_into().expect("eight bytes"))).expect("a length")
    }
    fn field(canonical: &mut &[u8]) -> Vec<u8> {
        let length = number(canonical);
        let (field, rest) = canonical.split_at(length);
        *canonical = rest;
        field.to_vec()
    }
    let subtype = field(canonical);
    let parameters = (0..number(canonical)).map(|_| (field(canonical), field(canonical))).collect();
    let has_preamble = canonical.first() == Some(&3);
    *canonical = &canonical[usize::from(has_preamble)..];
    let mut parts = Vec::new();
    loop {
        let (kind, rest) = canonical.split_first().expect("each list of parts has an end");
        *canonical = rest;
        parts.push(match kind {
            0 => return Multipart { subtype, parameters, has_preamble, parts },
            1 => MultipartPart::Bytes(field(canonical)),
            _ => MultipartPart::Nested(field(canonical), field(canonical), decode(canonical)),
        });
    }
}

/// Reads a body by RFC 2046, section 5.1.1. Lines end in CR LF.
fn check_parts(multipart: &Multipart, content_type: &[u8], body: &[u8]) {
    let boundary = boundary(content_type).expect("a strict reader finds the boundary");
    // Behind an empty preamble, the first delimiter has a line end of its own.
    let whole = if body.starts_with(b"\r\n") { body.to_vec() } else { [b"\r\n", body].concat() };
    let pieces = split(&whole, &[b"\r\n--", &boundary[..]].concat());
    let [before, pieces @ .., end] = &pieces[..] else { panic!("a strict reader finds no boundary") };
    assert!(before.is_empty() && matches!(*end, b"--" | b"--\r\n"), "{}", body.escape_ascii());
    assert_eq!(pieces.len(), multipart.parts.len(), "{}", body.escape_ascii());
    let delimiter = [b"--", &boundary[..]].concat();
    assert_eq!(split(body, &delimiter).len(), pieces.len() + 2, "{}", body.escape_ascii());
    for (piece, part) in pieces.iter().zip(&multipart.parts) {
        let piece = piece.strip_prefix(b"\r\n").expect("a part begins a line");
        match part {
            MultipartPart::Bytes(bytes) => assert_eq!(bytes, piece),
            MultipartPart::Nested(before, after, nested) => {
                let fields = piece.strip_prefix(&before[..]).expect("the fields before it");
                let end = fields.windows(2).position(|bytes| bytes == b"\r\n").expect("a line ends");
                let (name, value) = fields[..end].split_at("content-type:".len());
                assert!(name.eq_ignore_ascii_case(b"content-type:"));
                let rest = fields[end + 2..].strip_prefix(&after[..]).expect("the fields after it");
                check_parts(nested, value, rest.strip_prefix(b"\r\n").expect("the empty line"));
            }
        }
    }
}

/// The value of the parameter, which a semicolon within quotes does not end.
fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let (mut pieces, mut in_quotes) = (vec![Vec::new()], false);
    for byte in content_type {
        in_quotes ^= *byte == b'"';
        match *byte {
            b';' if !in_quotes => pieces.push(Vec::new()),
            byte => pieces.last_mut()?.push(byte),
        }
    }
    pieces.iter().skip(1).find_map(|piece| {
        let (name, value) = trim(piece).split_at_checked(b"boundary=".len())?;
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        name.eq_ignore_ascii_case(b"boundary=").then(|| value.to_vec())
    })
}

/// Writes a body with other boundaries, and its media type.
fn write(multipart: &Multipart, next_boundary: &mut impl FnMut() -> Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let boundary = next_boundary();
    let mut body = if multipart.has_preamble { b"\r\n".to_vec() } else { Vec::new() };
    for part in &multipart.parts {
        body.extend([b"--", &boundary[..], b"\r\n"].concat());
        match part {
            MultipartPart::Bytes(bytes) => body.extend(bytes),
            MultipartPart::Nested(before, after, nested) => {
                let (content_type, inner) = write(nested, next_boundary);
                body.extend([&before[..], b"CONTENT-TYPE: ", &content_type, b"\r\n", after, b"\r\n", &inner].concat());
            }
        }
        body.extend(b"\r\n");
    }
    body.extend([b"--", &boundary[..], b"--"].concat());
    let mut content_type = [b"multipart/", &multipart.subtype[..], b";boundary=\"", &boundary, b"\""].concat();
    for (name, value) in multipart.parameters.iter().rev() {
        content_type.extend([b" ;  ", &name[..], b"=\"", value, b"\""].concat());
    }
    (content_type, body)
}

/// Spaces and tabs alone are white space around a value (RFC 822, section 3.1.4).
fn trim(text: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = text.iter().position(is_text).unwrap_or(text.len());
    let end = text.iter().rposition(is_text).map_or(start, |last| last + 1);
    &text[start..end]
}

fn split<'a>(mut text: &'a [u8], by: &[u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while let Some(at) = text.windows(by.len()).position(|bytes| bytes == by) {
        pieces.push(&text[..at]);
        text = &text[at + by.len()..];
    }
    pieces.push(text);
    pieces
}
