//! A run: load, faults, a quiet time, every key sent once more, and the checker's result.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checker::{Policy, Rules, check};
use crate::clients::ClientPool;
use crate::deployment::{Deployment, LEASE, SWEEP, StoreKind};
use crate::fault::Fault;
use crate::history::{AnswerKind, History, Op, ScopedKey};
use crate::seeded_random::SeededRandom;
use crate::service::Service;

/// The extra time that a busy machine takes.
const SLACK: Duration = Duration::from_millis(600);

/// The time by which a run may be extended until each fault was injected.
const OVERTIME: Duration = Duration::from_secs(20);

/// The longest pause between two faults; twice that once all were injected.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);

/// The number of breaches printed with the key's timeline; one bug usually causes many breaches.
const STORIES_MAX: usize = 4;

/// A run's plan.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    pub on: StoreKind,
    pub proxies: usize,
    pub clients: usize,
    pub policy: Policy,
    /// The faults, each with its minimum number of injections.
    pub faults: Vec<(Fault, usize)>,
    /// The maximum number of concurrent faults.
    pub concurrent_faults: usize,
    pub duration: Duration,
}

/// A run's counts, for tests that check more than the rules.
#[derive(Debug)]
pub struct Report {
    /// Keys that were executed more than once, each time allowed by the route.
    pub repeated: usize,
    /// Keys that were unknown and then completed by the late answer.
    #[expect(dead_code, reason = "printed in the summary")]
    pub resolved: usize,
    /// Requests that failed because of the store.
    pub troubled: usize,
}

impl FaultPlan {
    /// Three proxies on PostgreSQL with `on_unknown = "hold"`, for this many seconds.
    pub fn new(on: StoreKind, seconds: u64) -> Self {
        let proxies = if on == StoreKind::Sqlite { 1 } else { 3 };
        let duration = Duration::from_secs(seconds);
        Self { on, proxies, clients: 24, policy: Policy::Hold, faults: Vec::new(), concurrent_faults: 1, duration }
    }

    /// Takes the run's length from an environment variable, if it is set.
    pub fn seconds_from(mut self, variable: &str) -> Self {
        if let Ok(seconds) = std::env::var(variable) {
            self.duration = Duration::from_secs(seconds.parse().expect("whole seconds"));
        }
        self
    }

    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    pub fn concurrent_faults(self, concurrent_faults: usize) -> Self {
        Self { concurrent_faults, ..self }
    }

    pub fn with_fault(mut self, fault: Fault, quota: usize) -> Self {
        self.faults.push((fault, quota));
        self
    }

    /// Runs the plan. Panics with the breaches and the keys' timelines, if there are any.
    pub async fn run(self) -> Report {
        let seed = seed();
        eprintln!("seed {seed:#x}: {self:?}");
        let (mut random, begun) = (SeededRandom::new(seed), Instant::now());
        let service = Service::start(random.split(), begun).await;
        let deployment = Arc::new(Deployment::start(self.on, self.proxies, self.policy, service.address).await);
        let clients_pool = ClientPool::new(Arc::clone(&deployment.addresses), begun);
        let mut clients = clients_pool.start(self.clients, &mut random);
        let faults = self.inject(&deployment, &mut random).await;
        let over = Instant::now();
        // The service delays no request any more, and the load continues for a while without faults.
        service.stop_misbehaving();
        sleep(LEASE).await;
        clients_pool.stop();
        join(&mut clients).await;
        sleep_until(over + LEASE + 2 * SWEEP + SLACK).await;
        clients_pool.repeat_every_key(&mut random).await;
        let unknown = deployment.close().await;
        let states = deployment.store.states().await;
        let history = History { ops: clients_pool.ops(), effects: service.effects(), unknown, faults };
        let report = report(&history);
        eprintln!("{}", summary(seed, begun.elapsed(), &history, &report));
        self.assert_no_breach(&history);
        assert!(!states.iter().any(|state| state == "in_flight"), "the store has a key that is in flight: {states:?}");
        report
    }

    /// Injects faults until the time is up and each fault was injected often enough.
    async fn inject(&self, deployment: &Arc<Deployment>, random: &mut SeededRandom) -> BTreeMap<String, usize> {
        let injected = Arc::new(Mutex::new(BTreeMap::new()));
        let mut injectors = JoinSet::new();
        for _ in 0..self.concurrent_faults {
            let (plan, deployment, injected, random) =
                (self.clone(), Arc::clone(deployment), Arc::clone(&injected), random.split());
            injectors.spawn(async move { plan.inject_repeatedly(&deployment, &injected, random).await });
        }
        join(&mut injectors).await;
        injected.lock().unwrap().clone()
    }

    async fn inject_repeatedly(
        &self,
        deployment: &Deployment,
        injected: &Mutex<BTreeMap<String, usize>>,
        mut random: SeededRandom,
    ) {
        let begun = Instant::now();
        loop {
            sleep(random.millis(300, 1_000)).await;
            let missing: Vec<_> = {
                let injected = injected.lock().unwrap();
                let times = |fault: &Fault| injected.get(&format!("{fault:?}")).copied().unwrap_or(0);
                self.faults.iter().filter(|(fault, quota)| times(fault) < *quota).copied().collect()
            };
            let over = begun.elapsed() > self.duration;
            // The checker reports missed quotas of a slow machine.
            if over && (missing.is_empty() || begun.elapsed() > self.duration + OVERTIME) {
                return;
            }
            let (fault, _) = *random.one_of(if missing.is_empty() { &self.faults } else { &missing });
            let injected_at = Instant::now();
            *injected.lock().unwrap().entry(format!("{fault:?}")).or_insert(0) += 1;
            fault.inject(deployment, &mut random).await;
            // Once all faults were injected, the working time is longer than the broken time: a fault shows nothing
            // where nothing works.
            let pause = injected_at.elapsed().min(PAUSE_MAX);
            sleep(if missing.is_empty() { 2 * pause } else { pause }).await;
        }
    }

    fn assert_no_breach(&self, history: &History) {
        let quotas = self.faults.iter().map(|(fault, quota)| (format!("{fault:?}"), *quota)).collect();
        let breaches = check(history, &Rules { policy: self.policy, quotas });
        if breaches.is_empty() {
            return;
        }
        let mut message = format!("{} breaches\n", breaches.len());
        for breach in &breaches {
            writeln!(message, "{breach}").unwrap();
        }
        let mut names: Vec<&ScopedKey> = breaches.iter().filter_map(|breach| breach.name.as_ref()).collect();
        names.dedup();
        for name in names.into_iter().take(STORIES_MAX) {
            write!(message, "{name}\n{}", history.timeline(name)).unwrap();
        }
        panic!("{message}");
    }
}

async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// The seed from `ONCEGATE_SEED`, to repeat the same faults; otherwise random.
fn seed() -> u64 {
    match std::env::var("ONCEGATE_SEED") {
        Ok(message) => u64::from_str_radix(message.trim_start_matches("0x"), 16).expect("a seed in hex"),
        Err(_) => getrandom::u64().unwrap(),
    }
}

fn report(history: &History) -> Report {
    let mut keys: BTreeMap<&ScopedKey, (usize, bool, bool)> = BTreeMap::new();
    for effect in &history.effects {
        keys.entry(&effect.name).or_default().0 += 1;
    }
    let mut ops: Vec<_> = history.ops.iter().collect();
    ops.sort_by_key(|op| op.returned);
    for op in ops {
        let (_, unknown, resolved) = keys.entry(&op.name).or_default();
        *unknown |= op.kind() == Some(AnswerKind::Unknown);
        *resolved |= *unknown && op.acknowledges();
    }
    let repeated = keys.values().filter(|(effects, ..)| *effects > 1).count();
    let resolved = keys.values().filter(|(_, _, resolved)| *resolved).count();
    let trouble = |op: &&Op| matches!(op.kind(), Some(AnswerKind::Rejected | AnswerKind::Unstored));
    Report { repeated, resolved, troubled: history.ops.iter().filter(trouble).count() }
}

/// The run's summary, in a few lines.
fn summary(seed: u64, lasted: Duration, history: &History, report: &Report) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for op in history.ops.iter().filter(|op| !op.last) {
        *kinds.entry(op.kind().map_or("NoAnswer".to_owned(), |one| format!("{one:?}"))).or_default() += 1;
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let executed: std::collections::BTreeSet<_> = history.effects.iter().map(|effect| &effect.name).collect();
    let mut spurious = 0;
    for op in history.ops.iter().filter(|op| op.last) {
        *ends.entry(op.kind().map_or("NoAnswer".to_owned(), |one| format!("{one:?}"))).or_default() += 1;
        spurious += usize::from(op.kind() == Some(AnswerKind::Unknown) && !executed.contains(&op.name));
    }
    let during: usize = kinds.values().sum();
    let succeeded = history.ops.iter().filter(|op| !op.last && op.acknowledges()).count();
    format!(
        "seed {seed:#x}, {lasted:.1?}: faults {:?}\n  requests {during}, {} % succeeded: {kinds:?}\n  \
         keys {}, effects {}; at the end {ends:?}, of the unknown {spurious} never executed; {report:?}",
        history.faults,
        succeeded * 100 / during.max(1),
        ends.values().sum::<usize>(),
        history.effects.len(),
    )
}
