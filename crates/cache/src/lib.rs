//! A cache of completed records. They are immutable until their TTL ends or an operator withdraws them, so a replay
//! does not need the store.
//!
//! The cache never decides who executes: for a key that is not cached the store is asked. A cached record is valid as
//! long as nobody has purged it; each instance reads the store's purge count with its heartbeat, and a count that has
//! grown empties the cache. The caller has to know whether that reading is recent enough.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use oncegate_domain::fingerprint::{Fingerprint, Recipe};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::{CompletedResponse, KeyState};

pub mod shared;

/// Completed records for replays, bounded in bytes.
pub struct Cache {
    records: Table<RecordId, Arc<CachedRecord>, ByteWeigher, BuildHasherDefault<IdHasher>>,
    /// The store's purge count, as last read.
    purges: AtomicU64,
    is_enabled: bool,
}

/// The purge count when a read of the store began. A record that was read before a purge became known is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEpoch(u64);

impl Cache {
    /// An empty cache of at most `bytes` bytes; with 0 it stays empty.
    pub fn new(bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(usize::try_from(bytes / TYPICAL_BYTES).unwrap_or(usize::MAX).max(16))
            .weight_capacity(bytes)
            .shards(SHARDS)
            .build()
            .expect("the two options that must be there are there");
        let records =
            Table::with_options(options, ByteWeigher, BuildHasherDefault::default(), DefaultLifecycle::default());
        Self { records, purges: AtomicU64::new(0), is_enabled: bytes > 0 }
    }

    /// Returns the key's record, if it is cached and within its TTL at `now`, which is the store's time or later.
    pub fn get(&self, id: &RecordId, now: SystemTime) -> Option<Record> {
        if !self.is_enabled {
            return None;
        }
        let cached = self.records.get(id)?;
        let record = if now < cached.expires_at { cached.to_record(*id) } else { None };
        if record.is_none() {
            self.records.remove(id);
        }
        record
    }

    /// Returns the fingerprint of the key's record, if that is cached and within its TTL at `now`, without decoding it.
    pub fn fingerprint(&self, id: &RecordId, now: SystemTime) -> Option<Fingerprint> {
        let cached = self.records.peek(id).filter(|cached| self.is_enabled && now < cached.expires_at)?;
        Some(cached.fingerprint)
    }

    pub fn contains(&self, id: &RecordId) -> bool {
        self.is_enabled && self.records.contains_key(id)
    }

    /// Returns the current epoch, for [`insert_if_current`](Self::insert_if_current). Call it before the store is read.
    pub fn current_epoch(&self) -> CacheEpoch {
        CacheEpoch(self.purge_count())
    }

    /// Caches a completed record, unless a purge has become known since `epoch`. Other records are ignored.
    // See docs/decisions/0015-replay-from-caches.md.
    pub fn insert_if_current(&self, record: &Record, epoch: CacheEpoch) {
        if !self.is_enabled || record.late || record.past_ttl || self.current_epoch() != epoch {
            return;
        }
        let Some(cached) = CachedRecord::from_record(record) else { return };
        self.records.insert(record.id, Arc::new(cached));
        // A purge that became known in between emptied the cache before the insert.
        if self.current_epoch() != epoch {
            self.records.remove(&record.id);
        }
    }

    /// Takes the store's purge count, as the heartbeat has read it, and empties the cache if it has changed. Returns
    /// whether it has; the caller should then confirm it to the store at once.
    pub fn observe_purge_count(&self, count: u64) -> bool {
        let has_grown = self.purges.swap(count, Ordering::SeqCst) != count;
        if has_grown {
            self.records.clear();
        }
        has_grown
    }

    /// The purge count up to which the cache has been emptied.
    pub fn purge_count(&self) -> u64 {
        self.purges.load(Ordering::SeqCst)
    }

    pub fn bytes(&self) -> u64 {
        self.records.weight()
    }
}

/// A completed record with its response in one buffer. Maps of fields would use most of their memory for empty slots,
/// and a response as read from the network is a slice of a read buffer and would keep all of it alive.
struct CachedRecord {
    attempt: u32,
    token: Token,
    recipe: Recipe,
    fingerprint: Fingerprint,
    accepted_at: Option<SystemTime>,
    expires_at: SystemTime,
    status: StatusCode,
    /// The encoded fields, followed by the body, where it is stored.
    response: Bytes,
    body: Option<usize>,
}

impl CachedRecord {
    fn from_record(record: &Record) -> Option<Self> {
        let KeyState::Completed(CompletedResponse { response, expires_at: Some(expires_at) }) = &record.state else {
            return None;
        };
        let mut bytes = response.encode_fields();
        let body = response.body.as_ref().map(|body| {
            let offset = bytes.len();
            bytes.reserve_exact(body.len());
            bytes.extend_from_slice(body);
            offset
        });
        Some(Self {
            attempt: record.attempt,
            token: record.token,
            recipe: record.recipe.clone(),
            fingerprint: record.fingerprint,
            accepted_at: record.accepted_at,
            expires_at: *expires_at,
            status: response.status,
            response: bytes.into_boxed_slice().into(),
            body,
        })
    }

    /// Decodes the record; `None` where that fails, and the store is asked.
    fn to_record(&self, id: RecordId) -> Option<Record> {
        let fields = self.response.slice(..self.body.unwrap_or(self.response.len()));
        let body = self.body.map(|offset| self.response.slice(offset..));
        let response = Arc::new(StoredResponse::decode(self.status.as_u16().cast_signed(), &fields, body).ok()?);
        Some(Record::completed(
            id,
            (self.attempt, self.token),
            (self.recipe.clone(), self.fingerprint),
            self.accepted_at,
            CompletedResponse { response, expires_at: Some(self.expires_at) },
        ))
    }
}

/// Enough shards that two cores seldom contend, and few enough that each holds a response of some MiB.
const SHARDS: usize = 8;

/// The size of a record with a small body, from which the initial number of records is estimated.
const TYPICAL_BYTES: u64 = 2048;

/// The size of a record without its response, and of its table slot. The slot counts twice, as tables have room to
/// grow.
const RECORD_BYTES: usize = size_of::<CachedRecord>() + 2 * (size_of::<RecordId>() + 32) + 64;

/// The hash of a record's id: its beginning, because it is a keyed hash already, which no client can choose.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    /// Comes with the length first, and last with the id.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(self.0, |first| u64::from_le_bytes(*first));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone)]
struct ByteWeigher;

impl Weighter<RecordId, Arc<CachedRecord>> for ByteWeigher {
    fn weight(&self, _: &RecordId, cached: &Arc<CachedRecord>) -> u64 {
        (RECORD_BYTES + cached.response.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue};

    use super::*;
    use oncegate_domain::fingerprint::FingerprintRules;

    const UNTIL: SystemTime = SystemTime::UNIX_EPOCH;

    fn id(number: u8) -> RecordId {
        RecordId::from_stored(&[number; 32]).unwrap()
    }

    fn record(number: u8, state: KeyState) -> Record {
        Record {
            id: id(number),
            attempt: 1,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(FingerprintRules::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
            reading: None,
        }
    }

    fn completed(number: u8, body: &[u8]) -> Record {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        let body = Some(Bytes::copy_from_slice(body));
        let response =
            Arc::new(StoredResponse { status: StatusCode::CREATED, headers, body, trailers: HeaderMap::new() });
        let expires_at = Some(UNTIL + Duration::from_secs(10));
        record(number, KeyState::Completed(CompletedResponse { response, expires_at }))
    }

    fn body_of(found: Option<Record>) -> Option<Bytes> {
        match found?.state {
            KeyState::Completed(completed) => completed.response.body.clone(),
            _ => None,
        }
    }

    #[test]
    fn a_cached_record_is_returned_until_its_ttl_ends() {
        let cache = Cache::new(1 << 20);
        cache.insert_if_current(&completed(1, b"paid"), cache.current_epoch());
        let found = cache.get(&id(1), UNTIL).unwrap();
        assert!(
            matches!(&found.state, KeyState::Completed(stored) if stored.response.headers.get_all("x-a").iter().count() == 2)
        );
        assert!(cache.get(&id(1), UNTIL + Duration::from_millis(9_999)).is_some());
        assert!(cache.get(&id(1), UNTIL + Duration::from_secs(10)).is_none());
        assert!(cache.get(&id(1), UNTIL).is_none(), "it is gone, not only hidden");
    }

    #[test]
    fn only_completed_records_within_their_ttl_are_cached() {
        let cache = Cache::new(1 << 20);
        for state in [
            KeyState::Dead,
            KeyState::Expired,
            KeyState::InFlight,
            KeyState::Queued,
            KeyState::Retryable,
            KeyState::Unknown,
        ] {
            cache.insert_if_current(&record(1, state), cache.current_epoch());
        }
        cache.insert_if_current(&Record { late: true, ..completed(1, b"") }, cache.current_epoch());
        cache.insert_if_current(&Record { past_ttl: true, ..completed(1, b"") }, cache.current_epoch());
        assert!(cache.get(&id(1), UNTIL).is_none());
    }

    #[test]
    fn a_purge_empties_the_cache_and_earlier_reads_are_not_cached() {
        let cache = Cache::new(1 << 20);
        cache.observe_purge_count(0);
        let begun = cache.current_epoch();
        cache.insert_if_current(&completed(1, b"paid"), begun);
        assert!(!cache.observe_purge_count(0));
        assert!(cache.get(&id(1), UNTIL).is_some(), "nothing was purged");
        assert!(cache.observe_purge_count(1), "a purge is reported once");
        assert!(!cache.observe_purge_count(1));
        assert_eq!(cache.purge_count(), 1);
        assert!(cache.get(&id(1), UNTIL).is_none());
        cache.insert_if_current(&completed(1, b"paid"), begun);
        assert!(cache.get(&id(1), UNTIL).is_none());
        cache.insert_if_current(&completed(1, b"again"), cache.current_epoch());
        assert_eq!(body_of(cache.get(&id(1), UNTIL)).unwrap(), "again");
    }

    #[test]
    fn the_cache_never_exceeds_its_capacity() {
        let cache = Cache::new(256 * 1024);
        for number in 0..=255 {
            cache.insert_if_current(&completed(number, &[7; 4096]), cache.current_epoch());
        }
        assert!(cache.bytes() <= 256 * 1024 && cache.bytes() > 64 * 1024, "{}", cache.bytes());
        cache.insert_if_current(&completed(1, &vec![7; 1 << 20]), cache.current_epoch());
        assert!(cache.bytes() <= 256 * 1024);
        let off = Cache::new(0);
        off.insert_if_current(&completed(1, b""), off.current_epoch());
        assert!(off.get(&id(1), UNTIL).is_none());
    }
}
