//! Multipart bodies: the parts, whatever separates them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use oncegate_domain::fingerprint::{FingerprintInput, FingerprintRules, IncludedContent, Recipe};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::{BodyPart, PlaceError, form};

use super::bytes_reader::BytesReader;
use super::form::groups;

/// A body as its parts show it.
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

/// Checks a body that is compared by its parts. The input's first line is the parameters of its `Content-Type`.
///
/// - A strict reader finds the same parts in the body, and the boundary between them and nowhere else, so that two
///   bodies with the same parts are the same.
/// - The same parts with other boundaries count the same.
/// - In a form, two neighbours may be exchanged exactly if they are the same or their names are not related, and each
///   name that a reader of its own finds has a value.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let (parameters, body) = (input.line(), input.rest());
    check_mixed(&[b"multipart/mixed", parameters].concat(), body);
    check_form(&[b"multipart/form-data", parameters].concat(), body);
}

fn check_mixed(content_type: &[u8], body: &[u8]) {
    let Some(counted) = parts(content_type, body) else { return };
    let multipart = decode(&counted);
    check_parts(&multipart, content_type, body);
    let Some(other) = other_boundary(body) else { return };
    let mut boundaries = 0..;
    let mut next = || [&other[..], format!("{:03}", boundaries.next().expect("it is endless")).as_bytes()].concat();
    let (content_type, written) = write(&multipart, &mut next);
    assert_eq!(parts(&content_type, &written), Some(counted), "{}", written.escape_ascii());
}

fn check_form(content_type: &[u8], body: &[u8]) {
    let Some(counted) = parts(content_type, body) else { return };
    let value = |name: &str| form::value_at(content_type, body, &(name.into(), None));
    if counted.get(1).is_some_and(|part| !part.place.starts_with("form:")) {
        assert!(matches!(value("a"), Err(PlaceError::Unreadable(_))), "{}", body.escape_ascii());
        return;
    }
    let boundary = boundary(content_type).expect("a strict reader finds the boundary");
    let delimiter = [b"--", &boundary[..]].concat();
    let mut pieces = split(body, &delimiter);
    let last = pieces.len() - 1;
    let names: Vec<_> =
        pieces[1..last].iter().map(|piece| name(piece).expect("a reader of its own finds it")).collect();
    let groups = groups(&names);
    for at in (2..last).take(20) {
        let is_same = pieces[at - 1] == pieces[at] || groups[at - 2] != groups[at - 1];
        pieces.swap(at - 1, at);
        let exchanged = parts(content_type, &pieces.join(&delimiter[..]));
        assert_eq!(exchanged.as_ref() == Some(&counted), is_same, "{}", body.escape_ascii());
        pieces.swap(at - 1, at);
    }
    for (name, piece) in names.iter().zip(&pieces[1..last]).take(20) {
        let Ok(text) = std::str::from_utf8(name) else { continue };
        let is_only = names.iter().filter(|other| *other == name).count() == 1;
        match value(text) {
            Ok(Some(content)) => assert!(is_only && piece.ends_with(&[b"\r\n\r\n", &content[..], b"\r\n"].concat())),
            Ok(None) => panic!("the field has a value: {}", body.escape_ascii()),
            Err(PlaceError::Several) => assert!(!is_only),
            // Its encoding may be another one.
            Err(_) => assert!(is_only && piece.to_ascii_lowercase().windows(7).any(|bytes| bytes == b"charset")),
        }
    }
}

/// The name that a part has in a form.
fn name(piece: &[u8]) -> Option<Vec<u8>> {
    let mut lines = split(piece, b"\r\n").into_iter();
    let line = lines.find(|line| line.to_ascii_lowercase().starts_with(b"content-disposition:"))?;
    let escaped = parameter(line, b"name=")?;
    let mut name = Vec::new();
    let mut rest = &escaped[..];
    while let Some((first, others)) = rest.split_first() {
        let escape = rest.get(..3).map(<[u8]>::to_ascii_lowercase);
        let (byte, length) = match escape.as_deref() {
            Some(b"%22") => (b'"', 3),
            Some(b"%0d") => (b'\r', 3),
            Some(b"%0a") => (b'\n', 3),
            _ => (*first, 1),
        };
        name.push(byte);
        rest = &others[length - 1..];
    }
    Some(name)
}

/// The beginning of boundaries that are not in a body.
fn other_boundary(body: &[u8]) -> Option<Vec<u8>> {
    let mut other = "b".repeat(60).into_bytes();
    while body.windows(other.len()).any(|part| part == other) {
        let last = other.last_mut()?;
        *last = Some(*last + 1).filter(|letter| *letter <= b'z')?;
    }
    Some(other)
}

fn parts(content_type: &[u8], body: &[u8]) -> Option<Vec<BodyPart>> {
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
        IncludedContent::Parts(parts) if included.form == "multipart" => Some(parts),
        _ => None,
    }
}

/// Takes the parts apart: the first is the media type, and each field has its length before it.
fn decode(counted: &[BodyPart]) -> Multipart {
    let (kind, parts) = counted.split_first().expect("the media type counts");
    let mut rest = &kind.value[..];
    let (subtype, parameters) = decode_type(&mut rest);
    assert!(matches!(rest, [0 | 1]));
    let decode = |part: &BodyPart| {
        let (kind, mut rest) = part.value.split_first().expect("each part has a kind");
        let part = decode_part(*kind, &mut rest);
        assert!(rest.is_empty());
        part
    };
    Multipart { subtype, parameters, has_preamble: rest == [1], parts: parts.iter().map(decode).collect() }
}

type MediaType = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

fn decode_type(canonical: &mut &[u8]) -> MediaType {
    let subtype = take_field(canonical);
    (subtype, (0..take_number(canonical)).map(|_| (take_field(canonical), take_field(canonical))).collect())
}

fn decode_part(kind: u8, canonical: &mut &[u8]) -> MultipartPart {
    match kind {
        1 => MultipartPart::Bytes(take_field(canonical)),
        _ => MultipartPart::Nested(take_field(canonical), take_field(canonical), decode_nested(canonical)),
    }
}

/// Decodes a part that is multipart itself: behind its media type is a 3 for an empty preamble, and a 0 at the end.
fn decode_nested(canonical: &mut &[u8]) -> Multipart {
    let (subtype, parameters) = decode_type(canonical);
    let has_preamble = canonical.first() == Some(&3);
    *canonical = &canonical[usize::from(has_preamble)..];
    let mut parts = Vec::new();
    loop {
        let (kind, rest) = canonical.split_first().expect("each list of parts has an end");
        *canonical = rest;
        match kind {
            0 => return Multipart { subtype, parameters, has_preamble, parts },
            kind => parts.push(decode_part(*kind, canonical)),
        }
    }
}

fn take_number(canonical: &mut &[u8]) -> usize {
    let (number, rest) = canonical.split_at(8);
    *canonical = rest;
    usize::try_from(u64::from_be_bytes(number.try_into().expect("eight bytes"))).expect("a length")
}

fn take_field(canonical: &mut &[u8]) -> Vec<u8> {
    let length = take_number(canonical);
    let (field, rest) = canonical.split_at(length);
    *canonical = rest;
    field.to_vec()
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

fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    parameter(content_type, b"boundary=")
}

/// The value of a parameter, which a semicolon within quotes does not end.
fn parameter(text: &[u8], start: &[u8]) -> Option<Vec<u8>> {
    let (mut pieces, mut in_quotes) = (vec![Vec::new()], false);
    for byte in text {
        in_quotes ^= *byte == b'"';
        match *byte {
            b';' if !in_quotes => pieces.push(Vec::new()),
            byte => pieces.last_mut()?.push(byte),
        }
    }
    pieces.iter().skip(1).find_map(|piece| {
        let (name, value) = trim(piece).split_at_checked(start.len())?;
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        name.eq_ignore_ascii_case(start).then(|| value.to_vec())
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
