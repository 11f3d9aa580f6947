//! A wall clock that a test sets, for one process and its children: libfaketime, preloaded. Their monotonic clock and
//! boot time stay the machine's, and so does everybody else's time.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::postgres::Cluster;
use super::proxy::Setup;
use super::{Store, World};

/// The wall clock of the processes with [`Self::environment`].
pub struct FakeClock {
    library: PathBuf,
    folder: TempDir,
    ahead_s: AtomicI64,
}

impl FakeClock {
    /// A clock with the right time. `None` where libfaketime is not installed: then this prints a message, and the test
    /// is skipped.
    pub fn new() -> Option<Self> {
        let Some(library) = library() else {
            super::skip("no process can have a clock of its own here: libfaketime is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // PostgreSQL runs as another user.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let clock = Self { library, folder, ahead_s: AtomicI64::new(0) };
        clock.write();
        Some(clock)
    }

    /// The environment of a process that has this clock.
    pub fn environment(&self) -> [(String, String); 5] {
        [
            ("LD_PRELOAD", self.library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DISABLE_SHM", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    /// Sets the clock forward; the processes have the new time at once.
    pub fn set_forward(&self, by: Duration) {
        self.ahead_s.fetch_add(by.as_secs().cast_signed(), Ordering::SeqCst);
        self.write();
    }

    /// Sets the clock back.
    pub fn set_back(&self, by: Duration) {
        self.ahead_s.fetch_sub(by.as_secs().cast_signed(), Ordering::SeqCst);
        self.write();
    }

    /// Replaces the file as a whole: a process may be reading it.
    fn write(&self) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, format!("{:+}\n", self.ahead_s.load(Ordering::SeqCst))).unwrap();
        std::fs::set_permissions(&next, PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::rename(&next, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

/// A store whose clock a test sets: PostgreSQL's server, or the proxy with the embedded store.
pub struct ClockedStore {
    pub clock: FakeClock,
    store: Option<Store>,
    /// Ends after the proxies, which log its end otherwise.
    cluster: Option<Cluster>,
}

impl ClockedStore {
    pub fn sqlite() -> Option<Self> {
        Some(Self { clock: FakeClock::new()?, store: Some(Store::sqlite()), cluster: None })
    }

    pub async fn postgres() -> Option<Self> {
        let clock = FakeClock::new()?;
        let environment = clock.environment();
        let cluster = tokio::task::spawn_blocking(|| Cluster::start_in(environment.into(), "")).await.unwrap();
        let store = Store::Postgres(cluster.empty_database().await);
        Some(Self { clock, store: Some(store), cluster: Some(cluster) })
    }

    /// A proxy on this store, in front of a service.
    pub async fn world(mut self, more: impl FnOnce(Setup) -> Setup) -> ClockedWorld {
        let store = self.store.take().unwrap();
        let environment = if self.cluster.is_some() { Vec::new() } else { self.clock.environment().into() };
        let world = World::with(store, |setup| {
            more(environment.iter().fold(setup, |setup, (name, value)| setup.environment(name, value)))
        });
        ClockedWorld { world: world.await, clock: self.clock, _cluster: self.cluster }
    }
}

/// A proxy on a store whose clock a test sets.
pub struct ClockedWorld {
    pub world: World,
    pub clock: FakeClock,
    _cluster: Option<Cluster>,
}

/// Two tests from one body, on stores whose clock the test sets.
#[macro_export]
macro_rules! on_both_clocks {
    ($test:ident) => {
        mod $test {
            use $crate::fake_clock::ClockedStore;

            #[tokio::test]
            async fn sqlite() {
                if let Some(store) = ClockedStore::sqlite() {
                    super::$test(store).await;
                }
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(store) = ClockedStore::postgres().await {
                    super::$test(store).await;
                }
            }
        }
    };
}
pub use on_both_clocks;
