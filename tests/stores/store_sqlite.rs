//! Tests of the embedded store beyond the contract: its file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest};
use oncegate_store::{self as store, OpenError, StoreLocation, StoreSettings};
use tempfile::TempDir;

use harness::store_fixture::{
    DAY, StoreFixture, completion, new_reserve_request, next_attempt_request, own_instance, renewal, settlement,
    sqlite_settings, unwrap_lease,
};

fn path(settings: &StoreSettings) -> PathBuf {
    match &settings.location {
        StoreLocation::Sqlite(path) => path.clone(),
        _ => panic!("this test is about SQLite"),
    }
}

async fn refused(settings: &StoreSettings) -> OpenError {
    store::open(settings).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_second_process_is_refused_the_file_at_once() {
    let mut world = StoreFixture::sqlite().await;
    world.reserve(&new_reserve_request("k")).await;
    let start = Instant::now();
    let error = refused(&world.settings).await;
    assert!(matches!(&error, OpenError::InUse { path: reported } if *reported == path(&world.settings)), "{error:?}");
    assert!(matches!(store::migrate(&world.settings).await.unwrap_err(), OpenError::InUse { .. }));
    assert!(matches!(store::pending(&world.settings).await.unwrap_err(), OpenError::InUse { .. }));
    assert!(start.elapsed() < world.settings.timeout, "{:?}", start.elapsed());
    // The process that has the file was not disturbed; after it closes the file, others can open it.
    world.reserve(&new_reserve_request("k2")).await;
    world.reopen().await;
}

#[tokio::test]
async fn the_file_is_readable_by_its_owner_only() {
    let world = StoreFixture::sqlite().await;
    world.reserve(&new_reserve_request("k")).await;
    let path = path(&world.settings);
    for file in [path.clone(), path.with_extension("db-wal")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn reopening_marks_attempts_in_flight_unknown() {
    let mut world = StoreFixture::sqlite().await;
    let [in_flight, completed, retryable] = ["in-flight", "completed", "retryable"].map(new_reserve_request);
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    world.reserve(&in_flight).await;
    world.reserve(&completed).await;
    world.settle(completion(&completed, b"")).await;
    world.reserve(&retryable).await;
    world.settle(settlement(&retryable, AttemptOutcome::Retryable { ttl: DAY })).await;
    world.reopen().await;
    for (reserve_request, state) in [(&in_flight, "unknown"), (&completed, "completed"), (&retryable, "retryable")] {
        assert_eq!(world.find(reserve_request).await.state.name(), state);
    }
    // No lease outlives the process either.
    let next = next_attempt_request(&in_flight);
    let other = new_reserve_request("next");
    world.reserve(&other).await;
    // The first sweep also returns what the opening has made unknown, for the metrics and the log.
    let swept = world.sweep(100).await;
    assert_eq!(swept.iter().map(|key| key.id).collect::<Vec<_>>(), [other.id, in_flight.id]);
    assert_eq!(world.sweep(100).await, []);
    // A process that was taken for dead may still settle its attempt.
    world.settle(completion(&in_flight, b"")).await;
    world.reserve_taken(&next).await;
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_not_changed() {
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
    let mut world = StoreFixture::sqlite().await;
    for i in 0..50 {
        let reserve_request = new_reserve_request(&format!("k-{i}"));
        world.reserve(&reserve_request).await;
        world.settle(completion(&reserve_request, &[0x2a; 3000])).await;
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
async fn a_commit_torn_by_a_power_cut_is_rolled_back() {
    let world = StoreFixture::sqlite().await;
    let [settled, torn] = ["settled", "torn"].map(new_reserve_request);
    world.reserve(&settled).await;
    world.settle(completion(&settled, b"paid")).await;
    let log = path(&world.settings).with_extension("db-wal");
    let before = fs::metadata(&log).unwrap().len();
    world.reserve(&torn).await;
    let whole = fs::metadata(&log).unwrap().len();
    assert!(whole > before, "a reservation is written to the log");

    // The part that had reached the disk: nothing, some pages or parts of them, or everything with one foreign sector.
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
        let state = async |reserve_request: &ReserveRequest| {
            store.find(reserve_request.id).await.unwrap().map(|record| record.state.name())
        };
        assert_eq!(state(&settled).await, Some("completed"), "{length} {scribble:?}");
        let is_whole = (length, scribble) == (whole, None);
        assert_eq!(state(&torn).await, is_whole.then_some("unknown"), "{length} {scribble:?}");
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_created_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let settings = |path: PathBuf| StoreSettings { location: StoreLocation::Sqlite(path), ..sqlite_settings(&home) };
    for path in [home.path().join("no/such/folder/oncegate.db"), home.path().to_owned()] {
        let error = refused(&settings(path)).await;
        assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_name_that_looks_like_a_url_is_a_file_name() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("file:oncegate.db?mode=memory");
    let settings = StoreSettings { location: StoreLocation::Sqlite(path.clone()), ..sqlite_settings(&home) };
    store::open(&settings).await.unwrap();
    assert!(path.exists());
}

#[tokio::test]
async fn an_in_memory_store_works() {
    let home = tempfile::tempdir().unwrap();
    let settings = StoreSettings { location: StoreLocation::Memory, migrate: false, ..sqlite_settings(&home) };
    let (store, other) = (store::open(&settings).await.unwrap(), store::open(&settings).await.unwrap());
    let reserve_request = new_reserve_request("k");
    unwrap_lease(store.reserve(reserve_request.clone()).await.unwrap());
    unwrap_lease(other.reserve(reserve_request.clone()).await.unwrap());
    store.settle(completion(&reserve_request, b"paid")).await.unwrap();
    assert_eq!(store.find(reserve_request.id).await.unwrap().unwrap().state.name(), "completed");
    assert_eq!(store::pending(&settings).await.unwrap(), []);
}

#[tokio::test]
async fn a_cancelled_call_is_not_executed() {
    let world = StoreFixture::sqlite().await;
    let reserve_request = new_reserve_request("k");
    // The future was never polled, so nothing was sent.
    drop(world.store().reserve(reserve_request.clone()));
    assert!(world.store().find(reserve_request.id).await.unwrap().is_none());
}
