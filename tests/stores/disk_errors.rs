//! The embedded store's disk fails a write or a sync, at each of them in turn: an I/O error ends the process, a full
//! disk does not. No answer is taken back, nothing is sent before its reservation is on the disk, and nothing is
//! executed twice after a restart.

use harness::syscall_fault::{SyscallFault, Tracer};
use harness::{Answer, Hold, Proxy, Request, Response, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually};

/// More calls of one kind than a first attempt makes.
const CALLS_MAX: usize = 60;

/// So rare that hardly any task writes beside a request. One that does may be struck in its place.
const RARE_TASKS: &str =
    "lease = { heartbeat = \"10m\", expiry = \"20m\" }\nsweep_every = \"10m\"\nreap_every = \"10m\"";

/// The disk's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Error {
    /// An I/O error: the disk's contents are uncertain from then on.
    Broken,
    /// The disk is full, this once.
    Full,
}

/// The client's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientAnswer {
    /// 503, and the service got nothing.
    Refused,
    /// The service's answer, marked as not stored.
    Unstored,
    /// The service's answer.
    Executed,
}

/// The failed call.
enum Struck {
    /// The attempt makes fewer such calls.
    Nothing,
    /// A call of the request, whose client got this answer.
    Request(ClientAnswer),
    /// A call of a background task, which changes nothing for the client.
    Task,
}

struct Disk {
    call: &'static str,
    error: Error,
    store: Store,
    upstream: Upstream,
    setup: Setup,
}

impl Disk {
    /// Fails the first such call of an attempt, then the second, until an attempt makes fewer; returns each client's
    /// answer.
    async fn fails(call: &'static str, error: Error) -> Vec<ClientAnswer> {
        let (store, upstream) = (Store::sqlite(), Upstream::start().await);
        upstream.answer_all(Answer::status(201).padded(10_000));
        let setup = Proxy::on(&store.url()).upstream(upstream.address).store(RARE_TASKS);
        let disk = Self { call, error, store, upstream, setup };
        let mut client_answers = Vec::new();
        for run in 1..=CALLS_MAX {
            match disk.fails_at(client_answers.len() + 1, run).await {
                Struck::Request(answer) => client_answers.push(answer),
                Struck::Task => {}
                Struck::Nothing => return client_answers,
            }
        }
        panic!("{call} is never without error");
    }

    /// Fails the n-th such call from the request on.
    async fn fails_at(&self, nth: usize, run: usize) -> Struck {
        let proxy = self.setup.start().await;
        let [before, key, after] = ["before", "k", "after"].map(|name| format!("{name}-{run}"));
        let acknowledged = pay(&proxy, &before).send().await;
        let what = match self.error {
            Error::Broken => "error=EIO",
            Error::Full => "error=ENOSPC",
        };
        let tracer = Tracer::attach(proxy.threads("oncegate-store"), SyscallFault { call: self.call, nth, what }).await;
        let answer = pay(&proxy, &key).try_send().await;
        let is_struck = tracer.detach().await.iter().any(|call| call.contains("(INJECTED)"));
        let next = match (self.error, is_struck) {
            // The disk's contents are uncertain: the process ends, and its supervisor starts the next one.
            (Error::Broken, true) => {
                proxy.wait_for_log("the store's file failed").await;
                assert_eq!(proxy.ended().await, Some(74));
                None
            }
            _ => {
                let next = pay(&proxy, &after).send().await;
                assert_eq!(self.sort(&next, &after), ClientAnswer::Executed);
                Some(next)
            }
        };
        // Where the call was a task's, the process was ending before the request, or after its answer.
        let is_ended = |answer: &Response| answer.outcome() == (503, "draining".to_owned());
        let answer = match answer {
            Ok(answer) if next.is_some() || !is_ended(&answer) => answer,
            _ if next.is_none() && self.upstream.executed_for(&key) == 0 => return Struck::Task,
            answer => panic!("{key}, {} {:?}: {answer:?}", self.call, self.error),
        };
        let client_answer = self.sort(&answer, &key);
        if (self.error, client_answer) == (Error::Full, ClientAnswer::Unstored) {
            let replay = eventually(TEST_TIMEOUT, async || {
                Some(pay(&proxy, &key).send().await).filter(|retry| retry.oncegate_status() != Some("in-flight"))
            });
            assert_eq!((replay.await.body, self.upstream.executed_for(&key)), (answer.body.clone(), 1), "{nth}");
        }
        proxy.kill9().await;
        let state = self.store.state_after_death(&key).await;
        let proxy = self.setup.start().await;
        let retry = pay(&proxy, &key).send().await;
        let effects = self.upstream.executed_for(&key);
        match (client_answer, state.as_deref()) {
            (ClientAnswer::Executed, _) => assert_eq!((retry.comparable(), effects), (answer.replayed(), 1), "{nth}"),
            (ClientAnswer::Unstored, Some("completed")) => {
                assert_eq!((retry.status, &retry.body, effects), (201, &answer.body, 1), "{nth}");
            }
            (ClientAnswer::Unstored, Some("in_flight")) => {
                assert_eq!((retry.outcome(), effects), ((409, "outcome-unknown".to_owned()), 1), "{nth}");
            }
            (ClientAnswer::Refused, Some("in_flight")) => {
                assert_eq!((retry.outcome(), effects), ((409, "outcome-unknown".to_owned()), 0), "{nth}");
            }
            (ClientAnswer::Refused, None | Some("retryable")) => {
                assert_eq!((retry.oncegate_status(), effects), (Some("executed"), 1), "{nth}");
            }
            (_, state) => panic!("{} {nth}: told {client_answer:?}, and in the store is {state:?}", self.call),
        }
        for (key, answer) in [(&before, Some(&acknowledged)), (&after, next.as_ref())] {
            if let Some(answer) = answer {
                assert_eq!(pay(&proxy, key).send().await.comparable(), answer.replayed(), "{key}");
            }
        }
        eprintln!(
            "{} {nth}: {:?}, told {client_answer:?}, then {state:?}, retry {:?}",
            self.call,
            self.error,
            retry.outcome()
        );
        proxy.kill9().await;
        match (is_struck, client_answer) {
            (false, ClientAnswer::Executed) => Struck::Nothing,
            (false, _) => panic!("{nth}: {client_answer:?} without an error of the disk"),
            (true, ClientAnswer::Executed) if self.error == Error::Broken => Struck::Task,
            (true, _) => Struck::Request(client_answer),
        }
    }

    fn sort(&self, answer: &Response, key: &str) -> ClientAnswer {
        let effects = self.upstream.executed_for(key);
        match (answer.outcome(), answer.oncegate_status()) {
            ((503, slug), _) if slug == "store-unavailable" && effects == 0 => ClientAnswer::Refused,
            ((201, _), Some("unstored")) if effects == 1 => ClientAnswer::Unstored,
            ((201, _), Some("executed")) if effects == 1 => ClientAnswer::Executed,
            _ => panic!("{key}, {} {:?}: {effects} effects, and told {answer:?}", self.call, self.error),
        }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

#[tokio::test]
async fn a_failed_sync_ends_the_process_before_anything_else_starts() {
    if Tracer::is_permitted().await {
        // An attempt is synced twice: nothing is sent before the first, nothing is answered as stored before the
        // second.
        assert_eq!(Disk::fails("fsync", Error::Broken).await, [ClientAnswer::Refused, ClientAnswer::Unstored]);
    }
}

#[tokio::test]
async fn a_duplicate_is_replayed_nothing_that_is_not_on_the_disk() {
    if !Tracer::is_permitted().await {
        return;
    }
    let world = World::with(Store::sqlite(), |setup| setup.store(RARE_TASKS)).await;
    assert_eq!(world.pay("before").send().await.oncegate_status(), Some("executed"));
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(2).await;
    let fault = SyscallFault { call: "fsync", nth: 1, what: "error=EIO" };
    let tracer = Tracer::attach(world.proxy.threads("oncegate-store"), fault).await;
    let duplicate = world.pay("k-1").field("Prefer", "wait=5").spawn();
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("unstored"));
    // The process may be gone before it has answered.
    if let Ok(answer) = duplicate.await.unwrap() {
        assert_ne!(answer.oncegate_status(), Some("replayed"), "{}", answer.text());
    }
    assert_eq!(world.proxy.ended().await, Some(74));
    drop(tracer.detach().await);
}

#[tokio::test]
async fn a_failed_write_ends_the_process_before_anything_else_starts() {
    if Tracer::is_permitted().await {
        let client_answer = Disk::fails("pwrite64", Error::Broken).await;
        assert!(
            client_answer.contains(&ClientAnswer::Refused) && client_answer.contains(&ClientAnswer::Unstored),
            "{client_answer:?}"
        );
    }
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_moment_loses_no_answer() {
    if Tracer::is_permitted().await {
        let client_answer = Disk::fails("pwrite64", Error::Full).await;
        assert!(
            client_answer.contains(&ClientAnswer::Refused) && client_answer.contains(&ClientAnswer::Unstored),
            "{client_answer:?}"
        );
    }
}

#[tokio::test]
async fn an_attempt_that_runs_when_the_disk_fails_is_unknown_at_the_next_start() {
    let mut world = World::start(Store::sqlite()).await;
    world.upstream.then(Answer::never());
    let running = world.pay("running").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.fail_file_writes();
    assert_eq!(world.pay("next").send().await.outcome(), (503, "store-unavailable".to_owned()));
    assert_eq!(world.proxy.ended().await, Some(74));
    running.await.unwrap().expect_err("its connection went with the process");
    world.crash_and_restart().await;
    assert_eq!(world.pay("running").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.upstream.calls(), 1);
}
