//! Percent-encoding (RFC 3986, section 2.1) of values, paths and queries.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, PercentEncode, percent_encode, utf8_percent_encode};

/// Every character but letters, digits, `-`, `.`, `_` and `~`, which are never encoded (RFC 3986, section 2.3).
const NOT_UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The characters that no path of a request has. Braces are left out: they are placeholders.
const NOT_IN_PATHS: &AsciiSet =
    &CONTROLS.add(b' ').add(b'?').add(b'#').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'|');

/// Encodes a value so that it stays within one segment of a path, or one value of a query.
pub fn encode_value(value: &[u8]) -> PercentEncode<'_> {
    percent_encode(value, NOT_UNRESERVED)
}

/// Encodes the characters that no path has, as a client does. Braces and escapes stay as they are.
pub fn encode_path(path: &str) -> Cow<'_, str> {
    utf8_percent_encode(path, NOT_IN_PATHS).into()
}

pub fn is_path(text: &str) -> bool {
    encode_path(text) == text
}

/// Whether a character means the same encoded or not (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Decodes the `%XX` of unreserved characters, which mean the same either way, and writes the hexadecimal digits of all
/// others in upper case (RFC 3986, section 6.2.2). Those stay encoded: `%2F` is no `/`.
pub fn normalize_escapes(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let escaped = escaped_byte(&rest[at..]);
        match escaped {
            Some(byte) if is_unreserved(byte) => decoded.push(char::from(byte)),
            Some(_) => decoded.push_str(&rest[at..at + 3].to_ascii_uppercase()),
            None => decoded.push('%'),
        }
        rest = &rest[at + if escaped.is_some() { 3 } else { 1 }..];
    }
    decoded + rest
}

/// The byte of the escape at the beginning of a text: a `%` and two hexadecimal digits.
pub fn escaped_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix('%')?.get(..2)?;
    // `from_str_radix` takes a sign too.
    hex.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u8::from_str_radix(hex, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_characters_of_a_value_stay() {
        assert_eq!(encode_value(b"aZ09-._~ /?%\xff").to_string(), "aZ09-._~%20%2F%3F%25%FF");
    }

    #[test]
    fn a_path_has_no_space_control_or_delimiter_and_is_ascii() {
        for path in ["/", "", "/v1/{id}/a%20b;c=d:e@f,g!$&'()*+~"] {
            assert!(is_path(path), "{path}");
        }
        for other in [" ", "\t", "\u{7f}", "?", "#", "\"", "<", ">", "\\", "^", "`", "|", "\u{e9}"] {
            assert!(!is_path(other), "{other:?}");
        }
        assert_eq!(encode_path("/a b/{id}/caf\u{e9}"), "/a%20b/{id}/caf%C3%A9");
    }
}
