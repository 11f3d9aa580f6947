//! `application/x-www-form-urlencoded` (WHATWG URL, section 5): pairs of bytes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// The characters that are escaped. Recipes and fingerprints depend on it: it does not change.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The pairs of a form or of a query, decoded, in order. Every input can be read; empty pieces between `&` are skipped.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    text.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty()).map(|piece| {
        let at = memchr::memchr(b'=', piece).unwrap_or(piece.len());
        (unescape(&piece[..at]), unescape(piece.get(at + 1..).unwrap_or_default()))
    })
}

/// The canonical spelling of a form's pairs.
pub(super) fn canonical(text: &[u8]) -> Vec<u8> {
    let mut spelled = String::with_capacity(text.len());
    for (name, value) in pairs(text) {
        if !spelled.is_empty() {
            spelled.push('&');
        }
        spelled.push_str(&escape(&name));
        spelled.push('=');
        spelled.push_str(&escape(&value));
    }
    spelled.into_bytes()
}

/// Letters, digits, `-`, `.`, `_`, `~` and `/` stand for themselves; every other byte is `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    percent_encode(bytes, ESCAPED).to_string()
}

/// `+` is a space, `%XX` a byte, and a `%` without two hexadecimal digits is itself.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let with_spaces: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&with_spaces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_one_canonical_spelling() {
        for (text, spelled) in [
            ("a=1&b=2", "a=1&b=2"),
            ("&&a=1&", "a=1"),
            ("a", "a="),
            ("=1", "=1"),
            ("a=b=c", "a=b%3Dc"),
            ("a=x+y&b=%7e", "a=x%20y&b=~"),
            ("a=%&b=%4&c=%zz", "a=%25&b=%254&c=%25zz"),
            ("a=%ff%00", "a=%FF%00"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(canonical(text.as_bytes())).unwrap(), spelled, "{text}");
            assert_eq!(String::from_utf8(canonical(spelled.as_bytes())).unwrap(), spelled, "{text}");
        }
    }
}
