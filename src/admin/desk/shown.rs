//! Keys and decisions as JSON.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::domain::rfc3339;
use crate::store::books::{Entry, Note};

/// A key, as a list shows it: no token, nothing of its response but the status and how long its body is.
pub fn entry(entry: &Entry) -> Value {
    let mut shown = json!({
        "id": entry.id.to_string(),
        "key": String::from_utf8_lossy(&entry.key),
        "scope": entry.scope.to_string(),
        "space": String::from_utf8_lossy(&entry.space),
        "route": entry.route,
        "state": entry.state.name(),
        "attempts": entry.attempts,
        "created_at": rfc3339::show(entry.created_at),
        "reserved_at": rfc3339::show(entry.reserved_at),
        "deadline": rfc3339::show(entry.deadline),
        "settled_at": time(entry.settled_at),
        "expires_at": time(entry.expires_at),
        "lapsed": entry.lapsed(),
        "instance": entry.instance.to_string(),
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "probes": entry.probes,
        "absences": entry.absences,
        "probe_at": time(entry.probe_at),
    });
    if str::from_utf8(&entry.key).is_err() {
        shown["key_base64"] = BASE64_STANDARD.encode(&entry.key).into();
    }
    shown
}

/// A line of the audit log.
pub fn note(note: &Note) -> Value {
    json!({
        "at": rfc3339::show(note.at),
        "actor": note.actor,
        "action": note.action,
        "id": note.id.to_string(),
        "before": note.before,
        "after": note.after,
        "note": note.note,
    })
}

fn time(time: Option<SystemTime>) -> Value {
    time.map(rfc3339::show).into()
}
