//! Messages of RabbitMQ.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use oncegate_brokers::consumers::decode::decode_message;
use oncegate_config::{self as config, Environment, Overrides};
use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use oncegate_domain::normal_path::{has_unsafe_character, normal_form};
use oncegate_settings::Consumer;
use oncegate_trust::tls::Authorities;

use super::bytes_reader::BytesReader;

const FILE: &str = "upstream = 'http://a'
[[routes]]
name = 'r'
path = '/o/{id}/{part}'
[[consumers]]
amqp = 'amqp://b'
queue = 'by-header'
route = 'r'
path = '/o/{x-id}/part-{x-part}'
scope = ['header:x-tenant']
[[consumers]]
amqp = 'amqp://b'
queue = 'by-id'
route = 'r'
path = '/o/{x-id}/all'
key = 'message-id'
";

struct OneFile;

impl Environment for OneFile {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn read(&self, _: &Path) -> io::Result<String> {
        Ok(FILE.to_owned())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn is_database(&self, _: &Path) -> bool {
        true
    }

    fn authorities(&self) -> Authorities {
        Authorities::empty()
    }
}

static CONSUMERS: LazyLock<Vec<Arc<Consumer>>> = LazyLock::new(|| {
    let loaded = config::load(Some(Path::new("oncegate.toml")), &Overrides::default(), &OneFile);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).live.consumers.clone()
});

/// Names that are read, dropped or set. A header of the input has one of them, or a whole name.
const NAMES: [&str; 16] = [
    "X-Idempotency-Key",
    "x-idempotency-key",
    "x-id",
    "X-ID",
    "x-part",
    "x-tenant",
    "X_Tenant",
    "connection",
    "content-length",
    "transfer-encoding",
    "host",
    "oncegate-attempt",
    "oncegate_attempt",
    "x-forwarded-for",
    "x-death",
    "content-type",
];

/// Checks a message whose properties are taken from the input: it is refused, or becomes a request whose path is one of
/// its consumer's template and which has no header that only Oncegate may set.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let consumer = &CONSUMERS[usize::from(input.byte()) % CONSUMERS.len()];
    let mut properties = BasicProperties::default();
    let present = input.byte();
    if present & 1 != 0 {
        properties = properties.with_message_id(short(input.text()));
    }
    if present & 2 != 0 {
        properties = properties.with_content_type(short(input.text())).with_content_encoding(short(input.text()));
    }
    if present & 4 != 0 {
        properties = properties.with_timestamp(input.number().cast_unsigned());
    }
    if present & 8 != 0 {
        properties = properties.with_headers(table(&mut input, 0));
    }
    let broker = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let Ok(message) = decode_message(consumer, &properties, Bytes::new(), broker) else { return };

    assert!(!has_unsafe_character(&message.path.replace("%", "%25")), "{}", message.path);
    assert!(message.path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte)), "{}", message.path);
    assert_eq!(message.path.split('/').count(), 4, "{}", message.path);
    assert_eq!(normal_form(&message.path).split('/').count(), 4, "{} climbs", message.path);
    assert!(message.path.starts_with("/o/"));
    let _ = Key::parse(&message.key, KeySyntax::Ietf, KeyLimits { length_min: 1, length_max: 255 });
    for name in message.headers.keys().map(http::HeaderName::as_str) {
        let hyphenated = name.replace('_', "-");
        assert!(!["connection", "content-length", "transfer-encoding", "host", "x-death"].contains(&name), "{name}");
        assert!(!hyphenated.starts_with("oncegate-") && !hyphenated.starts_with("x-forwarded-"), "{name}");
        assert!(name != "x_tenant" || consumer.source.to_string() != "by-header", "{name}");
    }
}

/// A short string: at most 255 bytes of UTF-8, as the broker's protocol has it.
fn short(bytes: &[u8]) -> ShortString {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    while text.len() > 255 {
        text.pop();
    }
    text.into()
}

fn table(input: &mut BytesReader<'_>, depth: u8) -> FieldTable {
    let mut table = FieldTable::default();
    for _ in 0..input.byte() % 12 {
        let name = match input.byte() {
            place @ 0..128 => NAMES[usize::from(place) % NAMES.len()].to_owned(),
            _ => String::from_utf8_lossy(input.text()).into_owned(),
        };
        table.insert(short(name.as_bytes()), value(input, depth));
    }
    table
}

fn value(input: &mut BytesReader<'_>, depth: u8) -> AMQPValue {
    match input.byte() % 20 {
        0 => AMQPValue::Boolean(input.byte().is_multiple_of(2)),
        1 => AMQPValue::ShortShortInt(input.byte().cast_signed()),
        2 => AMQPValue::ShortShortUInt(input.byte()),
        3 => AMQPValue::ShortInt(input.number() as i16),
        4 => AMQPValue::ShortUInt(input.number() as u16),
        5 => AMQPValue::LongInt(input.number() as i32),
        6 => AMQPValue::LongUInt(input.number() as u32),
        7 => AMQPValue::LongLongInt(input.number()),
        8 => AMQPValue::Double(input.number() as f64),
        9 => AMQPValue::Timestamp(input.number().cast_unsigned()),
        10 => AMQPValue::ShortString(short(input.text())),
        11 => AMQPValue::ByteArray(input.text().to_vec().into()),
        12 if depth < 4 => AMQPValue::FieldTable(table(input, depth + 1)),
        13 => AMQPValue::Void,
        _ => AMQPValue::LongString(LongString::from(input.text())),
    }
}
