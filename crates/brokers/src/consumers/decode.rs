//! Turns a message of any broker into a request: its key, its path, and the header fields that the service sees.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use oncegate_domain::key::KeyError;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::{Place, PlaceError, RequestPlaces, read_body_place};
use oncegate_domain::response::FIELDS_MAX;
use oncegate_engine::gate::message::Message;
use oncegate_http::protocol::fields::is_misspelled;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Consumer, MessageKey, MessageKeyPlace};

/// Headers that are not passed to the service: hop-by-hop ones, those about a request's origin, Oncegate's own, and
/// those of the broker that change with each delivery and so are no part of the request.
const DROPPED_HEADERS: [&str; 19] = [
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
const DROPPED_PREFIXES: [&str; 5] = ["oncegate-", "x-first-death-", "x-forwarded-", "x-last-death-", "x-oncegate-"];

/// The header that has the key of a record of Kafka, for keys and paths that are made of it.
pub(super) const KAFKA_KEY: &str = "kafka-key";

/// The last second, in Unix time, that an HTTP date can express: its year has four digits.
const LAST_HTTP_DATE: u64 = 253_402_300_799;

const SCOPE_NOT_TEXT: Refusal = Refusal::ScopeMissing(
    Cow::Borrowed(
        "A header that identifies this message's caller has a value that is no text or cannot stand in a header field.",
    ),
    None,
);
const PATH_HEADER_INVALID: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "A header that the message's path needs is missing, present twice, or has a value that cannot stand in a path.",
);

const TOO_MANY_HEADERS: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The message has more headers than a request can have fields.");

/// What a broker's message says beside its body.
#[derive(Default)]
pub struct SentMessage {
    /// The headers with lower-case names (case does not matter, as in HTTP). A value that has no text form is `None`.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The id.
    pub id: Option<String>,
    /// The content type and the content encoding, where the broker has places of their own for them.
    pub content: [Option<String>; 2],
    /// The time at which it was sent, in seconds of Unix time.
    pub timestamp: Option<u64>,
    /// The topic, if it is a record of Kafka.
    pub topic: Option<Arc<str>>,
}

/// Turns a broker's message into one for the gate.
///
/// # Errors
/// The refusal of a message that can never succeed.
pub fn decode_message(
    consumer: &Arc<Consumer>,
    sent: impl Into<SentMessage>,
    body: Bytes,
    broker: IpAddr,
) -> Result<Message, Refusal> {
    let sent = sent.into();
    let value = match &consumer.key.place {
        MessageKeyPlace::KafkaKey => sent.text(KAFKA_KEY)?,
        MessageKeyPlace::MessageId => sent.id.as_ref().map(|id| id.as_bytes().to_vec()),
        MessageKeyPlace::Place(Place::Header(name, None)) => sent.text(name.as_str())?,
        MessageKeyPlace::Place(place) => key_at(&sent, &body, place)?,
    };
    let mut key = value.ok_or_else(|| key_missing(&consumer.key))?;
    if let Some(step) = &consumer.key.step {
        key.extend([b":", step.as_bytes()].concat());
    }
    let filled = consumer.path.fill_in(|name| match sent.single(name) {
        HeaderLookup::Text(text) => Some(text),
        HeaderLookup::Missing | HeaderLookup::NotText | HeaderLookup::Several => None,
    });
    let path = filled.ok_or(PATH_HEADER_INVALID)?;
    let headers = sent.to_fields(|name| consumer.reads_header(name)).ok_or(TOO_MANY_HEADERS)?;
    // A header that is present and cannot become a field must not count as missing.
    if consumer.scope.header_names().any(|name| sent.all(name.as_str()).count() != headers.get_all(name).iter().count())
    {
        return Err(SCOPE_NOT_TEXT);
    }
    let (consumer, topic) = (Arc::clone(consumer), sent.topic);
    Ok(Message { consumer, topic, path, key: key.into(), headers, body, broker })
}

/// The key at a place of the body, or in the JSON of a header.
fn key_at(sent: &SentMessage, body: &Bytes, place: &Place) -> Result<Option<Vec<u8>>, Refusal> {
    let headers = sent.to_fields(|_| false).ok_or(TOO_MANY_HEADERS)?;
    let reader = RequestPlaces { pattern: None, path: &RequestPath::new("/"), query: None, headers: &headers };
    let value = if place.is_in_body() { read_body_place(&headers, body, place) } else { reader.read_head(place) };
    value.map_err(|error| match error {
        PlaceError::Several => KeyError::Several.into(),
        PlaceError::NotScalar => Refusal::KeyInvalid("The key in the message is neither a text nor a number."),
        PlaceError::Unreadable(reason) => Refusal::KeyInvalid(reason),
    })
}

fn key_missing(key: &MessageKey) -> Refusal {
    let place = match &key.place {
        MessageKeyPlace::KafkaKey => "the record's key".to_owned(),
        MessageKeyPlace::MessageId => "the property `message-id`".to_owned(),
        MessageKeyPlace::Place(Place::Header(name, None)) => format!("the header `{name}`"),
        MessageKeyPlace::Place(place) => format!("the value at `{place}`"),
    };
    Refusal::KeyMissing(format!("The message has no idempotency key: {place} is absent.").into())
}

/// The result of looking up a header that may be present once.
enum HeaderLookup<'a> {
    Missing,
    NotText,
    Several,
    Text(&'a [u8]),
}

impl SentMessage {
    fn all(&self, name: &str) -> impl Iterator<Item = Option<&[u8]>> {
        self.headers.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_deref())
    }

    fn single(&self, name: &str) -> HeaderLookup<'_> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (None, _) => HeaderLookup::Missing,
            (Some(Some(text)), None) => HeaderLookup::Text(text),
            (Some(None), None) => HeaderLookup::NotText,
            (Some(_), Some(_)) => HeaderLookup::Several,
        }
    }

    /// The text of a header, if the message has it.
    fn text(&self, name: &str) -> Result<Option<Vec<u8>>, KeyError> {
        match self.single(name) {
            HeaderLookup::Missing => Ok(None),
            HeaderLookup::Text(text) => Ok(Some(text.to_vec())),
            HeaderLookup::Several => Err(KeyError::Several),
            HeaderLookup::NotText => Err(KeyError::BadCharacter),
        }
    }

    /// Returns the header fields that the service sees. Tables, lists and other values without a text form are left
    /// out. Nor is one that is spelled like a field that Oncegate sets or reads. `None` if there are more than
    /// [`FIELDS_MAX`].
    fn to_fields(&self, is_read: impl Fn(&str) -> bool) -> Option<HeaderMap> {
        let mut fields = HeaderMap::new();
        for (name, value) in &self.headers {
            let kept = !DROPPED_HEADERS.contains(&name.as_str())
                && !DROPPED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !is_misspelled(name, &is_read);
            let value = value.as_deref().and_then(|value| HeaderValue::from_bytes(value).ok());
            if let (true, Ok(name), Some(value)) = (kept, name.parse::<HeaderName>(), value) {
                if fields.keys_len() == FIELDS_MAX {
                    return None;
                }
                fields.append(name, value);
            }
        }
        let mut set = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                fields.insert(name, value);
            }
        };
        let [kind, encoding] = &self.content;
        set(CONTENT_TYPE, kind.as_deref());
        set(CONTENT_ENCODING, encoding.as_deref());
        let sent = self.timestamp.filter(|seconds| *seconds <= LAST_HTTP_DATE);
        let sent = sent.map(|seconds| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        set(DATE, sent.as_deref());
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable, LongString};

    use super::*;
    use oncegate_config::{self as config, Overrides, ProcessEnvironment};

    fn consumer(lines: &str) -> Arc<Consumer> {
        let file = format!(
            "upstream = 'http://a'\n[[routes]]\nname = 'r'\npath = '/o/{{id}}'\n[[consumers]]\namqp = 'amqp://b'\n\
             queue = 'q'\nroute = 'r'\npath = '/o/{{x-id}}'\n{lines}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncegate.toml");
        std::fs::write(&path, file).unwrap();
        let loaded = config::load(Some(&path), &Overrides::default(), &ProcessEnvironment);
        Arc::clone(&loaded.expect("it loads").live.consumers[0])
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
        decode_message(&consumer(lines), properties, Bytes::from_static(b"{}"), Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn a_message_becomes_a_request_without_hop_by_hop_and_broker_headers() {
        let sent = properties(&[
            ("X-Idempotency-Key", long("k-1")),
            ("x-id", AMQPValue::LongLongInt(7)),
            ("X_Tenant", long("bank")),
            ("oncegate_attempt", long("7")),
            ("x_own", long("kept")),
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
                "x-tenant: shop",
                "x_own: kept"
            ]
        );
    }

    #[test]
    fn a_missing_or_repeated_key_path_or_scope_header_is_refused() {
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
            (vec![key(), id(), ("x-tenant", long("a\nb"))], "", "scope-missing"),
            (vec![key(), id(), ("x-tenant", AMQPValue::Void)], "", "scope-missing"),
        ] {
            assert_eq!(read(lines, &properties(&headers)).unwrap_err().slug(), slug, "{headers:?} {lines}");
        }
        let in_body = |lines: &str, body: &'static str| {
            decode_message(
                &consumer(lines),
                &properties(&[id()]),
                Bytes::from_static(body.as_bytes()),
                Ipv4Addr::LOCALHOST.into(),
            )
        };
        let step = "key = 'json:/data/key'\nstep = 'process-payment'";
        for (body, slug) in [
            (r#"{"data":{}}"#, "key-missing"),
            (r#"{"data":{"key":["k"]}}"#, "key-invalid"),
            (r#"{"data":{"key":"k"},"data":{"key":"l"}}"#, "key-invalid"),
            ("no JSON", "key-invalid"),
        ] {
            assert_eq!(in_body(step, body).unwrap_err().slug(), slug, "{body}");
        }
        for (lines, body, key) in [
            (step, r#"{"data":{"key":"order-1"}}"#, "order-1:process-payment"),
            (step, r#"{"data":{"key":7}}"#, "7:process-payment"),
            ("key = 'json:/id'", r#"{"id":"k-1"}"#, "k-1"),
        ] {
            assert_eq!(&*in_body(lines, body).unwrap().key, key.as_bytes());
        }
        let by_id = read("key = 'message-id'", &properties(&[id()]).with_message_id("m-1".into())).unwrap();
        assert_eq!(&*by_id.key, b"m-1");
    }

    #[test]
    fn a_key_is_read_at_each_kind_of_place_that_a_message_has() {
        let key_at = |place: &str, kind: &str, body: &'static [u8]| {
            // The base64 of {"id":"k-1"}.
            let sent = properties(&[("x-id", long("7")), ("x-pay", long("eyJpZCI6ImstMSJ9"))]);
            let sent = sent.with_content_type(kind.into());
            let consumer = consumer(&format!("key = '{place}'"));
            decode_message(&consumer, &sent, Bytes::from_static(body), Ipv4Addr::LOCALHOST.into())
        };
        const FORM: &str = "application/x-www-form-urlencoded";
        for (place, kind, body) in [
            ("header:x-pay#/id", "", &b""[..]),
            ("form:id", FORM, b"a=1&id=k-1"),
            ("form:order#/id", FORM, b"order=%7B%22id%22%3A%22k-1%22%7D"),
            ("cbor:/id", "application/cbor", b"\xa1\x62id\x63k-1"),
            ("xml:/order/@id", "application/xml", b"<order id='k-1'/>"),
            ("protobuf:2", "application/protobuf", b"\x12\x03k-1"),
        ] {
            assert_eq!(&*key_at(place, kind, body).expect(place).key, b"k-1", "{place}");
        }
        for (place, kind, body, slug) in [
            ("form:id", FORM, &b"id=k-1&id=k-1"[..], "key-invalid"),
            ("form:id", FORM, b"a=1", "key-missing"),
            ("cbor:/id", "application/cbor", b"\xa1\x62id", "key-invalid"),
            ("xml:/order/@id", "application/xml", b"<order id='k-1'>", "key-invalid"),
            ("header:x-id#/id", "", b"", "key-invalid"),
            ("header:x-none#/id", "", b"", "key-missing"),
        ] {
            assert_eq!(key_at(place, kind, body).unwrap_err().slug(), slug, "{place}");
        }
    }

    #[test]
    fn a_message_with_more_headers_than_a_request_has_room_for_is_refused() {
        let names: Vec<_> = (0..40_000).map(|number| format!("x-{number}")).collect();
        let many = names.iter().map(|name| (name.as_str(), AMQPValue::Boolean(true)));
        let all: Vec<_> = [("x-idempotency-key", long("k")), ("x-id", long("7"))].into_iter().chain(many).collect();
        assert_eq!(read("", &properties(&all)).unwrap_err().slug(), "bad-request");
    }

    #[test]
    fn a_timestamp_beyond_http_dates_is_left_out() {
        let sent = properties(&[("x-idempotency-key", long("k")), ("x-id", long("7"))]).with_timestamp(u64::MAX);
        assert!(!read("", &sent).unwrap().headers.contains_key(DATE));
    }
}
