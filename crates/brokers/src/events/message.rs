//! An event as it is published: CloudEvents 1.0 in JSON (section 3 of its JSON format, "structured content mode").

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use oncegate_domain::key::Key;
use oncegate_domain::response::{CorruptRow, StoredResponse};
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_settings::{EventKey, EventSink};
use oncegate_store::KeyEvent;

pub(super) const MEDIA_TYPE: &str = "application/cloudevents+json";

pub(super) struct EventMessage {
    /// The same for each time that this event is published.
    pub id: String,
    /// The event's type, such as `oncegate.key.completed`.
    pub kind: String,
    /// The record's id, by which events of one key have one order.
    pub record: String,
    pub json: Bytes,
}

/// The event's members, in the order of the specification.
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: &'a str,
    source: String,
    #[serde(rename = "type")]
    kind: &'a str,
    subject: &'a str,
    time: String,
    /// Twenty digits: consumers compare them as texts (the extension "sequence").
    sequence: String,
    partitionkey: &'a str,
    datacontenttype: &'static str,
    data: KeyData<'a>,
}

#[derive(Serialize)]
struct KeyData<'a> {
    record: &'a str,
    route: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_sha256: Option<String>,
    state: &'static str,
    attempt: u32,
    created_at: String,
    reserved_at: String,
    settled_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    #[serde(flatten)]
    body: Option<EventBody>,
}

/// A response's body. JSON stays as it came, byte for byte: reading it would change numbers and the order of members.
#[derive(Serialize)]
enum EventBody {
    #[serde(rename = "body")]
    Json(Option<Box<RawValue>>),
    #[serde(rename = "body")]
    Text(String),
    #[serde(rename = "body_base64")]
    Bytes(String),
}

impl EventMessage {
    /// # Errors
    /// The outcome is one of a later version, or the response cannot be read and the sink has bodies.
    pub fn new(service: &str, sink: &EventSink, event: &KeyEvent) -> Result<Self, CorruptRow> {
        let (record, kind) = (event.id.to_string(), format!("oncegate.key.{}", event.kind()?));
        let id = format!("{}-{}", event.seq, &record[..16]);
        let key = event.key.as_ref().map(Key::as_bytes);
        // A reload may have taken the bodies away since the event was written.
        let response = if sink.body { event.response.clone()? } else { None };
        let event = CloudEvent {
            specversion: "1.0",
            id: &id,
            source: format!("/oncegate/{service}"),
            kind: &kind,
            subject: &record,
            time: rfc3339::format(event.at),
            sequence: format!("{:020}", event.seq),
            partitionkey: &record,
            datacontenttype: "application/json",
            data: KeyData {
                record: &record,
                route: &event.route,
                key: key.filter(|_| sink.key == EventKey::Plain).map(String::from_utf8_lossy),
                key_sha256: key.filter(|_| sink.key == EventKey::Hash).map(|key| HEXLOWER.encode(&Sha256::digest(key))),
                state: event.state.map_or("none", StateKind::name),
                attempt: event.attempt,
                created_at: rfc3339::format(event.created_at),
                reserved_at: rfc3339::format(event.reserved_at),
                settled_at: event.settled_at.map(rfc3339::format),
                status: event.status,
                cause: event.cause.as_deref(),
                body: response.as_deref().map(body),
            },
        };
        let json = serde_json::to_vec(&event).expect("it has only texts and numbers").into();
        Ok(Self { id, kind, record, json })
    }
}

/// The response's body: JSON as it is, text as a string, and anything else in base64. Null where it was too large to
/// store.
fn body(response: &StoredResponse) -> EventBody {
    let Some(body) = &response.body else { return EventBody::Json(None) };
    let kind = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = std::str::from_utf8(body).ok();
    if (kind == "application/json" || kind.ends_with("+json"))
        && let Some(value) = text.and_then(|text| RawValue::from_string(text.to_owned()).ok())
    {
        return EventBody::Json(Some(value));
    }
    match text {
        Some(text) if kind.starts_with("text/") || body.is_empty() => EventBody::Text(text.to_owned()),
        _ => EventBody::Bytes(STANDARD.encode(body)),
    }
}
