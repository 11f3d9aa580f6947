//! A database in which every operator, function and cast that somebody else could offer to a
//! statement is a trap, see `traps.sql`.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use crate::postgres::{self, TestDatabase};

const PLANT: &str = include_str!("traps.sql");

/// The trapped database, which has no schema of Oncegate's at first.
pub async fn database() -> &'static TestDatabase {
    static TRAPPED: OnceCell<TestDatabase> = OnceCell::const_new();
    let plant = || async {
        let database = postgres::empty_database().await;
        let client = database.client().await;
        client.batch_execute("create temporary table sources (text text)").await.unwrap();
        for text in sources() {
            client.execute("insert into sources values ($1)", &[&text]).await.unwrap();
        }
        client.batch_execute(PLANT).await.unwrap();
        database
    };
    TRAPPED.get_or_init(plant).await
}

/// Panics if a trap was called since the database was made.
pub async fn assert_none_was_called(database: &TestDatabase) {
    let row = database.client().await.query_one("select is_called from public.trapped", &[]).await.unwrap();
    assert!(!row.get::<_, bool>(0), "a statement has called what anybody may create in the schema public");
}

/// The texts of all statements, functions and migrations for PostgreSQL, and of the statements in Rust.
fn sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["crates/store/src", "migrations/postgres", "deploy/postgres"].map(|folder| root.join(folder));
    folders.iter().flat_map(|folder| files(folder)).map(|file| fs::read_to_string(file).unwrap()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
