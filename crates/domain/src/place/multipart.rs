//! Multipart bodies (RFC 2046, section 5.1): the parts, without the boundaries between them.
//!
//! Clients draw new boundaries for each try. Two bodies with one canonical form are the same but for their boundaries:
//! each part counts with its header fields, byte by byte. A boundary stands between parts and nowhere else, so that no
//! service finds other parts in one body than in the other.

use std::borrow::Cow;

use memchr::memmem;

use super::form_fields::{FormField, FormPlace, by_name, write_field};
use super::value::{BodyPart, PlaceSelection};
use crate::key::trim_blanks;
use crate::media_type::essence;

/// More parts than a body of this size has, and few enough to scan.
const PARTS_MAX: usize = 1024;

/// More parameters than a media type has: `multipart/related` has four with its boundary (RFC 2387). Few enough to
/// compare each with all others.
const PARAMETERS_MAX: usize = 16;

/// A batch has changesets, and they have requests. Each level is scanned again.
const DEPTH_MAX: usize = 4;

/// The parts that count, behind one for the media type: the parts of `multipart/form-data` by their names, in any
/// order between names; those of other types, and of a form that does not name them plainly, in their order. `None`
/// for a body that is not plainly written: it is then compared by its bytes, which at worst refuses a retry and never
/// takes one body for another.
pub fn parts(content_type: &[u8], body: &[u8], selection: PlaceSelection<'_, FormPlace>) -> Option<Vec<BodyPart>> {
    let kind = MultipartType::parse(content_type)?;
    let (has_preamble, sent) = split(&kind, body)?;
    let mut value = Vec::new();
    kind.write(&mut value);
    value.push(u8::from(has_preamble));
    let mut parts = vec![BodyPart { place: "multipart".to_owned(), value }];
    let fields = (kind.subtype == FORM_DATA).then(|| sent.iter().copied().map(read_field).collect::<Option<Vec<_>>>());
    match fields.flatten() {
        Some(fields) => parts
            .extend(by_name(fields.into_iter(), selection, |canonical, field| write_part(canonical, field.part, 1))),
        None => parts.extend(sent.into_iter().enumerate().map(|(index, part)| {
            let mut value = Vec::with_capacity(part.len() + 16);
            write_part(&mut value, part, 1);
            BodyPart { place: format!("part {}", index + 1), value }
        })),
    }
    Some(parts)
}

/// Whether a `Content-Type` is that of a form.
pub(super) fn is_form_data(content_type: &[u8]) -> bool {
    let subtype =
        essence(content_type).split_at_checked(TYPE.len()).filter(|(kind, _)| kind.eq_ignore_ascii_case(TYPE));
    subtype.is_some_and(|(_, subtype)| subtype.eq_ignore_ascii_case(FORM_DATA))
}

/// The fields of a form. `None` for a body that is not plainly written, or has a part whose name services may read in
/// different ways.
pub(super) fn fields<'a>(content_type: &'a [u8], body: &'a [u8]) -> Option<Vec<FormField<'a>>> {
    let (_, parts) = split(&MultipartType::parse(content_type)?, body)?;
    parts.into_iter().map(read_field).collect()
}

/// Reads a part as a field (RFC 7578). A file is one too: browsers send JSON with a media type of its own as a file.
fn read_field(part: &[u8]) -> Option<FormField<'_>> {
    let end = memmem::find(part, b"\r\n\r\n")?;
    let mut name = None;
    for line in read_lines(&part[..end + 2]) {
        let (field, value) = line?;
        match field.as_slice() {
            b"content-disposition" if name.is_some() => return None,
            b"content-disposition" => name = Some(unescape_name(read_name(value)?)),
            // Another encoding hides the value (RFC 7578, section 4.7).
            b"content-transfer-encoding" if !is_plain_encoding(value) => return None,
            b"content-encoding" => return None,
            _ => {}
        }
    }
    Some(FormField { name: name?, content: Cow::Borrowed(&part[end + 4..]), part })
}

impl FormField<'_> {
    /// Whether its content is UTF-8, as far as its part says. Apache HttpClient names ISO-8859-1 by default, in which
    /// ASCII is the same text.
    pub(super) fn is_utf8(&self) -> bool {
        let lines = self.head().strip_suffix(b"\r\n").unwrap_or_default();
        read_lines(lines).flatten().filter(|(name, _)| name == b"content-type").all(|(_, value)| {
            value.to_ascii_lowercase().split(|byte| *byte == b';').all(|piece| {
                match trim_blanks(piece).strip_prefix(b"charset=") {
                    Some(b"utf-8" | b"\"utf-8\"" | b"utf8") => true,
                    Some(b"us-ascii" | b"\"us-ascii\"" | b"iso-8859-1" | b"\"iso-8859-1\"") => self.content.is_ascii(),
                    Some(_) => false,
                    // It may be spelled in a way that some services read (RFC 2231).
                    None => memmem::find(piece, b"charset").is_none(),
                }
            })
        })
    }
}

/// A name without the escapes that browsers and most libraries write (HTML, "multipart/form-data encoding algorithm").
fn unescape_name(mut name: &[u8]) -> Cow<'_, [u8]> {
    let mut unescaped = Cow::Borrowed(&name[..0]);
    while let Some(at) = memchr::memchr(b'%', name) {
        let escaped = match name.get(at + 1..at + 3) {
            Some(b"22") => Some(b'"'),
            Some(b"0D" | b"0d") => Some(b'\r'),
            Some(b"0A" | b"0a") => Some(b'\n'),
            _ => None,
        };
        let target = unescaped.to_mut();
        target.extend_from_slice(&name[..at]);
        target.push(escaped.unwrap_or(b'%'));
        name = &name[at + if escaped.is_some() { 3 } else { 1 }..];
    }
    if unescaped.is_empty() {
        return Cow::Borrowed(name);
    }
    unescaped.to_mut().extend_from_slice(name);
    unescaped
}

/// The `name` of a `Content-Disposition: form-data`.
fn read_name(disposition: &[u8]) -> Option<&[u8]> {
    let (kind, mut rest) = disposition.split_at(memchr::memchr(b';', disposition)?);
    if !trim_blanks(kind).eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let mut found = None;
    while !rest.is_empty() {
        let (name, value, after) = read_parameter(trim_blanks(rest.strip_prefix(b";")?))?;
        match name.as_slice() {
            b"name" if found.is_some() => return None,
            b"name" => found = Some(value),
            // RFC 2231 has more spellings of a name.
            other if other.starts_with(b"name*") => return None,
            _ => {}
        }
        rest = trim_blanks(after);
    }
    found
}

fn is_plain_encoding(value: &[u8]) -> bool {
    matches!(&*value.to_ascii_lowercase(), b"7bit" | b"8bit" | b"binary")
}

/// A header field of a part: its name in lower case, and its value. `None` for a line that services may read in
/// different ways; a folded line begins with a space, which is in no name.
fn read_line(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return None;
    }
    let colon = memchr::memchr(b':', line)?;
    Some((lower_token(&line[..colon])?, trim_blanks(&line[colon + 1..])))
}

/// The header fields of a part, each line with its end.
fn read_lines(lines: &[u8]) -> impl Iterator<Item = Option<(Vec<u8>, &[u8])>> {
    lines.split_inclusive(|byte| *byte == b'\n').map(|line| read_line(line.strip_suffix(b"\r\n")?))
}

const TYPE: &[u8] = b"multipart/";

const FORM_DATA: &[u8] = b"form-data";

struct MultipartType<'a> {
    /// In lower case.
    subtype: Vec<u8>,
    boundary: &'a [u8],
    /// The other parameters, such as `start` of `multipart/related` (RFC 2387), by their names in lower case.
    parameters: Vec<(Vec<u8>, &'a [u8])>,
}

impl<'a> MultipartType<'a> {
    /// `None` for a type that services may read in different ways.
    fn parse(content_type: &'a [u8]) -> Option<Self> {
        let (kind, inner) = content_type.split_at_checked(TYPE.len())?;
        if !kind.eq_ignore_ascii_case(TYPE) {
            return None;
        }
        let (subtype, mut rest) = inner.split_at(memchr::memchr(b';', inner).unwrap_or(inner.len()));
        let subtype = lower_token(trim_blanks(subtype))?;
        let mut parameters: Vec<(Vec<u8>, &[u8])> = Vec::new();
        while !rest.is_empty() {
            let (name, value, after) = read_parameter(trim_blanks(rest.strip_prefix(b";")?))?;
            let is_repeated = || parameters.iter().any(|(other, _)| *other == name);
            // RFC 2231 has more spellings of a name.
            if parameters.len() == PARAMETERS_MAX || name.contains(&b'*') || is_repeated() {
                return None;
            }
            parameters.push((name, value));
            rest = trim_blanks(after);
        }
        parameters.sort();
        let boundary = parameters.remove(parameters.iter().position(|(name, _)| name == b"boundary")?).1;
        let is_plain = (1..=70).contains(&boundary.len()) && boundary.iter().all(|byte| is_boundary_character(*byte));
        is_plain.then_some(Self { subtype, boundary, parameters })
    }

    fn write(&self, canonical: &mut Vec<u8>) {
        write_field(canonical, &self.subtype);
        canonical.extend_from_slice(&(self.parameters.len() as u64).to_be_bytes());
        for (name, value) in &self.parameters {
            write_field(canonical, name);
            write_field(canonical, value);
        }
    }
}

/// RFC 2046, section 5.1.1, but for the space.
fn is_boundary_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte)
}

fn lower_token(text: &[u8]) -> Option<Vec<u8>> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!text.is_empty() && text.iter().all(is_token)).then(|| text.to_ascii_lowercase())
}

/// Parses `name=value` or `name="value"` at the beginning of a text. A quoted value with a backslash has more than one
/// spelling, and is not accepted. Neither is a bare value with a quote, a backslash or a tab, which services end at
/// different places.
fn read_parameter(text: &[u8]) -> Option<(Vec<u8>, &[u8], &[u8])> {
    let equals = memchr::memchr(b'=', text)?;
    let (name, value) = (lower_token(&text[..equals])?, &text[equals + 1..]);
    let (value, rest, is_plain) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = memchr::memchr(b'"', quoted)?;
            (&quoted[..end], &quoted[end + 1..], !quoted[..end].contains(&b'\\'))
        }
        None => {
            let (bare, rest) = value.split_at(memchr::memchr2(b';', b' ', value).unwrap_or(value.len()));
            (bare, rest, memchr::memchr3(b'"', b'\\', b'\t', bare).is_none())
        }
    };
    is_plain.then_some((name, value, rest))
}

/// Writes the media type without its boundary, a 3 for an empty preamble, each part behind a 1 or a 2, and a 0.
fn write_body(canonical: &mut Vec<u8>, kind: &MultipartType<'_>, body: &[u8], depth: usize) -> Option<()> {
    let (has_preamble, parts) = split(kind, body)?;
    kind.write(canonical);
    canonical.extend(has_preamble.then_some(3));
    parts.into_iter().for_each(|part| write_part(canonical, part, depth));
    canonical.push(0);
    Some(())
}

/// Splits a body at its boundary. Also tells whether an empty preamble stands before the first delimiter.
fn split<'a>(kind: &MultipartType<'_>, body: &'a [u8]) -> Option<(bool, Vec<&'a [u8]>)> {
    let delimiter = [b"\r\n--", kind.boundary].concat();
    let finder = memmem::Finder::new(&delimiter[2..]);
    // The first delimiter has no line end before it, or one behind an empty preamble, as batches of OData have.
    let behind_preamble = body.strip_prefix(b"\r\n");
    let mut rest = behind_preamble.unwrap_or(body).strip_prefix(&delimiter[2..])?;
    let mut parts = Vec::new();
    for _ in 0..PARTS_MAX {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            return matches!(epilogue, b"" | b"\r\n").then_some((behind_preamble.is_some(), parts));
        }
        let part = rest.strip_prefix(b"\r\n")?;
        // Some services find a boundary without a line end before it, or behind a bare LF.
        let end = finder.find(part)?;
        parts.push(part[..end].strip_suffix(b"\r\n")?);
        rest = &part[end + delimiter.len() - 2..];
    }
    None
}

/// Writes a part: one that is multipart itself by its parts, if it is plainly written; any other by its bytes.
fn write_part(canonical: &mut Vec<u8>, part: &[u8], depth: usize) {
    let start = canonical.len();
    if depth < DEPTH_MAX
        && let Some(nested) = NestedPart::find(part)
    {
        canonical.push(2);
        write_field(canonical, nested.fields_before);
        write_field(canonical, nested.fields_after);
        if write_body(canonical, &nested.kind, nested.body, depth + 1).is_some() {
            return;
        }
        canonical.truncate(start);
    }
    canonical.push(1);
    write_field(canonical, part);
}

/// A part that is multipart itself.
struct NestedPart<'a> {
    /// The header fields before and after `Content-Type`, as lines.
    fields_before: &'a [u8],
    fields_after: &'a [u8],
    kind: MultipartType<'a>,
    body: &'a [u8],
}

impl<'a> NestedPart<'a> {
    /// `None` for any other part, and for one whose fields services may read in different ways.
    fn find(part: &'a [u8]) -> Option<Self> {
        let end = memmem::find(part, b"\r\n\r\n")?;
        let fields = &part[..end + 2];
        let (mut at, mut found) = (0, None);
        while at < fields.len() {
            let line_end = at + memmem::find(&fields[at..], b"\r\n")?;
            let (name, value) = read_line(&fields[at..line_end])?;
            match name.as_slice() {
                b"content-type" if found.is_some() => return None,
                b"content-type" => found = Some((at, line_end + 2, value)),
                // Another encoding hides the parts (RFC 2045, section 6.4).
                b"content-transfer-encoding" if !is_plain_encoding(value) => return None,
                b"content-encoding" => return None,
                _ => {}
            }
            at = line_end + 2;
        }
        let (start, after, content_type) = found?;
        let kind = MultipartType::parse(content_type)?;
        Some(Self { fields_before: &fields[..start], fields_after: &fields[after..], kind, body: &part[end + 4..] })
    }
}

#[cfg(test)]
mod tests;
