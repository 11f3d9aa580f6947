//! The file's JSON Schema (2020-12), made from the declarations of the options.
//!
//! It describes each key by itself, for editors and validators. `oncegate check` checks the rest (bounds, keys that
//! contradict each other, whether a `${NAME}` is set) and is authoritative: every file that it accepts is valid by the
//! schema.

use serde_json::{Map, Value, json};

use super::file_options::TOP;
use super::key_doc::{KeyDoc, ValueKind};
use oncegate_domain::place::Place;
use oncegate_settings::{DURATION_UNITS, SIZE_UNITS};

/// The name of the schema, without its version: a URN, because it has no address.
pub const SCHEMA_ID: &str = "urn:oncegate:schema:configuration";

/// A text with a `${…}`, whatever its value will be.
const INTERPOLATED: &str = r"\$\{";

/// The schema of a whole file.
pub fn schema() -> Value {
    // At the top nothing is required: flags and variables may give the keys that have no default.
    let mut schema = table(TOP, false);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["$id"] = json!(format!("{SCHEMA_ID}:{}", env!("CARGO_PKG_VERSION")));
    schema["title"] = json!("oncegate.toml");
    schema["description"] = json!("The configuration of Oncegate, a proxy that makes requests safe to retry.");
    let defaults = schema["properties"]["defaults"].clone();
    for table in ["/properties", "/properties/routes/items/properties", "/properties/services/items/properties"] {
        let properties = schema.pointer_mut(table).and_then(Value::as_object_mut).expect("the tables are declared");
        properties.iter_mut().for_each(|(name, property)| share(name, property, &defaults));
    }
    schema["$defs"] = json!({ "defaults": defaults });
    schema
}

/// Refers to `[defaults]` where a key is the same there, so that each of their long descriptions exists once.
fn share(name: &str, property: &mut Value, defaults: &Value) {
    let keys = &defaults["properties"];
    if keys.get(name) == Some(property) {
        *property = json!({ "$ref": format!("#/$defs/defaults/properties/{name}") });
    } else if property.get("properties") == Some(keys) {
        *property = json!({ "$ref": "#/$defs/defaults", "description": property["description"].take() });
    }
}

fn table(keys: &[KeyDoc], is_whole: bool) -> Value {
    let properties: Map<_, _> = keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let mut table = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let required: Vec<_> = keys.iter().filter(|key| is_whole && key.default.is_none()).map(|key| key.name).collect();
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

fn property(key: &KeyDoc) -> Value {
    let mut property = match key.kind {
        ValueKind::Boolean => json!({ "type": "boolean" }),
        // A list of words that editors complete, or a text that is interpolated to one of them.
        ValueKind::Choice(words) => {
            json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": INTERPOLATED }] })
        }
        ValueKind::Duration => quantity(DURATION_UNITS.map(|(unit, _)| unit)),
        ValueKind::Fields => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ValueKind::Integer => json!({ "type": "integer" }),
        ValueKind::Path => json!({ "type": "string", "pattern": pattern(key, "/") }),
        ValueKind::Place(words) => json!({ "type": "string", "pattern": pattern(key, &places(words)) }),
        ValueKind::Places(words) => {
            json!({ "type": "array", "items": { "type": "string", "pattern": pattern(key, &places(words)) } })
        }
        ValueKind::PlaceOrPlaces => {
            let place = json!({ "type": "string", "pattern": pattern(key, &places(&[])) });
            json!({ "anyOf": [place.clone(), { "type": "array", "items": place }] })
        }
        ValueKind::Named(keys) => json!({ "type": "object", "additionalProperties": table(keys, false) }),
        ValueKind::Scalar => json!({ "anyOf": [{ "type": "string" }, { "type": "number" }, { "type": "boolean" }] }),
        ValueKind::Size => quantity(SIZE_UNITS.map(|(unit, _)| unit)),
        ValueKind::Table(keys) => table(keys, false),
        ValueKind::Tables(keys) => json!({ "type": "array", "items": table(keys, true) }),
        ValueKind::Concealed | ValueKind::Text => json!({ "type": "string" }),
        ValueKind::TextOrTexts => {
            json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
        }
        ValueKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
    };
    property["description"] = json!(key.about);
    // A table's own default repeats those of its keys.
    if let (Some(default), false) = (
        key.default,
        matches!(key.kind, ValueKind::Fields | ValueKind::Named(_) | ValueKind::Table(_) | ValueKind::Tables(_)),
    ) {
        property["default"] = toml(default);
    }
    property
}

/// The pattern of a text that begins so; it may be empty where that is the default.
fn pattern(key: &KeyDoc, begin: &str) -> String {
    let empty = if key.default == Some("\"\"") { "$|" } else { "" };
    format!("^({empty}{begin})|{INTERPOLATED}")
}

/// The pattern of a place, or of one of the words, which may be optional (`?`).
fn places(words: &[&str]) -> String {
    let kinds = Place::WORDS.iter().map(|kind| format!("{kind}:."));
    let words = words.iter().map(|word| if word.ends_with(':') { format!("{word}.") } else { format!(r"{word}\??$") });
    kinds.chain(words).collect::<Vec<_>>().join("|")
}

/// A whole number and its unit.
fn quantity<const COUNT: usize>(units: [&str; COUNT]) -> Value {
    json!({ "type": "string", "pattern": format!("^[0-9]+({})$|{INTERPOLATED}", units.join("|")) })
}

fn toml(default: &str) -> Value {
    let table: Map<String, Value> =
        toml::from_str(&format!("default = {default}")).expect("defaults are TOML: a test parses each");
    table.into_values().next().expect("it has this one key")
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use regex::Regex;

    use super::*;

    static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

    /// The problems of a value, by the keywords that are used here; any other is a bug of this test.
    fn violations(at: &str, schema: &Value, value: &Value) -> Vec<String> {
        let mut found = Vec::new();
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            let holds = match keyword.as_str() {
                "$defs" | "$id" | "$schema" | "default" | "description" | "title" => true,
                // Of tables with a name.
                "additionalProperties" if rule.is_object() => {
                    for (name, item) in value.as_object().into_iter().flatten() {
                        found.extend(violations(&format!("{at}.{name}"), rule, item));
                    }
                    true
                }
                "additionalProperties" => {
                    let names = value.as_object().into_iter().flat_map(Map::keys);
                    names.into_iter().all(|name| schema["properties"].get(name).is_some())
                }
                "$ref" => {
                    let pointer = rule.as_str().and_then(|text| text.strip_prefix('#')).unwrap();
                    found.extend(violations(at, SCHEMA.pointer(pointer).unwrap(), value));
                    true
                }
                "anyOf" => rule.as_array().unwrap().iter().any(|schema| violations(at, schema, value).is_empty()),
                "enum" => rule.as_array().unwrap().contains(value),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        found.extend(violations(&format!("{at}[{index}]"), rule, item));
                    }
                    true
                }
                "pattern" => {
                    let pattern = Regex::new(rule.as_str().unwrap()).unwrap();
                    value.as_str().is_none_or(|text| pattern.is_match(text))
                }
                "properties" => {
                    for (name, rule) in rule.as_object().unwrap() {
                        let value = value.get(name).into_iter();
                        found.extend(value.flat_map(|value| violations(&format!("{at}.{name}"), rule, value)));
                    }
                    true
                }
                "required" => rule.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
                "type" => match rule.as_str().unwrap() {
                    "array" => value.is_array(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64(),
                    "number" => value.is_number(),
                    "object" => value.is_object(),
                    "string" => value.is_string(),
                    other => panic!("{at}: an unexpected type {other}"),
                },
                other => panic!("{at}: an unexpected keyword {other}"),
            };
            if !holds {
                found.push(format!("{at} {keyword}"));
            }
        }
        found
    }

    fn violations_of_file(text: &str) -> Vec<String> {
        violations("", &SCHEMA, &toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    #[test]
    fn every_file_in_config_is_valid() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("config");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                assert_eq!(violations_of_file(&std::fs::read_to_string(&path).unwrap()), [""; 0], "{}", path.display());
            }
        }
    }

    #[test]
    fn every_default_is_valid_and_every_key_is_described() {
        fn walk(schema: &Value) -> usize {
            let tables = schema["properties"].as_object().into_iter().flat_map(Map::values);
            tables.fold(0, |count, property| {
                let is_described = property["description"].as_str().is_some_and(|about| !about.is_empty());
                assert!(is_described || property.get("$ref").is_some(), "{property}");
                if let Some(default) = property.get("default") {
                    assert_eq!(violations("", property, default), [""; 0], "{property}");
                }
                count + 1 + walk(property) + walk(&property["items"])
            })
        }
        assert!(walk(&SCHEMA) + walk(&SCHEMA["$defs"]["defaults"]) > 60);
    }

    #[test]
    fn an_interpolated_text_is_valid_where_a_text_is() {
        let route = "[[routes]]\nname = '${N}'\npath = '${P:-/x}'";
        for file in [
            "upstream = '${U}'",
            "drain_delay = '${DELAY:-5s}'",
            "drain_delay = '${SECONDS}s'",
            "trusted_proxies = ['${NET}']",
            "store = { url = 'postgres://a:${file:/run/p}@b/c', timeout = '${T}' }",
            "telemetry.format = '${FORMAT:-json}'",
            route,
            &format!("{route}\nmax_request_body = '${{SIZE}}'\nkey.syntax = '${{SYNTAX}}'"),
            "",
        ] {
            assert_eq!(violations_of_file(file), [""; 0], "{file}");
        }
    }

    #[test]
    fn a_file_that_no_value_could_make_right_is_invalid() {
        let route = "[[routes]]\nname = 'a'\npath = '/a'";
        for (file, place) in [
            ("upstreem = 'http://a'", " additionalProperties"),
            ("listen = 8080", ".listen type"),
            ("drain_delay = '5'", ".drain_delay pattern"),
            ("drain_delay = '5 s'", ".drain_delay pattern"),
            ("drain_delay = '5sec'", ".drain_delay pattern"),
            ("drain_delay = 5", ".drain_delay type"),
            ("telemetry.format = 'xml'", ".telemetry.format anyOf"),
            ("store.migrate = 'yes'", ".store.migrate type"),
            ("store.max_connections = '8'", ".store.max_connections type"),
            ("defaults.name = 'a'", ".defaults additionalProperties"),
            ("[[routes]]\nname = 'a'", ".routes[0] required"),
            (&format!("{route}\nmax_request_body = '1MB'"), ".routes[0].max_request_body pattern"),
            ("[[routes]]\nname = 'a'\npath = 'a'", ".routes[0].path pattern"),
            (&format!("{route}\nkey.from = 'x-key'"), ".routes[0].key.from anyOf"),
            (&format!("{route}\nkey.from = ['header:']"), ".routes[0].key.from anyOf"),
            (&format!("{route}\nscope = ['jwt']"), ".routes[0].scope[0] pattern"),
            (&format!("{route}\nindex = ['jwt:sub']"), ".routes[0].index[0] pattern"),
            (&format!("{route}\nsplit = '/*'"), ".routes[0].split pattern"),
            (&format!("{route}\nmethods = 'POST'"), ".routes[0].methods type"),
            (&format!("{route}\nkey.requird = true"), ".routes[0].key additionalProperties"),
        ] {
            assert!(violations_of_file(file).contains(&place.to_owned()), "{file}: {:?}", violations_of_file(file));
        }
    }
}
