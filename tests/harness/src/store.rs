//! The store of a test's proxies.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::OptionalExtension;
use tempfile::TempDir;

use super::postgres::{self, NOW_MS, TestDatabase};
use super::{TEST_TIMEOUT, eventually};

/// A store for one test alone.
pub enum Store {
    Postgres(TestDatabase),
    Sqlite(TempDir),
}

impl Store {
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub async fn postgres() -> Self {
        Self::Postgres(postgres::database().await)
    }

    pub fn url(&self) -> String {
        match self {
            Self::Postgres(database) => database.url.clone(),
            Self::Sqlite(folder) => format!("sqlite:{}", file(folder).display()),
        }
    }

    /// The state of each key. No process may have the embedded store open at that moment.
    pub async fn states(&self) -> Vec<String> {
        let sql = "select state from keys order by key";
        match self {
            Self::Postgres(database) => {
                let rows = database.client().await.query(&sql.replace("keys", "oncegate.keys"), &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Self::Sqlite(folder) => {
                let store = rusqlite::Connection::open(file(folder)).unwrap();
                let mut rows = store.prepare(sql).unwrap();
                rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// Rows of three columns: bytes as hex digits, a number and a text. No process may have the embedded store open at
    /// that moment.
    pub async fn hex_rows(&self, columns: &str, from: &str) -> Vec<(String, i64, String)> {
        let (id, others) = columns.split_once(", ").unwrap();
        match self {
            Self::Postgres(database) => {
                let sql = format!("select encode({id}, 'hex'), {others} from oncegate.{from}");
                let rows = database.client().await.query(&sql, &[]).await.unwrap();
                rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
            }
            Self::Sqlite(folder) => {
                let store = rusqlite::Connection::open(file(folder)).unwrap();
                let mut rows = store.prepare(&format!("select lower(hex({id})), {others} from {from}")).unwrap();
                let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
                rows.query_map([], read).unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// The number of migrations that the store has. An embedded store is copied: a process may have it open.
    pub async fn migrations(&self) -> usize {
        let count = match self {
            Self::Postgres(database) => {
                let sql = "select count(*) from oncegate.migrations";
                database.client().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
            }
            Self::Sqlite(_) => {
                let copy = self.copied();
                let store = rusqlite::Connection::open(copy.sqlite_file()).unwrap();
                store.query_row("select count(*) from migrations", [], |row| row.get(0)).unwrap()
            }
        };
        usize::try_from(count).unwrap()
    }

    /// The fields and the body of each stored response. No process may have the embedded store open at that moment.
    pub async fn responses(&self) -> Vec<Vec<u8>> {
        let sql = "select coalesce(fields, x''), coalesce(body, x'') from keys where status is not null";
        match self {
            Self::Postgres(database) => {
                let sql = sql.replace("keys", "oncegate.keys").replace("x''", "''::bytea");
                let rows = database.client().await.query(&sql, &[]).await.unwrap();
                rows.iter().map(|row| [row.get::<_, Vec<u8>>(0), row.get(1)].concat()).collect()
            }
            Self::Sqlite(folder) => {
                let store = rusqlite::Connection::open(file(folder)).unwrap();
                let mut rows = store.prepare(sql).unwrap();
                let whole = |row: &rusqlite::Row<'_>| Ok([row.get::<_, Vec<u8>>(0)?, row.get(1)?].concat());
                rows.query_map([], whole).unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// The state of one key after its proxy's death. The recovery of the embedded store's files is left to the next
    /// proxy, so this reads copies of them.
    pub async fn state_after_death(&self, key: &str) -> Option<String> {
        let sql = "select state from keys where key = $1";
        match self {
            Self::Postgres(database) => {
                let client = database.client().await;
                // Statements sent before the death may still be running.
                let others = "select count(*) from pg_stat_activity \
                              where datname = current_database() and pid <> pg_backend_pid()";
                eventually(TEST_TIMEOUT, async || {
                    (client.query_one(others, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
                })
                .await;
                let row = client.query_opt(&sql.replace("keys", "oncegate.keys"), &[&key.as_bytes()]).await.unwrap();
                row.map(|row| row.get(0))
            }
            Self::Sqlite(folder) => {
                let copies = copies(folder);
                let store = rusqlite::Connection::open(file(&copies)).unwrap();
                store.query_row(sql, [key.as_bytes()], |row| row.get(0)).optional().unwrap()
            }
        }
    }

    /// Whether all keys were reserved longer ago than that, by the store's clock. This is about PostgreSQL.
    pub async fn reserved_longer_ago_than(&self, time: Duration) -> bool {
        let Self::Postgres(database) = self else { panic!("a proxy has the embedded store open") };
        let longer_ago = format!("select bool_and(reserved_at + {} < {NOW_MS}) from oncegate.keys", time.as_millis());
        database.client().await.query_one(&longer_ago, &[]).await.unwrap().get(0)
    }

    /// The number of leases that have not run out by the store's clock. This is about PostgreSQL.
    pub async fn leases(&self) -> i64 {
        let Self::Postgres(database) = self else { panic!("a proxy has the embedded store open") };
        let held = format!("select count(*) from oncegate.instances where lease_until > {NOW_MS}");
        database.client().await.query_one(&held, &[]).await.unwrap().get(0)
    }

    /// Waits until the sweepers have settled a dead proxy's attempts. Opening the embedded store does that itself.
    pub async fn nothing_in_flight(&self) {
        let Self::Postgres(database) = self else { return };
        let client = database.client().await;
        let running = "select count(*) from oncegate.keys where state = 'in_flight'";
        eventually(TEST_TIMEOUT, async || {
            (client.query_one(running, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
        })
        .await;
    }

    /// A store made of a backup of this one: a dump, or copies of the embedded store's files.
    /// No process may have these open.
    pub async fn restored_backup(&self) -> Self {
        let Self::Postgres(database) = self else { return self.copied() };
        let restored = postgres::empty_database().await;
        restored.client().await.batch_execute(&database.dump()).await.unwrap();
        Self::Postgres(restored)
    }

    /// An embedded store with copies of the current files.
    pub fn copied(&self) -> Self {
        match self {
            Self::Sqlite(folder) => Self::Sqlite(copies(folder)),
            Self::Postgres(_) => panic!("this test is about SQLite"),
        }
    }

    /// The embedded store's file. No other process may have it open.
    pub fn sqlite_file(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => file(folder),
            Self::Postgres(_) => panic!("this test is about SQLite"),
        }
    }

    /// Changes the tables behind the proxy's back; no process may have the embedded store open.
    pub async fn tamper(&self, sql: &str) {
        match self {
            Self::Postgres(database) => {
                let sql = format!("set search_path = oncegate; {sql}");
                database.client().await.batch_execute(&sql).await.unwrap();
            }
            Self::Sqlite(folder) => rusqlite::Connection::open(file(folder)).unwrap().execute_batch(sql).unwrap(),
        }
    }
}

fn copies(folder: &TempDir) -> TempDir {
    let copies = tempfile::tempdir().unwrap();
    for found in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(found.path(), copies.path().join(found.file_name())).unwrap();
    }
    copies
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("oncegate.db")
}
