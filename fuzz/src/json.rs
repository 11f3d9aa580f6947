//! Canonical JSON.

use canonical_json::{
    CanonicalizeError, Pointer, ReferencedValue, Selection, canonicalize, canonicalize_selected, value_at,
};

use super::bytes_reader::BytesReader;
use super::json_model::{JsonValue, read, spell};

/// Checks one text, or two with a byte 0xFF between them:
///
/// - a text has a canonical form exactly if a model reads a value from it, whose exponents are not too large;
/// - the form has that value, and its own form is itself;
/// - another spelling of the value has the same form, and two texts have one form exactly if they have one value;
/// - `serde_json` accepts a text that has a form, reads the same from both, and refuses what is not JSON;
/// - a selected part is canonical, and the value at a pointer is that of the model.
pub fn check(input: &[u8]) {
    let mut texts = input.splitn(2, |byte| *byte == 0xff);
    let (first, second) = (texts.next().unwrap_or_default(), texts.next());
    let first = check_text(first);
    if let (Some((form, value)), Some((other_form, other_value))) = (first, second.and_then(check_text)) {
        assert_eq!(form == other_form, value == other_value);
    }
}

fn check_text(text: &[u8]) -> Option<(Vec<u8>, JsonValue)> {
    let (form, value) = match (canonicalize(text), read(text)) {
        (Ok(form), value) => (form.into_owned(), value.expect("the model reads what has a form")),
        (Err(CanonicalizeError::ExponentTooLarge), _) => return None,
        (Err(error), value) => {
            assert_eq!(value, None, "{error}");
            let is_json = serde_json::from_slice::<serde_json::Value>(text).is_ok();
            assert!(
                !is_json || matches!(error, CanonicalizeError::DuplicateName | CanonicalizeError::TooDeep),
                "{error}"
            );
            return None;
        }
    };
    let shown = String::from_utf8_lossy(&form);
    assert_eq!(canonicalize(&form).as_deref(), Ok(&form[..]));
    assert_eq!(read(&form).as_ref(), Some(&value), "{shown}");
    let mut spelling = String::new();
    spell(&value, &mut BytesReader::new(text), &mut spelling);
    assert_eq!(canonicalize(spelling.as_bytes()).as_deref(), Ok(&form[..]), "{spelling}");
    compare_with_serde(text, &form);
    check_parts(text, &value);
    Some((form, value))
}

fn compare_with_serde(text: &[u8], form: &[u8]) {
    let read = |text| serde_json::from_slice::<serde_json::Value>(text);
    match (read(text), read(form)) {
        (Ok(one), Ok(other)) => assert!(is_near(&one, &other), "{one} is not {other}"),
        // Its numbers are doubles.
        (Err(error), _) | (_, Err(error)) => assert!(error.to_string().starts_with("number out of range"), "{error}"),
    }
}

/// Whether two values are the same, but for the last digits of doubles: `serde_json` rounds two spellings of a number
/// in two ways.
fn is_near(one: &serde_json::Value, other: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (one, other) {
        (Number(one), Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().expect("every number is a double"));
            (one - other).abs() <= one.abs() * 1e-12 + 1e-300
        }
        (Array(one), Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_near(one, other))
        }
        (Object(one), Object(other)) => {
            let is_same = |(name, one)| other.get(name).is_some_and(|other| is_near(one, other));
            one.len() == other.len() && one.iter().all(is_same)
        }
        (one, other) => one == other,
    }
}

fn check_parts(text: &[u8], value: &JsonValue) {
    let pointers =
        |texts: &[&str]| texts.iter().map(|text| Pointer::parse(text).expect("it is one")).collect::<Vec<_>>();
    for selection in [
        Selection { include: pointers(&["/a", "/1"]), exclude: Vec::new() },
        Selection { include: Vec::new(), exclude: pointers(&["/a", "/0", "/*/b"]) },
        Selection { include: pointers(&["/*/a"]), exclude: pointers(&["/b"]) },
    ] {
        let selected = canonicalize_selected(text, &selection).expect("the whole has a form");
        assert!(selected.is_empty() || canonicalize(&selected).as_deref() == Ok(&selected[..]));
    }
    let member = match value {
        JsonValue::Object(members) => members.iter().find(|(name, _)| name == "a").map(|(_, value)| value),
        _ => None,
    };
    let found = value_at(text, &pointers(&["/a"])[0]).expect("the whole has a form");
    match (found, member) {
        (Some(ReferencedValue::String(found)), Some(JsonValue::String(member))) => assert_eq!(found, *member),
        (Some(ReferencedValue::Number(found)), Some(number @ JsonValue::Number(_))) => {
            assert_eq!(read(found.as_bytes()).as_ref(), Some(number));
        }
        (Some(ReferencedValue::Array(found) | ReferencedValue::Object(found)), Some(member)) => {
            assert_eq!(read(found.as_bytes()).as_ref(), Some(member));
            assert_eq!(canonicalize(found.as_bytes()).as_deref(), Ok(found.as_bytes()));
        }
        (Some(ReferencedValue::Boolean(found)), Some(JsonValue::Word(word))) => assert_eq!(found.to_string(), *word),
        (Some(ReferencedValue::Null), Some(JsonValue::Word(word))) => assert_eq!(*word, "null"),
        (found, member) => assert!(matches!((&found, member), (None, None)), "{found:?} is not {member:?}"),
    }
}
