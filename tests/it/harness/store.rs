//! A store for one test.

use std::path::PathBuf;

use tempfile::TempDir;

use super::postgres::{self, Database};

/// A store that nobody else has.
pub enum Store {
    Postgres(Database),
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

    /// The state of each key; the embedded store must be nobody's at that moment.
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

    /// The embedded store's file. It must be nobody's when it is opened.
    pub fn sqlite_file(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => file(folder),
            Self::Postgres(_) => panic!("this test is about SQLite"),
        }
    }

    /// Writes into it behind the proxy's back; the embedded store must be nobody's at that moment. `keys` is the table.
    pub async fn tamper(&self, sql: &str) {
        match self {
            Self::Postgres(database) => {
                let sql = sql.replace("keys", "oncegate.keys");
                database.client().await.batch_execute(&sql).await.unwrap();
            }
            Self::Sqlite(folder) => rusqlite::Connection::open(file(folder)).unwrap().execute_batch(sql).unwrap(),
        }
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("oncegate.db")
}
