//! The parameters of queries and the members of bodies. Requests are read by these tables, and the API's document is
//! made from them.

use serde_json::{Value, json};

use super::AdminMethod;
use oncegate_domain::state::StateKind;

/// The largest `limit`, and the limit of a request that has none.
pub const LIMIT_MAX: u32 = 1_000;
pub const LIMIT_DEFAULT: u32 = 100;

/// A parameter or a member. A request with another one is refused.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub name: &'static str,
    kind: InputKind,
    about: &'static str,
    is_required: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum InputKind {
    Fields,
    Filter,
    Flag,
    Limit,
    Number,
    OneOf(&'static [&'static str]),
    State,
    Text,
    Texts,
}

use InputKind::{Fields, Filter, Flag, Limit, Number, OneOf, State, Text, Texts};

/// Tables that are read as one.
pub type Inputs = &'static [&'static [Input]];

/// The conditions of a filter; the route before the caller, whose hash depends on it.
pub const CONDITIONS: [Input; 10] = [
    Input::new("state", State, "The stored state, which a key keeps past its time to live until it is reaped."),
    Input::new("scope", Text, "The beginning of the caller's hash."),
    Input::new("route", Text, "The route."),
    Input::new("key", Text, "The key."),
    Input::new("older_than", Text, "The time since its last change of state, such as `2h`, or more."),
    Input::new("path", Text, "The beginning of the newest request's path."),
    Input::new("created_from", Text, "The first time at which it may be new: `2026-11-29T12:03` in UTC, or `2h` ago."),
    Input::new("created_until", Text, "The time before which it is new, written alike."),
    Input::new("caller", Text, "Its caller, as lines of `PART=VALUE`; not beside `scope`."),
    Input::new("where", Text, "A value of its request, as `PLACE=VALUE` with a place of the route's `index`."),
];

const LIMIT: Input = Input::new("limit", Limit, "The most entries of the answer.");
const CURSOR: Input = Input::new("cursor", Text, "The `next_cursor` of an answer to the same conditions.");
const ID: Input = Input::new("id", Text, "The key: its id, or the first 8 digits or more.");
const WEEK: Input = Input::new("week", Text, "The Monday of the callers' week, such as `2026-11-23`; else this week.");
const ACCEPT_RISK: Input = Input::new("accept_risk", Flag, "Accepts that a retry may be executed.");
const NOTE: Input = Input::new("note", Text, "The reason, for the audit log: one line.");

const HEADERS: Input = Input::new("headers", Fields, "The header fields: an object, or a list of pairs.");
const BODY: Input = Input::new("body", Text, "The body as text.");
const BODY_BASE64: Input = Input::new("body_base64", Text, "The body in base64, in place of `body`.");
const STATUS: Input = Input::new("status", Number, "The status, from 200 to 599.");
/// A response that somebody types in, and one that a service reports.
const RESPONSE: [Input; 4] = [STATUS, HEADERS, BODY, BODY_BASE64];
pub const REPORTED_RESPONSE: [Input; 4] = [STATUS.required(), HEADERS, BODY, BODY_BASE64];

const OUTCOMES: &[&str] = &["completed", "not_executed"];
const OUTCOME: Input = Input::new("outcome", OneOf(OUTCOMES), "How the request ended. `completed` needs `status`.");
const REPLACE: Input = Input::new("replace", Flag, "Corrects a response that an operator has written.");
const RESOLUTION: [Input; 2] = [OUTCOME.required(), REPLACE];

const METHOD: Input = Input::new("method", Text, "The method.").required();
const TARGET: Input = Input::new("target", Text, "The path with its query.").required();

const ACTIONS: &[&str] = &["resolve", "release", "requeue", "redact", "purge"];
const SELECTION: [Input; 5] = [
    Input::new("action", OneOf(ACTIONS), "The change.").required(),
    Input::new("filter", Filter, "The keys: those that fit all conditions."),
    Input::new("ids", Texts, "The keys by id, in place of `filter`."),
    Input::new("all", Flag, "All keys, in place of `filter`."),
    Input::new("expect", Number, "The most keys that are changed. Without it, they are only counted."),
];

/// The report of a service about its attempt.
pub const RECOVERY_POINT: [Input; 1] = [Input::new("name", Text, "The recovery point.").required()];

impl AdminMethod {
    pub(crate) const fn is_change_of_key(self) -> bool {
        matches!(self, Self::Purge | Self::Redact | Self::Release | Self::Requeue | Self::Resolve)
    }

    /// The parameters of the query.
    pub(crate) const fn query(self) -> Inputs {
        match self {
            Self::Audit => &[&[ID, LIMIT, CURSOR]],
            Self::List => &[&CONDITIONS, &[LIMIT, CURSOR]],
            Self::Saved => &[&[WEEK]],
            // Some clients drop the body of a DELETE.
            Self::Purge | Self::Redact | Self::Release | Self::Requeue | Self::Resolve => &[&[ACCEPT_RISK]],
            Self::BulkChange | Self::Compare | Self::Explain | Self::Show | Self::Stats => &[],
        }
    }

    /// The members of the body.
    pub(crate) const fn body(self) -> Inputs {
        match self {
            Self::Compare | Self::Explain => &[&[METHOD, TARGET, HEADERS, BODY, BODY_BASE64]],
            Self::Purge | Self::Redact | Self::Release | Self::Requeue => &[&[ACCEPT_RISK, NOTE]],
            Self::Resolve => &[&RESOLUTION, &RESPONSE, &[ACCEPT_RISK, NOTE]],
            Self::BulkChange => &[&SELECTION, &[OUTCOME, REPLACE], &RESPONSE, &[ACCEPT_RISK, NOTE]],
            Self::Audit | Self::List | Self::Saved | Self::Show | Self::Stats => &[],
        }
    }
}

impl Input {
    pub const fn new(name: &'static str, kind: InputKind, about: &'static str) -> Self {
        Self { name, kind, about, is_required: false }
    }

    pub const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// Returns its parameter in a query, as OpenAPI has it.
    pub fn parameter(&self) -> Value {
        json!({ "name": self.name, "in": "query", "description": self.about, "schema": self.kind.schema() })
    }
}

impl InputKind {
    fn schema(self) -> Value {
        let texts = || json!({ "type": "array", "items": { "type": "string" } });
        match self {
            Fields => json!({ "anyOf": [
                { "type": "object", "additionalProperties": { "type": "string" } },
                { "type": "array", "items": texts() },
            ] }),
            Filter => closed(object_schema(&[&CONDITIONS])),
            Flag => json!({ "type": "boolean" }),
            Limit => json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT }),
            Number => json!({ "type": "integer", "minimum": 0 }),
            OneOf(words) => json!({ "type": "string", "enum": words }),
            State => json!({ "type": "string", "enum": StateKind::ALL.map(StateKind::name) }),
            Text => json!({ "type": "string" }),
            Texts => texts(),
        }
    }
}

/// Returns the schema of an object with these members.
pub fn object_schema(inputs: &[&[Input]]) -> Value {
    let mut schema = json!({ "type": "object", "properties": {} });
    for input in inputs.iter().copied().flatten() {
        let member = &mut schema["properties"][input.name];
        *member = input.kind.schema();
        member["description"] = input.about.into();
    }
    let required: Vec<_> = inputs.iter().copied().flatten().filter(|input| input.is_required).collect();
    if !required.is_empty() {
        schema["required"] = required.into_iter().map(|input| input.name).collect();
    }
    schema
}

/// Returns the schema of an object in a request, where another member is refused.
pub fn closed(mut schema: Value) -> Value {
    schema["additionalProperties"] = false.into();
    schema
}
