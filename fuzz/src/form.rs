//! Forms (`application/x-www-form-urlencoded`): one spelling for each list of pairs.

use http::HeaderMap;
use oncegate_domain::fingerprint::{BodyRule, FingerprintInput, FingerprintRules, Recipe, form};
use oncegate_domain::normal_path::RequestPath;

type FormPairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Checks the form's canonical spelling:
///
/// - it has the pairs of the form, as a reader of its own finds them in both;
/// - its own canonical spelling is itself;
/// - a form with the same pairs, all their bytes escaped, has it too.
pub fn check(input: &[u8]) {
    let spelled = canonical(input);
    let pairs = pairs(input);
    assert_eq!(form::pairs(input).collect::<FormPairs>(), pairs);
    assert_eq!(self::pairs(&spelled), pairs, "{}", spelled.escape_ascii());
    assert_eq!(canonical(&spelled), spelled);
    assert_eq!(canonical(&escape_all(&pairs)), spelled);
}

fn canonical(body: &[u8]) -> Vec<u8> {
    let recipe = Recipe::new(FingerprintRules { body: BodyRule::Form, ..FingerprintRules::default() }, None);
    let headers = HeaderMap::new();
    let input = FingerprintInput {
        method: "POST",
        path: &RequestPath::new("/"),
        host: None,
        query: None,
        headers: &headers,
        body,
    };
    let included = recipe.body(&input);
    assert_eq!(included.form, "form");
    included.bytes.into_owned()
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
