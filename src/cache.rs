//! Completed records in memory. They are immutable until their TTL ends or an operator takes them back, so a replay need
//! not ask the store.
//!
//! Memory never decides who executes: what is not in here is asked of the store. What is in here is true as long as
//! nobody has purged it; each instance reads the store's count of purges with its heartbeat, and a count that has grown
//! empties the memory. Whether that reading is young enough is for the caller to know.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::domain::attempt::Token;
use crate::domain::fingerprint::{Fingerprint, Recipe};
use crate::domain::record::{Completed, Record, RecordId, State};
use crate::domain::response::StoredResponse;

/// Replays from memory, bounded by bytes.
pub struct Cache {
    records: Table<RecordId, Arc<Kept>, Bytewise, ById>,
    /// The store's count of purges, as last read.
    purges: AtomicU64,
    /// Nothing is kept where there is no room.
    on: bool,
}

/// The count of purges when a question to the store was begun. What comes back of it may be older than a purge that has
/// been heard of meanwhile, and is not kept then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun(u64);

impl Cache {
    /// An empty memory of so many bytes; with 0 it stays empty.
    pub fn new(bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(usize::try_from(bytes / TYPICAL_BYTES).unwrap_or(usize::MAX).max(16))
            .weight_capacity(bytes)
            .shards(SHARDS)
            .build()
            .expect("the two options that must be there are there");
        let records = Table::with_options(options, Bytewise, ById::default(), DefaultLifecycle::default());
        Self { records, purges: AtomicU64::new(0), on: bytes > 0 }
    }

    /// The key's record, if it is in here and within its TTL at `now`, which is the store's time or later.
    pub fn get(&self, id: &RecordId, now: SystemTime) -> Option<Record> {
        if !self.on {
            return None;
        }
        let kept = self.records.get(id)?;
        let record = if now < kept.expires_at { kept.record(*id) } else { None };
        if record.is_none() {
            self.records.remove(id);
        }
        record
    }

    /// To be called before the store is asked for what may be [put](Self::put) in here.
    pub fn begin(&self) -> Begun {
        Begun(self.purges())
    }

    /// Keeps a completed record, unless a purge has been heard of since `begun`. Anything else is not kept.
    pub fn put(&self, record: &Record, begun: Begun) {
        if !self.on || record.late || record.past_ttl || self.begin() != begun {
            return;
        }
        let Some(kept) = Kept::of(record) else { return };
        self.records.insert(record.id, Arc::new(kept));
        // A purge that was heard of in between has emptied what was there then.
        if self.begin() != begun {
            self.records.remove(&record.id);
        }
    }

    /// The store's count of purges, as the heartbeat has read it. Tells whether it has grown, so that the store should be
    /// told at once that it was seen.
    pub fn purged(&self, count: u64) -> bool {
        let has_grown = self.purges.swap(count, Ordering::SeqCst) != count;
        if has_grown {
            self.records.clear();
        }
        has_grown
    }

    /// Up to which count what was purged is forgotten here.
    pub fn purges(&self) -> u64 {
        self.purges.load(Ordering::SeqCst)
    }

    /// What is kept, in bytes.
    pub fn bytes(&self) -> u64 {
        self.records.weight()
    }
}

/// A completed record as it is kept: its response in one piece. As maps of fields most of the memory would be places for
/// fields that are not there; and as it came from the wire a response is a slice of a read buffer, and would keep all of that.
struct Kept {
    attempt: u32,
    token: Token,
    recipe: Recipe,
    fingerprint: Fingerprint,
    accepted_at: Option<SystemTime>,
    expires_at: SystemTime,
    status: StatusCode,
    /// The fields as they are stored, and then the body, where it is kept.
    response: Bytes,
    /// Where the body begins.
    body: Option<usize>,
}

impl Kept {
    fn of(record: &Record) -> Option<Self> {
        let State::Completed(Completed { response, expires_at: Some(expires_at) }) = &record.state else { return None };
        let mut whole = response.encode_fields();
        let body = response.body.as_ref().map(|body| {
            let begins = whole.len();
            whole.reserve_exact(body.len());
            whole.extend_from_slice(body);
            begins
        });
        Some(Self {
            attempt: record.attempt,
            token: record.token,
            recipe: record.recipe.clone(),
            fingerprint: record.fingerprint,
            accepted_at: record.accepted_at,
            expires_at: *expires_at,
            status: response.status,
            response: whole.into_boxed_slice().into(),
            body,
        })
    }

    /// `None` where it does not decode, which the store would then be asked about.
    fn record(&self, id: RecordId) -> Option<Record> {
        let fields = self.response.slice(..self.body.unwrap_or(self.response.len()));
        let body = self.body.map(|begins| self.response.slice(begins..));
        let response = StoredResponse::decode(self.status.as_u16().cast_signed(), &fields, body).ok()?;
        Some(Record {
            id,
            attempt: self.attempt,
            token: self.token,
            recipe: self.recipe.clone(),
            fingerprint: self.fingerprint,
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            // Only another attempt of this life of the key would be told of it, and there is none after this one.
            recovery_point: None,
            accepted_at: self.accepted_at,
            state: State::Completed(Completed { response, expires_at: Some(self.expires_at) }),
        })
    }
}

/// Enough that two cores seldom meet, and each still holds a response of some MiB.
const SHARDS: usize = 8;

/// Of a record with a small body: how many there may be is only a first guess.
const TYPICAL_BYTES: u64 = 2048;

/// A record without its response, and its place in the table: what is counted there, twice over, as tables have room to
/// grow.
const RECORD_BYTES: usize = size_of::<Kept>() + 2 * (size_of::<RecordId>() + 32) + 64;

/// A record's id is a hash, of a salted one among other things: nobody can choose ids that meet.
type ById = BuildHasherDefault<FirstBytes>;

/// Takes the first bytes that it is given for the hash.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    /// The length, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone)]
struct Bytewise;

impl Weighter<RecordId, Arc<Kept>> for Bytewise {
    fn weight(&self, _: &RecordId, kept: &Arc<Kept>) -> u64 {
        (RECORD_BYTES + kept.response.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::domain::fingerprint::Plan;

    const UNTIL: SystemTime = SystemTime::UNIX_EPOCH;

    fn id(number: u8) -> RecordId {
        RecordId::from_stored(&[number; 32]).unwrap()
    }

    fn record(number: u8, state: State) -> Record {
        Record {
            id: id(number),
            attempt: 1,
            token: Token::from_random([2; 16]),
            recipe: Recipe::new(Plan::default(), None),
            fingerprint: Fingerprint::from_stored(&[3; 32]).unwrap(),
            running_for: Duration::ZERO,
            deadline_in_ms: 0,
            past_ttl: false,
            late: false,
            recovery_point: None,
            accepted_at: None,
            state,
        }
    }

    fn completed(number: u8, body: &[u8]) -> Record {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        let body = Some(Bytes::copy_from_slice(body));
        let response = StoredResponse { status: StatusCode::CREATED, headers, body, trailers: HeaderMap::new() };
        let expires_at = Some(UNTIL + Duration::from_secs(10));
        record(number, State::Completed(Completed { response, expires_at }))
    }

    fn body_of(found: Option<Record>) -> Option<Bytes> {
        match found?.state {
            State::Completed(completed) => completed.response.body,
            _ => None,
        }
    }

    #[test]
    fn what_is_kept_is_given_until_its_ttl_ends() {
        let cache = Cache::new(1 << 20);
        cache.put(&completed(1, b"paid"), cache.begin());
        let found = cache.get(&id(1), UNTIL).unwrap();
        assert!(
            matches!(&found.state, State::Completed(stored) if stored.response.headers.get_all("x-a").iter().count() == 2)
        );
        assert!(cache.get(&id(1), UNTIL + Duration::from_millis(9_999)).is_some());
        assert!(cache.get(&id(1), UNTIL + Duration::from_secs(10)).is_none());
        assert!(cache.get(&id(1), UNTIL).is_none(), "it is gone, not only hidden");
    }

    #[test]
    fn only_completed_records_within_their_ttl_are_kept() {
        let cache = Cache::new(1 << 20);
        for state in [State::Dead, State::Expired, State::InFlight, State::Queued, State::Retryable, State::Unknown] {
            cache.put(&record(1, state), cache.begin());
        }
        cache.put(&Record { late: true, ..completed(1, b"") }, cache.begin());
        cache.put(&Record { past_ttl: true, ..completed(1, b"") }, cache.begin());
        assert!(cache.get(&id(1), UNTIL).is_none());
    }

    #[test]
    fn a_purge_empties_it_and_what_was_asked_before_is_not_kept_after() {
        let cache = Cache::new(1 << 20);
        cache.purged(0);
        let begun = cache.begin();
        cache.put(&completed(1, b"paid"), begun);
        assert!(!cache.purged(0));
        assert!(cache.get(&id(1), UNTIL).is_some(), "nothing was purged");
        assert!(cache.purged(1), "a purge is told once");
        assert!(!cache.purged(1));
        assert_eq!(cache.purges(), 1);
        assert!(cache.get(&id(1), UNTIL).is_none());
        cache.put(&completed(1, b"paid"), begun);
        assert!(cache.get(&id(1), UNTIL).is_none());
        cache.put(&completed(1, b"again"), cache.begin());
        assert_eq!(body_of(cache.get(&id(1), UNTIL)).unwrap(), "again");
    }

    #[test]
    fn it_never_holds_more_than_its_bytes() {
        let cache = Cache::new(256 * 1024);
        for number in 0..=255 {
            cache.put(&completed(number, &[7; 4096]), cache.begin());
        }
        assert!(cache.bytes() <= 256 * 1024 && cache.bytes() > 64 * 1024, "{}", cache.bytes());
        cache.put(&completed(1, &vec![7; 1 << 20]), cache.begin());
        assert!(cache.bytes() <= 256 * 1024);
        let off = Cache::new(0);
        off.put(&completed(1, b""), off.begin());
        assert!(off.get(&id(1), UNTIL).is_none());
    }
}
