//! A start on the embedded store that is cut off, or whose disk refuses a write, at each of its calls in turn: the next
//! start finds all that was told, and nothing that was not.

use std::path::Path;

use tokio::task::LocalSet;

use crate::harness::strike::{Blow, Tracer};
use crate::harness::{Answer, Proxy, Request, Response, Setup, Store, Upstream};

/// More than a start makes of one call.
const CALLS_MAX: usize = 160;

/// What a start finds, and what must be there in the end.
struct Before {
    store: Store,
    upstream: Upstream,
    /// An answer that was told, if this is not the very first start.
    told: Option<Response>,
}

impl Before {
    /// No file at all: the start makes it, and its schema.
    async fn nothing() -> Self {
        Self { store: Store::sqlite(), upstream: Upstream::start().await, told: None }
    }

    /// A proxy was killed: its log is to be written out, and one attempt to be called unknown.
    async fn a_crash() -> Self {
        let before = Self::nothing().await;
        let proxy = before.setup(&before.store).start().await;
        let told = pay(&proxy, "told").send().await;
        before.upstream.then(Answer::never());
        let running = pay(&proxy, "running").spawn();
        before.upstream.has_executed(2).await;
        proxy.kill9().await;
        running.await.unwrap().expect_err("its connection went with the proxy");
        Self { told: Some(told), ..before }
    }

    fn setup(&self, store: &Store) -> Setup {
        Proxy::on(&store.url()).upstream(self.upstream.address)
    }

    /// Strikes one start after the other, until one meets no blow; returns how many did.
    async fn strike(self, call: &'static str, what: &'static str) -> usize {
        let home = tempfile::tempdir().unwrap();
        for nth in 1..=CALLS_MAX {
            let (store, trace) = (self.store.copied(), home.path().join(nth.to_string()));
            let blow = Blow { call, nth, what };
            let start = self.setup(&store).under(blow.launcher(&trace)).try_start().await;
            let struck = match &start {
                Err(None) => true,
                Err(Some(code)) => {
                    assert_eq!((*code, is_injected(&trace)), (69, true), "{blow:?}");
                    true
                }
                // SQLite does without the sync of the folder that it has made its log in.
                Ok(_) => is_injected(&trace),
            };
            if let Ok(proxy) = start {
                proxy.kill9().await;
            }
            self.judge(&store, blow).await;
            if !struck {
                return nth - 1;
            }
        }
        panic!("{call} is made without end");
    }

    /// The next start, on what the struck one has left.
    async fn judge(&self, store: &Store, blow: Blow) {
        let proxy = self.setup(store).start().await;
        if let Some(told) = &self.told {
            assert_eq!(pay(&proxy, "told").send().await.comparable(), told.replayed(), "{blow:?}");
            let running = pay(&proxy, "running").send().await.outcome();
            assert_eq!(running, (409, "outcome-unknown".to_owned()), "{blow:?}");
            assert_eq!(self.upstream.executed_for("told") + self.upstream.executed_for("running"), 2, "{blow:?}");
        }
        let key = format!("{}-{}", blow.call, blow.nth);
        let fresh = pay(&proxy, &key).send().await;
        assert_eq!(fresh.told(), Some("executed"), "{blow:?}");
        assert_eq!(pay(&proxy, &key).send().await.comparable(), fresh.replayed(), "{blow:?}");
        assert_eq!(self.upstream.executed_for(&key), 1, "{blow:?}");
    }
}

fn is_injected(trace: &Path) -> bool {
    std::fs::read_to_string(trace).unwrap().contains("(INJECTED)")
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

/// Strikes at each of these calls, of which there are so many at least.
async fn struck(before: impl AsyncFn() -> Before, calls: &[(&'static str, &'static str, usize)]) {
    if !Tracer::is_permitted().await {
        return;
    }
    let starts = LocalSet::new();
    let mut running = Vec::new();
    for &(call, what, least) in calls {
        running.push((call, what, least, starts.spawn_local(before().await.strike(call, what))));
    }
    starts.await;
    for (call, what, least, blows) in running {
        let blows = blows.await.unwrap();
        eprintln!("{blows} starts were struck at {call} with {what}");
        assert!(blows >= least, "{call}: {blows} blows are too few");
    }
}

const DEATHS: [(&str, &str, usize); 3] =
    [("pwrite64", "signal=KILL", 6), ("fsync", "signal=KILL", 4), ("ftruncate", "signal=KILL", 1)];

const ERRORS: [(&str, &str, usize); 3] =
    [("pwrite64", "error=EIO", 6), ("pwrite64", "error=ENOSPC", 6), ("fsync", "error=EIO", 4)];

#[tokio::test]
async fn the_first_start_may_be_cut_off_anywhere() {
    struck(Before::nothing, &DEATHS).await;
}

#[tokio::test]
async fn a_start_after_a_crash_may_be_cut_off_anywhere() {
    struck(Before::a_crash, &DEATHS).await;
}

#[tokio::test]
async fn the_first_start_may_fail_on_its_disk_anywhere() {
    struck(Before::nothing, &ERRORS).await;
}

#[tokio::test]
async fn a_start_after_a_crash_may_fail_on_its_disk_anywhere() {
    struck(Before::a_crash, &ERRORS).await;
}
