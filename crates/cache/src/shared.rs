//! Completed records in Redis or Valkey, shared by the instances of a service.
//!
//! Like the cache in memory it never decides who executes: a record found here is replayed, and for anything else the
//! store is asked. A lost, slow or emptied server costs latency. An entry counts only if all of these hold:
//! - it opens under its own name and this instance's secret (`entry`);
//! - its purge count is the one that this instance knows: a purge makes all earlier entries void, also one that is
//!   written after the purge, and no instance has to delete anything;
//! - the TTL that it holds itself has not ended. Redis's own expiry only frees the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Cache, CacheEpoch};
use connection::{RedisConnector, RedisFailure};
use entry::{EntryNames, SharedRecord};
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::ids::RecordId;
use oncegate_domain::record::Record;
use oncegate_domain::scope::Salt;
use oncegate_domain::state::{CompletedResponse, KeyState};
use oncegate_settings::RedisServer;
use oncegate_telemetry::logs::error_causes;
use oncegate_telemetry::metrics::{Counters, Gauge, label};
use oncegate_trust::tls::Trust;

mod connection;
mod entry;

/// The time for a read. A server in the same network answers in less than a millisecond, and sends the largest entry in
/// about two; a reservation in the store takes some milliseconds. The first read that takes longer is the last one
/// until the server answers a new connection.
// See docs/decisions/0015-replay-from-caches.md.
const READ_MAX: Duration = Duration::from_millis(50);

/// The time for a batch of writes, for which nobody waits.
const WRITE_MAX: Duration = Duration::from_secs(1);

/// The time for a connection and its first answer.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The pause between two tries to connect. It is back at the first after a session that was longer than the longest
/// pause: a server may answer now and then, and each session that ends costs requests their time and two lines in the
/// log.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The largest body that is shared. A larger one would delay the reads behind it on the same connection.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The bytes of bodies and the number of records that wait to be written. More than these are dropped.
const QUEUE_BYTES_MAX: usize = 16 << 20;
const QUEUE_LENGTH_MAX: usize = 1024;

/// The records that are written in one round trip.
const BATCH_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct SharedCacheMetrics {
    pub reads: Counters<SharedRead>,
    pub writes: Counters<SharedWrite>,
    /// 1 while the server is connected.
    pub connected: Gauge,
}

label!(
    SharedRead, "result", {
        /// The server failed or did not answer in time.
        Failed => "failed",
        Hit => "hit",
        /// Bytes that are no entry of this key.
        Invalid => "invalid",
        Miss => "miss",
        /// An entry from before a purge, or past its TTL.
        Outdated => "outdated",
        /// The server is not connected, so it was not asked.
        Unconnected => "unconnected",
    }
);

label!(
    SharedWrite, "result", {
        /// The server is not connected, or too many records were waiting.
        Dropped => "dropped",
        /// The server failed, did not answer in time, or refused the entry.
        Failed => "failed",
        Written => "written",
    }
);

pub struct SharedCache {
    names: EntryNames,
    secrets: RwLock<Secrets>,
    /// The server that the next connection leads to.
    connector: RwLock<Arc<RedisConnector>>,
    /// The connection to the server. Calls are made only while there is one, so that a dead server costs nothing.
    session: RwLock<Option<Arc<RedisSession>>>,
    queue: mpsc::Sender<PendingEntry>,
    queue_bytes: Arc<Semaphore>,
    metrics: SharedCacheMetrics,
}

/// The part of the shared cache that connects and writes, to be [run](Self::run) by one task.
pub struct SharedCacheTask {
    cache: Arc<SharedCache>,
    queue: mpsc::Receiver<PendingEntry>,
}

/// A record that waits to be written.
struct PendingEntry {
    record: Record,
    epoch: CacheEpoch,
    /// The end of the record's TTL by this machine's clock.
    lapses_at: Instant,
    _bytes: OwnedSemaphorePermit,
}

impl SharedCache {
    /// A shared cache on this server, which is connected to once its task runs. The salt names the store.
    pub fn new(
        server: RedisServer,
        service: &str,
        salt: &Salt,
        secrets: Secrets,
        trust: &Trust,
        metrics: SharedCacheMetrics,
    ) -> (Arc<Self>, SharedCacheTask) {
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH_MAX);
        let cache = Arc::new(Self {
            names: EntryNames::new(service, salt),
            secrets: RwLock::new(secrets),
            connector: RwLock::new(Arc::new(RedisConnector::new(server, trust))),
            session: RwLock::default(),
            queue: sender,
            queue_bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            metrics,
        });
        (Arc::clone(&cache), SharedCacheTask { cache, queue })
    }

    /// Uses other secrets from now on, and another server, user, password or authority from the next connection on.
    /// Another server is connected to at once: it may lack entries, and has none that must not count.
    pub fn reload(&self, secrets: Secrets, server: Option<&RedisServer>, trust: &Trust) {
        *self.secrets.write() = secrets;
        let Some(server) = server else { return };
        let next = Arc::new(RedisConnector::new(server.clone(), trust));
        let before = std::mem::replace(&mut *self.connector.write(), next);
        if !before.is_same_place(server)
            && let Some(session) = self.session()
        {
            self.lose(&session);
        }
    }

    /// Returns the key's record if there is one that counts, and puts it into the cache in memory. `now` returns the
    /// store's time or a later one. Takes no longer than 50 ms.
    pub async fn get(&self, id: &RecordId, memory: &Cache, now: impl Fn() -> SystemTime) -> Option<Record> {
        let name = self.names.name(id);
        let entry = match self.read(&name).await {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.count(SharedRead::Miss),
            Err(result) => return self.count(result),
        };
        let Some(SharedRecord { record, epoch, expires_at }) = entry::decode(&self.secrets(), &name, *id, entry) else {
            return self.count(SharedRead::Invalid);
        };
        // After the read: a purge that has become known meanwhile counts.
        if epoch != memory.current_epoch() || now() >= expires_at {
            return self.count(SharedRead::Outdated);
        }
        self.metrics.reads.count(SharedRead::Hit);
        memory.insert_if_current(&record, epoch);
        Some(record)
    }

    /// Queues a completed record to be written, if there is room. `epoch` is the epoch when the read of the store began
    /// that the record comes from, and `now` the store's time or a later one.
    pub fn offer(&self, record: &Record, epoch: CacheEpoch, now: SystemTime) {
        let KeyState::Completed(CompletedResponse { response, expires_at: Some(expires_at) }) = &record.state else {
            return;
        };
        let bytes = response.body.as_ref().map_or(0, Bytes::len);
        let left = expires_at.duration_since(now).unwrap_or_default();
        if record.late || record.past_ttl || left.is_zero() || bytes > BODY_BYTES_MAX {
            return;
        }
        // An empty body takes room too.
        let permits = u32::try_from(bytes.max(1)).expect("BODY_BYTES_MAX fits into 32 bits");
        let room = Arc::clone(&self.queue_bytes).try_acquire_many_owned(permits).ok();
        let sent = room.filter(|_| self.session.read().is_some()).and_then(|room| {
            let entry = PendingEntry { record: record.clone(), epoch, lapses_at: Instant::now() + left, _bytes: room };
            self.queue.try_send(entry).ok()
        });
        if sent.is_none() {
            self.metrics.writes.count(SharedWrite::Dropped);
        }
    }

    fn count(&self, result: SharedRead) -> Option<Record> {
        self.metrics.reads.count(result);
        None
    }

    fn secrets(&self) -> Secrets {
        self.secrets.read().clone()
    }

    async fn read(&self, name: &str) -> Result<Option<Bytes>, SharedRead> {
        let session = self.session().ok_or(SharedRead::Unconnected)?;
        let mut command = redis::cmd("GET");
        command.arg(name);
        let mut reads = session.reads.clone();
        let answer = timeout(READ_MAX, command.query_async::<Option<Vec<u8>>>(&mut reads)).await;
        self.judge(&session, answer).map(|entry| entry.map(Bytes::from)).ok_or(SharedRead::Failed)
    }

    async fn write(&self, batch: &mut Vec<PendingEntry>) {
        let pipeline = self.encode_batch(batch);
        let result = match self.session() {
            Some(session) if !pipeline.is_empty() => {
                let mut writes = session.writes.clone();
                let answer = timeout(WRITE_MAX, pipeline.query_async::<()>(&mut writes)).await;
                self.judge(&session, answer).map_or(SharedWrite::Failed, |()| SharedWrite::Written)
            }
            // All of them have lapsed meanwhile, or the session has ended.
            Some(_) | None => SharedWrite::Dropped,
        };
        batch.drain(..).for_each(|_| self.metrics.writes.count(result));
    }

    fn encode_batch(&self, batch: &[PendingEntry]) -> redis::Pipeline {
        let secrets = self.secrets();
        let mut pipeline = redis::pipe();
        for pending in batch {
            let name = self.names.name(&pending.record.id);
            let left = pending.lapses_at.saturating_duration_since(Instant::now()).as_millis();
            let entry = entry::encode(&secrets, &name, &pending.record, pending.epoch);
            if let (Some(entry), left @ 1..) = (entry, u64::try_from(left).unwrap_or(u64::MAX)) {
                pipeline.cmd("SET").arg(&name).arg(entry).arg("PX").arg(left).ignore();
            }
        }
        pipeline
    }
}

impl SharedCacheTask {
    /// Keeps the server connected and writes the queued entries, until `stop`. The entries that are queued then are
    /// lost: each costs a read of the store.
    pub async fn run(self, stop: CancellationToken) {
        let Self { cache, mut queue } = self;
        let write = async {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
                cache.write(&mut batch).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(write, cache.keep_connected()) }).await;
    }
}

/// Two connections, so that large writes do not delay reads.
struct RedisSession {
    reads: MultiplexedConnection,
    writes: MultiplexedConnection,
    has_refused: AtomicBool,
    /// Cancelled when a command has failed.
    lost: CancellationToken,
}

impl SharedCache {
    fn session(&self) -> Option<Arc<RedisSession>> {
        self.session.read().clone()
    }

    /// Returns the value of an answer. A server that fails or does not answer in time is not asked again on this
    /// session; one that refuses a command, for want of memory or rights for example, is.
    fn judge<T>(
        &self,
        session: &Arc<RedisSession>,
        answer: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
    ) -> Option<T> {
        match answer {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) if is_refusal(&error) => {
                if !session.has_refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(cause = %error, "the shared cache has refused a command; the store is asked instead");
                }
                None
            }
            Ok(Err(_)) | Err(_) => {
                self.lose(session);
                None
            }
        }
    }

    /// Ends a session, unless another one has followed it.
    fn lose(&self, failed: &Arc<RedisSession>) {
        let mut session = self.session.write();
        session.take_if(|current| Arc::ptr_eq(current, failed));
        failed.lost.cancel();
    }

    /// Connects whenever there is no connection. Logs one line when the server is lost, and one when it is back.
    async fn keep_connected(&self) {
        let (mut pause, mut is_away) = (PAUSE_FIRST, false);
        loop {
            let mut drivers = JoinSet::new();
            let connector = Arc::clone(&self.connector.read());
            let opened = timeout(CONNECT_MAX, open_session(&connector, &mut drivers)).await;
            let failure = match opened.unwrap_or(Err(RedisFailure::Silent)) {
                Ok(session) => {
                    if std::mem::take(&mut is_away) {
                        tracing::warn!("the shared cache answers again");
                    }
                    let (session, opened_at) = (Arc::new(session), Instant::now());
                    *self.session.write() = Some(Arc::clone(&session));
                    self.metrics.connected.set(1);
                    tokio::select! {
                        () = session.lost.cancelled() => {}
                        _ = drivers.join_next() => {}
                    }
                    *self.session.write() = None;
                    self.metrics.connected.set(0);
                    if opened_at.elapsed() > PAUSE_MAX {
                        pause = PAUSE_FIRST;
                    }
                    RedisFailure::Broken
                }
                Err(failure) => failure,
            };
            if !std::mem::replace(&mut is_away, true) {
                let cause = error_causes(&failure);
                tracing::warn!(cause, "the shared cache is away, and the store is asked instead: {failure}");
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

async fn open_session(connector: &RedisConnector, drivers: &mut JoinSet<()>) -> Result<RedisSession, RedisFailure> {
    let mut open = async || {
        let (mut connection, driver) = connector.connect().await?;
        drivers.spawn(driver);
        let answered = redis::cmd("PING").query_async::<()>(&mut connection).await;
        answered.map_err(RedisFailure::Session)?;
        Ok(connection)
    };
    Ok(RedisSession {
        reads: open().await?,
        writes: open().await?,
        has_refused: AtomicBool::default(),
        lost: CancellationToken::new(),
    })
}

/// Whether the server has answered with an error.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType)
}
