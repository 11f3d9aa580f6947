//! Forms (`application/x-www-form-urlencoded`): the same parts for each spelling and each order of names.

use http::HeaderMap;
use oncegate_domain::fingerprint::{BodyRule, FingerprintInput, FingerprintRules, IncludedContent, Recipe};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::{BodyPart, PlaceError, form};
use oncegate_domain::urlencoded;

type FormPairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A form of more fields has no parts.
const PARTS_MAX: usize = 4096;

/// Checks the parts by which a form is compared:
///
/// - its pairs are those that a reader of its own finds;
/// - a form with the same pairs, all their bytes escaped, has the same parts;
/// - so has one with two neighbours exchanged, exactly if they are the same or their names are not related;
/// - none with another pair has;
/// - the value that is read is the only one of its name.
pub fn check(input: &[u8]) {
    let mut pairs = pairs(input);
    assert_eq!(urlencoded::pairs(input).collect::<FormPairs>(), pairs);
    if pairs.len() >= PARTS_MAX {
        return;
    }
    let parts = parts(input);
    assert_eq!(self::parts(&escape_all(&pairs)), parts);
    let names: Vec<_> = pairs.iter().map(|(name, _)| name.clone()).collect();
    let groups = groups(&names);
    for at in (1..pairs.len()).take(20) {
        let is_same = pairs[at - 1] == pairs[at] || groups[at - 1] != groups[at];
        pairs.swap(at - 1, at);
        assert_eq!(self::parts(&escape_all(&pairs)) == parts, is_same, "{}", input.escape_ascii());
        pairs.swap(at - 1, at);
    }
    for (name, value) in pairs.iter().take(20) {
        let Ok(place) = String::from_utf8(name.clone()) else { continue };
        let found = form::value_at(b"", &escape_all(&pairs), &(place.into(), None));
        let is_only = names.iter().filter(|other| *other == name).count() == 1;
        assert_eq!(found, if is_only { Ok(Some(value.clone())) } else { Err(PlaceError::Several) });
    }
    pairs.push((b"a".to_vec(), b"b".to_vec()));
    assert_ne!(self::parts(&escape_all(&pairs)), parts);
}

/// The group of each name: the index of the first name that it is related with, over however many others.
pub(crate) fn groups(names: &[Vec<u8>]) -> Vec<usize> {
    let segments: Vec<Vec<Vec<u8>>> = names.iter().map(|name| segments(name)).collect();
    let mut groups: Vec<usize> = (0..names.len()).collect();
    for (one, own) in segments.iter().enumerate() {
        for other in 0..one {
            if own.starts_with(&segments[other]) || segments[other].starts_with(own) {
                let (kept, joined) = (groups[other].min(groups[one]), groups[other].max(groups[one]));
                groups.iter_mut().filter(|group| **group == joined).for_each(|group| *group = kept);
            }
        }
    }
    groups
}

/// The way to the value that a service makes of a name: `a`, then `b`, for `A[b][][c]`. A name that services read in
/// more ways has none: it is related with all.
fn segments(name: &[u8]) -> Vec<Vec<u8>> {
    if !is_plain(name.trim_ascii_start()) {
        return Vec::new();
    }
    let blanks = name.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c')).count();
    let name: Vec<u8> =
        name[blanks..].iter().map(|byte| if b". ".contains(byte) { b'_' } else { byte.to_ascii_lowercase() }).collect();
    let end = name.windows(2).position(|pair| pair == b"[]").unwrap_or(name.len());
    name[..end].split(|byte| *byte == b'[').map(<[u8]>::to_vec).collect()
}

fn is_plain(name: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(name) else { return false };
    let mut pieces = text.split('[');
    let base = pieces.next().unwrap_or_default();
    let is_index = |piece: &str| match piece.strip_suffix(']') {
        Some(index) => !index.contains(']') && (index.is_empty() || !index.as_bytes().trim_ascii().is_empty()),
        None => false,
    };
    text.is_ascii() && !text.contains('\0') && !base.is_empty() && !base.contains(']') && pieces.all(is_index)
}

fn parts(body: &[u8]) -> Vec<BodyPart> {
    let recipe = Recipe::new(FingerprintRules { body: BodyRule::Form, ..FingerprintRules::default() }, None);
    let headers = HeaderMap::new();
    let input = FingerprintInput {
        method: "POST",
        path: &RequestPath::new("/"),
        pattern: None,
        host: None,
        query: None,
        headers: &headers,
        body,
    };
    let included = recipe.body(&input);
    assert_eq!(included.form, "form");
    match included.content {
        IncludedContent::Parts(parts) => parts,
        IncludedContent::Bytes(_) => panic!("a form has parts"),
    }
}

/// The pairs, byte by byte (WHATWG URL, section 5.1).
fn pairs(text: &[u8]) -> FormPairs {
    let (mut pairs, mut current, mut in_value, mut is_empty) = (Vec::new(), (Vec::new(), Vec::new()), false, true);
    let mut at = 0;
    while at <= text.len() {
        let Some(byte) = text.get(at).filter(|byte| **byte != b'&') else {
            let pair = std::mem::take(&mut current);
            if !is_empty {
                pairs.push(pair);
            }
            (in_value, is_empty) = (false, true);
            at += 1;
            continue;
        };
        is_empty = false;
        let digits = text.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let (read, length) = match (byte, escaped) {
            (b'=', _) if !in_value => {
                in_value = true;
                at += 1;
                continue;
            }
            (b'+', _) => (b' ', 1),
            (b'%', Some(digits)) => (u8::from_str_radix(digits, 16).expect("two hexadecimal digits"), 3),
            (byte, _) => (*byte, 1),
        };
        if in_value {
            current.1.push(read)
        } else {
            current.0.push(read)
        }
        at += length;
    }
    pairs
}

fn escape_all(pairs: &FormPairs) -> Vec<u8> {
    let escape = |bytes: &[u8]| bytes.iter().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.join("&").into_bytes()
}
