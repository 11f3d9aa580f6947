//! Multipart bodies (RFC 2046, section 5.1): the parts, without the boundaries between them.
//!
//! Clients draw new boundaries for each try. Two bodies with one canonical form are the same but for their boundaries:
//! each part counts with its header fields, byte by byte. A boundary stands between parts and nowhere else, so that no
//! service finds other parts in one body than in the other.

use memchr::memmem;

use crate::key::trim_blanks;

/// More parts than a body of this size has, and few enough to scan.
const PARTS_MAX: usize = 1024;

/// More parameters than a media type has: `multipart/related` has four with its boundary (RFC 2387). Few enough to
/// compare each with all others.
const PARAMETERS_MAX: usize = 16;

/// A batch has changesets, and they have requests. Each level is scanned again.
const DEPTH_MAX: usize = 4;

/// The canonical form. `None` for a body that is not plainly written: it is then compared by its bytes, which at worst
/// refuses a retry and never takes one body for another.
pub(super) fn canonical(content_type: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let mut canonical = Vec::with_capacity(body.len());
    write_body(&mut canonical, &MultipartType::parse(content_type)?, body, 1)?;
    Some(canonical)
}

const TYPE: &[u8] = b"multipart/";

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
    kind.write(canonical);
    let delimiter = [b"\r\n--", kind.boundary].concat();
    let finder = memmem::Finder::new(&delimiter[2..]);
    // The first delimiter has no line end before it, or one behind an empty preamble, as batches of OData have.
    let behind_preamble = body.strip_prefix(b"\r\n");
    canonical.extend(behind_preamble.map(|_| 3));
    let mut rest = behind_preamble.unwrap_or(body).strip_prefix(&delimiter[2..])?;
    for _ in 0..PARTS_MAX {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            canonical.push(0);
            return matches!(epilogue, b"" | b"\r\n").then_some(());
        }
        let part = rest.strip_prefix(b"\r\n")?;
        // Some services find a boundary without a line end before it, or behind a bare LF.
        let end = finder.find(part)?;
        let inner = part[..end].strip_suffix(b"\r\n")?;
        write_part(canonical, inner, depth);
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
            let line = &fields[at..line_end];
            if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
                return None;
            }
            let colon = memchr::memchr(b':', line)?;
            // A folded line begins with a space, which is in no name.
            let (name, value) = (lower_token(&line[..colon])?, trim_blanks(&line[colon + 1..]));
            match name.as_slice() {
                b"content-type" if found.is_some() => return None,
                b"content-type" => found = Some((at, line_end + 2, value)),
                // Another encoding hides the parts (RFC 2045, section 6.4).
                b"content-transfer-encoding" => match &*value.to_ascii_lowercase() {
                    b"7bit" | b"8bit" | b"binary" => {}
                    _ => return None,
                },
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

/// Writes bytes behind their length, so that no field can end in the next.
fn write_field(canonical: &mut Vec<u8>, bytes: &[u8]) {
    canonical.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    canonical.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(boundary: &str, parts: &[&str]) -> String {
        let parts: String = parts.iter().map(|part| format!("--{boundary}\r\n{part}\r\n")).collect();
        format!("{parts}--{boundary}--\r\n")
    }

    fn of(content_type: &str, body: &str) -> Option<Vec<u8>> {
        canonical(content_type.as_bytes(), body.as_bytes())
    }

    /// A batch as OData has it: a changeset with a request, and a request.
    fn batch(outer: &str, inner: &str, [amount, kind, fields, query]: [&str; 4]) -> String {
        let request = format!(
            "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nPOST /pay HTTP/1.1\r\n\r\n{amount}"
        );
        let changeset = body(inner, &[&request]);
        let changeset = format!("Content-Type: {kind};boundary={inner}\r\n{fields}\r\n{changeset}");
        body(outer, &[&changeset, &format!("Content-Type: application/http\r\n\r\nGET /{query} HTTP/1.1\r\n\r\n")])
    }

    const BATCH: [&str; 4] = ["1", "multipart/mixed", "", "a"];
    const A: &str = "Content-Disposition: form-data; name=\"a\"\r\n\r\n1";

    #[test]
    fn a_body_is_the_same_whatever_its_boundaries() {
        for (one, other) in [
            (
                ("multipart/form-data; boundary=one", body("one", &[A])),
                ("Multipart/Form-Data;boundary=\"another\"", body("another", &[A])),
            ),
            (
                ("multipart/mixed; boundary=batch_1", batch("batch_1", "changeset_1", BATCH)),
                ("multipart/mixed; boundary=batch_22", batch("batch_22", "changeset_22", BATCH)),
            ),
            (
                (
                    "multipart/related; boundary=b; type=\"application/xop+xml\"; start=\"<a>\"",
                    body("b", &["Content-ID: <a>\r\n\r\n<x/>"]),
                ),
                (
                    "multipart/related; start=\"<a>\"; TYPE=application/xop+xml; boundary=cc",
                    body("cc", &["Content-ID: <a>\r\n\r\n<x/>"]),
                ),
            ),
            (
                ("multipart/mixed; boundary=b", body("b", &["\r\nno fields", "\r\n"])),
                ("multipart/mixed; boundary=c", body("c", &["\r\nno fields", "\r\n"])),
            ),
            (
                ("multipart/mixed; boundary=b", body("b", &["X: \u{1}\0\n\r\n\r\n\n--x"])),
                ("multipart/mixed; boundary=c", body("c", &["X: \u{1}\0\n\r\n\r\n\n--x"])),
            ),
        ] {
            let (first, second) = (of(one.0, &one.1), of(other.0, &other.1));
            assert!(first.is_some(), "{}", one.1);
            assert_eq!(first, second, "{}", one.1);
        }
    }

    #[test]
    fn an_empty_preamble_is_a_part_of_a_plainly_written_body() {
        let with_preamble = |boundary: &str| format!("\r\n{}", body(boundary, &[A]));
        let typed = |boundary: &str| format!("multipart/mixed; boundary={boundary}");
        let [one, other] = ["i", "j"].map(|boundary| of(&typed(boundary), &with_preamble(boundary)));
        assert!(one.is_some() && one == other);
        assert_ne!(one, of(&typed("i"), &body("i", &[A])));
    }

    #[test]
    fn bodies_that_differ_in_more_than_boundaries_differ() {
        let form = |parts: &[&str]| of("multipart/form-data; boundary=b", &body("b", parts));
        let mixed = |parts: &[&str]| of("multipart/mixed; boundary=b", &body("b", parts));
        let related = |parameters: &str| of(&format!("multipart/related; boundary=b{parameters}"), &body("b", &[A]));
        let batch = |parts| of("multipart/mixed; boundary=o", &batch("o", "i", parts));
        let nested = body("i", &[A]);
        let nested =
            |inner: &str| mixed(&[&format!("Content-Type: multipart/mixed; boundary={inner}\r\n\r\n{nested}")]);
        let all = [
            form(&[A]),
            form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n2"]),
            form(&["Content-Disposition: form-data; name=\"b\"\r\n\r\n1"]),
            form(&["Content-Disposition: form-data; name=\"a\"; filename=\"f\"\r\n\r\n1"]),
            form(&["Content-Disposition: form-data; name=\"a\"\r\nContent-Type: text/plain\r\n\r\n1"]),
            form(&["Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64\r\n\r\n1"]),
            form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n"]),
            form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n\r\n"]),
            form(&[A, A]),
            form(&[A, "Content-Disposition: form-data; name=\"b\"\r\n\r\n1"]),
            form(&["Content-Disposition: form-data; name=\"b\"\r\n\r\n1", A]),
            mixed(&[A]),
            mixed(&[&[A, "\r\n"].concat()]),
            related(""),
            related("; type=a"),
            related("; type=b"),
            related("; start=a"),
            related("; type=a; start=a"),
            related("; type=\"a; start=a\""),
            batch(BATCH),
            batch(["2", BATCH[1], BATCH[2], BATCH[3]]),
            batch([BATCH[0], "multipart/related", BATCH[2], BATCH[3]]),
            batch([BATCH[0], "multipart/mixed; x=1", BATCH[2], BATCH[3]]),
            batch([BATCH[0], BATCH[1], "X: 1\r\n", BATCH[3]]),
            batch([BATCH[0], BATCH[1], BATCH[2], "b"]),
            // The second one's parts are not found, so that its boundary counts.
            nested("i"),
            nested("j"),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(one.is_some(), "{i}");
            for (j, other) in all.iter().enumerate().skip(i + 1) {
                assert_ne!(one, other, "{i} {j}");
            }
        }
    }

    #[test]
    fn a_nested_body_that_is_not_plainly_written_counts_by_its_bytes() {
        let with = |fields: &str, outer: &str, inner: &str| {
            let nested = body(inner, &[A]);
            let part = format!("{fields}Content-Type: multipart/mixed; boundary={inner}\r\n\r\n{nested}");
            of(&format!("multipart/mixed; boundary={outer}"), &body(outer, &[&part]))
        };
        assert_eq!(with("X: 1\r\n", "o", "i"), with("X: 1\r\n", "p", "j"));
        for fields in [
            "Content-Transfer-Encoding: base64\r\n",
            "Content-Encoding: gzip\r\n",
            "Content-Type: text/plain\r\n",
            "X: 1\n\r\n",
            " folded\r\n",
            "no field\r\n",
        ] {
            assert_eq!(with(fields, "o", "i"), with(fields, "p", "i"), "{fields}");
            assert_ne!(with(fields, "o", "i"), with(fields, "o", "j"), "{fields}");
        }
    }

    #[test]
    fn boundaries_below_the_deepest_level_count() {
        let nest = |innermost: &str, levels: usize| {
            let (mut kind, mut whole) = (format!("multipart/mixed; boundary={innermost}"), body(innermost, &[A]));
            for level in 1..levels {
                whole = body(&format!("l{level}"), &[&format!("Content-Type: {kind}\r\n\r\n{whole}")]);
                kind = format!("multipart/mixed; boundary=l{level}");
            }
            of(&kind, &whole)
        };
        assert_eq!(nest("x", DEPTH_MAX), nest("y", DEPTH_MAX));
        assert_ne!(nest("x", DEPTH_MAX + 1), nest("y", DEPTH_MAX + 1));
        assert!(nest("x", 100).is_some());
    }

    #[test]
    fn a_body_that_is_not_plainly_written_has_no_canonical_form() {
        const TYPE: &str = "multipart/form-data; boundary=\"b\"";
        let whole = body("b", &[A]);
        assert!(of(TYPE, &whole).is_some());
        // The boundary, and so many others.
        let with_parameters = |others: usize| {
            let others: String = (0..others).map(|number| format!("; p{number}=x")).collect();
            format!("{TYPE}{others}")
        };
        for (content_type, body) in [
            ("multipart/form-data", &*whole),
            ("multipart/; boundary=b", &whole),
            ("multipart/form data; boundary=b", &whole),
            ("multipart/form-data; boundary=", &whole),
            ("multipart/form-data; boundary=c", &whole),
            ("multipart/form-data; boundary=b;", &whole),
            ("multipart/form-data; boundary=b x", &whole),
            ("multipart/form-data; boundary=b; boundary=b", &whole),
            ("multipart/form-data; boundary=b; Boundary=c", &whole),
            ("multipart/form-data; boundary*=b", &whole),
            ("multipart/form-data; boundary*0=b", &whole),
            ("multipart/form-data; boundary=b; boundary*=utf-8''c", &whole),
            ("multipart/form-data; boundary=\"b\\\"", &whole),
            ("multipart/form-data; boundary=\"\\b\"", &whole),
            ("multipart/form-data; x=a\"; boundary=b", &whole),
            ("multipart/form-data; x; boundary=b", &whole),
            ("multipart/form-data; charset=\"b\"", &whole),
            ("multipart/form-data; boundary=\"b b\"", &body("b b", &[A])),
            (TYPE, ""),
            (TYPE, "--b"),
            (TYPE, whole.strip_suffix("--\r\n").unwrap()),
            (TYPE, &format!("preamble\r\n{whole}")),
            (TYPE, &format!("{whole}epilogue")),
            (TYPE, &whole.replace("\r\n--b", "\r\n--b ")),
            (TYPE, &whole.replace("\r\n", "\n")),
            (TYPE, "--b\r\n--b--\r\n"),
            // Some services find a boundary there.
            (TYPE, &body("b", &["X: y\r\n\r\n1\n--b\n2"])),
            (TYPE, &body("b", &["X: --b\r\n\r\n1"])),
            (TYPE, &body("b", &["X: y\r\n\r\n--b"])),
            (TYPE, &body("b", &["X: y\r\n\r\n\r\n--bc"])),
            (TYPE, &body("b", &vec![A; PARTS_MAX])),
            (&with_parameters(PARAMETERS_MAX), &whole),
        ] {
            assert_eq!(of(content_type, body), None, "{content_type} {body}");
        }
        assert!(of(TYPE, &body("b", &vec![A; PARTS_MAX - 1])).is_some());
        assert!(of(&with_parameters(PARAMETERS_MAX - 1), &whole).is_some());
    }
}
