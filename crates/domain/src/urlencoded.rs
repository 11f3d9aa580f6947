//! `application/x-www-form-urlencoded` (WHATWG URL, section 5): pairs of bytes.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// The characters that are escaped. Recipes and fingerprints depend on it: it does not change.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The pairs of a form or of a query, decoded, in order. Every input can be read; empty pieces between `&` are skipped.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    decoded_pairs(text).map(|(name, value)| (name.into_owned(), value.into_owned()))
}

/// The same, borrowed where nothing is escaped.
pub(crate) fn decoded_pairs(text: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    text.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty()).map(|piece| {
        let at = memchr::memchr(b'=', piece).unwrap_or(piece.len());
        (unescape(&piece[..at]), unescape(piece.get(at + 1..).unwrap_or_default()))
    })
}

/// A query without the parameters of this name, all else as it was sent.
pub fn without(query: &str, name: &str) -> String {
    select(query, |other| other != name.as_bytes())
}

/// The pieces of a query whose names are selected, as they were sent.
pub(crate) fn select(query: &str, is_selected: impl Fn(&[u8]) -> bool) -> String {
    let counts = |piece: &&str| decoded_pairs(piece.as_bytes()).next().is_some_and(|(name, _)| is_selected(&name));
    query.split('&').filter(counts).collect::<Vec<_>>().join("&")
}

/// Letters, digits, `-`, `.`, `_`, `~` and `/` stand for themselves; every other byte is `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    percent_encode(bytes, ESCAPED).to_string()
}

/// `+` is a space, `%XX` a byte, and a `%` without two hexadecimal digits is itself.
pub(crate) fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'+', text).is_none() {
        return percent_decode(text).into();
    }
    let with_spaces: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&with_spaces).collect()
}
