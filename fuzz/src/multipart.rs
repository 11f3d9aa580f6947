//! `multipart/form-data`: the parts, whatever separates them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use oncegate::domain::fingerprint::{FingerprintInput, FingerprintRules, Recipe};

use super::bytes_reader::BytesReader;

/// A part of a form as a strict reader finds it.
#[derive(Debug, PartialEq, Eq)]
struct FormPart {
    name: Vec<u8>,
    file: Option<Vec<u8>>,
    kind: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

/// Checks a form whose canonical form is that of its parts. The input's first line is the parameters of its `Content-Type`.
///
/// - A strict reader finds the same parts in the body, so that two forms with one canonical form are the same.
/// - The same parts with another boundary have the same canonical form.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let (parameters, body) = (input.line(), input.rest());
    let Some(canonical) = canonical(parameters, body) else { return };
    let parts = decode(&canonical);
    let boundary = boundary(parameters).expect("a strict reader finds the boundary");
    let read = read(&boundary, body).expect("a strict reader can read the form");
    assert_eq!(read, parts, "{}", body.escape_ascii());

    let mut other = "b".repeat(60).into_bytes();
    while body.windows(other.len()).any(|part| part == other) {
        let last = other.last_mut().expect("it is long");
        *last = if *last < b'z' { *last + 1 } else { return };
    }
    let written = write(&other, &parts);
    let parameters = [b"; boundary=", &other[..]].concat();
    assert_eq!(self::canonical(&parameters, &written), Some(canonical), "{}", written.escape_ascii());
}

fn canonical(parameters: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let content_type = HeaderValue::from_bytes(&[b"multipart/form-data", parameters].concat()).ok()?;
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
    let recipe = Recipe::new(FingerprintRules::default(), None);
    let input = FingerprintInput { method: "POST", path: "/", query: None, headers: &headers, body };
    match recipe.body(&input) {
        ("multipart", canonical) => Some(canonical.into_owned()),
        _ => None,
    }
}

/// Takes the canonical form apart: four fields for each part, each with a byte that says whether it is there, and its length.
fn decode(mut canonical: &[u8]) -> Vec<FormPart> {
    let mut field = || {
        let (is_there, rest) = canonical.split_first()?;
        let (length, rest) = rest.split_at(8);
        let length = u64::from_be_bytes(length.try_into().expect("eight bytes"));
        let (field, rest) = rest.split_at(usize::try_from(length).expect("a length"));
        canonical = rest;
        Some((*is_there == 1).then(|| field.to_vec()))
    };
    let mut parts = Vec::new();
    while let Some(name) = field() {
        let [file, kind, bytes] = [field(), field(), field()].map(|field| field.expect("four fields"));
        let [name, bytes] = [name, bytes].map(|field| field.expect("each part has a name and bytes"));
        parts.push(FormPart { name, file, kind, bytes });
    }
    parts
}

fn boundary(parameters: &[u8]) -> Option<Vec<u8>> {
    // There may be more to the media type before the first semicolon: spaces.
    let at = parameters.iter().position(|byte| *byte == b';')?;
    let text = trim(&parameters[at + 1..]);
    let (name, value) = text.split_at_checked(b"boundary=".len())?;
    let value = match value {
        [b'"', quoted @ .., b'"'] => quoted,
        value => value,
    };
    let is_text = !value.iter().any(|byte| matches!(byte, b'"' | b'\\'));
    (name.eq_ignore_ascii_case(b"boundary=") && is_text).then(|| value.to_vec())
}

/// Reads a body by RFC 2046, section 5.1.1, and RFC 7578, section 4. Lines end in CR LF, and a control character stands in none.
fn read(boundary: &[u8], body: &[u8]) -> Option<Vec<FormPart>> {
    let delimiter = [b"\r\n--", boundary].concat();
    let whole = [b"\r\n", body].concat();
    let mut pieces = split(&whole, &delimiter).into_iter();
    if !pieces.next()?.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    loop {
        let piece = pieces.next()?;
        if let Some(end) = piece.strip_prefix(b"--") {
            return (pieces.next().is_none() && matches!(end, b"" | b"\r\n")).then_some(parts);
        }
        parts.push(read_part(piece.strip_prefix(b"\r\n")?)?);
    }
}

fn read_part(piece: &[u8]) -> Option<FormPart> {
    let end = piece.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let (mut disposition, mut kind) = (None, None);
    for line in split(&piece[..end], b"\r\n") {
        let has_control = line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line[..colon].to_ascii_lowercase(), trim(&line[colon + 1..]));
        let slot = match &name[..] {
            b"content-disposition" => &mut disposition,
            b"content-type" => &mut kind,
            _ => return None,
        };
        if has_control || slot.replace(value.to_vec()).is_some() {
            return None;
        }
    }
    let disposition = disposition?;
    let (mut name, mut file) = (None, None);
    let mut rest = trim(disposition.strip_prefix(b"form-data")?);
    while let Some(parameter) = rest.strip_prefix(b";") {
        let parameter = trim(parameter);
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let slot = match &parameter[..equals] {
            b"name" => &mut name,
            b"filename" => &mut file,
            _ => return None,
        };
        let value = &parameter[equals + 1..];
        let (value, after) = match value.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted.iter().position(|byte| *byte == b'"')?;
                (&quoted[..end], &quoted[end + 1..])
            }
            None => {
                let end = value.iter().position(|byte| matches!(byte, b';' | b' ')).unwrap_or(value.len());
                let has_tab = value[..end].contains(&b'\t');
                Some(value.split_at(end)).filter(|_| !has_tab)?
            }
        };
        // Readers differ about these within a value.
        if value.iter().any(|byte| matches!(byte, b'"' | b'\\')) || slot.replace(value.to_vec()).is_some() {
            return None;
        }
        rest = trim(after);
    }
    rest.is_empty().then_some(FormPart { name: name?, file, kind, bytes: piece[end + 4..].to_vec() })
}

fn write(boundary: &[u8], parts: &[FormPart]) -> Vec<u8> {
    let mut body = Vec::new();
    for FormPart { name, file, kind, bytes } in parts {
        body.extend([b"--", boundary, b"\r\ncontent-disposition:form-data;name=\"", name, b"\""].concat());
        if let Some(file) = file {
            body.extend([b"; filename=\"", &file[..], b"\""].concat());
        }
        if let Some(kind) = kind {
            body.extend([b"\r\nCONTENT-TYPE: ", &kind[..]].concat());
        }
        body.extend([b"\r\n\r\n", &bytes[..], b"\r\n"].concat());
    }
    body.extend([b"--", boundary, b"--"].concat());
    body
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
