//! The properties of a RabbitMQ message as any broker's message has them.

use lapin::BasicProperties;
use lapin::types::AMQPValue;

use crate::consumers::decode::SentMessage;

impl From<&BasicProperties> for SentMessage {
    fn from(properties: &BasicProperties) -> Self {
        let table = properties.headers().iter().flat_map(|table| table.inner());
        Self {
            headers: table.map(|(name, value)| (name.as_str().to_ascii_lowercase(), to_text(value))).collect(),
            id: properties.message_id().as_ref().map(ToString::to_string),
            content: [properties.content_type(), properties.content_encoding()]
                .map(|text| text.as_ref().map(ToString::to_string)),
            timestamp: *properties.timestamp(),
            topic: None,
        }
    }
}

/// Returns the text of a value: a string, a number, a boolean or a timestamp.
fn to_text(value: &AMQPValue) -> Option<Vec<u8>> {
    let text = match value {
        AMQPValue::LongString(text) => return Some(text.as_bytes().to_vec()),
        AMQPValue::ByteArray(bytes) => return Some(bytes.as_slice().to_vec()),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(number) => number.to_string(),
        AMQPValue::ShortShortUInt(number) => number.to_string(),
        AMQPValue::ShortInt(number) => number.to_string(),
        AMQPValue::ShortUInt(number) => number.to_string(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongUInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::Timestamp(seconds) => seconds.to_string(),
        AMQPValue::DecimalValue(_)
        | AMQPValue::Double(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::Float(_)
        | AMQPValue::Void => return None,
    };
    Some(text.into_bytes())
}
