//! Encodes spans as OTLP: `opentelemetry/proto/collector/trace/v1/trace_service.proto` and its imports, version 1.
//!
//! There are five messages, and they are only written. The wire format needs three kinds of fields for that (Protocol
//! Buffers, "Encoding"). The tests read the result with the messages that the OpenTelemetry project generates.

use std::time::SystemTime;

use super::{Span, SpanValue};

/// Encodes an export request: the spans, and the resource that they are from.
// See docs/decisions/0030-choose-dependencies.md.
pub(super) fn encode_request(resource: &[(Box<str>, Box<str>)], spans: &[Span]) -> Vec<u8> {
    message(|request| {
        request.nested(1, |resource_spans| {
            resource_spans.nested(1, |fields| {
                for (key, value) in resource {
                    fields.nested(1, |pair| text(pair, key, value));
                }
            });
            resource_spans.nested(2, |scope_spans| {
                scope_spans.nested(1, |scope| {
                    scope.text(1, "oncegate");
                    scope.text(2, env!("CARGO_PKG_VERSION"));
                });
                for one in spans {
                    scope_spans.nested(2, |fields| span(fields, one));
                }
            });
        });
    })
}

fn span(fields: &mut ProtobufWriter, span: &Span) {
    fields.bytes(1, &span.trace.0);
    fields.bytes(2, &span.id.0);
    if let Some(parent) = &span.parent {
        fields.bytes(4, &parent.0);
    }
    fields.text(5, &span.name);
    fields.number(6, span.kind as u64);
    let began = span.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    fields.fixed64(7, nanos(began));
    fields.fixed64(8, nanos(began + span.took));
    let error = span.error.as_ref().map(|error| ("error.type", error));
    for (key, value) in span.attributes.iter().map(|(key, value)| (*key, value)).chain(error) {
        fields.nested(9, |pair| match value {
            SpanValue::Text(value) => text(pair, key, value),
            SpanValue::Word(value) => text(pair, key, value),
            SpanValue::Number(value) => {
                pair.text(1, key);
                pair.nested(2, |any| any.number(3, value.cast_unsigned()));
            }
        });
    }
    if span.error.is_some() {
        // STATUS_CODE_ERROR
        fields.nested(15, |status| status.number(3, 2));
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn text(pair: &mut ProtobufWriter, key: &str, value: &str) {
    pair.text(1, key);
    pair.nested(2, |any| any.text(1, value));
}

fn message(write: impl FnOnce(&mut ProtobufWriter)) -> Vec<u8> {
    let mut fields = ProtobufWriter(Vec::new());
    write(&mut fields);
    fields.0
}

/// Writes the fields of one message.
struct ProtobufWriter(Vec<u8>);

impl ProtobufWriter {
    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    fn nested(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let inner = message(write);
        self.bytes(field, &inner);
    }
}
