//! Keys of the published test vectors: valid ones with their value, and invalid ones.

use std::path::Path;

use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use serde_json::Value;

use harness::{Store, World};

/// A file of vectors; `None` if the project's checkout does not have it.
fn vectors(name: &str) -> Option<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors").join(name);
    match std::fs::read(&file) {
        Ok(text) => Some(serde_json::from_slice(&text).unwrap()),
        Err(_) => {
            eprintln!("skipped: {} is not there", file.display());
            None
        }
    }
}

fn lines(case: &Value) -> Vec<&str> {
    case["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
}

/// A field's bytes: each character is the byte with its number, and characters beyond 0xFF are UTF-8.
fn bytes(line: &str) -> Vec<u8> {
    let single = line.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect::<Option<_>>();
    single.unwrap_or_else(|| line.as_bytes().to_vec())
}

fn parse(line: &str, syntax: KeySyntax, length_max: usize) -> Option<String> {
    let key = Key::parse(&bytes(line), syntax, KeyLimits { length_min: 1, length_max }).ok()?;
    Some(String::from_utf8(key.as_bytes().to_vec()).unwrap())
}

/// The names of the syntaxes in the vectors, and in a configuration.
const SYNTAXES: [(&str, &str, KeySyntax); 3] = [
    ("ietf_strict", "sf-string", KeySyntax::SfString),
    ("ietf", "ietf", KeySyntax::Ietf),
    ("opaque", "opaque", KeySyntax::Opaque),
];

#[test]
fn each_vector_parses_to_its_expected_key() {
    let Some(vectors) = vectors("oncegate/idempotency-key-parse.json") else { return };
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        // No line or several lines are the gate's case; see below.
        let [line] = lines(case)[..] else { continue };
        for (name, _, syntax) in SYNTAXES {
            assert_eq!(parse(line, syntax, 255).as_deref(), case[name]["key"].as_str(), "{name}: {}", case["name"]);
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
}

#[tokio::test]
async fn each_vector_gets_its_expected_answer() {
    let Some(vectors) = vectors("oncegate/idempotency-key-parse.json") else { return };
    let world = World::with(Store::sqlite(), |setup| {
        SYNTAXES.iter().fold(setup.defaults("scope = [\"none\"]"), |setup, (_, syntax, _)| {
            setup.route(&format!(
                "name = \"{syntax}\"\npath = \"/{syntax}/{{n}}\"\nkey = {{ required = true, syntax = \"{syntax}\" }}"
            ))
        })
    })
    .await;
    for (number, case) in vectors["cases"].as_array().unwrap().iter().enumerate() {
        for (name, syntax, _) in SYNTAXES {
            let request = world.post(&format!("/{syntax}/{number}")).body("x");
            let request = lines(case).into_iter().fold(request, |request, line| request.key(line));
            let expected = match case[name]["error"].as_str() {
                None => (201, ""),
                Some("missing") => (400, "key-missing"),
                Some(_) => (400, "key-invalid"),
            };
            let response = request.send().await;
            assert_eq!(response.outcome(), (expected.0, expected.1.to_owned()), "{name}: {}", case["name"]);
        }
    }
}

#[test]
fn only_structured_field_strings_are_keys() {
    let mut compared = 0;
    for file in ["string.json", "token.json", "item.json"] {
        let Some(vectors) = vectors(&format!("structured-fields/{file}")) else { return };
        for case in vectors.as_array().unwrap() {
            let ([line], false) = (&lines(case)[..], case["can_fail"] == true) else { continue };
            // HTTP removes tabs around a value before it is parsed.
            if case["header_type"] != "item" || line.trim_matches('\t') != *line {
                continue;
            }
            // In the vectors too a string is a JSON string; a token and every other type is marked there.
            let text = case["expected"][0].as_str().filter(|text| !text.is_empty() && case["must_fail"] != true);
            assert_eq!(parse(line, KeySyntax::SfString, 2048).as_deref(), text, "{file}: {}", case["name"]);
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared}");
}
