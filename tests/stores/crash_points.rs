//! A first attempt, killed at each of its system calls in turn: the key then has the state that was durable at that
//! moment.
//!
//! One call after the other, in one kind of thread, becomes the last one, until the request completes unharmed. The
//! retry's answer depends only on the durable state.

use std::collections::BTreeSet;

use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use harness::syscall_fault::{SyscallFault, Tracer};
use harness::{Answer, Feed, Hold, Proxy, Request, Response, Setup, Store, Upstream};

/// Larger than the proxy's read size, so that it can die within an answer.
const BODY: usize = 20_000;

/// More calls of one kind than any thread makes in one attempt.
const CALLS_MAX: usize = 60;

/// The number of proxies that die at the same time.
static DYING: Semaphore = Semaphore::const_new(3);

/// The threads whose calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The threads that serve requests.
    Worker,
    /// The thread that talks to the store.
    Store,
}

/// The moment from which calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// Before the request is sent.
    Request,
    /// While the service holds its answer: from here on, the first call belongs to the settlement.
    Answer,
    /// Once the client has half of a response that streams: from here on come its other
    /// half, the settlement, and its end.
    Stream,
}

/// The attempt's progress at the proxy's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    BeforeReservation,
    Reserved,
    Sent,
    Answered,
    Completed,
    Told,
}

/// One kind of system call whose occurrences are tried in turn.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    side: Side,
    call: &'static str,
    from: From,
}

const fn sweep(side: Side, call: &'static str, from: From) -> Sweep {
    Sweep { side, call, from }
}

/// The calls of the threads that serve requests, whatever the store.
const WORKER: [Sweep; 4] = [
    sweep(Side::Worker, "recvfrom", From::Request),
    sweep(Side::Worker, "write", From::Request), // wakes the other threads
    sweep(Side::Worker, "connect", From::Request),
    sweep(Side::Worker, "writev", From::Request),
];

/// The same while a response streams.
const WORKER_STREAM: [Sweep; 3] = [
    sweep(Side::Worker, "recvfrom", From::Stream),
    sweep(Side::Worker, "write", From::Stream),
    sweep(Side::Worker, "writev", From::Stream),
];

const SQLITE: [Sweep; 5] = [
    sweep(Side::Store, "pwrite64", From::Request),
    sweep(Side::Store, "fsync", From::Request),
    sweep(Side::Store, "write", From::Request),
    sweep(Side::Store, "pwrite64", From::Stream),
    sweep(Side::Store, "write", From::Stream),
];

const POSTGRES: [Sweep; 8] = [
    sweep(Side::Store, "sendto", From::Request),
    sweep(Side::Store, "recvfrom", From::Request),
    sweep(Side::Store, "write", From::Request),
    sweep(Side::Store, "sendto", From::Answer),
    sweep(Side::Store, "recvfrom", From::Answer),
    sweep(Side::Store, "write", From::Answer),
    sweep(Side::Store, "sendto", From::Stream),
    sweep(Side::Store, "recvfrom", From::Stream),
];

/// The state after a proxy's death, and the outcome of its attempt.
#[derive(Debug)]
struct Death {
    sweep: Sweep,
    nth: usize,
    key: String,
    /// An earlier answer of the same proxy.
    warm: (String, Response),
    /// The call that was not made, in strace's notation; empty if none was interrupted.
    last_call: String,
    was_hit: bool,
    client_answer: Option<Response>,
    state: Option<String>,
    effects: usize,
    /// The retry's answer.
    retry: Option<String>,
}

impl Death {
    fn phase(&self) -> Phase {
        match (self.state.as_deref(), self.effects, &self.client_answer) {
            (None, 0, None) => Phase::BeforeReservation,
            (Some("in_flight"), 0, None) => Phase::Reserved,
            (Some("in_flight"), 1, None) if self.sweep.side == Side::Worker => Phase::Sent,
            // The store has no work between the sending and the answer.
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
        let client_answer =
            self.client_answer.as_ref().map_or("-".to_owned(), |client_answer| client_answer.status.to_string());
        let retry = self.retry.as_deref().unwrap_or("?");
        let (phase, effects) = (format!("{:?}", self.phase()), self.effects);
        let last_call = if self.was_hit { &*self.last_call } else { "(none: it went through)" };
        format!("{place:36} {phase:18} {state:10} {effects:7} {client_answer:6} {retry:20} {last_call:.60}")
    }
}

/// One sweep over a kind of call, on a store of its own.
struct AttemptSweep {
    sweep: Sweep,
    store: Store,
    upstream: Upstream,
    setup: Setup,
}

impl AttemptSweep {
    async fn run(sweep: Sweep, store: Store) -> Vec<Death> {
        let upstream = Upstream::start().await;
        upstream.answer_all(Answer::status(201).padded(BODY));
        let setup = Proxy::on(&store.url()).upstream(upstream.address);
        let course = Self { sweep, store, upstream, setup };
        let mut deaths = course.inject_faults().await;
        course.check_after_restart(&mut deaths).await;
        deaths
    }

    async fn inject_faults(&self) -> Vec<Death> {
        let _turn = DYING.acquire().await.unwrap();
        let mut deaths = Vec::new();
        for nth in 1..=CALLS_MAX {
            let death = self.die(nth).await;
            let unharmed = !death.was_hit;
            deaths.push(death);
            if unharmed {
                return deaths;
            }
        }
        panic!("{:?} has no end", self.sweep);
    }

    /// Lets a proxy serve a first attempt, and kills it at its n-th call, or at the latest when the client has its
    /// answer.
    async fn die(&self, nth: usize) -> Death {
        // So long that only the request causes calls in that time.
        let quiet = "lease = { heartbeat = \"3s\", expiry = \"6s\" }\nsweep_every = \"60s\"";
        let proxy = self.setup.clone().store(quiet).start().await;
        // The proxy has connections to the store when the first attempt comes, and none to the service.
        self.upstream.then(Answer::status(201).then_close());
        let warm = format!("warm-{nth}");
        let warm = (warm.clone(), pay(&proxy, &warm).send().await);
        assert_eq!(warm.1.oncegate_status(), Some("executed"));

        let key = format!("k-{nth}");
        let threads = match (self.sweep.side, &self.store) {
            (Side::Worker, _) => proxy.threads("worker-"),
            (Side::Store, Store::Sqlite(_)) => proxy.threads("oncegate-store"),
            (Side::Store, Store::Postgres(_)) => vec![proxy.first_thread()],
        };
        let fault = SyscallFault { call: self.sweep.call, nth, what: "signal=KILL" };
        let (tracer, client_answer) = match self.sweep.from {
            From::Request => {
                let tracer = Tracer::attach(threads, fault).await;
                (tracer, pay(&proxy, &key).try_send().await.ok())
            }
            From::Answer => {
                let hold = Hold::new();
                self.upstream.then(Answer::status(201).padded(BODY).hold(&hold));
                let executed = self.upstream.executed().len();
                let client = pay(&proxy, &key).spawn();
                self.upstream.wait_for_executed(executed + 1).await;
                let tracer = Tracer::attach(threads, fault).await;
                hold.release();
                (tracer, client.await.unwrap().ok())
            }
            From::Stream => {
                let feed = Feed::new();
                self.upstream.then(Answer::fed(201, "text/event-stream", &feed));
                let mut client = pay(&proxy, &key).open().await.unwrap();
                let head = client.any_head().await.unwrap();
                let body = format!("{:.<BODY$}", format!("effect {}", self.upstream.number_of(&key)));
                let (half, other_half) = body.split_at(BODY / 2);
                feed.send(half);
                let mut came = Vec::new();
                while came.len() < half.len() {
                    came.extend(client.piece().await.unwrap().unwrap());
                }
                let tracer = Tracer::attach(threads, fault).await;
                feed.send(other_half);
                feed.end();
                (tracer, client.rest(head, came).await.ok().map(Response::seen_as_whole))
            }
        };
        // A proxy that sent no answer is dead or dies at once.
        let was_hit = client_answer.is_none() || !proxy.is_alive();
        if client_answer.is_some() {
            proxy.signal(rustix::process::Signal::KILL);
        }
        assert_eq!(proxy.ended().await, None, "it ends by the blow alone");
        self.upstream.wait_until_all_read().await;
        let state = self.store.state_after_death(&key).await;
        let effects = self.upstream.executed_for(&key);
        let last_call = tracer.calls().pop().unwrap_or_default();
        Death { sweep: self.sweep, nth, key, warm, last_call, was_hit, client_answer, state, effects, retry: None }
    }

    /// Starts the next proxy on this store, and records what retries get.
    async fn check_after_restart(&self, deaths: &mut [Death]) {
        let proxy = self.setup.clone().short_leases().start().await;
        self.store.nothing_in_flight().await;
        for death in deaths {
            let retry = pay(&proxy, &death.key).send().await;
            death.retry = Some(match retry.outcome() {
                (status, slug) if slug.is_empty() => format!("{status} {}", retry.oncegate_status().unwrap_or("?")),
                (status, slug) => format!("{status} {slug}"),
            });
            let again = pay(&proxy, &death.key).send().await;
            let effects = self.upstream.executed_for(&death.key);
            match death.phase() {
                Phase::BeforeReservation => {
                    assert_eq!(
                        (retry.status, retry.oncegate_status(), effects),
                        (201, Some("executed"), 1),
                        "{death:#?}"
                    );
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
                    assert!(retry.is_replay() && retry.oncegate_status() == Some("replayed"), "{death:#?}");
                    assert_eq!(again.comparable(), retry.comparable(), "{death:#?}");
                    assert_eq!(effects, 1, "{death:#?}");
                }
            }
            if let Some(client_answer) = &death.client_answer {
                assert_eq!(client_answer.oncegate_status(), Some("executed"), "{death:#?}");
                assert_eq!(retry.comparable(), client_answer.replayed(), "{death:#?}");
            }
            let (key, warm) = &death.warm;
            assert_eq!(
                pay(&proxy, key).send().await.comparable(),
                warm.replayed(),
                "it was answered before: {death:#?}"
            );
        }
    }
}

fn pay(proxy: &Proxy, key: &str) -> Request {
    proxy.post("/pay").key(key).field("TE", "trailers").json(r#"{"amount":10}"#)
}

/// All sweeps on one kind of store; returns the attempts' progress at each death.
async fn swept(sweeps: impl IntoIterator<Item = Sweep>, store: impl AsyncFn() -> Store) {
    if !Tracer::is_permitted().await {
        return;
    }
    let courses = LocalSet::new();
    let mut running = Vec::new();
    for sweep in sweeps {
        running.push(courses.spawn_local(AttemptSweep::run(sweep, store().await)));
    }
    courses.await;
    let mut table = format!(
        "\n{:36} {:18} {:10} {:7} {:6} {:20} last call\n",
        "killed at", "phase", "state", "effects", "answer", "retry"
    );
    let (mut phases, mut of_streams) = (BTreeSet::new(), BTreeSet::new());
    for deaths in running {
        for death in deaths.await.unwrap() {
            table.push_str(&format!("{}\n", death.row()));
            if death.was_hit {
                let phases = if death.sweep.from == From::Stream { &mut of_streams } else { &mut phases };
                phases.insert(death.phase());
            }
        }
    }
    eprintln!("{table}");
    for phase in [Phase::BeforeReservation, Phase::Reserved, Phase::Sent, Phase::Answered, Phase::Completed] {
        assert!(phases.contains(&phase), "no blow fell on {phase:?}, only on {phases:?}");
    }
    for phase in [Phase::Sent, Phase::Answered, Phase::Completed] {
        assert!(of_streams.contains(&phase), "no blow fell on a stream that was {phase:?}, only on {of_streams:?}");
    }
}

#[tokio::test]
async fn an_attempt_killed_at_any_call_on_sqlite_has_its_durable_state() {
    swept(WORKER.into_iter().chain(WORKER_STREAM).chain(SQLITE), async || Store::sqlite()).await;
}

#[tokio::test]
async fn an_attempt_killed_at_any_call_on_postgres_has_its_durable_state() {
    swept(WORKER.into_iter().chain(WORKER_STREAM).chain(POSTGRES), async || Store::postgres().await).await;
}
