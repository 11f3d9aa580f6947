//! JSON strings: finding their end, resolving their escapes, and writing and ordering them as in RFC 8785.

use std::cmp::Ordering;

use super::CanonicalizeError;

/// Returns the number of bytes at the start of `text` before a quote, a backslash or a control character.
///
/// It reads eight bytes at a time: strings are most of a body's bytes, so most of the reader's time is spent here.
#[inline]
pub(super) fn literal_len(text: &[u8]) -> usize {
    let (chunks, rest) = text.as_chunks::<8>();
    for (index, chunk) in chunks.iter().enumerate() {
        let special = special_bytes(u64::from_le_bytes(*chunk));
        if special != 0 {
            return index * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let in_rest = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
    text.len() - rest.len() + in_rest.unwrap_or(rest.len())
}

/// Sets the top bit of the first byte that is a quote, a backslash or a control character. Bytes above it may be marked
/// wrongly, as the subtractions borrow.
fn special_bytes(chunk: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let below = |chunk: u64, limit: u64| chunk.wrapping_sub(EACH * limit) & !chunk;
    let quote = below(chunk ^ (EACH * u64::from(b'"')), 1);
    let backslash = below(chunk ^ (EACH * u64::from(b'\\')), 1);
    (quote | backslash | below(chunk, 0x20)) & (EACH << 7)
}

/// Reads the escape at the start of `text`, which begins with a backslash. Returns its character and its length; a
/// surrogate pair is one escape (RFC 8259 section 7).
pub(super) fn read_escape(text: &[u8]) -> Result<(char, usize), CanonicalizeError> {
    let character = match text.get(1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return read_unicode_escape(text),
        _ => return Err(CanonicalizeError::Syntax),
    };
    Ok((character, 2))
}

fn read_unicode_escape(text: &[u8]) -> Result<(char, usize), CanonicalizeError> {
    let unit = code_unit(text)?;
    if let Some(character) = char::from_u32(unit) {
        return Ok((character, 6));
    }
    let next = &text[6..];
    if unit >= 0xDC00 || !next.starts_with(b"\\u") {
        return Err(CanonicalizeError::LoneSurrogate);
    }
    match code_unit(next)? {
        low @ 0xDC00..=0xDFFF => {
            let code_point = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            char::from_u32(code_point).map(|character| (character, 12)).ok_or(CanonicalizeError::LoneSurrogate)
        }
        _ => Err(CanonicalizeError::LoneSurrogate),
    }
}

/// Returns the number in `\uXXXX`.
fn code_unit(escape: &[u8]) -> Result<u32, CanonicalizeError> {
    let digits = escape.get(2..6).ok_or(CanonicalizeError::Syntax)?;
    digits.iter().try_fold(0, |unit, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or(CanonicalizeError::Syntax)?;
        Ok(unit << 4 | digit)
    })
}

/// Returns a character as it is written in a canonical string (RFC 8785 section 3.2.2.2): as itself, except for the
/// quote, the backslash and the control characters below U+0020.
pub(super) fn canonical(character: char, buffer: &mut [u8; 6]) -> &[u8] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match character {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        '\0'..'\u{20}' => {
            let code = character as usize;
            *buffer = [b'\\', b'u', b'0', b'0', HEX[code >> 4], HEX[code & 15]];
            return buffer;
        }
        _ => return character.encode_utf8(buffer).as_bytes(),
    };
    buffer[..2].copy_from_slice(&[b'\\', short]);
    &buffer[..2]
}

/// Appends the content of a string, given without its quotes, with its escapes resolved.
pub(super) fn unescape(mut inner: &[u8], output: &mut Vec<u8>) -> Result<(), CanonicalizeError> {
    while let Some(plain) = inner.iter().position(|byte| *byte == b'\\') {
        output.extend_from_slice(&inner[..plain]);
        let (character, len) = read_escape(&inner[plain..])?;
        output.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        inner = &inner[plain + len..];
    }
    output.extend_from_slice(inner);
    Ok(())
}

/// Appends `text` as the content of a canonical string, without quotes.
pub(super) fn escape(text: &str, output: &mut Vec<u8>) {
    for character in text.chars() {
        output.extend_from_slice(canonical(character, &mut [0; 6]));
    }
}

/// Compares two texts in UTF-8 by their UTF-16 code units (RFC 8785 section 3.2.3).
///
/// The order of the bytes is the order of the code points. That is the order of the code units with one exception:
/// characters beyond U+FFFF are surrogates in UTF-16 (from 0xD800 on), so they sort before U+E000 to U+FFFF. In UTF-8
/// the latter begin with 0xEE or 0xEF and the former with 0xF0 or more. All these are lead bytes: if the first bytes
/// that differ are continuation bytes, the characters have the same lead byte.
pub(super) fn compare_as_utf16(a: &[u8], b: &[u8]) -> Ordering {
    match a.iter().zip(b).find(|(a, b)| a != b) {
        Some((a @ 0xEE.., b @ 0xEE..)) if (*a < 0xF0) != (*b < 0xF0) => b.cmp(a),
        Some((a, b)) => a.cmp(b),
        None => a.len().cmp(&b.len()),
    }
}
