//! Forms (`application/x-www-form-urlencoded`): the same parts for each spelling and each order of names.

use http::HeaderMap;
use oncegate_domain::fingerprint::{BodyRule, FingerprintInput, FingerprintRules, IncludedContent, Recipe};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::BodyPart;
use oncegate_domain::urlencoded;

type FormPairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Checks the parts by which a form is compared:
///
/// - its pairs are those that a reader of its own finds;
/// - a form with the same pairs, all their bytes escaped, has the same parts;
/// - so has one with the names in another order, and none with another pair.
pub fn check(input: &[u8]) {
    let (parts, mut pairs) = (parts(input), pairs(input));
    assert_eq!(urlencoded::pairs(input).collect::<FormPairs>(), pairs);
    assert_eq!(self::parts(&escape_all(&pairs)), parts);
    let mut longer = pairs.clone();
    longer.push((b"a".to_vec(), b"b".to_vec()));
    assert_ne!(self::parts(&escape_all(&longer)), parts);
    // Stable: the values of one name keep their order.
    pairs.sort_by(|(one, _), (other, _)| other.cmp(one));
    assert_eq!(self::parts(&escape_all(&pairs)), parts);
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
