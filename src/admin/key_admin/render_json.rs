//! The parts of the API's JSON that differ from the fields of its types: keys, problems, and ids, hashes, states and causes as text.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::dto::{KeyDetails, NextPage, ResponseSummary};
use super::problem::ApiProblem;
use super::timeline::timeline;
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

serialize_as_text!(InstanceId, NextPage, RecordId, Scope, StateKind, UnknownCause);

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
        for member in &self.members {
            if let (Value::Object(document), Value::Object(member)) = (&mut document, json!(member)) {
                document.extend(member);
            }
        }
        document.serialize(serializer)
    }
}

impl Serialize for KeyEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        render_entry(self).serialize(serializer)
    }
}

impl Serialize for KeyDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut key = render_entry(&self.entry);
        key["path"] = json!(self.entry.path);
        key["quiet"] = self.is_quiet.into();
        key["quiet_at"] = render_time(self.quiet_at);
        key["recovery_point"] = self.recovery_point.as_ref().map(ToString::to_string).into();
        key["fingerprint"] = json!(self.fingerprint);
        key["response"] = match &self.response {
            Some(ResponseSummary::Stored { status, headers, trailers, body_bytes }) => json!({
                "status": status.as_u16(),
                "headers": headers,
                "trailers": trailers,
                "body_kept": body_bytes.is_some(),
                "body_bytes": body_bytes,
            }),
            Some(ResponseSummary::Corrupt(row)) => json!({ "corrupt": row.to_string() }),
            None => Value::Null,
        };
        key["timeline"] = json!(timeline(&self.entry, &self.audit));
        key["audit"] = json!(self.audit);
        key.serialize(serializer)
    }
}

/// A key as a list shows it: without its token, and of its response only the status and the body's length.
fn render_entry(entry: &KeyEntry) -> Value {
    let mut rendered = json!({
        "id": entry.id,
        "key": String::from_utf8_lossy(&entry.key),
        "scope": entry.scope,
        "space": entry.space.to_string(),
        "route": entry.route,
        "state": entry.state,
        "attempts": entry.attempts,
        "created_at": rfc3339::format(entry.created_at),
        "reserved_at": rfc3339::format(entry.reserved_at),
        "deadline": rfc3339::format(entry.deadline),
        "settled_at": render_time(entry.settled_at),
        "expires_at": render_time(entry.expires_at),
        "lapsed": entry.lapsed(),
        "instance": entry.instance,
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "probes": entry.probes,
        "absences": entry.absences,
        "probe_at": render_time(entry.probe_at),
        "accepted_at": render_time(entry.accepted_at),
        "cause": entry.cause,
    });
    if str::from_utf8(&entry.key).is_err() {
        rendered["key_base64"] = BASE64_STANDARD.encode(&entry.key).into();
    }
    rendered
}

fn render_time(time: Option<SystemTime>) -> Value {
    time.map(rfc3339::format).into()
}

#[cfg(test)]
mod tests {
    use super::super::problem::{ProblemCode, ProblemMember};
    use super::*;

    #[test]
    fn a_problem_is_a_document_with_its_members() {
        let plain = json!(ApiProblem::no_such_key());
        let expected = json!({ "type": "about:blank", "title": "Not Found", "status": 404, "code": "no-such-key",
                               "detail": "there is no key with this id; it may have been forgotten" });
        assert_eq!(plain, expected);
        let members = [
            ProblemMember::Changed(1),
            ProblemMember::Count(2),
            ProblemMember::Field("f".into()),
            ProblemMember::Id("i".into()),
            ProblemMember::QuietInMs(1500),
            ProblemMember::Route("r".into()),
            ProblemMember::Service("s".into()),
            ProblemMember::State(StateKind::InFlight),
        ];
        let problem = ApiProblem { members: members.into(), ..ApiProblem::new(ProblemCode::NotQuiet, "d") };
        let expected = json!({ "type": "about:blank", "title": "Conflict", "status": 409, "code": "not-quiet",
                               "detail": "d", "changed": 1, "count": 2, "field": "f", "id": "i", "quiet_in_ms": 1500,
                               "route": "r", "service": "s", "state": "in_flight" });
        assert_eq!(json!(problem), expected);
    }
}
