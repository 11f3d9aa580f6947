//! The operations that an OpenAPI document (3.0 and 3.1) describes.
//!
//! Nothing is skipped in silence: a reference that cannot be followed, such as a path item in another file, is an
//! error. An operation that is skipped here could be unguarded without anybody's knowledge.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use oncegate_domain::normal_path::normal_form;
use oncegate_domain::path_template::PathTemplate;

mod yaml;

/// The fields of a path item with operations that change state, and their methods.
pub(super) const STATE_CHANGING: [(&str, Method); 4] =
    [("post", Method::POST), ("put", Method::PUT), ("patch", Method::PATCH), ("delete", Method::DELETE)];

/// The maximum length of a chain of references between path items.
const REFERENCES_MAX: usize = 16;

/// The maximum number of URLs that one server object stands for, with all values of its variables.
const SERVER_URLS_MAX: usize = 1000;

/// A state-changing operation. The path includes that of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenApiOperation {
    pub method: Method,
    pub template: PathTemplate,
    /// Whether the document says that no route needs to guard it: `x-oncegate: ignore`, at the operation or its path
    /// item.
    pub is_ignored: bool,
}

/// Reads a document, JSON or YAML, and lists its state-changing operations by path.
pub(super) fn read(file: &Path) -> Result<Vec<OpenApiOperation>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let document = parse(&text).map_err(|error| format!("{name} is neither JSON nor YAML: {error}"))?;
    find_operations(&document).map_err(|error| format!("{name}: {error}"))
}

fn parse(text: &str) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.trim_start().starts_with('{') {
        return yaml::parse(text);
    }
    // YAML may begin like that too, but hardly anybody writes it so: the error is the one about JSON.
    serde_json::from_str(text).or_else(|error| yaml::parse(text).map_err(|_| error.to_string()))
}

fn find_operations(document: &Value) -> Result<Vec<OpenApiOperation>, String> {
    match document["openapi"].as_str() {
        Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => {}
        Some(version) => return Err(format!("it is OpenAPI {version}; only 3.0 and 3.1 can be read")),
        None if document.get("swagger").is_some() => {
            return Err("it is Swagger 2; only OpenAPI 3.0 and 3.1 can be read: convert it first".into());
        }
        None => return Err("it has no `openapi`, so it is not an OpenAPI document".into()),
    }
    let paths = document["paths"].as_object().ok_or("it has no `paths`")?;
    let mut found = BTreeMap::new();
    for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
        let at = |error: String| format!("paths, `{path}`: {error}");
        let items = follow_references(document, item).map_err(at)?;
        let servers = find_servers(&items).or(find_servers(&[document]));
        for (field, method) in &STATE_CHANGING {
            let Some(operation) = items.iter().find_map(|item| item.get(field)) else { continue };
            let is_ignored = is_ignored(std::iter::once(&operation).chain(&items)).map_err(at)?;
            for base in base_paths(find_servers(&[operation]).or(servers)).map_err(at)? {
                let template =
                    PathTemplate::parse(&format!("{base}{path}")).map_err(|error| at(format!("the path {error}")))?;
                let operation = OpenApiOperation { method: method.clone(), template: template.clone(), is_ignored };
                found.insert((template, method.as_str()), operation);
            }
        }
    }
    Ok(found.into_values().collect())
}

fn is_ignored<'a>(mut places: impl Iterator<Item = &'a &'a Value>) -> Result<bool, String> {
    match places.find_map(|place| place.get("x-oncegate")) {
        None => Ok(false),
        Some(Value::String(word)) if word == "ignore" => Ok(true),
        Some(other) => Err(format!("`x-oncegate` is {other}; the only value is `ignore`")),
    }
}

/// Returns a path item and those that it refers to.
fn follow_references<'a>(document: &'a Value, item: &'a Value) -> Result<Vec<&'a Value>, String> {
    let mut items = vec![item];
    while let Some(reference) = items[items.len() - 1].get("$ref") {
        let reference = reference.as_str().unwrap_or_default();
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(format!("it refers to `{reference}`, which is another document: bundle them into one first"));
        };
        let referred = document.pointer(&percent_decode_str(pointer).decode_utf8_lossy());
        items.push(referred.ok_or_else(|| format!("it refers to `{reference}`, which does not exist"))?);
        if items.len() > REFERENCES_MAX {
            return Err("its references form a circle".into());
        }
    }
    Ok(items)
}

fn find_servers<'a>(items: &[&'a Value]) -> Option<&'a Vec<Value>> {
    let mut lists = items.iter().filter_map(|item| item.get("servers")?.as_array());
    lists.find(|list| !list.is_empty())
}

/// Returns the paths of servers, each without a slash at its end; without servers, the empty path.
fn base_paths(servers: Option<&Vec<Value>>) -> Result<BTreeSet<String>, String> {
    let Some(servers) = servers else { return Ok([String::new()].into()) };
    let mut paths = BTreeSet::new();
    for server in servers {
        let url = server["url"].as_str().ok_or("a server has no `url`")?;
        for url in fill_in_variables(url, &server["variables"])? {
            paths.insert(path_of(&url));
        }
    }
    Ok(paths)
}

/// Returns a server's URL with its variables filled in: with each value of their `enum`, else with their default. A
/// variable without either stays in the URL, and matches anything.
fn fill_in_variables(url: &str, variables: &Value) -> Result<Vec<String>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Vec<String> {
        let found = find_operations(&parse(text).expect(text)).unwrap_or_else(|error| panic!("{error}: {text}"));
        found.iter().map(|operation| format!("{} {}", operation.method, operation.template)).collect()
    }

    fn refused(text: &str) -> String {
        parse(text).and_then(|document| find_operations(&document)).expect_err(text)
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
            [("other.yaml#/A", "bundle"), ("#/components/B", "does not exist"), ("#/paths/~1a", "circle")]
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
