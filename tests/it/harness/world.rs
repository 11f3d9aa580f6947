//! A store for one test, and what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use oncegate::domain::attempt::{Ending, InstanceId, Lease, Settlement, Token};
use oncegate::domain::fingerprint::{Fingerprint, Plan, Recipe, Secret};
use oncegate::domain::job::{Order, PickUp, Terms};
use oncegate::domain::key::{Key, Limits, Syntax};
use oncegate::domain::record::{Ask, Record, RecordId, Reservation};
use oncegate::domain::response::StoredResponse;
use oncegate::domain::scope::Scope;
use oncegate::domain::sealed::Sealed;
use oncegate::store::{self, Location, Renewal, Settings, Settled, Store};
use tempfile::TempDir;

use super::pgbouncer;
use super::postgres::{self, Database};

/// Whoever asks, unless the test says otherwise. Its lease is never taken.
pub fn us() -> InstanceId {
    InstanceId::from_stored(1)
}

pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A lease before the service of most tests, taken by somebody who remembers nothing.
pub fn renewal(instance: InstanceId, expiry: Duration) -> Renewal {
    Renewal { instance, service: "shop".into(), expiry, purges_seen: None }
}

/// A store of the test's own.
pub struct World {
    pub settings: Settings,
    store: Option<Arc<dyn Store>>,
    home: Home,
}

enum Home {
    Postgres(Database),
    Sqlite(#[expect(dead_code, reason = "it goes away with the test")] TempDir),
}

impl World {
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

    /// In a SQLite file.
    pub async fn sqlite() -> Self {
        let home = tempfile::tempdir().unwrap();
        let settings = sqlite_settings(&home);
        let store = Some(store::open(&settings).await.unwrap());
        Self { settings, store, home: Home::Sqlite(home) }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().unwrap()
    }

    /// The database, where it is one.
    pub fn database(&self) -> &Database {
        match &self.home {
            Home::Postgres(database) => database,
            Home::Sqlite(_) => panic!("this test is about PostgreSQL"),
        }
    }

    /// Closes the store.
    pub fn close(&mut self) {
        self.store = None;
    }

    /// Closes the store and opens it again.
    pub async fn reopen(&mut self) {
        self.close();
        self.store = Some(store::open(&self.settings).await.unwrap());
    }

    /// Somebody's hand in the tables. The embedded store is closed for it, as it has its file alone.
    pub async fn by_hand(&mut self, sql: &str) -> Result<(), String> {
        if matches!(self.home, Home::Postgres(_)) {
            return self.write(sql).await;
        }
        self.close();
        let done = self.write(sql).await;
        self.reopen().await;
        done
    }

    /// The same, in a store that will not be opened after it.
    pub async fn by_hand_while_closed(&mut self, sql: &str) {
        self.close();
        self.write(sql).await.unwrap();
    }

    async fn write(&self, sql: &str) -> Result<(), String> {
        match (&self.home, &self.settings.location) {
            (Home::Postgres(database), _) => {
                let client = database.client().await;
                client.batch_execute("set search_path = oncegate").await.unwrap();
                client.batch_execute(sql).await.map_err(|error| error.as_db_error().unwrap().message().to_owned())
            }
            (Home::Sqlite(_), Location::Sqlite(path)) => {
                let db = rusqlite::Connection::open(path).unwrap();
                db.execute_batch(sql).map_err(|error| error.to_string())
            }
            _ => unreachable!("a file's location is its path"),
        }
    }

    /// What stands in the audit, in its order, a line each.
    pub async fn audit(&mut self) -> Vec<String> {
        let columns = ["service", "actor", "action", "id", "before", "after", "note"];
        let Home::Postgres(database) = &self.home else {
            self.close();
            let Location::Sqlite(path) = &self.settings.location else { unreachable!("a file's location is its path") };
            let db = rusqlite::Connection::open(path).unwrap();
            let sql =
                format!("select {} from audit order by seq", columns.join(", ").replace("id,", "lower(hex(id)),"));
            let mut rows = db.prepare(&sql).unwrap();
            let line = |row: &rusqlite::Row<'_>| {
                Ok((0..7).map(|column| row.get(column).unwrap()).collect::<Vec<String>>().join(" "))
            };
            return rows.query_map([], line).unwrap().map(Result::unwrap).collect();
        };
        let sql = format!("select {} from oncegate.audit order by seq", columns.join(", "));
        let sql = sql.replace("id,", "encode(id, 'hex'),");
        let rows = database.client().await.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| (0..7).map(|column| row.get(column)).collect::<Vec<String>>().join(" ")).collect()
    }

    /// The same without the notes, of lines that have none.
    pub async fn audit_without_notes(&mut self) -> Vec<String> {
        self.by_hand("update audit set note = '-' where note is null").await.unwrap();
        let lines = self.audit().await;
        if self.store.is_none() {
            self.reopen().await;
        }
        lines.iter().map(|line| line.strip_suffix(" -").unwrap_or(line).to_owned()).collect()
    }

    /// How many attempts stand there as denied while they were running.
    pub async fn denials(&mut self) -> i64 {
        self.rows_of("denials").await
    }

    /// How many rows a table has.
    pub async fn rows_of(&mut self, table: &str) -> i64 {
        if let Home::Postgres(database) = &self.home {
            let sql = format!("select count(*) from oncegate.{table}");
            return database.client().await.query_one(&sql, &[]).await.unwrap().get(0);
        }
        self.close();
        let Location::Sqlite(path) = &self.settings.location else { unreachable!("a file's location is its path") };
        let sql = format!("select count(*) from {table}");
        let count = rusqlite::Connection::open(path).unwrap().query_row(&sql, [], |row| row.get(0)).unwrap();
        self.reopen().await;
        count
    }

    /// A new id, as this store spells it.
    pub fn new_id(&self) -> &'static str {
        match &self.home {
            Home::Postgres(_) => "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())",
            Home::Sqlite(_) => "randomblob(32)",
        }
    }

    /// Bytes as this store spells them.
    pub fn bytes(&self, hex: &str) -> String {
        match &self.home {
            Home::Postgres(_) => format!("'\\x{hex}'"),
            Home::Sqlite(_) => format!("x'{hex}'"),
        }
    }

    /// Reserves a key that nobody has.
    pub async fn reserve(&self, ask: &Ask) -> Lease {
        fresh(self.store().reserve(ask.clone()).await.unwrap())
    }

    /// Reserves a key that somebody has.
    pub async fn lose(&self, ask: &Ask) -> Record {
        taken(self.store().reserve(ask.clone()).await.unwrap())
    }

    /// Settles an attempt that nobody else has settled.
    pub async fn settle(&self, settlement: Settlement) {
        let settled = self.store().settle(settlement).await.unwrap();
        assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
    }

    /// Settles an attempt that somebody else has settled.
    pub async fn settle_late(&self, settlement: Settlement) -> Option<Record> {
        match self.store().settle(settlement).await.unwrap() {
            Settled::Fenced(record) => record,
            done => panic!("{done:?}"),
        }
    }

    /// A record that is there.
    pub async fn find(&self, ask: &Ask) -> Record {
        self.store().find(ask.id).await.unwrap().unwrap()
    }
}

/// How the tests use a SQLite store.
pub fn sqlite_settings(home: &TempDir) -> Settings {
    Settings {
        location: Location::Sqlite(home.path().join("oncegate.db")),
        max_connections: 8,
        timeout: Duration::from_secs(10),
        migrate: true,
    }
}

pub fn fresh(reservation: Reservation) -> Lease {
    match reservation {
        Reservation::Fresh(lease) => lease,
        Reservation::Taken(record) => panic!("{record:?}"),
    }
}

pub fn taken(reservation: Reservation) -> Record {
    match reservation {
        Reservation::Fresh(lease) => panic!("{lease:?}"),
        Reservation::Taken(record) => record,
    }
}

/// The first attempt at a key.
pub fn ask(key: &str) -> Ask {
    ask_of("shop", [7; 32], b"POST /pay", key)
}

/// The first attempt at a key of somebody, somewhere.
pub fn ask_of(service: &str, scope: [u8; 32], space: &[u8], key: &str) -> Ask {
    let key = Key::parse(key.as_bytes(), Syntax::Ietf, Limits { length_min: 1, length_max: 255 }).unwrap();
    let scope = Scope::from_stored(&scope).unwrap();
    Ask {
        id: RecordId::of(service, &scope, space, &key),
        service: service.into(),
        scope,
        space: Bytes::copy_from_slice(space),
        key,
        path: None,
        route: "pay".into(),
        recipe: Recipe::new(Plan::default(), None),
        fingerprint: Fingerprint::from_stored(&[9; 32]).unwrap(),
        instance: us(),
        token: token(),
        time_limit: Duration::from_secs(30),
    }
}

/// An order as a proxy makes it.
pub fn order(ask: &Ask) -> Order {
    let secret = Secret::new("a secret of some length");
    Order { ask: ask.clone(), sealed: Sealed::seal(&secret, &ask.id, [7; 32], b"a request") }
}

/// As many deliveries as there are tokens, by these terms, with nothing to say of earlier ones.
pub fn pick_up(tokens: Vec<Token>, terms: Terms) -> PickUp {
    PickUp {
        service: "shop".into(),
        instance: us(),
        tokens,
        terms: vec![terms],
        delivered: Vec::new(),
        busy: Vec::new(),
        unsent: Vec::new(),
    }
}

/// The next try at the same key.
pub fn again(ask: &Ask) -> Ask {
    Ask { token: token(), ..ask.clone() }
}

/// A token that nobody has.
pub fn token() -> Token {
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Token::from_random(bytes)
}

/// A response with a bit of everything.
pub fn response(body: &[u8]) -> StoredResponse {
    let mut headers = HeaderMap::new();
    headers.append("set-cookie", HeaderValue::from_static("a=1"));
    headers.append("content-type", HeaderValue::from_static("text/plain"));
    headers.append("set-cookie", HeaderValue::from_bytes(b"caf\xe9: yes").unwrap());
    let mut trailers = HeaderMap::new();
    trailers.append("checksum", HeaderValue::from_static("abc"));
    StoredResponse { status: StatusCode::CREATED, headers, body: Some(Bytes::copy_from_slice(body)), trailers }
}

/// The attempt of an ask, ended with a response.
pub fn completion(ask: &Ask, body: &[u8]) -> Settlement {
    settlement(ask, Ending::Completed { response: response(body), ttl: DAY, remember: None })
}

/// The attempt of an ask, ended.
pub fn settlement(ask: &Ask, ending: Ending) -> Settlement {
    Lease { ask: Arc::new(ask.clone()), attempt: 1, recovery_point: None, delivery: None }.end(ending)
}
