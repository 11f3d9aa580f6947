//! The grammar rules that heads and trailers share: tokens, field lines, whitespace, numbers.

/// Splits a field line into name and value (RFC 9112 section 5): a token, a colon at once after it, and a value without
/// control characters other than HTAB.
pub(super) fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| !is_tchar(byte))?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    (colon > 0 && line[colon] == b':' && is_field_value(value)).then_some((name, value))
}

/// Whether a field value has no control characters but HTAB (RFC 9110 section 5.5). Bytes of obs-text (0x80 and above)
/// are allowed and pass unchanged. Without an early exit, so that the compiler vectorizes it.
fn is_field_value(value: &[u8]) -> bool {
    !value.iter().fold(false, |bad, &byte| bad | ((byte < b' ') & (byte != b'\t')) | (byte == 0x7F))
}

/// Removes optional whitespace around a value (RFC 9110 section 5.6.3): SP and HTAB, nothing more.
pub(super) fn trim(value: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    match (value.iter().position(is_text), value.iter().rposition(is_text)) {
        (Some(start), Some(end)) => &value[start..=end],
        _ => &[],
    }
}

/// Parses `1*DIGIT` up to 2^63 - 1, the largest length that a service with signed 64-bit lengths can read.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let number = text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    (number <= i64::MAX as u64).then_some(number)
}

/// Whether a text is a token (RFC 9110 section 5.6.2).
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_tchar(byte))
}

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
pub(super) fn is_tchar(byte: u8) -> bool {
    TCHARS[usize::from(byte)]
}

const TCHARS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let marks = b"!#$%&'*+-.^_`|~";
    let mut index = 0;
    while index < marks.len() {
        table[marks[index] as usize] = true;
        index += 1;
    }
    table
};
