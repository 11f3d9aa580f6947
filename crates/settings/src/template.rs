//! Templates of documents: a text with placeholders such as `{detail}`, whose values are escaped for its media type.

use std::fmt::Write;

use indexmap::IndexMap;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use super::{Word, one_of, words};

words! {
    /// A value that a template may have.
    pub enum Placeholder {
        /// The code of the refusal, such as `in-flight`.
        Code = "code",
        /// The code as `in_flight`.
        SnakeCode = "snake_code",
        /// The code as `IN_FLIGHT`.
        UpperCode = "upper_code",
        /// The fault, in one to three sentences.
        Detail = "detail",
        /// The places of the parts in which a request differs.
        Differs = "differs",
        /// The code that the row has for the protocol; else the code with `_`.
        ErrorCode = "error_code",
        /// The type that the row has for the protocol.
        ErrorType = "error_type",
        /// The id of a JSON-RPC call; absent where none was read.
        Id = "id",
        /// The same, and null where none was read.
        IdOrNull = "id_or_null",
        /// The key as the client sent it; absent before it was found, and where it is a secret.
        Key = "key",
        /// The id of the key's record; absent before the key was found.
        Record = "record",
        /// The client's next step: `fix`, `new_key`, `reconcile` or `same_key`.
        Retry = "retry",
        /// The seconds until the client may ask again; absent where nothing says when.
        RetryAfter = "retry_after",
        /// The status of the answer.
        Status = "status",
        /// A few words about the refusal.
        Title = "title",
        /// The URI of the refusal's page.
        Type = "type",
    }
}

/// The value of a placeholder.
#[derive(Clone, Debug)]
pub enum PlaceholderValue {
    /// A text, a number, a list or null.
    Json(Value),
    /// A text in JSON that must stay as it is, such as the id of a call.
    Raw(Box<str>),
}

/// The template of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Json(Node),
    /// Written as JSON, and sent as CBOR (RFC 8949).
    Cbor(Node),
    Text(Vec<Piece>, Escape),
    /// Bytes that are no text.
    Bytes(Vec<u8>),
}

/// A value of JSON. A text that is one placeholder becomes a value of its own kind, such as a number; the member or
/// element of an absent one is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
    Placeholder(Placeholder),
    Text(Vec<Piece>),
    Other(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Written(String),
    Value(Placeholder),
}

/// The way in which a text keeps a value from becoming a part of its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// XML and HTML.
    Markup,
    /// `application/x-www-form-urlencoded`.
    Form,
}

/// A body that begins with it is written in base64.
const BASE64: &str = "base64:";

impl Template {
    /// Parses the template of a document of this media type.
    pub fn parse(text: &str, media_type: &str) -> Result<Self, String> {
        if let Some(encoded) = text.strip_prefix(BASE64) {
            let bytes = data_encoding::BASE64.decode(encoded.trim().as_bytes());
            return bytes.map(Form::Bytes).map(Self).map_err(|error| format!("has no valid base64: {error}"));
        }
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is = |suffix: &str| essence.rsplit(['/', '+']).next() == Some(suffix);
        Ok(Self(match () {
            () if text.is_empty() => Form::Bytes(Vec::new()),
            () if is("json") => Form::Json(parse_json(text)?),
            () if is("cbor") => Form::Cbor(parse_json(text)?),
            () if is("xml") || is("html") => Form::Text(parse_pieces(text)?, Escape::Markup),
            () if is("x-www-form-urlencoded") => Form::Text(parse_pieces(text)?, Escape::Form),
            () if essence == "text/plain" => Form::Text(parse_pieces(text)?, Escape::None),
            () => Form::Bytes(text.into()),
        }))
    }

    /// Writes the document with these values.
    pub fn render<'a>(&self, value: impl Fn(Placeholder) -> Option<PlaceholderValue> + 'a) -> Vec<u8> {
        match &self.0 {
            Form::Json(node) => node.json(&value),
            Form::Cbor(node) => {
                // An id may be a number that no value holds.
                let held = |placeholder| match value(placeholder)? {
                    PlaceholderValue::Raw(text) => {
                        let held = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(&*text));
                        Some(PlaceholderValue::Json(held))
                    }
                    held => Some(held),
                };
                let mut bytes = Vec::new();
                write_cbor(&serde_json::from_slice(&node.json(&held)).unwrap_or_default(), &mut bytes);
                bytes
            }
            Form::Text(pieces, escape) => text(pieces, *escape, &value).into(),
            Form::Bytes(bytes) => bytes.clone(),
        }
    }
}

fn parse_json(text: &str) -> Result<Node, String> {
    serde_json::from_str::<ReadNode>(text).map_err(|error| format!("is no JSON: {error}"))?.into_node()
}

/// Splits a text at its placeholders: lower-case letters and `_` in braces.
fn parse_pieces(text: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut written, mut rest) = (Vec::new(), String::new(), text);
    while let Some(start) = rest.find('{') {
        let (before, after) = rest.split_at(start);
        written += before;
        let name = after[1..].split('}').next().unwrap_or_default();
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_name && after[1 + name.len()..].starts_with('}') {
            let unknown = || format!("has no placeholder `{{{name}}}`: known are {}", one_of(Placeholder::WORDS));
            let placeholder = Placeholder::parse(name).ok_or_else(unknown)?;
            pieces.extend((!written.is_empty()).then(|| Piece::Written(std::mem::take(&mut written))));
            pieces.push(Piece::Value(placeholder));
            rest = &after[name.len() + 2..];
        } else {
            written.push('{');
            rest = &after[1..];
        }
    }
    written += rest;
    pieces.extend((!written.is_empty()).then_some(Piece::Written(written)));
    Ok(pieces)
}

/// A value of JSON as it is read. Members stay in the order in which they are written.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReadNode {
    Object(IndexMap<String, ReadNode>),
    Array(Vec<ReadNode>),
    Text(String),
    Other(Value),
}

impl ReadNode {
    fn into_node(self) -> Result<Node, String> {
        Ok(match self {
            Self::Object(members) => {
                let read = |(name, node): (String, Self)| Ok((name, node.into_node()?));
                Node::Object(members.into_iter().map(read).collect::<Result<_, String>>()?)
            }
            Self::Array(nodes) => Node::Array(nodes.into_iter().map(Self::into_node).collect::<Result<_, _>>()?),
            Self::Text(text) => match &*parse_pieces(&text)? {
                [Piece::Value(placeholder)] => Node::Placeholder(*placeholder),
                pieces => Node::Text(pieces.to_vec()),
            },
            Self::Other(value) => Node::Other(value),
        })
    }
}

impl Node {
    fn json(&self, value: &dyn Fn(Placeholder) -> Option<PlaceholderValue>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.write(value, &mut bytes) {
            bytes.extend_from_slice(b"null");
        }
        bytes
    }

    /// Writes the node, if it is not absent.
    fn write(&self, value: &dyn Fn(Placeholder) -> Option<PlaceholderValue>, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Object(members) => write_present(members, *b"{}", bytes, |(name, node), bytes| {
                write_json(&Value::from(&**name), bytes);
                bytes.push(b':');
                node.write(value, bytes)
            }),
            Self::Array(nodes) => write_present(nodes, *b"[]", bytes, |node, bytes| node.write(value, bytes)),
            Self::Placeholder(placeholder) => match value(*placeholder) {
                Some(PlaceholderValue::Json(value)) => write_json(&value, bytes),
                Some(PlaceholderValue::Raw(text)) => bytes.extend_from_slice(text.as_bytes()),
                None => return false,
            },
            Self::Text(pieces) => write_json(&text(pieces, Escape::None, value).into(), bytes),
            Self::Other(value) => write_json(value, bytes),
        }
        true
    }
}

/// Writes the items that are not absent between brackets.
fn write_present<T>(
    items: &[T],
    [open, close]: [u8; 2],
    bytes: &mut Vec<u8>,
    write: impl Fn(&T, &mut Vec<u8>) -> bool,
) {
    bytes.push(open);
    let mut is_first = true;
    for item in items {
        let before = bytes.len();
        bytes.extend((!is_first).then_some(b','));
        match write(item, bytes) {
            true => is_first = false,
            false => bytes.truncate(before),
        }
    }
    bytes.push(close);
}

fn write_json(value: &Value, bytes: &mut Vec<u8>) {
    serde_json::to_writer(bytes, value).expect("a value in memory can be written");
}

/// The pieces with their values. An absent one is empty, and the texts of a list stand behind commas.
fn text(pieces: &[Piece], escape: Escape, value: &dyn Fn(Placeholder) -> Option<PlaceholderValue>) -> String {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Written(written) => text += written,
            Piece::Value(placeholder) => {
                let shown = match value(*placeholder) {
                    Some(PlaceholderValue::Json(value)) => plain(&value),
                    Some(PlaceholderValue::Raw(text)) => text.into(),
                    None => String::new(),
                };
                match escape {
                    Escape::None => text += &shown,
                    Escape::Markup => shown.chars().for_each(|character| push_markup(character, &mut text)),
                    Escape::Form => text.extend(utf8_percent_encode(&shown, NON_ALPHANUMERIC)),
                }
            }
        }
    }
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// A character in the text or a quoted attribute of XML or HTML. XML 1.0 has no control characters (section 2.2).
fn push_markup(character: char, text: &mut String) {
    match character {
        '<' | '>' | '&' | '"' | '\'' => write!(text, "&#{};", u32::from(character)).expect("a text takes all"),
        '\t' | '\n' | '\r' => text.push(character),
        '\u{fffe}' | '\u{ffff}' => text.push('\u{fffd}'),
        character if character.is_control() => text.push('\u{fffd}'),
        character => text.push(character),
    }
}

/// Writes a value in CBOR (RFC 8949, section 3).
fn write_cbor(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Null => bytes.push(0xf6),
        Value::Bool(value) => bytes.push(0xf4 + u8::from(*value)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => write_cbor_head(0, number, bytes),
            (None, Some(number)) => write_cbor_head(1, !number as u64, bytes),
            (None, None) => {
                bytes.push(0xfb);
                bytes.extend_from_slice(&number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
            }
        },
        Value::String(text) => {
            write_cbor_head(3, text.len() as u64, bytes);
            bytes.extend_from_slice(text.as_bytes());
        }
        Value::Array(values) => {
            write_cbor_head(4, values.len() as u64, bytes);
            values.iter().for_each(|value| write_cbor(value, bytes));
        }
        Value::Object(members) => {
            write_cbor_head(5, members.len() as u64, bytes);
            for (name, value) in members {
                write_cbor_head(3, name.len() as u64, bytes);
                bytes.extend_from_slice(name.as_bytes());
                write_cbor(value, bytes);
            }
        }
    }
}

/// The head of a data item: its major type and its number, in the shortest form.
fn write_cbor_head(major: u8, number: u64, bytes: &mut Vec<u8>) {
    let major = major << 5;
    let all = number.to_be_bytes();
    let (first, count) = match number {
        0..24 => return bytes.push(major | number as u8),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    bytes.push(major | first);
    bytes.extend_from_slice(&all[8 - count..]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The document of a template with a hostile detail, a wait, parts that differ and no key.
    fn rendered(media_type: &str, text: &str) -> Result<String, String> {
        let value = |placeholder| {
            Some(PlaceholderValue::Json(match placeholder {
                Placeholder::Code => "in-flight".into(),
                Placeholder::Detail => "<b>\"a\"&\\\u{1}".into(),
                Placeholder::Differs => json!(["json:/a", "json:/b"]),
                Placeholder::RetryAfter => 7.into(),
                Placeholder::Id => return Some(PlaceholderValue::Raw("1.0".into())),
                Placeholder::IdOrNull => return Some(PlaceholderValue::Raw("1e400".into())),
                _ => return None,
            }))
        };
        let document = Template::parse(text, media_type)?.render(value);
        Ok(String::from_utf8(document).unwrap_or_else(|error| data_encoding::HEXLOWER.encode(error.as_bytes())))
    }

    #[test]
    fn a_value_is_escaped_for_the_media_type() {
        for (media_type, text, expected) in [
            (
                "application/json",
                r#"{"b":"{detail}","a":"x {code}"}"#,
                r#"{"b":"<b>\"a\"&\\\u0001","a":"x in-flight"}"#,
            ),
            ("Application/Problem+JSON; charset=utf-8", r#"["{code}"]"#, r#"["in-flight"]"#),
            ("application/json", r#"{"a":"{retry_after}","b":"{differs}"}"#, r#"{"a":7,"b":["json:/a","json:/b"]}"#),
            ("application/json", r#"{"a":"{key}","b":"k{key}","c":["{key}",1.5,null]}"#, r#"{"b":"k","c":[1.5,null]}"#),
            ("application/json", r#""{key}""#, "null"),
            ("application/json", r#"{"id":"{id}","no":"n{id}"}"#, r#"{"id":1.0,"no":"n1.0"}"#),
            (
                "text/xml",
                "<a b='{detail}'>{differs}</a>",
                "<a b='&#60;b&#62;&#34;a&#34;&#38;\\\u{fffd}'>json:/a, json:/b</a>",
            ),
            ("text/html", "{detail}", "&#60;b&#62;&#34;a&#34;&#38;\\\u{fffd}"),
            ("text/plain", "{code} {{ {} {Code} {", "in-flight {{ {} {Code} {"),
            ("application/x-www-form-urlencoded", "error={detail}", "error=%3Cb%3E%22a%22%26%5C%01"),
            ("application/x-own", "{code}", "{code}"),
            ("application/json", "", ""),
            ("image/png", "base64:iVBORw==", "89504e47"),
            ("application/cbor", r#"["{id_or_null}"]"#, "81653165343030"),
            (
                "application/cbor",
                r#"{"code":"{code}","retry_after":"{retry_after}","n":-300}"#,
                "a364636f646569696e2d666c69676874616e39012b6b72657472795f616674657207",
            ),
        ] {
            assert_eq!(rendered(media_type, text), Ok(expected.to_owned()), "{media_type} {text}");
        }
    }

    #[test]
    fn a_wrong_template_has_a_problem() {
        for (media_type, text, problem) in [
            ("application/json", r#"{"a":{detail}}"#, "is no JSON: "),
            ("application/json", r#"{"a":["{wrong}"]}"#, "has no placeholder `{wrong}`: known are `code`, "),
            ("text/plain", "{wrong}", "has no placeholder `{wrong}`"),
            ("image/png", "base64:?", "has no valid base64: "),
        ] {
            let found = rendered(media_type, text).unwrap_err();
            assert!(found.starts_with(problem), "{text}: {found}");
        }
    }
}
