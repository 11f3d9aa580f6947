//! The form of a completed record in the shared cache, and its protection.
//!
//! Everything in the shared cache is untrusted: others may write there, and a server may return the bytes of another
//! key. So an entry opens under its own name alone. With a secret it is sealed and authenticated; without one it has a
//! checksum, which finds garbage and no forgery.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::CacheEpoch;
use oncegate_domain::fingerprint::{Fingerprint, Recipe, Secrets};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::scope::Salt;
use oncegate_domain::sealed::SealedBytes;
use oncegate_domain::state::{CompletedResponse, KeyState};

/// The names of a service's entries. A name begins with the version of the entry's form, so that programs of two
/// versions do not read each other's.
#[derive(Debug)]
pub(super) struct EntryNames {
    prefix: String,
}

#[derive(Debug)]
pub(super) struct SharedRecord {
    pub(super) record: Record,
    /// The purge count when the read of the store began that the record comes from.
    pub(super) epoch: CacheEpoch,
    pub(super) expires_at: SystemTime,
}

/// The first byte of an entry: its protection.
const CHECKED: u8 = 0;
const SEALED: u8 = 1;

const CHECKSUM_BYTES: usize = 32;

/// The first millisecond since 1970 for which there is no HTTP date.
const YEAR_10000_MS: u64 = 253_402_300_800_000;

/// The stored form of a record that was not accepted for asynchronous delivery.
const NOT_ACCEPTED: i64 = -1;

impl EntryNames {
    /// The names of a service in its store. The salt names the store: two stores with the same service, such as a
    /// test's and the production's, share no entry, even where a scope without parts gives both the same record ids.
    pub(super) fn new(service: &str, salt: &Salt) -> Self {
        let store = salt.mac("shared cache", []);
        Self { prefix: format!("oncegate:1:{service}:{}:", HEXLOWER.encode(&store[..8])) }
    }

    pub(super) fn name(&self, id: &RecordId) -> String {
        format!("{}{id}", self.prefix)
    }
}

/// Encodes a completed record as a protected entry; `None` for another record.
pub(super) fn encode(secrets: &Secrets, name: &str, record: &Record, epoch: CacheEpoch) -> Option<Vec<u8>> {
    let text = encode_record(record, epoch)?;
    let Some(secret) = secrets.current() else {
        return Some([&[CHECKED][..], &checksum(name, &text), &text].concat());
    };
    let mut salt = [0; 32];
    getrandom::fill(&mut salt).expect("the operating system has random numbers");
    let sealed = SealedBytes::seal(secret, name.as_bytes(), salt, &text);
    let length = u8::try_from(sealed.secret.len()).expect("a secret's name is short");
    Some([&[SEALED, length][..], sealed.secret.as_bytes(), &sealed.bytes].concat())
}

/// Decodes the entry with this name; `None` where it is garbage, of another name, or not of an instance with the
/// secret. With a secret only sealed entries count.
pub(super) fn decode(secrets: &Secrets, name: &str, id: RecordId, entry: Bytes) -> Option<SharedRecord> {
    decode_record(id, open(secrets, name, entry)?)
}

fn open(secrets: &Secrets, name: &str, mut entry: Bytes) -> Option<Bytes> {
    match (entry.try_get_u8().ok()?, secrets.is_empty()) {
        (SEALED, false) => {
            let length = entry.try_get_u8().ok()?;
            let secret = String::from_utf8(take(&mut entry, length.into())?.to_vec()).ok()?;
            SealedBytes { secret, bytes: entry }.open(secrets, name.as_bytes()).ok().map(Bytes::from)
        }
        (CHECKED, true) => {
            let sum = take(&mut entry, CHECKSUM_BYTES)?;
            (checksum(name, &entry) == sum[..]).then_some(entry)
        }
        _ => None,
    }
}

fn checksum(name: &str, text: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hash = Sha256::new();
    hash.update((name.len() as u64).to_be_bytes());
    hash.update(name);
    hash.update(text);
    hash.finalize().into()
}

/// The record as numbers in network order and length-prefixed texts; the body is the rest.
fn encode_record(record: &Record, epoch: CacheEpoch) -> Option<Vec<u8>> {
    let KeyState::Completed(CompletedResponse { response, expires_at: Some(expires_at) }) = &record.state else {
        return None;
    };
    let (recipe, fields) = (record.recipe.to_stored(), response.encode_fields());
    let body = response.body.as_deref();
    let mut text = Vec::with_capacity(96 + recipe.len() + fields.len() + body.map_or(0, <[u8]>::len));
    text.extend_from_slice(&epoch.0.to_be_bytes());
    text.extend_from_slice(&to_ms(*expires_at)?.to_be_bytes());
    text.extend_from_slice(&record.accepted_at.map_or(Some(NOT_ACCEPTED), to_ms)?.to_be_bytes());
    text.extend_from_slice(&record.attempt.to_be_bytes());
    text.extend_from_slice(record.token.as_bytes());
    text.extend_from_slice(record.fingerprint.as_bytes());
    text.extend_from_slice(&u32::try_from(recipe.len()).ok()?.to_be_bytes());
    text.extend_from_slice(recipe.as_bytes());
    text.extend_from_slice(&response.status.as_u16().to_be_bytes());
    text.push(u8::from(body.is_some()));
    text.extend_from_slice(&u32::try_from(fields.len()).ok()?.to_be_bytes());
    text.extend_from_slice(&fields);
    text.extend_from_slice(body.unwrap_or_default());
    Some(text)
}

fn decode_record(id: RecordId, mut text: Bytes) -> Option<SharedRecord> {
    let epoch = CacheEpoch(text.try_get_u64().ok()?);
    let expires_at = from_ms(text.try_get_i64().ok()?)?;
    let accepted_at = match text.try_get_i64().ok()? {
        NOT_ACCEPTED => None,
        ms => Some(from_ms(ms)?),
    };
    let attempt = text.try_get_u32().ok()?;
    let token = Token::from_stored(&take(&mut text, 16)?)?;
    let fingerprint = Fingerprint::from_stored(&take(&mut text, 32)?)?;
    let recipe = Recipe::from_stored(std::str::from_utf8(&take_prefixed(&mut text)?).ok()?)?;
    let status = text.try_get_i16().ok()?;
    let is_body_kept = text.try_get_u8().ok()? == 1;
    let fields = take_prefixed(&mut text)?;
    let response = Arc::new(StoredResponse::decode(status, &fields, is_body_kept.then_some(text)).ok()?);
    let completed = CompletedResponse { response, expires_at: Some(expires_at) };
    let record = Record::completed(id, (attempt, token), (recipe, fingerprint), accepted_at, completed);
    Some(SharedRecord { record, epoch, expires_at })
}

fn take(bytes: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

fn take_prefixed(bytes: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
    take(bytes, length)
}

/// Milliseconds since 1970, rounded down: an entry never outlives its record.
fn to_ms(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// A time that an HTTP date can have: the year has four digits (RFC 9110 section 5.6.7).
fn from_ms(ms: i64) -> Option<SystemTime> {
    let ms = u64::try_from(ms).ok().filter(|ms| *ms < YEAR_10000_MS)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

    use super::*;
    use oncegate_domain::fingerprint::{FingerprintRules, Secret};

    fn id(number: u8) -> RecordId {
        RecordId::from_stored(&[number; 32]).unwrap()
    }

    fn names() -> EntryNames {
        EntryNames::new("shop", &Salt::new([5; 32]))
    }

    fn record(body: Option<&'static [u8]>) -> Record {
        let mut headers = HeaderMap::new();
        headers.append("set-cookie", HeaderValue::from_static("a=canary"));
        headers.append("set-cookie", HeaderValue::from_static("b"));
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))]);
        let body = body.map(Bytes::from_static);
        let response = Arc::new(StoredResponse { status: StatusCode::CREATED, headers, body, trailers });
        let expires_at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(86_400_001));
        let ids = (2, Token::from_random([2; 16]));
        let request = (Recipe::new(FingerprintRules::default(), None), Fingerprint::from_stored(&[3; 32]).unwrap());
        let accepted_at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(7));
        Record::completed(id(1), ids, request, accepted_at, CompletedResponse { response, expires_at })
    }

    fn secrets() -> [Secrets; 2] {
        [Secrets::default(), Secrets::new([Secret::new("the only secret of ours")])]
    }

    #[test]
    fn a_record_comes_back_as_it_was_with_a_secret_and_without() {
        for secrets in secrets() {
            for body in [Some(&b"paid"[..]), Some(b""), None] {
                let (name, record) = (names().name(&id(1)), record(body));
                let entry = encode(&secrets, &name, &record, CacheEpoch(3)).unwrap();
                let found = decode(&secrets, &name, id(1), entry.into()).unwrap();
                assert_eq!((found.epoch, to_ms(found.expires_at)), (CacheEpoch(3), Some(86_400_001)));
                assert_eq!(format!("{:?}", found.record), format!("{record:?}"));
                assert!(found.record.token.is_same(&record.token));
            }
        }
    }

    #[test]
    fn a_changed_cut_or_foreign_entry_is_none() {
        for secrets in secrets() {
            let name = names().name(&id(1));
            let entry = encode(&secrets, &name, &record(Some(b"paid")), CacheEpoch(3)).unwrap();
            for place in 0..entry.len() {
                let mut changed = entry.clone();
                changed[place] ^= 1;
                assert!(decode(&secrets, &name, id(1), changed.into()).is_none(), "{place}");
                assert!(decode(&secrets, &name, id(1), entry[..place].to_vec().into()).is_none(), "{place}");
            }
            let [other_key, other_service, other_store] = [
                names().name(&id(9)),
                EntryNames::new("shop2", &Salt::new([5; 32])).name(&id(1)),
                EntryNames::new("shop", &Salt::new([6; 32])).name(&id(1)),
            ];
            for other in [other_key, other_service, other_store] {
                assert!(decode(&secrets, &other, id(1), entry.clone().into()).is_none(), "{other}");
            }
        }
    }

    #[test]
    fn with_a_secret_only_its_own_entries_count_and_show_nothing() {
        let [none, ours] = secrets();
        let other = Secrets::new([Secret::new("another secret of ours")]);
        let name = names().name(&id(1));
        let entry = |secrets| encode(secrets, &name, &record(Some(b"canary")), CacheEpoch(0)).unwrap();
        assert!(memchr::memmem::find(&entry(&none), b"canary").is_some());
        assert!(memchr::memmem::find(&entry(&ours), b"canary").is_none());
        for (writer, reader) in [(&none, &ours), (&ours, &none), (&other, &ours)] {
            assert!(decode(reader, &name, id(1), entry(writer).into()).is_none());
        }
    }

    #[test]
    fn only_completed_records_are_encoded() {
        let [none, _] = secrets();
        let running = Record { state: KeyState::InFlight, ..record(None) };
        assert!(encode(&none, "name", &running, CacheEpoch(0)).is_none());
    }

    /// A text whose checksum is right and whose inside is not.
    #[test]
    fn a_forged_inside_is_none_or_a_valid_record_and_never_a_panic() {
        let text = encode_record(&record(Some(b"paid")), CacheEpoch(0)).unwrap();
        for place in 0..text.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut changed = text.clone();
                changed[place] = byte;
                drop(decode_record(id(1), changed.into()));
            }
            drop(decode_record(id(1), text[..place].to_vec().into()));
        }
    }

    #[test]
    fn an_end_of_the_ttl_that_no_http_date_has_is_none() {
        let ends_at = |ms: u64| {
            let expires_at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
            let mut record = record(Some(b"paid"));
            if let KeyState::Completed(completed) = &mut record.state {
                completed.expires_at = expires_at;
            }
            decode_record(id(1), encode_record(&record, CacheEpoch(0)).unwrap().into())
        };
        assert!(ends_at(YEAR_10000_MS).is_none() && ends_at(u64::MAX >> 1).is_none());
        let last = ends_at(YEAR_10000_MS - 1).expect("it has a date").expires_at;
        assert_eq!(httpdate::fmt_http_date(last), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
