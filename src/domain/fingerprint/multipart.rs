//! `multipart/form-data` (RFC 7578): the parts, without their boundaries.

use memchr::memmem;

/// More parts than a form of this size has, and few enough to scan.
const PARTS_MAX: usize = 1024;

/// The canonical form: the parts, each as name, file name, type and bytes, length-prefixed. `None` for a form that is
/// not plainly written: it is then compared by its bytes, which at worst refuses a retry and never takes one form for
/// another.
pub(super) fn canonical(content_type: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let boundary = boundary(content_type)?;
    let delimiter = [b"\r\n--", boundary].concat();
    // The first delimiter has no line end before it.
    let mut rest = body.strip_prefix(&delimiter[2..])?;
    let finder = memmem::Finder::new(&delimiter);
    let mut canonical = Vec::with_capacity(body.len());
    for _ in 0..PARTS_MAX {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            return matches!(epilogue, b"" | b"\r\n").then_some(canonical);
        }
        let part = rest.strip_prefix(b"\r\n")?;
        let end = finder.find(part)?;
        write_part(&mut canonical, &part[..end])?;
        rest = &part[end + delimiter.len()..];
    }
    None
}

fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let at = content_type.iter().position(|byte| *byte == b';')?;
    let (name, value) = parameter(content_type[at + 1..].trim_ascii())?;
    // RFC 2046, section 5.1.1: 1 to 70 characters.
    (name.eq_ignore_ascii_case(b"boundary") && (1..=70).contains(&value.len())).then_some(value)
}

fn write_part(canonical: &mut Vec<u8>, part: &[u8]) -> Option<()> {
    // A part without fields would begin with the empty line; every part has a name, and so a field.
    let end = memmem::find(part, b"\r\n\r\n")?;
    let (mut disposition, mut kind) = (None, None);
    let mut lines = &part[..end];
    while !lines.is_empty() {
        let line_end = memmem::find(lines, b"\r\n").unwrap_or(lines.len());
        let (line, rest) = lines.split_at(line_end);
        lines = rest.get(2..).unwrap_or_default();
        // Services differ about control characters: a bare LF is a part of the line for one, and its end for another.
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return None;
        }
        let colon = memchr::memchr(b':', line)?;
        let slot = match line[..colon].to_ascii_lowercase().as_slice() {
            b"content-disposition" => &mut disposition,
            b"content-type" => &mut kind,
            // It may change the meaning of the bytes.
            _ => return None,
        };
        if slot.replace(line[colon + 1..].trim_ascii()).is_some() {
            return None;
        }
    }
    let (name, file) = names(disposition?)?;
    for field in [Some(name), file, kind, Some(&part[end + 4..])] {
        canonical.push(u8::from(field.is_some()));
        let field = field.unwrap_or_default();
        canonical.extend_from_slice(&(field.len() as u64).to_be_bytes());
        canonical.extend_from_slice(field);
    }
    Some(())
}

/// The name and the file's name of `form-data; name="a"; filename="b"`.
fn names(disposition: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut rest = disposition.strip_prefix(b"form-data")?;
    let (mut name, mut file) = (None, None);
    while !rest.is_empty() {
        rest = rest.trim_ascii().strip_prefix(b";")?.trim_ascii();
        let (key, value) = parameter_prefix(rest)?;
        let slot = match key {
            b"name" => &mut name,
            b"filename" => &mut file,
            _ => return None,
        };
        if slot.replace(value.0).is_some() {
            return None;
        }
        rest = value.1.trim_ascii();
    }
    Some((name?, file))
}

/// Parses `key=value` or `key="value"`, with nothing behind it.
fn parameter(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, (value, rest)) = parameter_prefix(text)?;
    rest.is_empty().then_some((key, value))
}

type ValueAndRest<'a> = (&'a [u8], &'a [u8]);

/// Parses a parameter at the beginning of a text. A quoted value with a backslash has more than one spelling, and is
/// not accepted. Neither is a bare value with a quote, a backslash or a tab, which services end at different places.
fn parameter_prefix(text: &[u8]) -> Option<(&[u8], ValueAndRest<'_>)> {
    let equals = memchr::memchr(b'=', text)?;
    let (key, value) = (&text[..equals], &text[equals + 1..]);
    if let Some(quoted) = value.strip_prefix(b"\"") {
        let end = memchr::memchr(b'"', quoted)?;
        let plain = !quoted[..end].contains(&b'\\');
        return plain.then_some((key, (&quoted[..end], &quoted[end + 1..])));
    }
    let (bare, rest) = value.split_at(memchr::memchr2(b';', b' ', value).unwrap_or(value.len()));
    memchr::memchr3(b'"', b'\\', b'\t', bare).is_none().then_some((key, (bare, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &[u8] = b"multipart/form-data; boundary=\"b\"";

    fn body(parts: &[&str]) -> String {
        let parts: String = parts.iter().map(|part| format!("--b\r\n{part}\r\n")).collect();
        parts + "--b--\r\n"
    }

    fn of(parts: &[&str]) -> Option<Vec<u8>> {
        canonical(TYPE, body(parts).as_bytes())
    }

    const A: &str = "Content-Disposition: form-data; name=\"a\"\r\n\r\n1";

    #[test]
    fn parts_that_differ_in_name_file_type_bytes_or_order_differ() {
        let forms = [
            vec![A],
            vec!["Content-Disposition: form-data; name=\"a\"\r\n\r\n2"],
            vec!["Content-Disposition: form-data; name=\"b\"\r\n\r\n1"],
            vec!["Content-Disposition: form-data; name=\"a\"; filename=\"f\"\r\n\r\n1"],
            vec!["Content-Disposition: form-data; name=\"a\"\r\nContent-Type: text/plain\r\n\r\n1"],
            vec!["Content-Disposition: form-data; name=\"a\"\r\n\r\n"],
            vec!["Content-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n\r\n"],
            vec![A, A],
            vec![A, "Content-Disposition: form-data; name=\"b\"\r\n\r\n1"],
            vec!["Content-Disposition: form-data; name=\"b\"\r\n\r\n1", A],
            vec![],
        ];
        let made: Vec<_> = forms.iter().map(|form| of(form).unwrap_or_default()).collect();
        for (i, one) in made.iter().enumerate() {
            for (j, other) in made.iter().enumerate().skip(i + 1) {
                assert_ne!(one, other, "{:?} {:?}", forms[i], forms[j]);
            }
        }
    }

    #[test]
    fn a_form_that_is_not_plainly_written_has_no_canonical_form() {
        for part in [
            "Content-Disposition: form-data\r\n\r\n1",
            "Content-Disposition: attachment; name=\"a\"\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\\\"b\"\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\"; filename*=UTF-8''x\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\"; name=\"b\"\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\"\r\n1",
            "no field\r\n\r\n1",
            "Content-Disposition: form-data; filename=x\"; name=\"a\"\r\n\r\n1",
            "Content-Disposition: form-data; name=a\\b\r\n\r\n1",
            "Content-Disposition: form-data; name=a\tb\r\n\r\n1",
            // Services differ about where such a line ends, and about what stands in it.
            "Content-Disposition: form-data; name=a\nContent-Type: text/plain\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\"\r; filename=\"f\"\r\n\r\n1",
            "Content-Disposition: form-data; name=\"a\0\"\r\n\r\n1",
            "\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1",
        ] {
            assert_eq!(of(&[part]), None, "{part}");
        }
        let whole = body(&[A]);
        for (content_type, body) in [
            (&b"multipart/form-data"[..], &*whole),
            (b"multipart/form-data; boundary=", &whole),
            (b"multipart/form-data; boundary=c", &whole),
            (b"multipart/form-data; charset=x; boundary=b", &whole),
            (b"multipart/form-data; charset=\"b\"", &whole),
            (TYPE, whole.strip_suffix("--\r\n").unwrap()),
            (TYPE, &format!("preamble\r\n{whole}")),
            (TYPE, &format!("{whole}epilogue")),
        ] {
            assert_eq!(canonical(content_type, body.as_bytes()), None, "{body}");
        }
    }
}
