//! An event as it is published: CloudEvents 1.0 in JSON (section 3 of its JSON format, "structured content mode").

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use oncegate_config::{EventKey, EventSink};
use oncegate_domain::response::StoredResponse;
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_store::KeyEvent;

/// The media type of an event in JSON.
pub(super) const MEDIA_TYPE: &str = "application/cloudevents+json";

/// An event, ready to be sent.
pub(super) struct EventMessage {
    /// The same for each time that this event is published.
    pub id: String,
    /// The event's type, such as `oncegate.key.completed`.
    pub kind: String,
    /// The record's id, by which events of one key have one order.
    pub record: String,
    pub json: Bytes,
}

impl EventMessage {
    pub fn new(service: &str, sink: &EventSink, event: &KeyEvent) -> Self {
        let (record, kind) = (event.id.to_string(), format!("oncegate.key.{}", event.kind));
        let id = format!("{}-{}", event.seq, &record[..16]);
        let json = json!({
            "specversion": "1.0",
            "id": id,
            "source": format!("/oncegate/{service}"),
            "type": kind,
            "subject": record,
            "time": rfc3339::format(event.at),
            // Twenty digits: consumers compare them as texts (the extension "sequence").
            "sequence": format!("{:020}", event.seq),
            "partitionkey": record,
            "datacontenttype": "application/json",
            "data": data(sink, event, &record),
        });
        Self { id, kind, record, json: json.to_string().into() }
    }
}

fn data(sink: &EventSink, event: &KeyEvent, record: &str) -> Value {
    let key = event.key.as_bytes();
    let key = match sink.key {
        EventKey::Plain => ("key", String::from_utf8_lossy(key).into_owned()),
        EventKey::Hash => ("key_sha256", HEXLOWER.encode(&Sha256::digest(key))),
    };
    let mut data = Map::from_iter([
        ("record".into(), json!(record)),
        ("route".into(), json!(event.route)),
        (key.0.into(), json!(key.1)),
        ("state".into(), json!(event.state.map_or("none", StateKind::name))),
        ("attempt".into(), json!(event.attempt)),
        ("created_at".into(), json!(rfc3339::format(event.created_at))),
        ("reserved_at".into(), json!(rfc3339::format(event.reserved_at))),
        ("settled_at".into(), json!(event.settled_at.map(rfc3339::format))),
    ]);
    if let Some(status) = event.status {
        data.insert("status".into(), json!(status));
    }
    if let Some(cause) = &event.cause {
        data.insert("cause".into(), json!(cause));
    }
    if let Some(response) = &event.response {
        let (name, body) = body(response);
        data.insert(name.into(), body);
    }
    data.into()
}

/// The response's body: JSON as it is, text as a string, and anything else in base64. Null where it was too large to store.
fn body(response: &StoredResponse) -> (&'static str, Value) {
    let Some(body) = &response.body else { return ("body", Value::Null) };
    let kind = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if (kind == "application/json" || kind.ends_with("+json"))
        && let Ok(value) = serde_json::from_slice(body)
    {
        return ("body", value);
    }
    match std::str::from_utf8(body) {
        Ok(text) if kind.starts_with("text/") || body.is_empty() => ("body", json!(text)),
        _ => ("body_base64", json!(STANDARD.encode(body))),
    }
}
