//! Idempotency keys in their four syntaxes.

use oncegate_domain::key::{Key, KeyError, KeyLimits, KeySyntax};

const LIMITS: KeyLimits = KeyLimits { length_min: 1, length_max: 255 };

/// Checks an input as the value of a key's field:
///
/// - in each syntax, the key is the one that a model reads from the value, or there is none in both;
/// - a key is 1 to 255 characters from 0x20 to 0x7E, and its stored bytes are the same key;
/// - the bare and the quoted spelling of a key are one key.
pub fn check(input: &[u8]) {
    for (syntax, expected) in [
        (KeySyntax::Ietf, if is_quoted(input) { sf_string(input) } else { bare(input, 0x21) }),
        (KeySyntax::Opaque, bare(input, 0x20)),
        (KeySyntax::SfString, sf_string(input)),
        (KeySyntax::Uuid, if is_quoted(input) { uuid(sf_string(input)) } else { uuid(bare(input, 0x21)) }),
    ] {
        let expected = expected.filter(|key| (1..=255).contains(&key.len()));
        let parsed = Key::parse(input, syntax, LIMITS);
        assert_eq!(parsed.as_ref().ok().map(|key| key.as_bytes().to_vec()), expected, "{syntax:?}");
        let Ok(key) = parsed else { continue };
        assert!(key.as_bytes().iter().all(|byte| (0x20..=0x7e).contains(byte)));
        assert_eq!(Key::from_stored(key.as_bytes()).as_ref(), Some(&key));
        let prefix = key.prefix();
        let prefix = prefix.as_str();
        assert!(key.as_bytes().starts_with(prefix.trim_end_matches('…').as_bytes()) && prefix.chars().count() <= 9);
        if syntax != KeySyntax::Opaque {
            assert_eq!(Key::parse(&quote(key.as_bytes()), syntax, LIMITS), Ok(key));
        } else {
            assert_eq!(Key::parse(key.as_bytes(), syntax, LIMITS), Ok(key));
        }
        let short = KeyLimits { length_min: 300, length_max: 400 };
        assert_eq!(Key::parse(input, syntax, short), Err(KeyError::TooShort));
    }
}

/// Spaces and tabs around a value are not part of it (RFC 9110, section 5.5); nothing else is.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_quoted(value: &[u8]) -> bool {
    trim(value).starts_with(b"\"")
}

fn bare(value: &[u8], lowest: u8) -> Option<Vec<u8>> {
    let value = trim(value);
    let is_plain = !value.iter().any(|byte| *byte < lowest || *byte > b'~' || *byte == b',');
    is_plain.then(|| value.to_vec())
}

fn uuid(key: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let key = String::from_utf8(key?).ok()?.to_lowercase();
    let groups: Vec<_> = key.split('-').collect();
    let lengths: Vec<_> = groups.iter().map(|group| group.len()).collect();
    let is_hexadecimal = groups.concat().chars().all(|digit| digit.is_ascii_digit() || ('a'..='f').contains(&digit));
    (lengths == [8, 4, 4, 4, 12] && is_hexadecimal).then(|| key.into_bytes())
}

fn quote(key: &[u8]) -> Vec<u8> {
    let escaped = key.iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        byte => vec![*byte],
    });
    [b'"'].into_iter().chain(escaped).chain([b'"']).collect()
}

/// Reads a String with its parameters (RFC 9651, sections 4.2.3 and 4.2.5).
fn sf_string(value: &[u8]) -> Option<Vec<u8>> {
    let mut rest = trim(value).strip_prefix(b"\"")?;
    let mut string = Vec::new();
    loop {
        match rest {
            [b'"', after @ ..] => break rest = after,
            [b'\\', byte @ (b'"' | b'\\'), after @ ..] => {
                string.push(*byte);
                rest = after;
            }
            [byte @ (0x20..=0x21 | 0x23..=0x5b | 0x5d..=0x7e), after @ ..] => {
                string.push(*byte);
                rest = after;
            }
            _ => return None,
        }
    }
    super::structured_field::are_parameters(rest).then_some(string)
}
