//! The embedded store: one SQLite file, one process, one thread that writes.
//!
//! Each method is a piece of work for that thread. It does whatever waits in one transaction, and answers only after
//! the COMMIT has returned: with the write-ahead log and `synchronous = FULL` that is one fsync for all of them. Reads go
//! the same way, so that nobody is told of a write that a failing COMMIT then takes back.
//!
//! Time is read once for each transaction.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use tokio::time::Instant;

use super::batch::NoAnswer;
use super::row::{body_bytes, millis, verdict_bytes};
use super::{
    Ask, Books, OpenError, Pending, Record, RecordId, Renewal, Renewed, Reservation, Rule, Seen, Settings, Settled,
    Store, StoreError, Swept, Testimony,
};
use crate::domain::attempt::{InstanceId, Settlement, Token};
use crate::domain::job::{Enqueued, Order, PickUp, PickedUp};
use crate::domain::probe::{Finding, Page, Probe, Schedule};
use crate::domain::scope::Salt;
use writer::{Failure, Inbox};

pub(super) use file::{migrate, pending};
pub(super) use schema::newest_step;

mod books;
mod deliveries;
mod file;
mod probes;
mod schema;
mod statements;
mod testimony;
mod writer;

/// Milliseconds since 1970. Given by whoever opens the store, so that a test can have its own time.
pub(super) type Clock = fn() -> i64;

/// The embedded store.
pub(super) struct Sqlite {
    salt: Salt,
    timeout: Duration,
    inbox: Inbox,
    writer: Option<JoinHandle<()>>,
}

/// Opens the file, or a database in memory where there is no path.
pub(super) async fn open(path: Option<&Path>, settings: &Settings) -> Result<Sqlite, OpenError> {
    open_with(path, settings, system_clock).await
}

async fn open_with(path: Option<&Path>, settings: &Settings, clock: Clock) -> Result<Sqlite, OpenError> {
    let (path, migrate) = (path.map(Path::to_owned), settings.migrate);
    let (db, salt) = apart(move || {
        let mut db = match &path {
            Some(path) => file::open(path)?,
            None => file::memory()?,
        };
        let salt = schema::prepare(&mut db, path.as_deref(), migrate)?;
        statements::orphans(&db, clock())
            .map_err(|failure| OpenError::Missing(Box::new(StoreError::from(failure))))?
            .iter()
            .for_each(warn_of);
        Ok((db, salt))
    })
    .await?;
    let (inbox, writer) = writer::start(db, clock).map_err(|source| OpenError::Missing(Box::new(source)))?;
    Ok(Sqlite { salt, timeout: settings.timeout, inbox, writer: Some(writer) })
}

/// Files block: not on a thread that serves requests.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|stopped| Err(OpenError::Missing(Box::new(stopped))))
}

fn warn_of(swept: &Swept) {
    let Swept { id, route, attempt, .. } = swept;
    tracing::warn!(record = %id, %route, attempt, "an attempt was cut off when this store was last in use: unknown");
}

fn system_clock() -> i64 {
    // Before 1970 there was no SQLite, and after 292 million years there is none.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}

impl Store for Sqlite {
    fn reserve(&self, ask: Ask) -> Pending<'_, Reservation> {
        let ask = Arc::new(ask);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::reserve(db, now, &ask))
    }

    fn take_over(&self, ask: Ask, from: Seen) -> Pending<'_, Reservation> {
        let ask = Arc::new(ask);
        self.call(Urgency::Ordinary, 0, move |db, now| statements::take_over(db, now, &ask, from))
    }

    fn settle(&self, settlement: Settlement) -> Pending<'_, Settled> {
        let bytes = body_bytes(&settlement.ending);
        self.call(Urgency::First, bytes, move |db, now| statements::settle(db, now, &settlement))
    }

    fn find(&self, id: RecordId) -> Pending<'_, Option<Record>> {
        self.call(Urgency::Ordinary, 0, move |db, now| Ok(statements::find(db, now, id)?.map(|found| found.record)))
    }

    fn salt(&self) -> Salt {
        self.salt.clone()
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Renewed> {
        self.call(Urgency::First, 0, move |db, now| statements::renew(db, now, &renewal))
    }

    fn retire(&self, instance: InstanceId) -> Pending<'_, ()> {
        self.call(Urgency::First, 0, move |db, _| statements::retire(db, instance))
    }

    fn sweep(&self, expiry: Duration, limit: u32) -> Pending<'_, Vec<Swept>> {
        self.call(Urgency::Ordinary, 0, move |db, now| statements::sweep(db, now, millis(expiry), limit))
    }

    fn standing(&self, instance: InstanceId, older_than: Duration) -> Pending<'_, Vec<(RecordId, Token)>> {
        self.call(Urgency::Ordinary, 0, move |db, now| statements::standing(db, now, instance, millis(older_than)))
    }

    fn reap(&self, limit: u32) -> Pending<'_, u64> {
        self.call(Urgency::Ordinary, 0, move |db, now| statements::reap(db, now, limit))
    }

    fn claim(&self, service: &Arc<str>, schedules: Vec<Schedule>, limit: u32) -> Pending<'_, Vec<Probe>> {
        let service = Arc::clone(service);
        self.call(Urgency::Ordinary, 0, move |db, now| probes::claim(db, now, &service, &schedules, limit))
    }

    fn resolve(&self, finding: Finding) -> Pending<'_, bool> {
        let bytes = verdict_bytes(&finding.verdict);
        self.call(Urgency::Ordinary, bytes, move |db, now| probes::resolve(db, now, &finding))
    }

    fn page(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> Pending<'_, Page> {
        let service = Arc::clone(service);
        self.call(Urgency::Ordinary, 0, move |db, now| {
            probes::page(db, now, &service, &routes, millis(since), after, limit)
        })
    }

    fn enqueue(&self, order: Order, from: Option<Seen>) -> Pending<'_, Enqueued> {
        let bytes = order.sealed.bytes.len();
        self.call(Urgency::Ordinary, bytes, move |db, now| deliveries::enqueue(db, now, &order, from))
    }

    fn pick_up(&self, order: PickUp) -> Pending<'_, PickedUp> {
        self.call(Urgency::Ordinary, 0, move |db, now| deliveries::pick_up(db, now, &order))
    }

    fn bury(&self, id: RecordId, token: Token, states: &'static [&'static str], note: String) -> Pending<'_, bool> {
        self.call(Urgency::Ordinary, 0, move |db, now| deliveries::bury(db, now, id, token, states, &note))
    }

    // That the writer comes to it proves that it neither hangs nor has failed; the heartbeat writes often enough.
    fn ping(&self) -> Pending<'_, ()> {
        self.call(Urgency::Ordinary, 0, |_, _| Ok(()))
    }

    fn rules(&self, service: Arc<str>, rules: Vec<Rule>) -> Pending<'_, Vec<Rule>> {
        self.call(Urgency::Ordinary, 0, move |db, _| statements::rules(db, &service, &rules))
    }

    fn testimony(&self) -> &dyn Testimony {
        self
    }

    fn books(&self) -> &dyn Books {
        self
    }
}

/// Whether something goes before the rest: what ends an attempt or keeps a lease does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    First,
    Ordinary,
}

impl Sqlite {
    fn call<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        work: impl FnOnce(&Connection, i64) -> Result<T, Failure> + Send + 'static,
    ) -> Pending<'_, T> {
        let deadline = Instant::now() + self.timeout;
        Box::pin(async move {
            self.inbox.ask(urgency, bytes, work, deadline).await.unwrap_or_else(|none| {
                Err(match none {
                    NoAnswer::Closed | NoAnswer::Dropped => {
                        StoreError::Unavailable("the store's writer has stopped".into())
                    }
                    NoAnswer::TimedOut => StoreError::TimedOut,
                })
            })
        })
    }
}

/// Waits for the writer to finish what it has: only then is the file free for whoever opens it next.
impl Drop for Sqlite {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::domain::attempt::Settlement;
    use crate::domain::fingerprint::{Fingerprint, Plan, Recipe};
    use crate::domain::key::{Key, Limits, Syntax};
    use crate::domain::scope::Scope;
    use crate::store::Location;

    static NOW: AtomicI64 = AtomicI64::new(1_000_000);

    fn ask() -> Ask {
        let scope = Scope::from_stored(&[1; 32]).unwrap();
        let key = Key::parse(b"k", Syntax::Ietf, Limits { length_min: 1, length_max: 9 }).unwrap();
        Ask {
            id: RecordId::of("shop", &scope, b"", &key),
            service: "shop".into(),
            scope,
            space: bytes::Bytes::new(),
            key,
            path: None,
            route: "pay".into(),
            recipe: Recipe::new(Plan::default(), None),
            fingerprint: Fingerprint::from_stored(&[2; 32]).unwrap(),
            instance: InstanceId::from_stored(1),
            token: Token::from_random([3; 16]),
            time_limit: Duration::from_millis(500),
        }
    }

    fn renewal(instance: InstanceId, expiry: Duration) -> Renewal {
        Renewal { instance, service: "shop".into(), expiry, purges_seen: None }
    }

    #[tokio::test]
    async fn the_stores_clock_decides_to_the_millisecond() {
        let (timeout, second) = (Duration::from_secs(10), Duration::from_millis(1000));
        let settings = Settings { location: Location::Memory, max_connections: 0, timeout, migrate: true };
        let store = open_with(None, &settings, || NOW.load(Ordering::SeqCst)).await.unwrap();
        let later = |ms: i64| NOW.fetch_add(ms, Ordering::SeqCst);
        let ask = ask();
        store.renew(renewal(ask.instance, second * 2)).await.unwrap();
        store.reserve(ask.clone()).await.unwrap();
        later(200);
        let record = store.find(ask.id).await.unwrap().unwrap();
        assert_eq!((record.running_for.as_millis(), record.deadline_in_ms), (200, 300));

        // Past its deadline by less than a second; then by a second.
        later(1299);
        assert_eq!(store.sweep(second, 10).await.unwrap(), []);
        later(1);
        assert_eq!(store.sweep(second, 10).await.unwrap().len(), 1);

        store.settle(Settlement::of_stray(ask.id, ask.token, second)).await.unwrap();
        later(999);
        assert!(!store.find(ask.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(10).await.unwrap(), 0);
        later(1);
        assert!(store.find(ask.id).await.unwrap().unwrap().past_ttl);
        assert_eq!(store.reap(10).await.unwrap(), 1);

        // The lease, too.
        store.renew(renewal(ask.instance, second)).await.unwrap();
        let untroubled = Ask { time_limit: Duration::from_secs(60), ..ask };
        store.reserve(untroubled).await.unwrap();
        later(999);
        assert_eq!(store.sweep(second, 10).await.unwrap(), []);
        later(1);
        assert_eq!(store.sweep(second, 10).await.unwrap().len(), 1);
    }
}
