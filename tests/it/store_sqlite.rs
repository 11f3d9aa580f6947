//! What the embedded store promises beyond the contract: its file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use oncegate::domain::attempt::Ending;
use oncegate::domain::record::Ask;
use oncegate::store::{self, Location, OpenError, Settings};
use tempfile::TempDir;

use crate::harness::world::{DAY, World, again, ask, completion, fresh, renewal, settlement, sqlite_settings, us};

fn path(settings: &Settings) -> PathBuf {
    match &settings.location {
        Location::Sqlite(path) => path.clone(),
        _ => panic!("this test is about SQLite"),
    }
}

async fn refused(settings: &Settings) -> OpenError {
    store::open(settings).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_file_serves_one_process_and_says_so_at_once() {
    let mut world = World::sqlite().await;
    world.reserve(&ask("k")).await;
    let start = Instant::now();
    let error = refused(&world.settings).await;
    assert!(matches!(&error, OpenError::InUse { path: told } if *told == path(&world.settings)), "{error:?}");
    assert!(matches!(store::migrate(&world.settings).await.unwrap_err(), OpenError::InUse { .. }));
    assert!(matches!(store::pending(&world.settings).await.unwrap_err(), OpenError::InUse { .. }));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    // Nothing of that has disturbed whoever has it; and when it is closed, it is free.
    world.reserve(&ask("k2")).await;
    world.reopen().await;
}

#[tokio::test]
async fn a_file_is_nobody_elses_to_read() {
    let world = World::sqlite().await;
    world.reserve(&ask("k")).await;
    let path = path(&world.settings);
    for file in [path.clone(), path.with_extension("db-wal")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn what_was_in_flight_when_it_was_last_in_use_is_unknown() {
    let mut world = World::sqlite().await;
    let [in_flight, completed, retryable] = ["in-flight", "completed", "retryable"].map(ask);
    world.store().renew(renewal(us(), DAY)).await.unwrap();
    world.reserve(&in_flight).await;
    world.reserve(&completed).await;
    world.settle(completion(&completed, b"")).await;
    world.reserve(&retryable).await;
    world.settle(settlement(&retryable, Ending::Retryable { ttl: DAY })).await;
    world.reopen().await;
    for (ask, state) in [(&in_flight, "unknown"), (&completed, "completed"), (&retryable, "retryable")] {
        assert_eq!(world.find(ask).await.state.name(), state);
    }
    // No lease outlives the process either.
    let next = again(&in_flight);
    world.reserve(&ask("next")).await;
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap().len(), 1);
    // And a process that was thought dead may still say how it ended.
    world.settle(completion(&in_flight, b"")).await;
    world.lose(&next).await;
}

#[tokio::test]
async fn what_is_no_store_of_ours_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let settings = sqlite_settings(&home);
    let write_text =
        |home: &TempDir| fs::write(home.path().join("oncegate.db"), "a diary, and no database\n".repeat(99));
    write_text(&home).unwrap();
    let before = fs::read(path(&settings)).unwrap();
    let error = refused(&settings).await;
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert_eq!(fs::read(path(&settings)).unwrap(), before);

    fs::remove_file(path(&settings)).unwrap();
    rusqlite::Connection::open(path(&settings)).unwrap().execute_batch("create table diary (day text)").unwrap();
    let error = refused(&settings).await;
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    let error = store::pending(&settings).await.unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let mut world = World::sqlite().await;
    for i in 0..50 {
        let ask = ask(&format!("k-{i}"));
        world.reserve(&ask).await;
        world.settle(completion(&ask, &[0x2a; 3000])).await;
    }
    world.reopen().await;
    let (settings, path) = (world.settings.clone(), path(&world.settings));
    world.close();
    let whole = fs::read(&path).unwrap();
    let mut scribbled = whole.clone();
    let middle = whole.len() / 4096 / 2 * 4096;
    scribbled[middle..middle + 4096].fill(0x55);
    for damaged in [&whole[..whole.len() / 2], &scribbled] {
        fs::write(&path, damaged).unwrap();
        let error = refused(&settings).await;
        assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    }
    fs::write(&path, whole).unwrap();
    store::open(&settings).await.unwrap();
}

#[tokio::test]
async fn a_commit_that_a_power_cut_has_torn_was_never_made() {
    let world = World::sqlite().await;
    let [told, torn] = ["told", "torn"].map(ask);
    world.reserve(&told).await;
    world.settle(completion(&told, b"paid")).await;
    let log = path(&world.settings).with_extension("db-wal");
    let before = fs::metadata(&log).unwrap().len();
    world.reserve(&torn).await;
    let whole = fs::metadata(&log).unwrap().len();
    assert!(whole > before, "a reservation is written to the log");

    // What of it had reached the disk: nothing, some pages or parts of them, or all with one sector of something else.
    let cuts = (before..whole).step_by(512).map(|length| (length, None));
    let scribbles = (before..whole).step_by(512).map(|sector| (whole, Some(sector)));
    for (length, scribble) in cuts.chain(scribbles).chain([(whole, None)]) {
        let home = tempfile::tempdir().unwrap();
        let settings = sqlite_settings(&home);
        fs::copy(path(&world.settings), path(&settings)).unwrap();
        let mut bytes = fs::read(&log).unwrap();
        bytes.truncate(usize::try_from(length).unwrap());
        if let Some(sector) = scribble {
            let sector = usize::try_from(sector).unwrap();
            let end = bytes.len().min(sector + 512);
            bytes[sector..end].fill(0x55);
        }
        fs::write(path(&settings).with_extension("db-wal"), bytes).unwrap();
        let store = store::open(&settings).await.unwrap();
        let state = async |ask: &Ask| store.find(ask.id).await.unwrap().map(|record| record.state.name());
        assert_eq!(state(&told).await, Some("completed"), "{length} {scribble:?}");
        let is_whole = (length, scribble) == (whole, None);
        assert_eq!(state(&torn).await, is_whole.then_some("unknown"), "{length} {scribble:?}");
    }
}

#[tokio::test]
async fn a_place_where_no_file_can_be_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let settings = |path: PathBuf| Settings { location: Location::Sqlite(path), ..sqlite_settings(&home) };
    for path in [home.path().join("no/such/folder/oncegate.db"), home.path().to_owned()] {
        let error = refused(&settings(path)).await;
        assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_name_that_looks_like_a_url_is_a_name() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("file:oncegate.db?mode=memory");
    let settings = Settings { location: Location::Sqlite(path.clone()), ..sqlite_settings(&home) };
    store::open(&settings).await.unwrap();
    assert!(path.exists());
}

#[tokio::test]
async fn a_store_in_memory_is_a_store() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings { location: Location::Memory, migrate: false, ..sqlite_settings(&home) };
    let (store, other) = (store::open(&settings).await.unwrap(), store::open(&settings).await.unwrap());
    let ask = ask("k");
    fresh(store.reserve(ask.clone()).await.unwrap());
    fresh(other.reserve(ask.clone()).await.unwrap());
    store.settle(completion(&ask, b"paid")).await.unwrap();
    assert_eq!(store.find(ask.id).await.unwrap().unwrap().state.name(), "completed");
    assert_eq!(store::pending(&settings).await.unwrap(), []);
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_any_more_is_not_begun() {
    let world = World::sqlite().await;
    let ask = ask("k");
    // Never asked for an answer: never sent.
    drop(world.store().reserve(ask.clone()));
    assert!(world.store().find(ask.id).await.unwrap().is_none());
}
