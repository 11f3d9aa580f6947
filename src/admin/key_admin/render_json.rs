//! The parts of the API's JSON that differ from the fields of its types: keys, problems, and ids, hashes, states and causes as text.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::problem::ApiProblem;
use crate::domain::ids::{InstanceId, RecordId};
use crate::domain::rfc3339;
use crate::domain::scope::Scope;
use crate::domain::state::StateKind;
use crate::domain::unknown_cause::UnknownCause;
use crate::store::admin::KeyEntry;

macro_rules! serialize_as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

serialize_as_text!(InstanceId, RecordId, Scope, StateKind, UnknownCause);

/// A problem document (RFC 9457).
impl Serialize for ApiProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let status = self.status();
        let mut document = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
        });
        for (name, value) in &self.members {
            document[*name] = value.clone();
        }
        document.serialize(serializer)
    }
}

/// A key as a list shows it: without its token and its path, and of its response only the status and the body's length.
impl Serialize for KeyEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rendered = json!({
            "id": self.id,
            "key": String::from_utf8_lossy(&self.key),
            "scope": self.scope,
            "space": self.space.to_string(),
            "route": self.route,
            "state": self.state,
            "attempts": self.attempts,
            "created_at": rfc3339::format(self.created_at),
            "reserved_at": rfc3339::format(self.reserved_at),
            "deadline": rfc3339::format(self.deadline),
            "settled_at": render_time(self.settled_at),
            "expires_at": render_time(self.expires_at),
            "lapsed": self.lapsed(),
            "instance": self.instance,
            "status": self.status,
            "body_bytes": self.body_bytes,
            "probes": self.probes,
            "absences": self.absences,
            "probe_at": render_time(self.probe_at),
            "accepted_at": render_time(self.accepted_at),
            "cause": self.cause,
        });
        if str::from_utf8(&self.key).is_err() {
            rendered["key_base64"] = BASE64_STANDARD.encode(&self.key).into();
        }
        rendered.serialize(serializer)
    }
}

fn render_time(time: Option<SystemTime>) -> Value {
    time.map(rfc3339::format).into()
}

#[cfg(test)]
mod tests {
    use super::super::problem::ProblemCode;
    use super::*;

    #[test]
    fn a_problem_is_a_document_with_its_members() {
        let plain = json!(ApiProblem::no_such_key());
        let expected = json!({ "type": "about:blank", "title": "Not Found", "status": 404, "code": "no-such-key",
                               "detail": "there is no key with this id; it may have been forgotten" });
        assert_eq!(plain, expected);
        let problem = ApiProblem::new(ProblemCode::NotQuiet, "d").with("changed", 1).with("route", "r");
        let expected = json!({ "type": "about:blank", "title": "Conflict", "status": 409, "code": "not-quiet",
                               "detail": "d", "changed": 1, "route": "r" });
        assert_eq!(json!(problem), expected);
    }
}
