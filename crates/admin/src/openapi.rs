//! The OpenAPI document of the listener: the table of its endpoints, the types of their answers, and the inputs that
//! their requests are read by.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use http::{Method, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Endpoint::{Events, Keys, Service};
use super::auth::{Access, Role};
use super::events::{DiscardedEvents, EventMethod, EventSinkList, RequeuedEvents};
use super::key_admin::AdminMethod;
use super::key_admin::dto::{AuditLog, BulkChange, KeyChange, KeyDetails, KeyList, KeyStats, Saved};
use super::key_admin::inputs::{Input, Inputs, closed, object_schema};
use super::key_admin::problem::{ApiProblem, ProblemCode as Code};
use super::readiness::Readiness;
use super::services::{ReportedPoint, ReportedState, ServiceMethod};
use super::{ACTOR, DrainState, Endpoint, Health, SERVICE, TABLE};

const ABOUT: &str = "The admin listener of Oncegate. `GET` answers `HEAD` too. Requests name the listener in `Host` by its address, by \
    `localhost`, or by the host of `admin.oidc.url`. The session of the page opens no endpoint. Clients ignore members that they do not \
    know, and take any text where a member has `examples`.";
const TOKEN: &str =
    "The token of the listener, of its readers (role `read`), or of one service. With `admin.open`, none.";

/// The name, the summary, the type of the answer, and the problems that no other endpoint of its kind has.
type Description = (&'static str, &'static str, fn(&mut SchemaGenerator) -> Schema, &'static [Code]);

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn describe(endpoint: Endpoint) -> Description {
    match endpoint {
        Endpoint::Document => ("getDocument", "Returns this document", of::<Map<String, Value>>, &[]),
        Endpoint::Drain => ("startDrain", "Ends the instance after its last attempt", of::<DrainState>, &[]),
        Endpoint::DrainState => ("getDrain", "Says whether the instance drains", of::<DrainState>, &[]),
        Endpoint::Health => ("getHealth", "Says that the process is alive", of::<Health>, &[]),
        Endpoint::Metrics => ("getMetrics", "Returns the metrics", of::<String>, &[]),
        Endpoint::Readiness => ("getReadiness", "Says whether the instance accepts traffic", of::<Readiness>, &[]),
        Events(EventMethod::Discard) => {
            ("discardEvents", "Deletes dead events", of::<DiscardedEvents>, &[Code::NoSuchEvents])
        }
        Events(EventMethod::List) => ("listEvents", "Lists the sinks of events", of::<EventSinkList>, &[]),
        Events(EventMethod::Requeue) => {
            ("requeueEvents", "Publishes dead events again", of::<RequeuedEvents>, &[Code::NoSuchEvents])
        }
        Keys(AdminMethod::Audit) => {
            ("listAudit", "Lists the audit log, the latest first", of::<AuditLog>, &[Code::NoSuchKey])
        }
        Keys(AdminMethod::BulkChange) => (
            "changeKeys",
            "Counts keys, or changes them if they are no more than expected",
            of::<BulkChange>,
            &[Code::DoubtfulResponse, Code::EmptyBody, Code::FourEyes, Code::MoreThanExpected, Code::SharedResponse],
        ),
        Keys(AdminMethod::Compare) => {
            ("compareRequest", "Compares a request with that of the key", of::<Map<String, Value>>, &[])
        }
        Keys(AdminMethod::Explain) => ("explainRequest", "Explains a request", of::<Map<String, Value>>, &[]),
        Keys(AdminMethod::List) => ("listKeys", "Lists keys", of::<KeyList>, &[]),
        Keys(AdminMethod::Purge) => ("purgeKey", "Forgets the key", of::<KeyChange>, &[Code::FourEyes]),
        Keys(AdminMethod::Redact) => ("redactKey", "Erases what the record has of its caller", of::<KeyChange>, &[]),
        Keys(AdminMethod::Release) => {
            ("releaseKey", "Has the next request executed", of::<KeyChange>, &[Code::FourEyes])
        }
        Keys(AdminMethod::Requeue) => {
            ("requeueKey", "Has the service asked, or the request delivered, again", of::<KeyChange>, &[])
        }
        Keys(AdminMethod::Resolve) => (
            "resolveKey",
            "Says how an unknown outcome ended",
            of::<KeyChange>,
            &[Code::DoubtfulResponse, Code::EmptyBody],
        ),
        Keys(AdminMethod::Saved) => ("getSaved", "Counts what was answered without an execution", of::<Saved>, &[]),
        Keys(AdminMethod::Show) => ("getKey", "Shows a key", of::<KeyDetails>, &[]),
        Keys(AdminMethod::Stats) => ("getStats", "Counts keys by route and state", of::<KeyStats>, &[]),
        Service(ServiceMethod::Complete) => {
            ("reportCompleted", "The attempt has ended with this response", of::<ReportedState>, &[])
        }
        Service(ServiceMethod::NotExecuted) => {
            ("reportNotExecuted", "The attempt was not executed", of::<ReportedState>, &[Code::StillRunning])
        }
        Service(ServiceMethod::RecoveryPoint) => {
            ("reportRecoveryPoint", "The attempt has durably reached this point", of::<ReportedPoint>, &[])
        }
    }
}

/// The parameters of the query, and the members of the body.
fn inputs_of(endpoint: Endpoint) -> [Inputs; 2] {
    match endpoint {
        Keys(method) => [method.query(), method.body()],
        Service(method) => [&[], method.body()],
        _ => [&[], &[]],
    }
}

fn example_of(endpoint: Endpoint) -> Value {
    match endpoint {
        Keys(AdminMethod::BulkChange) => json!({ "action": "purge", "filter": { "state": "unknown" }, "expect": 3 }),
        Keys(AdminMethod::Compare | AdminMethod::Explain) => {
            json!({ "method": "POST", "target": "/v1/payments", "headers": { "Idempotency-Key": "order-1001" }, "body": "{}" })
        }
        Keys(AdminMethod::Resolve) => json!({ "outcome": "completed", "status": 201, "body": "{\"id\": 7}" }),
        Service(ServiceMethod::Complete) => json!({ "status": 201, "body": "{\"id\": 7}" }),
        Service(ServiceMethod::RecoveryPoint) => json!({ "name": "charged" }),
        _ => json!({}),
    }
}

/// The problems of an endpoint, by status: those of its access, of its kind, and its own.
fn problems_of(path: &str, access: Access, endpoint: Endpoint) -> BTreeMap<StatusCode, Vec<String>> {
    let of_access: &[Code] = match access {
        Access::Anybody => &[],
        Access::Operators | Access::Readers => {
            &[Code::Unauthorized, Code::Forbidden, Code::TooManyWrongTokens, Code::OtherService]
        }
        Access::Services => &[Code::Forbidden],
    };
    let of_kind: &[Code] = match endpoint {
        Events(_) => &[Code::RowCorrupt, Code::StoreUnavailable],
        Keys(_) | Service(_) => {
            &[Code::RowCorrupt, Code::StoreUnavailable, Code::BadRequest, Code::RequestTimeout, Code::RequestTooLarge]
        }
        _ => &[],
    };
    let of_path: &[Code] = match endpoint {
        Keys(_) if path.contains("{id}") => &[Code::NoSuchKey],
        Service(_) => &[Code::AlreadyCompleted, Code::KeyHeld, Code::NoSuchReservation, Code::ReservationOver],
        _ => &[],
    };
    let of_change: &[Code] = match endpoint {
        Keys(method) if method.is_change_of_key() => {
            &[Code::KeyChanged, Code::KeyHeld, Code::NotQuiet, Code::RouteUnknown, Code::WrongState]
        }
        _ => &[],
    };
    let (_, _, _, own) = describe(endpoint);
    let mut codes_of_status = BTreeMap::<_, Vec<_>>::new();
    for code in [of_access, of_kind, of_path, of_change, own].into_iter().flatten() {
        codes_of_status.entry(code.status()).or_default().push(format!("`{}`", code.name()));
    }
    codes_of_status
}

fn render(path: &str, method: &Method, access: Access, endpoint: Endpoint, generator: &mut SchemaGenerator) -> Value {
    let (name, summary, schema_of, _) = describe(endpoint);
    let [query, body] = inputs_of(endpoint);
    let mut parameters = Vec::new();
    if path.contains("{id}") {
        let about = match endpoint {
            Events(_) => "The name of the sink.",
            Service(_) => "The value of the request's `Oncegate-Reservation`. It is the authorization.",
            _ => "The id of the key, or its first 8 digits or more.",
        };
        let schema = json!({ "type": "string" });
        parameters
            .push(json!({ "name": "id", "in": "path", "required": true, "description": about, "schema": schema }));
    }
    parameters.extend(query.iter().copied().flatten().map(Input::parameter));
    let is_question = access == Access::Readers || *method == Method::GET;
    let is_granted = matches!(access, Access::Operators | Access::Readers);
    if is_granted {
        parameters.push(json!({ "$ref": "#/components/parameters/Service" }));
    }
    if is_granted && !is_question {
        parameters.push(json!({ "$ref": "#/components/parameters/Actor" }));
    }
    let mut responses = Map::new();
    let (statuses, media_types): (&[u16], &[&str]) = match endpoint {
        Endpoint::Drain => (&[202], &["application/json"]),
        Endpoint::Metrics => (&[200], &["text/plain", "application/openmetrics-text"]),
        Endpoint::Readiness => (&[200, 503], &["application/json"]),
        Service(ServiceMethod::NotExecuted) => (&[200, 202], &["application/json"]),
        _ => (&[200], &["application/json"]),
    };
    let content: Map<_, _> =
        media_types.iter().map(|kind| ((*kind).to_owned(), json!({ "schema": schema_of(generator) }))).collect();
    for status in statuses {
        let about = StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        responses.insert(status.to_string(), json!({ "description": about, "content": content }));
    }
    for (status, codes) in problems_of(path, access, endpoint) {
        let content = json!({ "application/problem+json": { "schema": generator.subschema_for::<ApiProblem>() } });
        responses.insert(status.as_str().to_owned(), json!({ "description": codes.join(", "), "content": content }));
    }
    let role = if is_question { Role::Reader } else { Role::Operator };
    let mut operation = json!({
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": responses,
        "security": if is_granted { json!([{ "token": [role.name()] }]) } else { json!([]) },
    });
    if !body.is_empty() {
        let schema = closed(object_schema(body));
        let is_required = schema.get("required").is_some();
        let content = json!({ "application/json": { "schema": schema, "example": example_of(endpoint) } });
        operation["requestBody"] = json!({ "required": is_required, "content": content });
    }
    operation
}

/// Returns the document (OpenAPI 3.1). It is made once: whoever asks needs no token.
pub fn document() -> Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(make_document);
    DOCUMENT.clone()
}

fn make_document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let mut paths = json!({});
    for (path, method, access, endpoint) in &TABLE {
        let name = method.as_str().to_ascii_lowercase();
        paths[*path][name] = render(path, method, *access, *endpoint, &mut generator);
    }
    let header = |name: &str, about: &str| json!({ "name": name, "in": "header", "description": about, "schema": { "type": "string" } });
    let license = json!({ "name": "Apache-2.0", "identifier": "Apache-2.0" });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Oncegate admin API", "version": "1", "description": ABOUT, "license": license },
        "servers": [{ "url": "/", "description": "The admin listener, by default http://127.0.0.1:8081." }],
        "paths": paths,
        "components": {
            "parameters": {
                "Actor": header(ACTOR, "The name of the operator, for the audit log."),
                "Service": header(SERVICE, "The service that the request is about, where the instance has several."),
            },
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer", "description": TOKEN } },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::key_admin::params::JsonFields;

    /// The document as it is committed, and what it promises, of which a release keeps each line.
    const FILES: [&str; 2] = ["docs/openapi.json", "tests/admin-api.txt"];

    fn file(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
    }

    fn texts() -> [String; 2] {
        let document = document();
        let lines = promises(&document).into_iter().map(|line| line.replace("#/components/schemas/", "") + "\n");
        [format!("{document:#}\n"), lines.collect()]
    }

    /// The promises of a document, each in a line: clients break if one is gone.
    fn promises(document: &Value) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let name = format!("{} {path}", method.to_uppercase());
                lines.insert(format!("{name} {} for {}", operation["operationId"], operation["security"]));
                for parameter in operation["parameters"].as_array().unwrap() {
                    let Some(parameter_name) = parameter["name"].as_str() else { continue };
                    let place = format!("{name} ?{parameter_name}");
                    add_members(&parameter["schema"], place, &mut lines);
                }
                let body = &operation["requestBody"]["content"]["application/json"]["schema"];
                lines.insert(format!("{name} requires {}", body["required"]));
                add_members(body, format!("{name} takes "), &mut lines);
                for (status, response) in operation["responses"].as_object().unwrap() {
                    for (media_type, content) in response["content"].as_object().unwrap() {
                        add_members(&content["schema"], format!("{name} {status} {media_type}"), &mut lines);
                    }
                    let codes = response["description"].as_str().unwrap().split(", ").filter(|_| **status >= *"400");
                    lines.extend(codes.map(|code| format!("{name} {status} {code}")));
                }
            }
        }
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            add_members(schema, name.clone(), &mut lines);
        }
        lines
    }

    /// Adds the members of a schema, each with its type, and with `?` if it may be missing.
    fn add_members(schema: &Value, place: String, lines: &mut BTreeSet<String>) {
        for alternative in ["anyOf", "oneOf"].iter().filter_map(|name| schema[*name].as_array()).flatten() {
            add_members(alternative, place.clone(), lines);
        }
        lines.extend(
            ["type", "const", "$ref"].iter().filter_map(|name| Some(format!("{place}: {}", schema.get(*name)?))),
        );
        let values = ["enum", "examples"].iter().filter_map(|name| schema[*name].as_array()).flatten();
        lines.extend(values.map(|value| format!("{place} = {value}")));
        for (kind, end) in [("items", "[]"), ("additionalProperties", ".*")] {
            if schema[kind].is_object() {
                add_members(&schema[kind], format!("{place}{end}"), lines);
            }
        }
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let is_required =
                schema["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
            let end = if is_required { "" } else { "?" };
            add_members(member, format!("{place}.{name}{end}"), lines);
        }
    }

    #[test]
    fn the_committed_document_is_that_of_the_types_and_breaks_no_client() {
        let [document, promised] = texts();
        let committed = fs::read_to_string(file(FILES[1])).unwrap_or_default();
        let [now, before] = [&promised, &committed].map(|text| text.lines().collect::<BTreeSet<_>>());
        let gone: Vec<_> = before.difference(&now).collect();
        assert!(
            gone.is_empty(),
            "this change breaks clients of the admin API, which has none of these any more: {gone:#?}\nWithin /api/v1 nothing is \
             removed, renamed or newly required (docs/admin.md). Until a release has the API, `make docs-write` accepts it."
        );
        let is_current = now == before && fs::read_to_string(file(FILES[0])).is_ok_and(|text| text == document);
        assert!(is_current, "{FILES:?} are old: `make docs-write` writes them");
    }

    #[test]
    #[ignore = "writes"]
    fn write_the_document() {
        for (name, text) in FILES.into_iter().zip(texts()) {
            fs::write(file(name), text).unwrap();
        }
    }

    #[test]
    fn each_example_of_a_body_has_only_members_that_are_read() {
        for (path, .., endpoint) in &TABLE {
            let ([_, inputs], example) = (inputs_of(*endpoint), example_of(*endpoint));
            assert!(JsonFields::parse(example.to_string().as_bytes(), inputs).is_ok(), "{path}");
        }
    }
}
