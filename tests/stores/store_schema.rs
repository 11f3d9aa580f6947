//! The schema: migrations on both stores, and the SQL files.

use std::fs;
use std::path::Path;

use futures_util::future::join_all;
use oncegate_store::{self as store, OpenError, StoreError, StoreLocation, StoreSettings};

use harness::pgbouncer::Bouncer;
use harness::postgres;
use harness::store_fixture::{StoreFixture, completion, new_reserve_request, salt, sqlite_settings, unwrap_lease};

mod distribution;
mod earlier_releases;
mod functions;
mod locks;
mod partitions;
mod plans;
mod rights;
mod search_path;
mod statements;

fn sqlite_file() -> (tempfile::TempDir, StoreSettings) {
    let home = tempfile::tempdir().unwrap();
    let settings = sqlite_settings(&home);
    (home, settings)
}

/// The names of the migrations of both stores, in order.
fn steps() -> Vec<String> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/sqlite")).unwrap();
    let name = |file: fs::DirEntry| file.path().file_stem().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = files.map(|file| name(file.unwrap())).collect();
    names.sort();
    names
}

/// Everything that a store applies, in order: the migrations, and in PostgreSQL the functions.
fn all(settings: &StoreSettings) -> Vec<String> {
    let functions = matches!(settings.location, StoreLocation::Postgres(_)).then(|| "functions".to_owned());
    steps().into_iter().chain(functions).collect()
}

/// A SQLite database in memory with the schema.
fn sqlite_in_memory() -> rusqlite::Connection {
    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    for step in steps() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/sqlite").join(format!("{step}.sql"));
        sqlite.execute_batch(&fs::read_to_string(path).unwrap()).unwrap();
    }
    sqlite
}

#[tokio::test]
async fn migrations_are_idempotent() {
    let (_home, sqlite) = sqlite_file();
    for settings in [sqlite, postgres::settings(&postgres::empty_database().await.url)] {
        assert_eq!(names(store::pending(&settings).await.unwrap()), all(&settings));
        assert_eq!(store::migrate(&settings).await.unwrap(), all(&settings));
        assert_eq!(store::migrate(&settings).await.unwrap(), [] as [&str; 0]);
        assert_eq!(store::pending(&settings).await.unwrap(), []);
        store::open(&StoreSettings { migrate: false, ..settings }).await.unwrap();
    }
}

fn names(migrations: Vec<store::Migration>) -> Vec<String> {
    migrations.into_iter().map(|migration| migration.name).collect()
}

#[tokio::test]
async fn proxies_that_start_together_make_one_schema_and_one_salt() {
    for pooled in [false, true] {
        let database = postgres::empty_database().await;
        let bouncer = match pooled {
            true => Bouncer::before(&database).await,
            false => None,
        };
        let settings = match &bouncer {
            Some(bouncer) => postgres::settings(&bouncer.to(&database).url),
            None => postgres::settings(&database.url),
        };
        let stores = join_all((0..10).map(|_| store::open(&settings))).await;
        let mut salts = join_all(stores.iter().map(|store| salt(store.as_ref().unwrap().as_ref()))).await;
        salts.dedup();
        assert_eq!(salts.len(), 1);
        assert_eq!(store::pending(&settings).await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_old_schema_is_refused_with_migrations_disabled() {
    let (_home, sqlite) = sqlite_file();
    for settings in [sqlite, postgres::settings(&postgres::empty_database().await.url)] {
        let settings = StoreSettings { migrate: false, ..settings };
        match store::open(&settings).await.map(drop).unwrap_err() {
            OpenError::SchemaOld { pending } => assert_eq!(pending, all(&settings)),
            error => panic!("{error:?}"),
        }
        // The refusal has changed nothing.
        assert_eq!(names(store::pending(&settings).await.unwrap()), all(&settings));
    }
}

#[tokio::test]
async fn a_newer_or_changed_schema_is_refused() {
    for kind in ["postgres", "sqlite"] {
        for (change, why) in [
            (
                "insert into migrations (version, name, oldest_program, sha256)
                 select 99, '0099_more', 2, sha256 from migrations where version = 1",
                "0099_more is newer than this program, and needs one that knows migration 2 at least",
            ),
            ("update migrations set sha256 = {other} where version = 1", "changed after it was applied"),
            ("update migrations set name = '0001_other' where version = 1", "is in the place of"),
        ] {
            let mut world =
                if kind == "sqlite" { StoreFixture::sqlite().await } else { StoreFixture::postgres().await };
            let other = world.bytes(&"5a".repeat(32));
            world.close();
            world.execute_sql_closed(&change.replace("{other}", &other)).await;
            for migrate in [true, false] {
                let settings = StoreSettings { migrate, ..world.settings.clone() };
                match store::open(&settings).await.map(drop).unwrap_err() {
                    OpenError::SchemaForeign(reported) => assert!(reported.contains(why), "{reported}"),
                    error => panic!("{error:?}"),
                }
            }
            assert!(matches!(store::migrate(&world.settings).await, Err(OpenError::SchemaForeign(_))));
        }
    }
}

#[tokio::test]
async fn a_newer_schema_that_lets_this_program_work_is_used_with_a_warning() {
    let warning = "the store's schema is newer than this program: a later version has applied 0099_more.";
    for mut world in [StoreFixture::sqlite().await, StoreFixture::postgres().await] {
        let reserved = new_reserve_request("before");
        world.reserve(&reserved).await;
        world.close();
        assert_eq!(store::warnings(&world.settings).await.unwrap(), [] as [String; 0]);
        let expand = "alter table keys add column later text;
                      insert into migrations (version, name, oldest_program, sha256)
                      select 99, '0099_more', 1, sha256 from migrations where version = 1";
        world.execute_sql_closed(expand).await;
        let warnings = store::warnings(&world.settings).await.unwrap();
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
        assert_eq!(store::pending(&world.settings).await.unwrap(), []);
        assert_eq!(store::migrate(&world.settings).await.unwrap(), [] as [&str; 0]);
        for migrate in [true, false] {
            world.settings.migrate = migrate;
            world.reopen().await;
            let made = new_reserve_request(&format!("migrate-{migrate}"));
            world.reserve(&made).await;
            world.settle(completion(&made, b"paid")).await;
        }
        assert_eq!(world.find(&reserved).await.attempt, 1);
    }
}

#[tokio::test]
async fn printed_migrations_can_be_applied_by_hand() {
    let (_home, sqlite) = sqlite_file();
    let database = postgres::empty_database().await;
    for settings in [sqlite, postgres::settings(&database.url)] {
        let pending = store::pending(&settings).await.unwrap();
        assert_eq!(names(pending.clone()), all(&settings));
        if let StoreLocation::Sqlite(path) = &settings.location {
            assert!(!path.exists(), "looking has made a file");
        }
        for migration in pending {
            match &settings.location {
                StoreLocation::Sqlite(path) => {
                    rusqlite::Connection::open(path).unwrap().execute_batch(&migration.sql).unwrap();
                }
                _ => database.client().await.batch_execute(&migration.sql).await.unwrap(),
            }
        }
        assert_eq!(store::pending(&settings).await.unwrap(), []);
        let store = store::open(&StoreSettings { migrate: false, ..settings }).await.unwrap();
        unwrap_lease(store.reserve(new_reserve_request("k")).await.unwrap());
    }
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_behind() {
    let database = postgres::empty_database().await;
    let client = database.client().await;
    // Conflicts with one of the last statements.
    client.batch_execute("create schema oncegate; create table oncegate.audit_of_a_key (n int)").await.unwrap();
    let settings = postgres::settings(&database.url);
    match store::open(&settings).await.map(drop).unwrap_err() {
        OpenError::Migration { name, source } => {
            assert_eq!(name, "0001_init");
            assert!(source.to_string().contains("already exists"), "{source}");
        }
        error => panic!("{error:?}"),
    }
    client.batch_execute("drop table oncegate.audit_of_a_key").await.unwrap();
    store::open(&settings).await.unwrap();
}

#[tokio::test]
async fn a_dropped_schema_is_an_error_and_no_free_key() {
    let world = StoreFixture::postgres().await;
    world.reserve(&new_reserve_request("k")).await;
    let client = world.database().client().await;
    client.batch_execute("alter table oncegate.keys rename to elsewhere").await.unwrap();
    let error = world.store().reserve(new_reserve_request("k2")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    client.batch_execute("alter table oncegate.elsewhere rename to keys").await.unwrap();
    world.reserve(&new_reserve_request("k2")).await;
}
