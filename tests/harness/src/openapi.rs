//! Holds what the admin listener answers to its OpenAPI document.

use std::fs;
use std::sync::LazyLock;

use serde_json::Value;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = fs::read_to_string(super::root().join("docs/openapi.json")).unwrap();
    serde_json::from_str(&text).unwrap()
});

fn is_path_of(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<_>, Vec<_>) = (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len() && path.iter().zip(pattern).all(|(part, of)| *part == of || of.starts_with('{'))
}

/// Panics if the document does not have the answer's status for this request, or not the code of its problem.
pub fn check_answer(method: &str, target: &str, status: u16, body: &Value) {
    let path = target.split('?').next().unwrap();
    let here = DOCUMENT["paths"].as_object().unwrap().iter().filter(|(pattern, _)| is_path_of(path, pattern));
    let with_method = here.filter_map(|(pattern, methods)| Some((pattern, methods.get(method.to_lowercase())?)));
    // A path without parameters comes before one with them.
    let operation = with_method.min_by_key(|(pattern, _)| pattern.contains('{')).map(|(_, operation)| operation);
    let Some(operation) = operation else {
        assert!([401, 404, 405].contains(&status), "docs/openapi.json has no {method} {path}, which answers {status}");
        return;
    };
    let about = operation["responses"][status.to_string()]["description"].as_str();
    let has_code =
        |about: &str| status < 400 || body["code"].as_str().is_some_and(|code| about.contains(&format!("`{code}`")));
    assert!(about.is_some_and(has_code), "docs/openapi.json lacks this answer to {method} {path}: {status} {body}");
}
