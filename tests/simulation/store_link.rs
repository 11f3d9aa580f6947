//! The store that all processes share, and each process's way to it.
//!
//! The store is Oncegate's own SQL on a database in memory (`store::open_inline`), which passes the contract suite of
//! all stores in `crates/store-contract`. As with PostgreSQL, several instances use it at once, a call that its caller
//! has given up may still be executed, and a failover may lose the latest commits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncegate_domain::attempt::{AttemptOutcome, Settlement};
use oncegate_domain::ids::RecordId;
use oncegate_store::breaker::CallKind;
use oncegate_store::metrics::Op;
use oncegate_store::{
    Backend, CarriedCall, InlineDatabase, LeaseRenewal, PrimaryCheck, StoreError, StoreEventRoutesParams, StoreNetwork,
    open_inline,
};
use rusqlite::functions::{Context, FunctionFlags};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::clock_jumps::ClockJumps;
use crate::history::Attempt;
use crate::hosts::{Millis, now};
use crate::leases::Leases;
use crate::seeded_random::SeededRandom;
use crate::trace;

/// The store's time at the beginning of a simulation, in milliseconds since 1970.
const EPOCH: i64 = 1_700_000_000_000;

thread_local! {
    static CLOCK_AHEAD: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

fn store_clock() -> i64 {
    EPOCH + now().cast_signed() + CLOCK_AHEAD.get()
}

/// Lets the triggers of events ask the simulated clock. The machine's clock stands still between two of
/// them: a failover that gives the number of one to the next would give its time, too.
fn set_clock_of_events(db: &rusqlite::Connection) {
    let seconds = |_: &Context<'_>| Ok(store_clock() as f64 / 1_000.0);
    // A trigger may only call functions with the second flag.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function("unixepoch", 1, flags, seconds).unwrap();
}

/// Empty databases of earlier runs: a new one takes longer than many a run.
static SPARE_DATABASES: Mutex<Vec<InlineDatabase>> = Mutex::new(Vec::new());

/// The server of the store. Cheap to clone.
#[derive(Clone)]
pub struct StoreServer(Arc<ServerState>);

struct ServerState {
    database: InlineDatabase,
    calls: mpsc::UnboundedSender<ServerCall>,
    timeout: Duration,
    /// Per mille of the calls with each kind of fault; 0 once the faults are over.
    faults: AtomicUsize,
    /// The server takes no call before this time.
    silent_until: AtomicU64,
    /// Failovers after which the processes know that the primary is another one.
    announced_failovers: AtomicUsize,
    /// The attempts that the store called unknown.
    unknown: Mutex<BTreeSet<Attempt>>,
    leases: Arc<Leases>,
    clock_jumps: ClockJumps,
    /// The records whose states no event tells, with these.
    untold: Mutex<BTreeSet<(String, String)>>,
}

/// A record, as far as two of a key differ.
#[derive(PartialEq, Eq)]
struct StoredRecord {
    key: String,
    id: Vec<u8>,
    token: Vec<u8>,
    state: String,
}

/// A call on its way to the server.
struct ServerCall {
    arrives_in: Duration,
    execute: BoxFuture<'static, ()>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// It is executed, and its answer is lost.
    AnswerLost,
    /// It is executed long after its caller has given up.
    Late,
    /// It is never executed, and nobody is told.
    Lost,
    /// It is refused.
    Refused,
}

impl StoreServer {
    /// The server and its task.
    pub fn new(timeout: Duration, faults: usize, leases: Arc<Leases>) -> (Self, impl Future<Output = ()> + Send) {
        CLOCK_AHEAD.set(0);
        let spare = SPARE_DATABASES.lock().unwrap().pop();
        let database = spare.unwrap_or_else(|| {
            let database = open_inline(timeout, store_clock).unwrap();
            database.with_connection(set_clock_of_events);
            database
        });
        database.with_connection(|db| db.execute_batch("savepoint run").unwrap());
        let (calls, mut arriving) = mpsc::unbounded_channel::<ServerCall>();
        let server = Self(Arc::new(ServerState {
            database,
            calls,
            timeout,
            faults: AtomicUsize::new(faults),
            silent_until: AtomicU64::new(0),
            announced_failovers: AtomicUsize::new(0),
            unknown: Mutex::default(),
            leases,
            clock_jumps: ClockJumps::default(),
            untold: Mutex::default(),
        }));
        let task = async move {
            while let Some(call) = arriving.recv().await {
                tokio::spawn(async move {
                    sleep(call.arrives_in).await;
                    call.execute.await;
                });
            }
        };
        (server, task)
    }

    /// A process's way to the store.
    pub fn link(&self, process: usize, random: SeededRandom) -> Backend {
        let known_failovers = AtomicUsize::new(self.0.announced_failovers.load(Ordering::SeqCst));
        let server = Arc::clone(&self.0);
        let link = StoreLink { server, process, random: Mutex::new(random), known_failovers };
        Backend::inline(&self.0.database, Some(Arc::new(link)))
    }

    /// Takes no call before that time.
    pub fn silence(&self, until: Millis) {
        self.0.silent_until.store(until, Ordering::SeqCst);
    }

    /// Sets the store's clock.
    pub fn step_clock(&self, by: i64) {
        CLOCK_AHEAD.set(CLOCK_AHEAD.get() + by);
    }

    /// Notes that the store's clock has just ended all TTLs.
    pub fn note_jump(&self) {
        self.0.clock_jumps.add(std::time::UNIX_EPOCH + Duration::from_millis(store_clock().cast_unsigned()));
    }

    /// Whether the store does not know of one of the jumps that end TTLs.
    pub fn has_untold_jump(&self) -> bool {
        self.0.clock_jumps.is_any_untold()
    }

    /// Begins the lag of the replica: a failover loses what is committed from now on.
    pub fn begin_lag(&self) {
        self.0.database.with_connection(|db| db.execute_batch("savepoint replica").unwrap());
        self.0.clock_jumps.begin_lag();
    }

    /// Fails over to the replica. Returns the keys whose records are lost or older now.
    pub fn fail_over(&self, is_announced: bool) -> Vec<String> {
        let before = self.records();
        self.0.database.with_connection(|db| db.execute_batch("rollback to replica; release replica").unwrap());
        self.0.clock_jumps.fail_over();
        if is_announced {
            self.0.announced_failovers.fetch_add(1, Ordering::SeqCst);
        }
        let after = self.records();
        before.into_iter().filter(|record| !after.contains(record)).map(|record| record.key).collect()
    }

    fn records(&self) -> Vec<StoredRecord> {
        self.0.database.with_connection(|db| {
            let mut statement = db.prepare("select cast(key as text), id, token, state from keys order by id").unwrap();
            let read = |row: &rusqlite::Row<'_>| {
                Ok(StoredRecord { key: row.get(0)?, id: row.get(1)?, token: row.get(2)?, state: row.get(3)? })
            };
            statement.query_map([], read).unwrap().map(Result::unwrap).collect()
        })
    }

    /// The events that wait: their records, numbers and states, in their order.
    pub fn events(&self) -> Vec<(String, i64, Option<String>)> {
        self.0.database.with_connection(|db| {
            let mut statement = db.prepare("select lower(hex(id)), seq, state from events order by seq").unwrap();
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            statement.query_map([], read).unwrap().map(Result::unwrap).collect()
        })
    }

    /// The keys with a state that an event tells: the key, the record and the state.
    pub fn told_states(&self) -> Vec<(String, String, String)> {
        self.0.told_states()
    }

    /// The records that came to their states after a failover had taken back which routes have
    /// events, and before a heartbeat.
    pub fn untold(&self) -> BTreeSet<(String, String)> {
        self.0.untold.lock().unwrap().clone()
    }

    /// The number of keys that are in flight, or wait for their delivery.
    pub fn unsettled(&self) -> i64 {
        let sql = "select count(*) from keys where state in ('in_flight', 'queued')";
        self.0.database.with_connection(|db| db.query_row(sql, [], |row| row.get(0)).unwrap())
    }

    /// From now on calls have no faults.
    pub fn stop_misbehaving(&self) {
        self.0.faults.store(0, Ordering::SeqCst);
    }

    /// The attempts that were unknown at any time.
    pub fn unknown(&self) -> Vec<Attempt> {
        self.0.unknown.lock().unwrap().iter().cloned().collect()
    }
}

/// Undoes the run, so that the next one has an empty database.
impl Drop for ServerState {
    fn drop(&mut self) {
        self.database.with_connection(|db| db.execute_batch("rollback to run; release run").unwrap());
        SPARE_DATABASES.lock().unwrap().push(self.database.clone());
    }
}

impl ServerState {
    fn told_states(&self) -> Vec<(String, String, String)> {
        self.database.with_connection(|db| {
            let sql = "select cast(key as text), lower(hex(id)), state from keys where state in ('completed', 'dead', 'unknown')";
            let mut statement = db.prepare(sql).unwrap();
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            statement.query_map([], read).unwrap().map(Result::unwrap).collect()
        })
    }

    /// Notes the records of now, if no route has events.
    fn note_untold(&self) {
        let routes = "select count(*) from event_routes";
        let routes: i64 = self.database.with_connection(|db| db.query_row(routes, [], |row| row.get(0)).unwrap());
        if routes == 0 {
            let states = self.told_states().into_iter().map(|(_, record, state)| (record, state));
            self.untold.lock().unwrap().extend(states);
        }
    }

    /// Notes the attempts that are unknown now.
    fn note_unknown(&self) {
        let found: Vec<Attempt> = self.database.with_connection(|db| {
            let mut statement = db.prepare_cached("select id, attempt from keys where state = 'unknown'").unwrap();
            let read = |row: &rusqlite::Row<'_>| {
                let id = RecordId::from_stored(&row.get::<_, Vec<u8>>(0)?).unwrap();
                Ok(Attempt { record: id.to_string(), number: row.get::<_, i64>(1)?.cast_unsigned() })
            };
            statement.query_map([], read).unwrap().map(Result::unwrap).collect()
        });
        self.unknown.lock().unwrap().extend(found);
    }

    /// Executes a call that has come from a process, and notes what the checks ask for. Returns the error, as text.
    fn execute(&self, process: usize, call: Box<dyn CarriedCall>) -> Result<(), String> {
        let kind = call.kind();
        let renewal = call.params().downcast_ref::<LeaseRenewal>().cloned();
        if call.params().is::<StoreEventRoutesParams>() {
            self.note_untold();
        }
        let done = call.execute();
        if matches!(kind, CallKind::Always(Op::Settle | Op::Sweep)) {
            self.note_unknown();
        }
        if let Some(LeaseRenewal { expiry, hold_ttls_until, .. }) = renewal {
            self.leases.renew(process, now() + u64::try_from(expiry.as_millis()).unwrap());
            hold_ttls_until.filter(|_| done.is_ok()).into_iter().for_each(|until| self.clock_jumps.tell(until));
        }
        done
    }
}

struct StoreLink {
    server: Arc<ServerState>,
    process: usize,
    random: Mutex<SeededRandom>,
    known_failovers: AtomicUsize,
}

impl StoreNetwork for StoreLink {
    /// Sends a call to the server, and waits for its answer until the store's timeout.
    fn carry(&self, call: Box<dyn CarriedCall>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let (server, process, name) = (Arc::clone(&self.server), self.process, name(&*call));
            let (fate, arrives_in, takes) = self.draw();
            if fate == Fate::Refused {
                trace::record(format_args!("process {process} {name}: refused"));
                return Err(StoreError::Unavailable("the connection was closed".into()));
            }
            let (reply, answer) = oneshot::channel();
            let execute = Box::pin(async move {
                let silent_until = server.silent_until.load(Ordering::SeqCst);
                if let Some(left) = silent_until.checked_sub(now()).filter(|left| *left > 0) {
                    // The server's own timeout ends what the server has received and not begun.
                    if Duration::from_millis(left) > server.timeout {
                        return;
                    }
                    sleep(Duration::from_millis(left)).await;
                }
                if fate == Fate::Lost {
                    trace::record(format_args!("process {process} {name}: lost"));
                    return;
                }
                let shown = server.execute(process, call).err().unwrap_or_else(|| "done".to_owned());
                trace::record(format_args!("process {process} {name}: {shown}, {fate:?}"));
                if fate == Fate::Answered {
                    sleep(takes).await;
                    let _ = reply.send(());
                }
            });
            // The server outlives every process.
            let _ = self.server.calls.send(ServerCall { arrives_in, execute });
            let answered = async {
                match answer.await {
                    Ok(()) => Ok(()),
                    // Nobody tells the caller that no answer will come.
                    Err(_) => std::future::pending().await,
                }
            };
            timeout(self.server.timeout, answered).await.unwrap_or(Err(StoreError::TimedOut))
        })
    }

    fn check_primaries(&self) -> PrimaryCheck {
        let announced = self.server.announced_failovers.load(Ordering::SeqCst);
        let has_changed = self.known_failovers.swap(announced, Ordering::SeqCst) != announced;
        PrimaryCheck { primaries: 1, has_changed }
    }

    fn has_changed_primary(&self) -> bool {
        self.known_failovers.load(Ordering::SeqCst) != self.server.announced_failovers.load(Ordering::SeqCst)
    }
}

/// The name of a call in the trace.
fn name(call: &dyn CarriedCall) -> &'static str {
    match call.params().downcast_ref::<Settlement>().map(|settlement| &settlement.outcome) {
        Some(AttemptOutcome::Completed { .. }) => "settle completed",
        Some(AttemptOutcome::Retryable { .. }) => "settle retryable",
        Some(AttemptOutcome::Unknown(_)) => "settle unknown",
        None => call.kind().op().map_or("an uncounted call", Op::name),
    }
}

impl StoreLink {
    fn draw(&self) -> (Fate, Duration, Duration) {
        let mut random = self.random.lock().unwrap();
        let faults = self.server.faults.load(Ordering::SeqCst);
        let fate = match random.below(1_000) {
            drawn if drawn < faults => Fate::AnswerLost,
            drawn if drawn < 2 * faults => Fate::Late,
            drawn if drawn < 3 * faults => Fate::Lost,
            drawn if drawn < 4 * faults => Fate::Refused,
            _ => Fate::Answered,
        };
        let arrives_in = if fate == Fate::Late { random.millis(250, 1_200) } else { random.millis(0, 6) };
        (fate, arrives_in, random.millis(0, 6))
    }
}
