//! JSON-RPC 2.0: the operation and the id in a request, and the place of the id in a response.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use canonical_json::{Pointer, value_at};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use members::{Members, has_method, locate_elements, without_member};

mod members;

/// The id of a request: its JSON text, as it was sent.
#[derive(Clone, Debug)]
pub struct RpcId(Arc<RawValue>);

impl RpcId {
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The JSON text as a part of a document.
    pub fn as_raw(&self) -> &RawValue {
        &self.0
    }
}

impl PartialEq for RpcId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RpcId {}

/// A request that expects an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcCall {
    pub operation: RpcOperation,
    pub id: RpcId,
}

/// The members of a request that name its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RpcNaming {
    #[display("JSON-RPC method")]
    Method,
    /// The method, and the `name` in the parameters.
    #[display("JSON-RPC method and name")]
    MethodAndTool,
    /// The same, in a body that [declares](is_declared) that it is JSON-RPC 2.0. No other body has an operation.
    #[display("declared JSON-RPC method and name")]
    DeclaredMethodAndTool,
}

/// The operation that a request names: its method, and for methods that call a tool the tool's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcOperation {
    method: String,
    name: Option<String>,
    /// Whether its request has members that no message has, so that it may be one of another API.
    has_others: bool,
}

impl RpcOperation {
    /// Whether one of these entries may name the operation: `METHOD`, or `METHOD NAME` for one tool alone. A service
    /// may read the name of a tool where this reader finds none, and another API where there are other members. Without
    /// any entry, all operations are named.
    pub fn is_among(&self, entries: &[String]) -> bool {
        let names = |entry: &String| match entry.strip_prefix(&self.method) {
            Some("") => true,
            Some(rest) => {
                let tool = rest.strip_prefix(' ');
                tool.is_some_and(|tool| self.name.as_ref().is_none_or(|name| name == tool))
            }
            None => false,
        };
        self.has_others || entries.is_empty() || entries.iter().any(names)
    }

    /// The text by which the operation is a part of a key's space.
    pub fn space_text(&self) -> String {
        ["\n", &*self.method, "\n", self.name.as_deref().unwrap_or_default()].concat()
    }
}

/// The content of a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcMessage {
    /// A batch, with the elements that are requests or notifications.
    Batch(Vec<RpcElement>),
    /// A request that expects an answer.
    Call(RpcCall),
    /// A request whose id is a list, an object or a boolean, about which servers differ.
    InvalidId(RpcOperation),
    /// A request that expects none.
    Notification(RpcOperation),
    Response,
    /// A body with a method that programs may read in different ways.
    Ambiguous,
    /// No message: a body without a method, and a response with a member that no message has. It may be of another API.
    Unclear,
}

/// A request or a notification in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcElement {
    /// The operation; `None` for an element that programs may read in different ways.
    pub operation: Option<RpcOperation>,
    /// Whether it has values at all places of a key.
    pub has_key: bool,
}

impl RpcMessage {
    /// Reads a body. `names_tools`: the `name` in the parameters is a part of the operation. `keys` makes the places
    /// where an element of a batch may have its key, each with those that belong to one key; only a batch needs them.
    pub fn read<'p>(body: &[u8], names_tools: bool, keys: impl FnOnce() -> Vec<Vec<&'p Pointer>>) -> Self {
        if first_byte(body) != Some(b'[') {
            return match Members::read(body) {
                Some(members) => members.into_message(names_tools),
                None => Self::read_unclear(body),
            };
        }
        let elements = match serde_json::from_slice::<Vec<&RawValue>>(body) {
            Ok(elements) if !elements.is_empty() => elements,
            // A batch has at least one element. An empty list may be a document of another API.
            Ok(_) | Err(_) => return Self::read_unclear(body),
        };
        let keys = keys();
        let elements = elements.into_iter().filter_map(|element| {
            let text = element.get().as_bytes();
            let message = Members::read(text).map_or(Self::Unclear, |members| members.into_message(names_tools));
            let operation = match message {
                Self::Call(call) => Some(call.operation),
                Self::InvalidId(operation) | Self::Notification(operation) => Some(operation),
                Self::Response => return None,
                Self::Batch(_) | Self::Ambiguous | Self::Unclear => None,
            };
            let has_value = |place: &&Pointer| !matches!(value_at(text, place), Ok(None));
            let has_key = keys.iter().any(|places| places.iter().all(has_value));
            Some(RpcElement { operation, has_key })
        });
        Self::Batch(elements.collect())
    }

    fn read_unclear(body: &[u8]) -> Self {
        if has_method(body) { Self::Ambiguous } else { Self::Unclear }
    }
}

/// The method and the parameters of a call or a notification, as they were sent, but for `_meta`: they are located in a
/// text that not all programs read. `None` for any other text.
pub fn locate_content(request: &[u8]) -> Option<Vec<u8>> {
    let members = Members::locate(request)?;
    let params = members.params.map(|params| without_member(params, b"_meta"));
    let params = params.as_ref().map_or([&b""[..], b""], |params| [b",\"params\":", params]);
    Some([b"{\"method\":", members.method?, params[0], params[1], b"}"].concat())
}

/// Whether a body says that it is JSON-RPC 2.0: an object with `"jsonrpc": "2.0"`, or a list.
pub fn is_declared(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Declaration {
        jsonrpc: String,
    }
    first_byte(body) == Some(b'[')
        || serde_json::from_slice::<Declaration>(body).is_ok_and(|declaration| declaration.jsonrpc == "2.0")
}

/// Returns the places of the ids in a text, of its response or of each response in its batch. A request of the server
/// has an id of its own. The text may be one that not all programs read.
pub fn find_response_ids(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    locate_elements(text).into_iter().filter_map(|element| {
        let members = Members::locate(&text[element])?;
        let id = members.id.filter(|_| members.method.is_none() && members.has_outcome)?;
        let start = id.as_ptr().addr() - text.as_ptr().addr();
        Some(start..start + id.len())
    })
}

/// Writes a response with another id, and keeps every other byte. `None` if the text is no response, or has this id.
pub fn with_id(response: &[u8], id: &RpcId) -> Option<Vec<u8>> {
    with_id_at(response, find_response_ids(response), id)
}

/// Writes a text with another id at these places, which are in order. `None` where all of them have it.
pub fn with_id_at(text: &[u8], places: impl Iterator<Item = Range<usize>>, id: &RpcId) -> Option<Vec<u8>> {
    let id = id.as_str().as_bytes();
    let (mut replaced, mut copied) = (Vec::new(), 0);
    for place in places.filter(|place| text[place.clone()] != *id) {
        if replaced.is_empty() {
            replaced.reserve(text.len() + id.len());
        }
        replaced.extend_from_slice(&text[copied..place.start]);
        replaced.extend_from_slice(id);
        copied = place.end;
    }
    if copied == 0 {
        return None;
    }
    replaced.extend_from_slice(&text[copied..]);
    Some(replaced)
}

impl Members<'_> {
    fn into_message(self, names_tools: bool) -> RpcMessage {
        let Some(method) = self.method else {
            let is_response = self.has_outcome && !self.has_others;
            return if is_response { RpcMessage::Response } else { RpcMessage::Unclear };
        };
        let Ok(method) = serde_json::from_slice::<String>(method) else { return RpcMessage::Ambiguous };
        let name = match self.params.filter(|_| names_tools) {
            Some(params) => match tool_name(params) {
                Ok(name) => name,
                Err(_) => return RpcMessage::Ambiguous,
            },
            None => None,
        };
        let operation = RpcOperation { method, name, has_others: self.has_others };
        match self.id {
            None => RpcMessage::Notification(operation),
            Some([b'{' | b'[' | b't' | b'f', ..]) => RpcMessage::InvalidId(operation),
            Some(id) => match serde_json::from_slice::<Box<RawValue>>(id) {
                Ok(id) => RpcMessage::Call(RpcCall { operation, id: RpcId(id.into()) }),
                Err(_) => RpcMessage::Ambiguous,
            },
        }
    }
}

/// The `name` in parameters; `None` where it is missing or no text. A member that some servers take for it is an error.
fn tool_name(params: &[u8]) -> serde_json::Result<Option<String>> {
    #[derive(Deserialize)]
    struct Parameters<'a> {
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }
    if !params.starts_with(b"{") {
        return Ok(None);
    }
    let name = serde_json::from_slice::<Parameters<'_>>(params)?.name;
    let members = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(params)?;
    if members.keys().any(|member| member != "name" && member.eq_ignore_ascii_case("name")) {
        return Err(serde_json::Error::custom("a member that differs from `name` in case alone"));
    }
    Ok(name.and_then(|name| serde_json::from_str(name.get()).ok()))
}

fn first_byte(text: &[u8]) -> Option<u8> {
    text.iter().copied().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn id(text: &str) -> RpcId {
        RpcId(RawValue::from_string(text.to_owned()).unwrap().into())
    }

    fn call(method: &str, name: Option<&str>, id_text: &str) -> RpcMessage {
        let operation = RpcOperation { method: method.into(), name: name.map(Into::into), has_others: false };
        RpcMessage::Call(RpcCall { operation, id: id(id_text) })
    }

    fn invalid_id(method: &str) -> RpcMessage {
        RpcMessage::InvalidId(RpcOperation { method: method.into(), name: None, has_others: false })
    }

    fn mixed(method: &str) -> RpcOperation {
        RpcOperation { method: method.into(), name: None, has_others: true }
    }

    #[test]
    fn a_message_is_a_call_a_notification_or_a_response_if_every_server_reads_it_so() {
        for (body, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"a"}"#, call("a", None, "7")),
            (r#" { "method" : "a" , "id" : "7\u0041" } "#, call("a", None, r#""7\u0041""#)),
            (r#"{"id":null,"method":"a"}"#, call("a", None, "null")),
            (r#"{"id":1.50e2,"method":"\u0061"}"#, call("a", None, "1.50e2")),
            (r#"{"id":7,"method":"tools/call","params":{"name":"pay"}}"#, call("tools/call", Some("pay"), "7")),
            (r#"{"id":7,"method":"tools/call","params":{"name":1}}"#, call("tools/call", None, "7")),
            (r#"{"id":7,"method":"tools/call","params":["pay"]}"#, call("tools/call", None, "7")),
            (r#"{"id":7,"method":"a","params":{"arguments":{"name":"x"}}}"#, call("a", None, "7")),
            (r#"{"id":7,"method":"tools/call"}"#, call("tools/call", None, "7")),
            (r#"{"id":7,"result":{}}"#, RpcMessage::Response),
            (r#"{"id":7,"error":{"code":1}}"#, RpcMessage::Response),
            (r#"{"id":7,"id":8,"method":"a"}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"Id":8,"method":"a"}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"Method":"b"}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"method":"a","Method":"b"}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"method":"a","params":{"name":"x","name":"y"}}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"method":1}"#, RpcMessage::Ambiguous),
            (r#"{"id":[],"method":"a"}"#, invalid_id("a")),
            (r#"{"id":{},"method":"a"}"#, invalid_id("a")),
            (r#"{"id":true,"method":"a"}"#, invalid_id("a")),
            (r#"{"id":false,"method":"a"}"#, invalid_id("a")),
            // Members of another API.
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"a","items":[1]}"#,
                RpcMessage::Call(RpcCall { operation: mixed("a"), id: id("7") }),
            ),
            (r#"{"id":7,"method":"a","\ud83d":1}"#, RpcMessage::Call(RpcCall { operation: mixed("a"), id: id("7") })),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"items":[1]}"#, RpcMessage::Unclear),
            (r#"{"jsonrpc":"2.0","id":7,"error":{},"":1}"#, RpcMessage::Unclear),
            (r#"{"jsonrpc":"2.0","method":"a","items":[1]}"#, RpcMessage::Notification(mixed("a"))),
            (r#"{"jsonrpc":"2.0","id":[],"method":"a","items":[1]}"#, RpcMessage::InvalidId(mixed("a"))),
            (r#"{"jsonrpc":"2.0","JSONRPC":"2.0","id":7,"method":"a"}"#, RpcMessage::Ambiguous),
            (r#"{"jsonrpc":"2.0","json\u0072pc":"2.0","id":7,"method":"a"}"#, RpcMessage::Ambiguous),
            // What not all programs read.
            ("\u{feff}{\"id\":7,\"method\":\"a\"}", RpcMessage::Ambiguous),
            ("\u{feff}[{\"id\":7,\"method\":\"a\"}]", RpcMessage::Ambiguous),
            (r#"[{"id":7,"method":"a"},NaN]"#, RpcMessage::Ambiguous),
            (r#"{"id":NaN,"method":"a"}"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"method":"a","params":[NaN]}"#, RpcMessage::Ambiguous),
            (r#"{"params":{"method":"a"},"id":NaN}"#, RpcMessage::Unclear),
            ("[]", RpcMessage::Unclear),
            (r#"{"id":7}"#, RpcMessage::Unclear),
            (r#"{"id":7,"method":"a"} x"#, RpcMessage::Ambiguous),
            (r#"{"id":7,"method":"a""#, RpcMessage::Ambiguous),
            ("\"a\"", RpcMessage::Unclear),
            ("", RpcMessage::Unclear),
        ] {
            assert_eq!(RpcMessage::read(body.as_bytes(), true, Vec::new), expected, "{body}");
        }
        let notification = RpcMessage::read(br#"{"method":"a","params":{"name":"b"}}"#, false, Vec::new);
        let operation = RpcOperation { method: "a".into(), name: None, has_others: false };
        assert_eq!(notification, RpcMessage::Notification(operation));
    }

    #[test]
    fn a_batch_tells_which_of_its_calls_have_a_key() {
        let [place, method, name] =
            ["/params/key", "/method", "/params/name"].map(|text| Pointer::parse(text).unwrap());
        let read =
            |body: &str| match RpcMessage::read(body.as_bytes(), false, || vec![vec![&place], vec![&method, &name]]) {
                RpcMessage::Batch(elements) => elements
                    .into_iter()
                    .map(|element| (element.operation.map(|operation| operation.method), element.has_key))
                    .collect::<Vec<_>>(),
                other => panic!("{body}: {other:?}"),
            };
        let batch = r#" [{"id":1,"method":"a","params":{"key":"k"}},{"method":"n","params":{"key":"k"}},{"id":2,"method":"b"}]"#;
        assert_eq!(read(batch), [(Some("a".into()), true), (Some("n".into()), true), (Some("b".into()), false)]);
        assert_eq!(read(r#"[{"id":1,"id":1,"method":"a"}]"#), [(None, true)]);
        assert_eq!(read(r#"[{"id":1,"method":"a","params":{"name":"b"}}]"#), [(Some("a".into()), true)]);
        assert_eq!(
            read(r#"[{"id":1,"method":"a","items":1},{"id":[],"method":"b"}]"#),
            [(Some("a".into()), false), (Some("b".into()), false)]
        );
        assert_eq!(read(r#"[{"id":1,"result":1}]"#), []);
        assert_eq!(RpcMessage::read(b"[{}", false, Vec::new), RpcMessage::Unclear);
    }

    #[test]
    fn an_operation_is_named_by_its_method_or_with_its_tool() {
        let operation = RpcOperation { method: "tools/call".into(), name: Some("pay".into()), has_others: false };
        let entries = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        for (list, expected) in [
            (&[][..], true),
            (&["tools/call"], true),
            (&["a", "tools/call pay"], true),
            (&["tools/call refund"], false),
            (&["pay"], false),
        ] {
            assert_eq!(operation.is_among(&entries(list)), expected, "{list:?}");
        }
        // A service may find the name of the tool at another place.
        let unnamed = RpcOperation { name: None, ..operation.clone() };
        for (list, expected) in
            [(&["tools/call pay"][..], true), (&["tools/call"], true), (&["tools/calls pay", "tools"], false)]
        {
            assert_eq!(unnamed.is_among(&entries(list)), expected, "{list:?}");
        }
        let mixed = RpcOperation { has_others: true, ..operation.clone() };
        assert!(mixed.is_among(&entries(&["a"])));
        assert_eq!(mixed.space_text(), operation.space_text());
    }

    /// A response that begins so, with a result that is nested deeply.
    fn deep(begin: &str) -> String {
        format!("{begin}{}{}}}", "[".repeat(5_000), "]".repeat(5_000))
    }

    /// Responses with the id `7`, in which nothing else may change.
    #[test]
    fn only_the_bytes_of_the_id_are_replaced() {
        for (response, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":1.0}"#, Some(r#"{"jsonrpc":"2.0","id":"é","result":1.0}"#)),
            (
                r#"{"result":{"id":7,"b":1e400,"a":0.10},"id":7}"#,
                Some(r#"{"result":{"id":7,"b":1e400,"a":0.10},"id":"é"}"#),
            ),
            (
                "{ \"id\" :\t7 ,\n\"error\": {\"code\":-1} }\n",
                Some("{ \"id\" :\t\"é\" ,\n\"error\": {\"code\":-1} }\n"),
            ),
            (r#"{"id":"a\"7","result":null,"error":{}}"#, Some(r#"{"id":"é","result":null,"error":{}}"#)),
            (r#"{"id":7,"result":null}"#, Some(r#"{"id":"é","result":null}"#)),
            (r#"{"id":null,"error":{}}"#, Some(r#"{"id":"é","error":{}}"#)),
            (r#"{"\u0069d":7,"result":"\ud83d\ude00"}"#, Some(r#"{"\u0069d":"é","result":"\ud83d\ude00"}"#)),
            // A request or a notification of the server.
            (r#"{"id":7,"method":"sampling/createMessage","params":{}}"#, None),
            (r#"{"method":"notifications/progress","params":{"id":7}}"#, None),
            (r#"{"result":{}}"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":7,"id":8,"result":1}"#, None),
            // A batch of one, and what not all programs read.
            (r#"[{"id":7,"result":1}]"#, Some(r#"[{"id":"é","result":1}]"#)),
            (
                r#" [ {"id":7,"method":"ping"} , {"id":7,"error":{}}, 7, [{"id":7,"result":1}] ] "#,
                Some(r#" [ {"id":7,"method":"ping"} , {"id":"é","error":{}}, 7, [{"id":7,"result":1}] ] "#),
            ),
            ("\u{feff} {\"id\":7,\"result\":1}", Some("\u{feff} {\"id\":\"é\",\"result\":1}")),
            (r#"{"result":[NaN,-Infinity],"id":7}"#, Some(r#"{"result":[NaN,-Infinity],"id":"é"}"#)),
            (r#"{"id":7,"error":"\ud83d"}"#, Some(r#"{"id":"é","error":"\ud83d"}"#)),
            ("{\"id\":7,\"error\":\"a\nb\"}", Some("{\"id\":\"é\",\"error\":\"a\nb\"}")),
            (r#"{"id":7,"result":"\"}","x":"]"}"#, Some(r#"{"id":"é","result":"\"}","x":"]"}"#)),
            (&deep(r#"{"id":7,"result":"#), Some(&deep(r#"{"id":"é","result":"#))),
            (r#"{"id":7,"result":1"#, None),
            (r#"{"id":7,"result":1}}"#, None),
            (r#"{"id":7,"result":1} {"id":8}"#, None),
            (r#"{"id":7,"result":"\"#, None),
            (r#"{"id":7,"result":"\""#, None),
            (r#"{"id":7 "result":1}"#, None),
            (r#"{"id":,"result":1}"#, None),
            (r#"{id:7,"result":1}"#, None),
            (r#"[{"id":7,"result":1}"#, None),
            ("[", None),
            ("[,]", None),
            ("{", None),
            ("{}", None),
            ("\u{feff}", None),
            (r#"{"id":"é","result":1}"#, None),
            ("7", None),
            ("", None),
        ] {
            let replaced = with_id(response.as_bytes(), &id("\"é\""));
            assert_eq!(replaced.as_deref(), expected.map(str::as_bytes), "{response}");
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("(id|result|[a-z]{0,3})", inner, 0..4).prop_map(|members| json!(members)),
            ]
        })
    }

    proptest! {
        /// A model that parses and serialises agrees on the values, and the bytes around the id are the response's own.
        #[test]
        fn a_replaced_id_changes_nothing_else(
            result in json_value(),
            before in prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)],
            after in prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)],
            is_pretty: bool,
        ) {
            let response = json!({ "jsonrpc": "2.0", "id": before, "result": result, "error": { "id": 1 } });
            let text = if is_pretty { serde_json::to_string_pretty(&response) } else { serde_json::to_string(&response) }.unwrap();
            let place = find_response_ids(text.as_bytes()).next().unwrap();
            let new_id = id(&after.to_string());
            // Parsed too: the parser does not read all numbers as they were written.
            let mut expected: Value = serde_json::from_str(&text).unwrap();
            expected["id"] = serde_json::from_str(new_id.as_str()).unwrap();
            match with_id(text.as_bytes(), &new_id) {
                None => prop_assert_eq!(before.to_string(), after.to_string()),
                Some(replaced) => {
                    let end = replaced.len() - (text.len() - place.end);
                    prop_assert_eq!(&replaced[..place.start], &text.as_bytes()[..place.start]);
                    prop_assert_eq!(&replaced[end..], &text.as_bytes()[place.end..]);
                    prop_assert_eq!(&replaced[place.start..end], new_id.as_str().as_bytes());
                    prop_assert_eq!(serde_json::from_slice::<Value>(&replaced).unwrap(), expected);
                }
            }
        }
    }
}
