//! The JSON of a key.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use oncegate_domain::rfc3339;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::KeyEntry;

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
            "by_hand": self.is_by_hand,
            "body_bytes": self.body_bytes,
            "inquiries": self.inquiries,
            "absences": self.absences,
            "inquire_at": render_time(self.inquire_at),
            "accepted_at": render_time(self.accepted_at),
            "cause": self.cause,
            "trace_id": self.trace_id,
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
