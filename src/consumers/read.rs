//! A delivery, read as a request: what is its key, where does it go, and what of it does the service see?

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lapin::BasicProperties;
use lapin::types::AMQPValue;

use crate::config::{Consumer, MessageKey};
use crate::domain::filled_path::Unfilled;
use crate::domain::key::KeyError;
use crate::gate::message::Message;
use crate::gate::refuse::Refusal;

/// Headers that concern one connection, that say where a request comes from, or in which only Oncegate speaks. What the
/// broker adds changes with each delivery, and what of it changes is no part of a request either.
const NOT_FOR_THE_SERVICE: [&str; 19] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "idempotent-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-acquired-count",
    "x-death",
    "x-delivery-count",
];
const NOT_BEGINNING_WITH: [&str; 5] = ["oncegate-", "x-first-death-", "x-forwarded-", "x-last-death-", "x-oncegate-"];

/// The last second that HTTP can write as a date: the year has four digits.
const LAST_SECOND: u64 = 253_402_300_799;

const NO_TEXT: Refusal =
    Refusal::KeyInvalid("What tells this message's caller from others is no text that a field can carry.");
const NO_PATH: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The message lacks a header that its path is made of, has it twice, or with a value that no path can have.",
);

/// What is to be asked of the gate.
///
/// # Errors
/// Why the message will never do.
pub(super) fn message(
    consumer: &Arc<Consumer>,
    properties: &BasicProperties,
    body: Bytes,
    broker: IpAddr,
) -> Result<Message, Refusal> {
    let told = Told::of(properties);
    let key = match &consumer.key {
        MessageKey::MessageId => properties.message_id().as_ref().map(|id| id.as_str().as_bytes().to_vec()),
        MessageKey::Header(name) => match told.only(name.as_str()) {
            Only::Missing => None,
            Only::Text(text) => Some(text.to_vec()),
            Only::Several => return Err(KeyError::Several.into()),
            Only::NoText => return Err(KeyError::BadCharacter.into()),
        },
    };
    let key = key.ok_or(Refusal::KeyMissing)?;
    let filled = consumer.path.fill_in(|name| match told.only(name) {
        Only::Text(text) => Some(text),
        Only::Missing | Only::NoText | Only::Several => None,
    });
    let path = filled.map_err(|why| match why {
        Unfilled::Climbs | Unfilled::Missing => NO_PATH,
    })?;
    let headers = told.fields(properties);
    // One that is there and cannot be carried must not pass for one that is missing.
    if consumer.scope.header_names().any(|name| told.all(name.as_str()).count() != headers.get_all(name).iter().count())
    {
        return Err(NO_TEXT);
    }
    Ok(Message { consumer: Arc::clone(consumer), path, key: key.into(), headers, body, broker })
}

/// A message's headers; their names make no difference between capitals and small letters here, as in HTTP.
struct Told(Vec<(String, Option<Vec<u8>>)>);

/// What a name stands for.
enum Only<'a> {
    Missing,
    NoText,
    Several,
    Text(&'a [u8]),
}

impl Told {
    fn of(properties: &BasicProperties) -> Self {
        let table = properties.headers().iter().flat_map(|table| table.inner());
        Self(table.map(|(name, value)| (name.as_str().to_ascii_lowercase(), text(value))).collect())
    }

    fn all(&self, name: &str) -> impl Iterator<Item = Option<&[u8]>> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_deref())
    }

    fn only(&self, name: &str) -> Only<'_> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (None, _) => Only::Missing,
            (Some(Some(text)), None) => Only::Text(text),
            (Some(None), None) => Only::NoText,
            (Some(_), Some(_)) => Only::Several,
        }
    }

    /// What the service sees. Tables, lists and what else has no one text stay in the queue.
    fn fields(&self, properties: &BasicProperties) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in &self.0 {
            let kept = !NOT_FOR_THE_SERVICE.contains(&name.as_str())
                && !NOT_BEGINNING_WITH.iter().any(|beginning| name.starts_with(beginning));
            let value = value.as_deref().and_then(|value| HeaderValue::from_bytes(value).ok());
            if let (true, Ok(name), Some(value)) = (kept, name.parse::<HeaderName>(), value) {
                fields.append(name, value);
            }
        }
        let mut put = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                fields.insert(name, value);
            }
        };
        put(CONTENT_TYPE, properties.content_type().as_ref().map(|text| text.as_str()));
        put(CONTENT_ENCODING, properties.content_encoding().as_ref().map(|text| text.as_str()));
        let sent = properties.timestamp().filter(|seconds| *seconds <= LAST_SECOND);
        let sent = sent.map(|seconds| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        put(DATE, sent.as_deref());
        fields
    }
}

/// What a value says, where it is one text, one number or one word.
fn text(value: &AMQPValue) -> Option<Vec<u8>> {
    let shown = match value {
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
    Some(shown.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lapin::types::{FieldTable, LongString};

    use super::*;
    use crate::config::{self, Overrides, Process};

    fn consumer(lines: &str) -> Arc<Consumer> {
        let file = format!(
            "upstream = 'http://a'\n[[routes]]\nname = 'r'\npath = '/o/{{id}}'\n[[consumers]]\namqp = 'amqp://b'\n\
             queue = 'q'\nroute = 'r'\npath = '/o/{{x-id}}'\n{lines}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncegate.toml");
        std::fs::write(&path, file).unwrap();
        let loaded = config::load(Some(&path), &Overrides::default(), &Process);
        Arc::clone(&loaded.expect("it loads").consumers[0])
    }

    fn properties(headers: &[(&str, AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_headers(table)
    }

    fn long(text: &str) -> AMQPValue {
        AMQPValue::LongString(LongString::from(text.as_bytes()))
    }

    fn read(lines: &str, properties: &BasicProperties) -> Result<Message, Refusal> {
        message(&consumer(lines), properties, Bytes::from_static(b"{}"), Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn a_message_is_a_request_with_its_own_headers_and_without_those_of_the_way() {
        let sent = properties(&[
            ("X-Idempotency-Key", long("k-1")),
            ("x-id", AMQPValue::LongLongInt(7)),
            ("x-tenant", long("shop")),
            ("x-retries", AMQPValue::LongInt(-3)),
            ("x-first-death-queue", long("q")),
            ("x-oncegate-reason", long("status")),
            ("X-Forwarded-For", long("10.0.0.1")),
            ("Oncegate-Reservation", long("t")),
            ("host", long("elsewhere")),
            ("x-table", AMQPValue::FieldTable(FieldTable::default())),
            ("not a name", long("x")),
            ("x-broken", long("a\nb")),
        ])
        .with_content_type("application/json".into())
        .with_timestamp(784_111_777);
        let message = read("", &sent).unwrap();
        assert_eq!((message.path.as_str(), &*message.key), ("/o/7", &b"k-1"[..]));
        let mut fields: Vec<_> = message.headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "content-type: application/json",
                "date: Sun, 06 Nov 1994 08:49:37 GMT",
                "x-id: 7",
                "x-idempotency-key: k-1",
                "x-retries: -3",
                "x-tenant: shop"
            ]
        );
    }

    #[test]
    fn what_a_message_lacks_or_has_twice_is_refused() {
        let key = || ("x-idempotency-key", long("k"));
        let id = || ("x-id", long("7"));
        for (headers, lines, slug) in [
            (vec![id()], "", "key-missing"),
            (vec![key(), id()], "key = 'message-id'", "key-missing"),
            (vec![key(), ("X-Idempotency-Key", long("k")), id()], "", "key-invalid"),
            (vec![("x-idempotency-key", AMQPValue::Void), id()], "", "key-invalid"),
            (vec![key()], "", "bad-request"),
            (vec![key(), ("x-id", long(".."))], "", "bad-request"),
            (vec![key(), id(), ("X-Id", long("8"))], "", "bad-request"),
            (vec![key(), id(), ("x-tenant", long("a\nb"))], "", "key-invalid"),
            (vec![key(), id(), ("x-tenant", AMQPValue::Void)], "", "key-invalid"),
        ] {
            assert_eq!(read(lines, &properties(&headers)).unwrap_err().slug(), slug, "{headers:?} {lines}");
        }
        let by_id = read("key = 'message-id'", &properties(&[id()]).with_message_id("m-1".into())).unwrap();
        assert_eq!(&*by_id.key, b"m-1");
    }

    #[test]
    fn a_time_that_http_cannot_write_is_left_out() {
        let sent = properties(&[("x-idempotency-key", long("k")), ("x-id", long("7"))]).with_timestamp(u64::MAX);
        assert!(!read("", &sent).unwrap().headers.contains_key(DATE));
    }
}
