//! `application/x-www-form-urlencoded` (WHATWG URL, section 5): pairs of bytes.

/// The pairs of a form or of a query, decoded, in order. Every input has a reading; empty pieces between `&` are none.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    text.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty()).map(|piece| {
        let at = memchr::memchr(b'=', piece).unwrap_or(piece.len());
        (unescape(&piece[..at]), unescape(piece.get(at + 1..).unwrap_or_default()))
    })
}

/// The one spelling of a form's pairs.
pub(super) fn canonical(text: &[u8]) -> Vec<u8> {
    let mut spelt = String::with_capacity(text.len());
    for (name, value) in pairs(text) {
        if !spelt.is_empty() {
            spelt.push('&');
        }
        spelt.push_str(&escape(&name));
        spelt.push('=');
        spelt.push_str(&escape(&value));
    }
    spelt.into_bytes()
}

/// Letters, digits, `-`, `.`, `_`, `~` and `/` stand for themselves, every other byte is `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(*byte))
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// `+` is a space, `%XX` a byte, and a `%` without two hex digits is itself.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let byte = match (first, behind) {
            (b'%', [high, low, ..]) if let (Some(high), Some(low)) = (hex(*high), hex(*low)) => {
                rest = &behind[2..];
                bytes.push(high << 4 | low);
                continue;
            }
            (b'+', _) => b' ',
            _ => *first,
        };
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_one_spelling() {
        for (text, spelt) in [
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
            assert_eq!(String::from_utf8(canonical(text.as_bytes())).unwrap(), spelt, "{text}");
            assert_eq!(String::from_utf8(canonical(spelt.as_bytes())).unwrap(), spelt, "{text}");
        }
    }
}
