//! The claims of a token, and the value by which one of them identifies a caller.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use oncegate_domain::json_members::JsonMembers;

/// A claim as a part of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimReading {
    /// The token lacks it, or it is null or an empty text.
    Absent,
    /// Its value: a letter for its type, then its text. The text `1` and the number 1 differ.
    Value(Box<[u8]>),
    /// It is an object, a list, or a number that programs read in different ways.
    Unusable,
}

impl ClaimReading {
    /// Whether this is the value, whatever its type.
    pub(super) fn is_text(&self, text: &str) -> bool {
        matches!(self, Self::Value(value) if value[1..] == *text.as_bytes())
    }

    pub fn new(value: &Value) -> Self {
        let tagged = |tag: u8, text: &str| Self::Value([&[tag], text.as_bytes()].concat().into());
        match value {
            Value::Null => Self::Absent,
            Value::Bool(value) => tagged(b'b', if *value { "true" } else { "false" }),
            // As a floating-point number, two long identifiers could be one.
            Value::Number(number) if number.is_f64() => Self::Unusable,
            Value::Number(number) => tagged(b'n', &number.to_string()),
            Value::String(text) if text.is_empty() => Self::Absent,
            Value::String(text) => tagged(b's', text),
            Value::Array(_) | Value::Object(_) => Self::Unusable,
        }
    }
}

/// The claims of a token, each with a name of its own: of a name that is written twice, two programs may believe
/// different values.
#[derive(Debug, Deserialize)]
#[serde(try_from = "JsonMembers<String, Value>")]
pub(super) struct UniqueClaims(BTreeMap<String, Value>);

impl UniqueClaims {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// A time in seconds since 1970, which may have a fraction (RFC 7519 section 2).
    pub(super) fn seconds(&self, name: &str) -> Option<u64> {
        let number = self.0.get(name)?;
        // The conversion ends at the bounds of u64.
        number.as_u64().or_else(|| number.as_f64().map(|seconds| seconds as u64))
    }

    pub(super) fn read(&self, name: &str) -> ClaimReading {
        self.0.get(name).map_or(ClaimReading::Absent, ClaimReading::new)
    }
}

impl TryFrom<JsonMembers<String, Value>> for UniqueClaims {
    type Error = &'static str;

    fn try_from(JsonMembers(members): JsonMembers<String, Value>) -> Result<Self, &'static str> {
        let written = members.len();
        let claims: BTreeMap<_, _> = members.into_iter().collect();
        if claims.len() == written { Ok(Self(claims)) } else { Err("a claim is written twice") }
    }
}
