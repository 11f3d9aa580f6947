//! The embedded store's disk refuses a write or a sync, at each of them in turn: nothing is taken back that was told,
//! nothing is sent on the strength of what is not on the disk, and nothing is executed twice after a restart.

use crate::harness::strike::{Blow, Tracer};
use crate::harness::{Answer, PATIENCE, Proxy, Request, Response, Setup, Store, Upstream, eventually};

/// More than a first attempt needs of any one call.
const CALLS_MAX: usize = 60;

/// What the disk says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Error {
    /// It is broken: nobody can say any more what it holds.
    Broken,
    /// It is full, this time.
    Full,
}

/// What an attempt had come to when its client was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// 503, and the service has got nothing.
    Refused,
    /// The service's answer, marked as one that is not stored.
    Unstored,
    /// The service's answer.
    Executed,
}

struct Disk {
    call: &'static str,
    error: Error,
    store: Store,
    upstream: Upstream,
    setup: Setup,
}

impl Disk {
    /// Fails the first such call of an attempt, then the second, until the attempt meets none; returns what each was told.
    async fn fails(call: &'static str, error: Error) -> Vec<Told> {
        let (store, upstream) = (Store::sqlite(), Upstream::start().await);
        upstream.answers(Answer::status(201).padded(10_000));
        let quiet = "lease = { heartbeat = \"10s\", expiry = \"20s\" }\nsweep_every = \"60s\"";
        let setup = Proxy::on(&store.url()).upstream(upstream.address).store(quiet);
        let disk = Self { call, error, store, upstream, setup };
        let mut told = Vec::new();
        for nth in 1..=CALLS_MAX {
            match disk.fails_at(nth).await {
                Some(one) => told.push(one),
                None => return told,
            }
        }
        panic!("{call} is never without error");
    }

    /// `None` where the attempt makes fewer such calls.
    async fn fails_at(&self, nth: usize) -> Option<Told> {
        let proxy = self.setup.start().await;
        let [before, key, after] = ["before", "k", "after"].map(|name| format!("{name}-{nth}"));
        let acknowledged = pay(&proxy, &before).send().await;
        let what = match self.error {
            Error::Broken => "error=EIO",
            Error::Full => "error=ENOSPC",
        };
        let tracer = Tracer::attach(proxy.threads("oncegate-store"), Blow { call: self.call, nth, what }).await;
        let answer = pay(&proxy, &key).send().await;
        let told = self.sort(&answer, &key);
        let struck = tracer.leave().await.iter().any(|call| call.contains("(INJECTED)"));
        let next = pay(&proxy, &after).send().await;
        match (self.error, told) {
            // What the disk holds is anybody's guess: no further attempt begins.
            (Error::Broken, Told::Refused | Told::Unstored) => {
                proxy.logs("the store's file failed").await;
                assert_eq!(self.sort(&next, &after), Told::Refused);
            }
            _ => assert_eq!(self.sort(&next, &after), Told::Executed),
        }
        if (self.error, told) == (Error::Full, Told::Unstored) {
            let replay = eventually(PATIENCE, async || {
                Some(pay(&proxy, &key).send().await).filter(|retry| retry.told() != Some("in-flight"))
            });
            assert_eq!((replay.await.body, self.upstream.executed_for(&key)), (answer.body.clone(), 1), "{nth}");
        }
        proxy.kill9().await;
        let state = self.store.state_after_death(&key).await;
        let proxy = self.setup.start().await;
        let retry = pay(&proxy, &key).send().await;
        let effects = self.upstream.executed_for(&key);
        match (told, state.as_deref()) {
            (Told::Executed, _) => assert_eq!((retry.comparable(), effects), (answer.replayed(), 1), "{nth}"),
            (Told::Unstored, Some("completed")) => {
                assert_eq!((retry.status, &retry.body, effects), (201, &answer.body, 1), "{nth}");
            }
            (Told::Unstored, Some("in_flight")) => {
                assert_eq!((retry.outcome(), effects), ((409, "outcome-unknown".to_owned()), 1), "{nth}");
            }
            (Told::Refused, Some("in_flight")) => {
                assert_eq!((retry.outcome(), effects), ((409, "outcome-unknown".to_owned()), 0), "{nth}");
            }
            (Told::Refused, None | Some("retryable")) => {
                assert_eq!((retry.told(), effects), (Some("executed"), 1), "{nth}");
            }
            (_, state) => panic!("{} {nth}: told {told:?}, and in the store is {state:?}", self.call),
        }
        for (key, answer) in [(&before, &acknowledged), (&after, &next)] {
            if answer.told() == Some("executed") {
                assert_eq!(pay(&proxy, key).send().await.comparable(), answer.replayed(), "{key}");
            }
        }
        eprintln!("{} {nth}: {:?}, told {told:?}, then {state:?}, retry {:?}", self.call, self.error, retry.outcome());
        proxy.kill9().await;
        assert!(struck || told == Told::Executed, "{nth}");
        struck.then_some(told)
    }

    fn sort(&self, answer: &Response, key: &str) -> Told {
        let effects = self.upstream.executed_for(key);
        match (answer.outcome(), answer.told()) {
            ((503, slug), _) if slug == "store-unavailable" && effects == 0 => Told::Refused,
            ((201, _), Some("unstored")) if effects == 1 => Told::Unstored,
            ((201, _), Some("executed")) if effects == 1 => Told::Executed,
            _ => panic!("{key}, {} {:?}: {effects} effects, and told {answer:?}", self.call, self.error),
        }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

#[tokio::test]
async fn after_a_sync_that_failed_nothing_begins_until_a_restart() {
    if Tracer::is_permitted().await {
        // An attempt is synced twice: nothing is sent before the first, nothing told as stored before the second.
        assert_eq!(Disk::fails("fsync", Error::Broken).await, [Told::Refused, Told::Unstored]);
    }
}

#[tokio::test]
async fn after_a_write_that_failed_nothing_begins_until_a_restart() {
    if Tracer::is_permitted().await {
        let told = Disk::fails("pwrite64", Error::Broken).await;
        assert!(told.contains(&Told::Refused) && told.contains(&Told::Unstored), "{told:?}");
    }
}

#[tokio::test]
async fn a_disk_that_was_full_for_a_moment_costs_no_answer() {
    if Tracer::is_permitted().await {
        let told = Disk::fails("pwrite64", Error::Full).await;
        assert!(told.contains(&Told::Refused) && told.contains(&Told::Unstored), "{told:?}");
    }
}
