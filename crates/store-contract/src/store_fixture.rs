//! A store for one test of the store's interface, and its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use oncegate_domain::attempt::{AttemptLease, AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::delivery::{DeliveryPolicy, EnqueueRequest, EnqueueResult, PickUpRequest};
use oncegate_domain::fingerprint::{Fingerprint, FingerprintRules, Recipe, Secret, Secrets};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use oncegate_domain::part_bits::PartBits;
use oncegate_domain::record::Record;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::scope::{Salt, Scope};
use oncegate_domain::sealed::SealedBytes;
use oncegate_domain::space::SpaceHash;
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::encryption::Encryption;
use oncegate_store::{
    self as store, Backend, InlineDatabase, LeaseRenewal, ReapScope, SettleResult, Store, StoreLocation, StoreSettings,
};
use oncegate_store::{
    EnqueueParams, ExpectedRecord, ListInFlightParams, ReapParams, ReapedRows, ReservedAttempt, SweepParams, SweptKey,
    TakeOverParams, salts,
};
use tempfile::TempDir;

use crate::postgres::{self, TestDatabase};
use crate::{pgbouncer, traps};

/// The default instance of the requests. It never takes a lease.
pub fn own_instance() -> InstanceId {
    InstanceId::from_stored(1)
}

pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A lease of the default service for an instance with an empty cache.
pub fn renewal(instance: InstanceId, expiry: Duration) -> LeaseRenewal {
    LeaseRenewal { instance, services: "shop".into(), expiry, purges_seen: None, hold_ttls_until: None }
}

/// The estimate of a caller that believes whatever time the store's clock says.
pub fn any_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + 100 * 365 * DAY
}

/// All records that are past their TTL by the store's clock.
pub fn all_records() -> ReapScope {
    ReapScope { as_of: any_time(), settled_since: SystemTime::UNIX_EPOCH }
}

/// The salt of the default service, without a secret.
pub async fn salt(store: &Store) -> Salt {
    salts::open(store, &"shop".into(), &Secrets::default(), None).await.unwrap()
}

/// A store for one test alone.
pub struct StoreFixture {
    pub settings: StoreSettings,
    store: Option<Arc<Store>>,
    home: Home,
}

enum Home {
    Postgres(TestDatabase),
    Given(TestDatabase, #[expect(dead_code, reason = "the next test waits for it")] tokio::sync::OwnedMutexGuard<()>),
    Trapped(TestDatabase, #[expect(dead_code, reason = "as above")] tokio::sync::OwnedMutexGuard<()>),
    Sqlite(#[expect(dead_code, reason = "it goes away with the test")] TempDir),
    Inline(InlineDatabase),
}

impl StoreFixture {
    /// In a PostgreSQL database.
    pub async fn postgres() -> Self {
        let database = postgres::database().await;
        let settings = postgres::settings(&database.url);
        let store = Some(store::open(&settings).await.unwrap());
        Self { settings, store, home: Home::Postgres(database) }
    }

    /// In a PostgreSQL database behind PgBouncer in transaction mode, where that is installed.
    pub async fn pgbouncer() -> Option<Self> {
        let database = postgres::database().await;
        let settings = postgres::settings(&pgbouncer::shared(&database).await?.to(&database).url);
        let store = Some(store::open(&settings).await.unwrap());
        Some(Self { settings, store, home: Home::Postgres(database) })
    }

    /// In the database of `ONCEGATE_TEST_STORE_URL`, where that is set. **Drops its schema `oncegate`.** The tests have
    /// it one after the other. On a Citus cluster the keys are distributed.
    pub async fn given() -> Option<Self> {
        static DATABASE: std::sync::LazyLock<Arc<tokio::sync::Mutex<()>>> = std::sync::LazyLock::new(Arc::default);
        let url = std::env::var("ONCEGATE_TEST_STORE_URL").ok().filter(|url| !url.is_empty())?;
        let turn = Arc::clone(&DATABASE).lock_owned().await;
        let database = TestDatabase { name: "given".into(), url };
        let client = database.client().await;
        client.batch_execute("drop schema if exists oncegate cascade").await.unwrap();
        let has_citus = "select exists (select from pg_catalog.pg_extension where extname = 'citus')";
        let distribute = client.query_one(has_citus, &[]).await.unwrap().get(0);
        let settings = StoreSettings { distribute, ..postgres::settings(&database.url) };
        let store = Some(store::open(&settings).await.unwrap());
        Some(Self { settings, store, home: Home::Given(database, turn) })
    }

    /// In the [trapped database](traps::database), behind PgBouncer, whose sessions have the database's own search
    /// path. The tests have it one after the other.
    pub async fn trapped() -> Option<Self> {
        static TURN: std::sync::LazyLock<Arc<tokio::sync::Mutex<()>>> = std::sync::LazyLock::new(Arc::default);
        let turn = Arc::clone(&TURN).lock_owned().await;
        let database = traps::database().await.clone();
        database.client().await.batch_execute("drop schema if exists oncegate cascade").await.unwrap();
        let settings = postgres::settings(&pgbouncer::shared(&database).await?.to(&database).url);
        let store = Some(store::open(&settings).await.unwrap());
        Some(Self { settings, store, home: Home::Trapped(database, turn) })
    }

    /// In a SQLite file.
    pub async fn sqlite() -> Self {
        let home = tempfile::tempdir().unwrap();
        let settings = sqlite_settings(&home);
        let store = Some(store::open(&settings).await.unwrap());
        Self { settings, store, home: Home::Sqlite(home) }
    }

    /// In the database in memory that simulations use.
    pub async fn inline() -> Self {
        let timeout = Duration::from_secs(10);
        let clock =
            || i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let database = store::open_inline(timeout, clock).unwrap();
        let store = Store::new(Backend::inline(&database, None), Encryption::default());
        let location = StoreLocation::Sqlite("in memory".into());
        let settings = StoreSettings {
            location,
            max_connections: 8,
            timeout,
            migrate: true,
            distribute: false,
            events: false,
            encryption: Encryption::default(),
        };
        Self { settings, store: Some(store), home: Home::Inline(database) }
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    /// The database; panics for a SQLite file.
    pub fn database(&self) -> &TestDatabase {
        match &self.home {
            Home::Postgres(database) | Home::Given(database, _) | Home::Trapped(database, _) => database,
            Home::Sqlite(_) | Home::Inline(_) => panic!("this test is about PostgreSQL"),
        }
    }

    /// Closes the store; one in memory stays open, because its database would go with it.
    pub fn close(&mut self) {
        if !matches!(self.home, Home::Inline(_)) {
            self.store = None;
        }
    }

    /// Closes the store and opens it again.
    pub async fn reopen(&mut self) {
        if matches!(self.home, Home::Inline(_)) {
            return;
        }
        self.close();
        self.store = Some(store::open(&self.settings).await.unwrap());
    }

    /// Executes SQL in the tables. The embedded store is closed meanwhile, as it holds its file exclusively.
    pub async fn execute_sql(&mut self, sql: &str) -> Result<(), String> {
        if matches!(self.home, Home::Postgres(_) | Home::Given(..) | Home::Trapped(..) | Home::Inline(_)) {
            return self.write(sql).await;
        }
        self.close();
        let done = self.write(sql).await;
        self.reopen().await;
        done
    }

    /// The same, in a store that will not be opened again.
    pub async fn execute_sql_closed(&mut self, sql: &str) {
        self.close();
        self.write(sql).await.unwrap();
    }

    async fn write(&self, sql: &str) -> Result<(), String> {
        match (&self.home, &self.settings.location) {
            (Home::Postgres(database) | Home::Given(database, _) | Home::Trapped(database, _), _) => {
                let client = database.client().await;
                client.batch_execute("set search_path = oncegate").await.unwrap();
                client.batch_execute(sql).await.map_err(|error| error.as_db_error().unwrap().message().to_owned())
            }
            _ => self.with_sqlite(|db| db.execute_batch(sql).map_err(|error| error.to_string())),
        }
    }

    /// Uses a connection to the SQLite database. A file must be closed.
    fn with_sqlite<T>(&self, work: impl FnOnce(&rusqlite::Connection) -> T) -> T {
        match (&self.home, &self.settings.location) {
            (Home::Inline(database), _) => database.with_connection(work),
            (_, StoreLocation::Sqlite(path)) => work(&rusqlite::Connection::open(path).unwrap()),
            _ => unreachable!("a file's location is its path"),
        }
    }

    /// Lets each commit of a key wait for a standby that does not exist; with `false` for none again. Returns whether
    /// it did: not in SQLite, where nothing is visible before it is on the disk, and not on
    /// a server that other tests use.
    pub async fn commits_wait_for_a_standby(&self, wait: bool) -> bool {
        let Home::Given(database, _) = &self.home else { return false };
        let client = database.client().await;
        let name = if wait { "nobody" } else { "" };
        let set = format!("alter system set synchronous_standby_names = '{name}'");
        match self.settings.distribute {
            // On the nodes that have the keys.
            true => {
                for sql in [set.as_str(), "select pg_reload_conf()"] {
                    client.query("select run_command_on_workers($1)", &[&sql]).await.unwrap();
                }
            }
            false => {
                client.batch_execute(&set).await.unwrap();
                client.batch_execute("select pg_reload_conf()").await.unwrap();
            }
        }
        true
    }

    /// The audit entries, oldest first, a line each.
    pub async fn audit(&mut self) -> Vec<String> {
        let columns = ["service", "actor", "action", "id", "before", "after", "coalesce(note, '-')"];
        let (Home::Postgres(database) | Home::Given(database, _) | Home::Trapped(database, _)) = &self.home else {
            self.close();
            let sql =
                format!("select {} from audit order by seq", columns.join(", ").replace("id,", "lower(hex(id)),"));
            let line = |row: &rusqlite::Row<'_>| {
                Ok((0..7).map(|column| row.get(column).unwrap()).collect::<Vec<String>>().join(" "))
            };
            return self.with_sqlite(|db| {
                let mut rows = db.prepare(&sql).unwrap();
                rows.query_map([], line).unwrap().map(Result::unwrap).collect()
            });
        };
        let sql = format!("select {} from oncegate.audit order by seq", columns.join(", "));
        let sql = sql.replace("id,", "encode(id, 'hex'),");
        let rows = database.client().await.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| (0..7).map(|column| row.get(column)).collect::<Vec<String>>().join(" ")).collect()
    }

    /// The same without notes, where the entries have none.
    pub async fn audit_without_notes(&mut self) -> Vec<String> {
        let lines = self.audit().await;
        if self.store.is_none() {
            self.reopen().await;
        }
        lines.iter().map(|line| line.strip_suffix(" -").unwrap_or(line).to_owned()).collect()
    }

    /// The number of running attempts that were reported as not executed.
    pub async fn deferred_reports(&mut self) -> i64 {
        self.rows_of("deferred_reports").await
    }

    /// The number of a table's rows.
    pub async fn rows_of(&mut self, table: &str) -> i64 {
        if let Home::Postgres(database) | Home::Given(database, _) | Home::Trapped(database, _) = &self.home {
            let sql = format!("select count(*) from oncegate.{table}");
            return database.client().await.query_one(&sql, &[]).await.unwrap().get(0);
        }
        self.close();
        let sql = format!("select count(*) from {table}");
        let count = self.with_sqlite(|db| db.query_row(&sql, [], |row| row.get(0)).unwrap());
        self.reopen().await;
        count
    }

    /// The SQL expression for a new id in this store.
    pub fn new_id(&self) -> &'static str {
        match &self.home {
            Home::Postgres(_) | Home::Given(..) | Home::Trapped(..) => {
                "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"
            }
            Home::Sqlite(_) | Home::Inline(_) => "randomblob(32)",
        }
    }

    /// The SQL literal for bytes in this store.
    pub fn bytes(&self, hex: &str) -> String {
        match &self.home {
            Home::Postgres(_) | Home::Given(..) | Home::Trapped(..) => format!("'\\x{hex}'"),
            Home::Sqlite(_) | Home::Inline(_) => format!("x'{hex}'"),
        }
    }

    /// Reserves a free key.
    pub async fn reserve(&self, reserve_request: &ReserveRequest) -> AttemptLease {
        unwrap_lease(self.store().reserve(reserve_request.clone()).await.unwrap())
    }

    /// Reserves a key that is taken, and returns its record.
    pub async fn reserve_taken(&self, reserve_request: &ReserveRequest) -> Record {
        unwrap_taken(self.store().reserve(reserve_request.clone()).await.unwrap())
    }

    /// Settles an attempt that is not settled yet.
    pub async fn settle(&self, settlement: Settlement) {
        let settled = self.store().settle(settlement).await.unwrap();
        assert!(matches!(settled, SettleResult::Done { .. }), "{settled:?}");
    }

    /// Settles an attempt that was settled already, and returns its record.
    pub async fn settle_late(&self, settlement: Settlement) -> Option<Record> {
        match self.store().settle(settlement).await.unwrap() {
            SettleResult::Fenced(record) => record,
            done => panic!("{done:?}"),
        }
    }

    /// Takes a key over.
    pub async fn take_over(&self, request: ReserveRequest, from: ExpectedRecord) -> ReserveResult {
        self.store().take_over(TakeOverParams { request, from }).await.unwrap()
    }

    /// Accepts a key for asynchronous delivery.
    pub async fn enqueue(&self, request: EnqueueRequest, from: Option<ExpectedRecord>) -> EnqueueResult {
        self.store().enqueue(EnqueueParams { request, from }).await.unwrap()
    }

    /// Sweeps with an expiry of a day.
    pub async fn sweep(&self, limit: u32) -> Vec<SweptKey> {
        self.store().sweep(SweepParams { expiry: DAY, limit, as_of: any_time() }).await.unwrap()
    }

    /// Reaps records that are past their TTL by the store's clock.
    pub async fn reap(&self, limit: u32) -> ReapedRows {
        self.store().reap(ReapParams { limit, scope: all_records() }).await.unwrap()
    }

    /// Lists attempts of the default instance.
    pub async fn list_in_flight(&self, older_than: Duration) -> Vec<ReservedAttempt> {
        self.store().list_in_flight(ListInFlightParams { instance: own_instance(), older_than }).await.unwrap()
    }

    /// Finds an existing record.
    pub async fn find(&self, reserve_request: &ReserveRequest) -> Record {
        self.store().find(reserve_request.id).await.unwrap().unwrap()
    }
}

/// The settings of a SQLite store in tests.
pub fn sqlite_settings(home: &TempDir) -> StoreSettings {
    StoreSettings {
        location: StoreLocation::Sqlite(home.path().join("oncegate.db")),
        max_connections: 8,
        timeout: Duration::from_secs(10),
        migrate: true,
        distribute: false,
        events: false,
        encryption: Encryption::default(),
    }
}

pub fn unwrap_lease(reservation: ReserveResult) -> AttemptLease {
    match reservation {
        ReserveResult::Fresh(lease) => lease,
        ReserveResult::Taken(record) => panic!("{record:?}"),
    }
}

pub fn unwrap_taken(reservation: ReserveResult) -> Record {
    match reservation {
        ReserveResult::Fresh(lease) => panic!("{lease:?}"),
        ReserveResult::Taken(record) => record,
    }
}

/// A request for the first attempt at a key.
pub fn new_reserve_request(key: &str) -> ReserveRequest {
    new_reserve_request_in("shop", [7; 32], "POST /pay", key)
}

/// The same for another service, scope or key space.
pub fn new_reserve_request_in(service: &str, scope: [u8; 32], space: &str, key: &str) -> ReserveRequest {
    let space = SpaceHash::from_text(space);
    let key = Key::parse(key.as_bytes(), KeySyntax::Ietf, KeyLimits { length_min: 1, length_max: 255 }).unwrap();
    let scope = Scope::from_stored(&scope).unwrap();
    ReserveRequest {
        id: RecordId::derive(service, &scope, &space, &key),
        service: service.into(),
        scope,
        space,
        key,
        path: None,
        route: "pay".into(),
        recipe: Recipe::new(FingerprintRules::default(), None),
        fingerprint: Fingerprint::from_stored(&[9; 32]).unwrap(),
        trace_id: None,
        client_address: None,
        lookups: None,
        parts: PartBits::from_stored(&[1, 9, 9, 9]),
        instance: own_instance(),
        token: token(),
        time_limit: Duration::from_secs(30),
        holder: None,
    }
}

/// The enqueue request of an asynchronous delivery.
pub fn new_enqueue_request(reserve_request: &ReserveRequest) -> EnqueueRequest {
    let secret = Secret::new("a secret of some length");
    EnqueueRequest {
        reserve_request: reserve_request.clone(),
        sealed: SealedBytes::seal(&secret, reserve_request.id.as_bytes(), [7; 32], b"a request"),
    }
}

/// A request for as many deliveries as there are tokens, under this policy, with no report about earlier ones.
pub fn new_pick_up_request(tokens: Vec<Token>, terms: DeliveryPolicy) -> PickUpRequest {
    PickUpRequest {
        service: "shop".into(),
        instance: own_instance(),
        tokens,
        policies: vec![terms],
        delivered: Vec::new(),
        busy: Vec::new(),
        unsent: Vec::new(),
        as_of: any_time(),
    }
}

/// A request for the next attempt at the same key.
pub fn next_attempt_request(reserve_request: &ReserveRequest) -> ReserveRequest {
    ReserveRequest { token: token(), ..reserve_request.clone() }
}

/// A new token.
pub fn token() -> Token {
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Token::from_random(bytes)
}

/// A response with some of every part.
pub fn response(body: &[u8]) -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.append("set-cookie", HeaderValue::from_static("a=1"));
    headers.append("content-type", HeaderValue::from_static("text/plain"));
    headers.append("set-cookie", HeaderValue::from_bytes(b"caf\xe9: yes").unwrap());
    let mut trailers = HeaderMap::new();
    trailers.append("checksum", HeaderValue::from_static("abc"));
    let body = Some(Bytes::copy_from_slice(body));
    Arc::new(StoredResponse { status: StatusCode::CREATED, headers, body, trailers })
}

/// The settlement of an attempt with a response.
pub fn completion(reserve_request: &ReserveRequest, body: &[u8]) -> Settlement {
    settlement(reserve_request, AttemptOutcome::Completed { response: response(body), ttl: DAY, remember: None })
}

/// The settlement of an attempt.
/// An attempt that may have executed.
pub const UNKNOWN: AttemptOutcome = AttemptOutcome::Unknown(UnknownCause::Broken);

pub fn settlement(reserve_request: &ReserveRequest, outcome: AttemptOutcome) -> Settlement {
    AttemptLease {
        reserve_request: Arc::new(reserve_request.clone()),
        attempt: 1,
        taken_from: None,
        recovery_point: None,
        delivery: None,
    }
    .end(outcome)
}
