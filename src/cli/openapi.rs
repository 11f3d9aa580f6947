//! The operations that an OpenAPI document (3.0 and 3.1) describes.
//!
//! Nothing is passed over in silence: what cannot be followed, say a path item in another file, is an error. An operation
//! that is not seen here would be one that nobody knows to be unguarded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use http::Method;
use serde_json::Value;

use crate::domain::path::normal_form;
use crate::domain::template::Template;

mod yaml;

/// The fields of a path item whose operations change something.
const STATE_CHANGING: [(&str, Method); 4] =
    [("post", Method::POST), ("put", Method::PUT), ("patch", Method::PATCH), ("delete", Method::DELETE)];

/// Path items may refer to each other; nobody does so more often than this.
const REFERENCES_MAX: usize = 16;

/// The URLs that one server object may stand for, with all values of its variables.
const SERVER_URLS_MAX: usize = 1000;

/// A state-changing operation: its whole path, that of its server included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub method: Method,
    pub template: Template,
}

/// Reads a document, JSON or YAML, and lists its state-changing operations by path.
pub(super) fn read(file: &Path) -> Result<Vec<Operation>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let document = parse(&text).map_err(|error| format!("{name} is neither JSON nor YAML: {error}"))?;
    operations(&document).map_err(|error| format!("{name}: {error}"))
}

fn parse(text: &str) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.trim_start().starts_with('{') {
        return yaml::parse(text);
    }
    // YAML may begin like that too, though nobody writes it so: what is then said to be wrong is the JSON.
    serde_json::from_str(text).or_else(|error| yaml::parse(text).map_err(|_| error.to_string()))
}

fn operations(document: &Value) -> Result<Vec<Operation>, String> {
    match document["openapi"].as_str() {
        Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => {}
        Some(version) => return Err(format!("it is OpenAPI {version}; 3.0 and 3.1 can be read")),
        None if document.get("swagger").is_some() => {
            return Err("it is Swagger 2; OpenAPI 3.0 and 3.1 can be read, and converters are at hand".into());
        }
        None => return Err("it has no `openapi`, and is no OpenAPI document".into()),
    }
    let paths = document["paths"].as_object().ok_or("it has no `paths`")?;
    let mut found = BTreeMap::new();
    for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
        let at = |error: String| format!("paths, `{path}`: {error}");
        let items = with_referred(document, item).map_err(at)?;
        let servers = servers_of(&items).or(servers_of(&[document]));
        for (field, method) in &STATE_CHANGING {
            let Some(operation) = items.iter().find_map(|item| item.get(field)) else { continue };
            for base in base_paths(servers_of(&[operation]).or(servers)).map_err(at)? {
                let template =
                    Template::parse(&format!("{base}{path}")).map_err(|error| at(format!("the path {error}")))?;
                found.insert((template.clone(), method.as_str()), Operation { method: method.clone(), template });
            }
        }
    }
    Ok(found.into_values().collect())
}

/// A path item and those that it refers to.
fn with_referred<'a>(document: &'a Value, item: &'a Value) -> Result<Vec<&'a Value>, String> {
    let mut items = vec![item];
    while let Some(reference) = items[items.len() - 1].get("$ref") {
        let reference = reference.as_str().unwrap_or_default();
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(format!("it refers to `{reference}`, which is another document: bundle them into one first"));
        };
        let referred = document.pointer(&percent_decode(pointer));
        items.push(referred.ok_or_else(|| format!("it refers to `{reference}`, which is not there"))?);
        if items.len() > REFERENCES_MAX {
            return Err("it refers to others in circles".into());
        }
    }
    Ok(items)
}

fn servers_of<'a>(items: &[&'a Value]) -> Option<&'a Vec<Value>> {
    let mut lists = items.iter().filter_map(|item| item.get("servers")?.as_array());
    lists.find(|list| !list.is_empty())
}

/// The paths before those of a document, each without a slash at its end.
fn base_paths(servers: Option<&Vec<Value>>) -> Result<BTreeSet<String>, String> {
    let Some(servers) = servers else { return Ok([String::new()].into()) };
    let mut paths = BTreeSet::new();
    for server in servers {
        let url = server["url"].as_str().ok_or("a server has no `url`")?;
        for url in filled_in(url, &server["variables"])? {
            paths.insert(path_of(&url));
        }
    }
    Ok(paths)
}

/// A server's URL with its variables filled in: with all the values that they may have, else with the one that they
/// have by default. One that is not described stays, and stands for anything.
fn filled_in(url: &str, variables: &Value) -> Result<Vec<String>, String> {
    let mut urls = vec![url.to_owned()];
    for (name, variable) in variables.as_object().into_iter().flatten() {
        let listed = variable["enum"].as_array().filter(|values| !values.is_empty());
        let values: Vec<_> = match listed {
            Some(values) => values.iter().filter_map(Value::as_str).collect(),
            None => variable["default"].as_str().into_iter().collect(),
        };
        let placeholder = format!("{{{name}}}");
        if values.is_empty() || !url.contains(&placeholder) {
            continue;
        }
        if urls.len() * values.len() > SERVER_URLS_MAX {
            return Err(format!("the server `{url}` stands for more than {SERVER_URLS_MAX} URLs"));
        }
        urls = urls.iter().flat_map(|url| values.iter().map(|value| url.replace(&placeholder, value))).collect();
    }
    Ok(urls)
}

fn path_of(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let after_scheme = url.split_once("//").filter(|(before, _)| before.is_empty() || before.ends_with(':'));
    let path = match after_scheme {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => url.strip_prefix('/').unwrap_or(url),
    };
    normal_form(&format!("/{path}")).trim_end_matches('/').to_owned()
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Vec<String> {
        let found = operations(&parse(text).expect(text)).unwrap_or_else(|error| panic!("{error}: {text}"));
        found.iter().map(|operation| format!("{} {}", operation.method, operation.template)).collect()
    }

    fn refused(text: &str) -> String {
        parse(text).and_then(|document| operations(&document)).expect_err(text)
    }

    #[test]
    fn state_changing_operations_are_listed_from_yaml_and_json() {
        let yaml = "openapi: 3.1.0\ninfo: {title: T, version: 1}\npaths:\n  /v1/payments:\n    get: {}\n    \
                    post:\n      summary: pay\n    parameters: []\n  /v1/payments/{id}:\n    delete: {}\n    \
                    patch:\n    put: {}\n    head: {}\n  x-not-a-path: {post: {}}\n";
        let json = r#"{"openapi": "3.0.3", "paths": {
            "/v1/payments": {"get": {}, "post": {"summary": "pay"}, "parameters": []},
            "/v1/payments/{id}": {"delete": {}, "patch": {}, "put": {}, "head": {}}}}"#;
        let expected =
            ["POST /v1/payments", "DELETE /v1/payments/{id}", "PATCH /v1/payments/{id}", "PUT /v1/payments/{id}"];
        assert_eq!(listed(yaml), expected);
        assert_eq!(listed(json), expected);
        assert_eq!(listed(&format!("\u{feff}{json}")), expected);
        assert_eq!(listed("{openapi: 3.0.0, paths: {/a: {post: {}}}}"), ["POST /a"]);
    }

    #[test]
    fn the_path_of_the_nearest_servers_comes_first() {
        for (servers, of_item, of_operation, expected) in [
            ("", "", "", &["POST /pay"][..]),
            ("servers: []", "", "", &["POST /pay"]),
            ("servers: [{url: 'https://api.example.com/v1/'}]", "", "", &["POST /v1/pay"]),
            ("servers: [{url: 'https://api.example.com'}]", "", "", &["POST /pay"]),
            ("servers: [{url: //api.example.com/v1}]", "", "", &["POST /v1/pay"]),
            ("servers: [{url: /v1}, {url: v2}, {url: ./v1?x=1}]", "", "", &["POST /v1/pay", "POST /v2/pay"]),
            ("servers: [{url: /v1}]", "servers: [{url: /v2}]", "", &["POST /v2/pay"]),
            ("servers: [{url: /v1}]", "servers: [{url: /v2}]", "servers: [{url: /v3}]", &["POST /v3/pay"]),
        ] {
            let text = format!(
                "openapi: 3.0.0\n{servers}\npaths:\n  /pay:\n    {of_item}\n    post:\n      description: x\n      \
                 {of_operation}\n"
            );
            assert_eq!(listed(&text), expected, "{text}");
        }
    }

    #[test]
    fn a_servers_variables_are_filled_in() {
        for (url, variables, expected) in [
            ("https://{region}.example.com/{base}", "base: {default: v1}", &["POST /v1/pay"][..]),
            ("/{base}", "base: {default: v1, enum: [v1, v2]}", &["POST /v1/pay", "POST /v2/pay"]),
            ("{server}/v1", "server: {default: 'https://api.example.com/x'}", &["POST /x/v1/pay"]),
            ("/{tenant}", "", &["POST /{tenant}/pay"]),
        ] {
            let text = format!(
                "openapi: 3.0.0\nservers: [{{url: '{url}', variables: {{{variables}}}}}]\npaths: {{/pay: {{post: {{}}}}}}"
            );
            assert_eq!(listed(&text), expected, "{text}");
        }
        let values: Vec<_> = (0..40).map(|number| number.to_string()).collect();
        let many = format!("{{enum: [{}]}}", values.join(", "));
        let text = format!(
            "openapi: 3.0.0\nservers: [{{url: '/{{a}}/{{b}}', variables: {{a: {many}, b: {many}}}}}]\n\
             paths: {{/pay: {{post: {{}}}}}}"
        );
        assert!(refused(&text).contains("more than"), "{}", refused(&text));
    }

    #[test]
    fn path_items_are_followed_within_the_document() {
        let text = r##"{"openapi": "3.1.0",
            "paths": {"/a": {"$ref": "#/components/pathItems/A"}, "/b/{id}": {"$ref": "#/paths/~1c~1%7Bid%7D"},
                      "/c/{id}": {"put": {}}},
            "components": {"pathItems": {"A": {"post": {}, "servers": [{"url": "/v1"}]}}}}"##;
        assert_eq!(listed(text), ["PUT /b/{id}", "PUT /c/{id}", "POST /v1/a"]);
        for (reference, why) in
            [("other.yaml#/A", "bundle"), ("#/components/B", "not there"), ("#/paths/~1a", "circles")]
        {
            let text = format!(r#"{{"openapi": "3.1.0", "paths": {{"/a": {{"$ref": "{reference}"}}}}}}"#);
            assert!(refused(&text).contains(why), "{}", refused(&text));
        }
    }

    #[test]
    fn what_is_no_openapi_document_is_refused_with_the_reason() {
        for (text, why) in [
            ("swagger: '2.0'\npaths: {}", "Swagger 2"),
            ("openapi: 3.2.0\npaths: {}", "OpenAPI 3.2.0"),
            ("openapi: 3.1.0", "`paths`"),
            ("openapi: 3.1.0\npaths:", "`paths`"),
            ("upstream = 'http://a'", "`openapi`"),
            ("", "`openapi`"),
            ("[]", "`openapi`"),
            ("openapi: 3.1.0\npaths: {pay: {post: {}}}", "must begin with `/`"),
            ("openapi: 3.1.0\npaths: {'/{a': {post: {}}}", "without a `}`"),
            ("openapi: 3.1.0\nservers: [{description: x}]\npaths: {/a: {post: {}}}", "no `url`"),
            (r#"{"openapi": "#, "line 1"),
        ] {
            assert!(refused(text).contains(why), "{text}: {}", refused(text));
        }
    }
}
