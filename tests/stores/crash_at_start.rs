//! A start on the embedded store that is killed, or whose disk fails a write, at each of its calls in turn: the next
//! start finds everything acknowledged before, and nothing else.

use std::path::Path;

use tokio::task::LocalSet;

use harness::syscall_fault::{SyscallFault, Tracer};
use harness::{Answer, Proxy, Request, Response, Setup, Store, Upstream};

/// More calls of one kind than a start makes.
const CALLS_MAX: usize = 160;

/// The state before a start, and the state that the next start must find.
struct Before {
    store: Store,
    upstream: Upstream,
    /// An answer sent earlier, unless this is the very first start.
    earlier_answer: Option<Response>,
}

impl Before {
    /// No file: the start creates it and its schema.
    async fn nothing() -> Self {
        Self { store: Store::sqlite(), upstream: Upstream::start().await, earlier_answer: None }
    }

    /// A killed proxy: the start must recover its log and mark one attempt unknown.
    async fn a_crash() -> Self {
        let before = Self::nothing().await;
        let proxy = before.setup(&before.store).start().await;
        let earlier_answer = pay(&proxy, "told").send().await;
        before.upstream.then(Answer::never());
        let running = pay(&proxy, "running").spawn();
        before.upstream.wait_for_executed(2).await;
        proxy.kill9().await;
        running.await.unwrap().expect_err("its connection went with the proxy");
        Self { earlier_answer: Some(earlier_answer), ..before }
    }

    fn setup(&self, store: &Store) -> Setup {
        Proxy::on(&store.url()).upstream(self.upstream.address)
    }

    /// Injects the fault into one start after the other, until a start makes fewer calls; returns the number of
    /// injections.
    async fn inject_faults(self, call: &'static str, what: &'static str) -> usize {
        let home = tempfile::tempdir().unwrap();
        for nth in 1..=CALLS_MAX {
            let (store, trace) = (self.store.copied(), home.path().join(nth.to_string()));
            let fault = SyscallFault { call, nth, what };
            let start = self.setup(&store).under(fault.launcher(&trace)).try_start().await;
            let inject_at_each_call = match &start {
                Err(None) => true,
                Err(Some(code)) => {
                    assert_eq!((*code, is_injected(&trace)), (69, true), "{fault:?}");
                    true
                }
                // SQLite works without the sync of the folder in which it created its log.
                Ok(_) => is_injected(&trace),
            };
            if let Ok(proxy) = start {
                proxy.kill9().await;
            }
            self.check_after_restart(&store, fault).await;
            if !inject_at_each_call {
                return nth - 1;
            }
        }
        panic!("{call} is made without end");
    }

    /// Starts the next proxy on the files that the failed start left, and checks the state.
    async fn check_after_restart(&self, store: &Store, fault: SyscallFault) {
        let proxy = self.setup(store).start().await;
        if let Some(earlier_answer) = &self.earlier_answer {
            assert_eq!(pay(&proxy, "told").send().await.comparable(), earlier_answer.replayed(), "{fault:?}");
            let running = pay(&proxy, "running").send().await.outcome();
            assert_eq!(running, (409, "outcome-unknown".to_owned()), "{fault:?}");
            assert_eq!(self.upstream.executed_for("told") + self.upstream.executed_for("running"), 2, "{fault:?}");
        }
        let key = format!("{}-{}", fault.call, fault.nth);
        let fresh = pay(&proxy, &key).send().await;
        assert_eq!(fresh.oncegate_status(), Some("executed"), "{fault:?}");
        assert_eq!(pay(&proxy, &key).send().await.comparable(), fresh.replayed(), "{fault:?}");
        assert_eq!(self.upstream.executed_for(&key), 1, "{fault:?}");
    }
}

fn is_injected(trace: &Path) -> bool {
    std::fs::read_to_string(trace).unwrap().contains("(INJECTED)")
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

/// Injects a fault at each of these calls, which must be at least this many.
async fn inject_at_each_call(before: impl AsyncFn() -> Before, calls: &[(&'static str, &'static str, usize)]) {
    if !Tracer::is_permitted().await {
        return;
    }
    let starts = LocalSet::new();
    let mut running = Vec::new();
    for &(call, what, least) in calls {
        running.push((call, what, least, starts.spawn_local(before().await.inject_faults(call, what))));
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
async fn the_first_start_survives_a_kill_at_any_call() {
    inject_at_each_call(Before::nothing, &DEATHS).await;
}

#[tokio::test]
async fn a_start_after_a_crash_survives_a_kill_at_any_call() {
    inject_at_each_call(Before::a_crash, &DEATHS).await;
}

#[tokio::test]
async fn the_first_start_survives_a_disk_error_at_any_call() {
    inject_at_each_call(Before::nothing, &ERRORS).await;
}

#[tokio::test]
async fn a_start_after_a_crash_survives_a_disk_error_at_any_call() {
    inject_at_each_call(Before::a_crash, &ERRORS).await;
}
