//! A first attempt, killed at each of its system calls in turn: whatever the moment, the key is then what it must be.
//!
//! One call of one kind of thread after the other is made the last one, until the request gets through unharmed. What a
//! retry then gets is decided by what had become durable, and by nothing else.

use std::collections::BTreeSet;

use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use crate::harness::strike::{Blow, Tracer};
use crate::harness::{Answer, Hold, Proxy, Request, Response, Setup, Store, Upstream};

/// Larger than what the proxy reads at once, so that it can die within an answer.
const BODY: usize = 20_000;

/// More than any thread makes of one call in one attempt.
const CALLS_MAX: usize = 60;

/// How many proxies die at the same time.
static DYING: Semaphore = Semaphore::const_new(3);

/// Whose calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The threads that serve requests.
    Worker,
    /// The thread that talks to the store.
    Store,
}

/// From when on they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// Before the request is sent.
    Request,
    /// While the service keeps its answer back: from here on, the first call is the settlement's.
    Answer,
}

/// How far the attempt had come when the proxy died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    BeforeReservation,
    Reserved,
    Sent,
    Answered,
    Completed,
    Told,
}

/// One system call that is swept.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    side: Side,
    call: &'static str,
    from: From,
}

const fn sweep(side: Side, call: &'static str, from: From) -> Sweep {
    Sweep { side, call, from }
}

/// What the threads that serve requests do, whatever the store.
const WORKER: [Sweep; 4] = [
    sweep(Side::Worker, "recvfrom", From::Request),
    sweep(Side::Worker, "write", From::Request), // wakes the other threads
    sweep(Side::Worker, "connect", From::Request),
    sweep(Side::Worker, "writev", From::Request),
];

const SQLITE: [Sweep; 3] = [
    sweep(Side::Store, "pwrite64", From::Request),
    sweep(Side::Store, "fsync", From::Request),
    sweep(Side::Store, "write", From::Request),
];

const POSTGRES: [Sweep; 6] = [
    sweep(Side::Store, "sendto", From::Request),
    sweep(Side::Store, "recvfrom", From::Request),
    sweep(Side::Store, "write", From::Request),
    sweep(Side::Store, "sendto", From::Answer),
    sweep(Side::Store, "recvfrom", From::Answer),
    sweep(Side::Store, "write", From::Answer),
];

/// What was there after a proxy had died, and what became of it.
#[derive(Debug)]
struct Death {
    sweep: Sweep,
    nth: usize,
    key: String,
    /// An answer of the same proxy before.
    warm: (String, Response),
    /// The call that was not made, in strace's notation; where there was none, nothing struck.
    last_call: String,
    struck: bool,
    told: Option<Response>,
    state: Option<String>,
    effects: usize,
    /// What a retry got.
    retry: Option<String>,
}

impl Death {
    fn phase(&self) -> Phase {
        match (self.state.as_deref(), self.effects, &self.told) {
            (None, 0, None) => Phase::BeforeReservation,
            (Some("in_flight"), 0, None) => Phase::Reserved,
            (Some("in_flight"), 1, None) if self.sweep.side == Side::Worker => Phase::Sent,
            // The store has nothing to do between the sending and the answer.
            (Some("in_flight"), 1, None) => Phase::Answered,
            (Some("completed"), 1, None) => Phase::Completed,
            (Some("completed"), 1, Some(_)) => Phase::Told,
            _ => panic!("this must never be: {self:#?}"),
        }
    }

    fn row(&self) -> String {
        let Sweep { side, call, from } = self.sweep;
        let place = format!("{side:?} {call} {} from {from:?}", self.nth);
        let state = self.state.as_deref().unwrap_or("-");
        let told = self.told.as_ref().map_or("-".to_owned(), |told| told.status.to_string());
        let retry = self.retry.as_deref().unwrap_or("?");
        let (phase, effects) = (format!("{:?}", self.phase()), self.effects);
        let last_call = if self.struck { &*self.last_call } else { "(none: it went through)" };
        format!("{place:36} {phase:18} {state:10} {effects:7} {told:6} {retry:20} {last_call:.60}")
    }
}

/// One sweep on a store of its own.
struct Course {
    sweep: Sweep,
    store: Store,
    upstream: Upstream,
    setup: Setup,
}

impl Course {
    async fn run(sweep: Sweep, store: Store) -> Vec<Death> {
        let upstream = Upstream::start().await;
        upstream.answers(Answer::status(201).padded(BODY));
        let setup = Proxy::on(&store.url()).upstream(upstream.address);
        let course = Self { sweep, store, upstream, setup };
        let mut deaths = course.strike().await;
        course.judge(&mut deaths).await;
        deaths
    }

    async fn strike(&self) -> Vec<Death> {
        let _turn = DYING.acquire().await.unwrap();
        let mut deaths = Vec::new();
        for nth in 1..=CALLS_MAX {
            let death = self.die(nth).await;
            let unharmed = !death.struck;
            deaths.push(death);
            if unharmed {
                return deaths;
            }
        }
        panic!("{:?} has no end", self.sweep);
    }

    /// Has one proxy serve a first attempt, and die at its n-th call, or at the latest when the client has its answer.
    async fn die(&self, nth: usize) -> Death {
        // Nothing but the request moves it in that time.
        let quiet = "lease = { heartbeat = \"3s\", expiry = \"6s\" }\nsweep_every = \"60s\"";
        let proxy = self.setup.clone().store(quiet).start().await;
        // Its connections to the store are there when the first attempt comes, and there is none to the service.
        self.upstream.then(Answer::status(201).then_close());
        let warm = format!("warm-{nth}");
        let warm = (warm.clone(), pay(&proxy, &warm).send().await);
        assert_eq!(warm.1.told(), Some("executed"));

        let key = format!("k-{nth}");
        let threads = match (self.sweep.side, &self.store) {
            (Side::Worker, _) => proxy.threads("worker-"),
            (Side::Store, Store::Sqlite(_)) => proxy.threads("oncegate-store"),
            (Side::Store, Store::Postgres(_)) => vec![proxy.first_thread()],
        };
        let blow = Blow { call: self.sweep.call, nth, what: "signal=KILL" };
        let (tracer, told) = match self.sweep.from {
            From::Request => {
                let tracer = Tracer::attach(threads, blow).await;
                (tracer, pay(&proxy, &key).try_send().await.ok())
            }
            From::Answer => {
                let hold = Hold::new();
                self.upstream.then(Answer::status(201).padded(BODY).hold(&hold));
                let executed = self.upstream.executed().len();
                let client = pay(&proxy, &key).spawn();
                self.upstream.has_executed(executed + 1).await;
                let tracer = Tracer::attach(threads, blow).await;
                hold.release();
                (tracer, client.await.unwrap().ok())
            }
        };
        // Who told nobody is dead, or will be at once.
        let struck = told.is_none() || !proxy.is_alive();
        if told.is_some() {
            proxy.signal(rustix::process::Signal::KILL);
        }
        assert_eq!(proxy.ended().await, None, "it ends by the blow alone");
        self.upstream.is_quiet().await;
        let state = self.store.state_after_death(&key).await;
        let effects = self.upstream.executed_for(&key);
        let last_call = tracer.calls().pop().unwrap_or_default();
        Death { sweep: self.sweep, nth, key, warm, last_call, struck, told, state, effects, retry: None }
    }

    /// Has the next proxy on this store say what became of them.
    async fn judge(&self, deaths: &mut [Death]) {
        let proxy = self.setup.clone().short_leases().start().await;
        self.store.nothing_in_flight().await;
        for death in deaths {
            let retry = pay(&proxy, &death.key).send().await;
            death.retry = Some(match retry.outcome() {
                (status, slug) if slug.is_empty() => format!("{status} {}", retry.told().unwrap_or("?")),
                (status, slug) => format!("{status} {slug}"),
            });
            let again = pay(&proxy, &death.key).send().await;
            let effects = self.upstream.executed_for(&death.key);
            match death.phase() {
                Phase::BeforeReservation => {
                    assert_eq!((retry.status, retry.told(), effects), (201, Some("executed"), 1), "{death:#?}");
                    assert_eq!(again.comparable(), retry.replayed(), "{death:#?}");
                }
                Phase::Reserved | Phase::Sent | Phase::Answered => {
                    for answer in [&retry, &again] {
                        assert_eq!(answer.outcome(), (409, "outcome-unknown".to_owned()), "{death:#?}");
                    }
                    assert_eq!(effects, death.effects, "nothing is executed after it: {death:#?}");
                }
                Phase::Completed | Phase::Told => {
                    let effect = format!("effect {}", self.upstream.number_of(&death.key));
                    assert_eq!((retry.status, retry.text()), (201, format!("{effect:.<BODY$}")), "{death:#?}");
                    assert!(retry.is_replay() && retry.told() == Some("replayed"), "{death:#?}");
                    assert_eq!(again.comparable(), retry.comparable(), "{death:#?}");
                    assert_eq!(effects, 1, "{death:#?}");
                }
            }
            if let Some(told) = &death.told {
                assert_eq!(told.told(), Some("executed"), "{death:#?}");
                assert_eq!(retry.comparable(), told.replayed(), "{death:#?}");
            }
            let (key, warm) = &death.warm;
            assert_eq!(pay(&proxy, key).send().await.comparable(), warm.replayed(), "it had been told: {death:#?}");
        }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).json(r#"{"amount":10}"#)
}

/// All sweeps on one kind of store, and how far the attempts had come that were cut off by them.
async fn swept(sweeps: impl IntoIterator<Item = Sweep>, store: impl AsyncFn() -> Store) {
    if !Tracer::is_permitted().await {
        return;
    }
    let courses = LocalSet::new();
    let mut running = Vec::new();
    for sweep in sweeps {
        running.push(courses.spawn_local(Course::run(sweep, store().await)));
    }
    courses.await;
    let mut table = format!(
        "\n{:36} {:18} {:10} {:7} {:6} {:20} last call\n",
        "killed at", "phase", "state", "effects", "told", "retry"
    );
    let mut phases = BTreeSet::new();
    for deaths in running {
        for death in deaths.await.unwrap() {
            table.push_str(&format!("{}\n", death.row()));
            if death.struck {
                phases.insert(death.phase());
            }
        }
    }
    eprintln!("{table}");
    for phase in [Phase::BeforeReservation, Phase::Reserved, Phase::Sent, Phase::Answered, Phase::Completed] {
        assert!(phases.contains(&phase), "no blow fell on {phase:?}, only on {phases:?}");
    }
}

#[tokio::test]
async fn killed_at_any_call_an_attempt_on_sqlite_is_what_was_durable() {
    swept(WORKER.into_iter().chain(SQLITE), async || Store::sqlite()).await;
}

#[tokio::test]
async fn killed_at_any_call_an_attempt_on_postgres_is_what_was_durable() {
    swept(WORKER.into_iter().chain(POSTGRES), async || Store::postgres().await).await;
}
