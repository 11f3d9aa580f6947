//! A run: load, faults, a quiet time, every key sent once more, and the checker's result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checker::{Breach, Policy, Rules, check, keys_that_succeeded};
use crate::clients::ClientPool;
use crate::deployment::{Deployment, LEASE, MessageQueue, SWEEP, StoreKind};
use crate::events;
use crate::fault::{Fault, Injection};
use crate::history::{AnswerKind, History, Op, ScopedKey, TargetRoute};
use crate::history_file;
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use crate::torture_results::{self, table};
use crate::torture_row;
use crate::vendor_orders::VendorOrders;
use harness::operator::Operator;

/// The name of the count of connections that faults of the links have struck.
pub const CONNECTION_FAULTS: &str = "connection faults";

/// The name of the count of requests under faults.
pub const OPERATIONS: &str = "operations";

/// The extra time that a busy machine takes.
const SLACK: Duration = Duration::from_millis(600);

/// The time by which a run may be extended until each fault was injected.
const OVERTIME: Duration = Duration::from_secs(60);

/// The longest pause between two faults; twice that once all were injected, and twice the fault
/// after one of a Patroni cluster.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);

/// Longer than the messages take that are left when the faults are over: one that is held
/// is tried again after 30 seconds.
const MESSAGES_TIMEOUT: Duration = Duration::from_secs(90);

/// From this length on, runs have messages. The broker takes seconds to start.
const LONG: Duration = Duration::from_secs(60);

/// The number of breaches printed with the key's timeline; one bug usually causes many breaches.
const STORIES_MAX: usize = 4;

/// A run's plan.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    pub on: StoreKind,
    pub proxies: usize,
    pub clients: usize,
    pub policy: Policy,
    /// The routes of keys, each as often as it is chosen.
    pub routes: Vec<TargetRoute>,
    /// The faults, each with its minimum number of injections.
    pub faults: Vec<(Fault, Quota)>,
    /// Whether messages are published beside the requests, where RabbitMQ is installed.
    pub with_messages: bool,
    /// Whether orders are paid at a vendor beside the requests.
    pub with_orders: bool,
    /// The minimum number of connections struck.
    pub connection_faults: Quota,
    /// The minimum number of requests under faults.
    pub operations: Quota,
    /// The maximum number of concurrent faults.
    pub concurrent_faults: usize,
    pub duration: Duration,
}

/// A minimum count. A run that misses it proves less than it says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quota {
    /// The count of a run of any length.
    fixed: usize,
    /// The count of each whole ten minutes, and of shorter times in proportion.
    per_ten_minutes: usize,
}

impl Quota {
    pub fn fixed(fixed: usize) -> Self {
        Self { fixed, per_ten_minutes: 0 }
    }

    /// One at least.
    pub fn per_ten_minutes(per_ten_minutes: usize) -> Self {
        Self { fixed: 1, per_ten_minutes }
    }

    fn due(self, after: Duration) -> usize {
        let in_proportion = after.as_secs() * self.per_ten_minutes as u64 / 600;
        self.fixed.max(usize::try_from(in_proportion).unwrap())
    }
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
        Self {
            on,
            proxies,
            clients: 24,
            policy: Policy::Hold,
            routes: vec![TargetRoute::Pay],
            faults: Vec::new(),
            with_messages: false,
            with_orders: false,
            connection_faults: Quota::default(),
            operations: Quota::default(),
            concurrent_faults: 1,
            duration,
        }
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

    pub fn routes(self, routes: &[TargetRoute]) -> Self {
        Self { routes: routes.to_vec(), ..self }
    }

    /// Publishes messages beside the requests, if the run is long.
    pub fn messages_if_long(self) -> Self {
        Self { with_messages: self.duration >= LONG, ..self }
    }

    pub fn orders(self) -> Self {
        Self { with_orders: true, ..self }
    }

    pub fn concurrent_faults(self, concurrent_faults: usize) -> Self {
        Self { concurrent_faults, ..self }
    }

    pub fn with_fault(self, fault: Fault, injections: usize) -> Self {
        self.with_quota(fault, Quota::fixed(injections))
    }

    pub fn with_quota(mut self, fault: Fault, quota: Quota) -> Self {
        self.faults.push((fault, quota));
        self
    }

    pub fn connection_faults(self, connection_faults: Quota) -> Self {
        Self { connection_faults, ..self }
    }

    pub fn operations(self, operations: Quota) -> Self {
        Self { operations, ..self }
    }

    /// Runs the plan. Panics with the breaches and the keys' timelines, if there are any.
    pub async fn run(self) -> Report {
        let seed = seed();
        eprintln!("seed {seed:#x}: {self:?}");
        let (mut random, begun) = (SeededRandom::new(seed), Instant::now());
        let service = Service::start(random.split(), begun).await;
        let queue = if self.with_messages { MessageQueue::create().await } else { None };
        let mut orders = match self.with_orders {
            true => Some(VendorOrders::start(None, &mut random).await),
            false => None,
        };
        let (queue_of, vendor) = (queue.as_ref(), orders.as_ref().map(VendorOrders::address));
        let started =
            Deployment::start(self.on, self.proxies, self.policy, &self.routes, queue_of, vendor, service.address);
        let deployment = Arc::new(started.await);
        let clients_pool = ClientPool::new(Arc::clone(&deployment.addresses), &self.routes, begun);
        let mut clients = clients_pool.start(self.clients, &mut random);
        if let Some(MessageQueue { queue, .. }) = &queue {
            clients_pool.publish(Arc::clone(queue), random.split(), &mut clients);
        }
        if let Some(orders) = &mut orders {
            orders.pay_beside(&deployment.addresses, &mut random);
        }
        let load_begun = Instant::now();
        let injections = self.inject(&deployment, begun, &mut random).await;
        deployment.wait_until_whole().await;
        let over = Instant::now();
        // The service delays no request any more, and the load continues for a while without faults.
        service.stop_misbehaving();
        sleep(LEASE).await;
        clients_pool.stop();
        orders.iter().for_each(VendorOrders::stop);
        join(&mut clients).await;
        sleep_until(over + LEASE + 2 * SWEEP + SLACK).await;
        wait_for_deliveries(clients_pool.owed(), &service, &deployment).await;
        clients_pool.repeat_every_key(&mut random).await;
        let mut ops = clients_pool.take_ops();
        note_states_of_batches(&mut ops, &service, &deployment).await;
        if let Some(orders) = orders {
            let operator = Operator::of(&*deployment.slots[0].proxy.lock().await).of_service("vendor");
            orders.end(operator).await;
        }
        let unknown = deployment.close().await;
        let states = deployment.store.states().await;
        let of_events = match self.on {
            StoreKind::Citus => Vec::new(),
            _ => events::find_breaches(&service.events(), &deployment.store).await,
        };
        let mut faults = count(&injections);
        faults.insert(CONNECTION_FAULTS.to_owned(), deployment.connections_struck().await);
        faults.insert(OPERATIONS.to_owned(), ops.iter().filter(|op| !op.last).count());
        let history = History {
            ops,
            effects: service.effects(),
            service_calls: service.calls(),
            unknown: unknown.all,
            unknown_to_their_proxy: unknown.own,
            faults,
        };
        let report = report(&history);
        eprintln!("{}", summary(seed, begun.elapsed(), &history, &report));
        self.write_history(seed, &history, &injections);
        let breaches = check(&history, &self.rules());
        let result = torture_row::measure(self.on.name(), seed, over - load_begun, &history, &breaches);
        eprintln!("{}", table(std::slice::from_ref(&result)));
        if let Some(folder) = history_file::wanted_folder() {
            torture_results::record(&folder, result);
        }
        assert_no_breach(&history, &breaches);
        assert!(of_events.is_empty(), "{of_events:#?}");
        assert!(!states.iter().any(|state| state == "in_flight"), "the store has a key that is in flight: {states:?}");
        report
    }

    /// Injects faults until the time is up and each fault was injected often enough.
    async fn inject(&self, deployment: &Arc<Deployment>, begun: Instant, random: &mut SeededRandom) -> Vec<Injection> {
        let schedule = Arc::new(Mutex::new(Schedule::default()));
        let mut injectors = JoinSet::new();
        for faults in self.faults_of_injectors() {
            let plan = Self { faults, ..self.clone() };
            let (deployment, schedule, random) = (Arc::clone(deployment), Arc::clone(&schedule), random.split());
            let handle = Handle::current();
            // A thread of its own, because the compiler does not see that waits by
            // asynchronous closures may change threads.
            injectors.spawn_blocking(move || {
                handle.block_on(plan.inject_repeatedly(&deployment, begun, &schedule, random));
            });
        }
        join(&mut injectors).await;
        std::mem::take(&mut schedule.lock().unwrap().ended)
    }

    /// The faults of each injector. One of a Patroni cluster lasts for long, so that these
    /// have an injector of their own.
    fn faults_of_injectors(&self) -> Vec<Vec<(Fault, Quota)>> {
        match self.on {
            StoreKind::Patroni => {
                let (of_store, others) = self.faults.iter().copied().partition(|(fault, _)| fault.is_of_store());
                [vec![of_store], vec![others; self.concurrent_faults]].concat()
            }
            _ => vec![self.faults.clone(); self.concurrent_faults],
        }
    }

    async fn inject_repeatedly(
        &self,
        deployment: &Deployment,
        run_begun: Instant,
        schedule: &Mutex<Schedule>,
        mut random: SeededRandom,
    ) {
        let begun = Instant::now();
        loop {
            sleep(random.millis(300, 1_000)).await;
            let missing: Vec<_> = {
                let schedule = schedule.lock().unwrap();
                let due = begun.elapsed().min(self.duration);
                self.faults.iter().filter(|(fault, quota)| schedule.times(*fault) < quota.due(due)).copied().collect()
            };
            let over = begun.elapsed() > self.duration;
            // The checker reports missed quotas of a slow machine.
            if over && (missing.is_empty() || begun.elapsed() > self.duration + OVERTIME) {
                return;
            }
            let (fault, _) = *random.one_of(if missing.is_empty() { &self.faults } else { &missing });
            let began = run_begun.elapsed();
            *schedule.lock().unwrap().begun.entry(fault).or_insert(0) += 1;
            let proxy = fault.inject(deployment, &mut random).await;
            let ended = run_begun.elapsed();
            schedule.lock().unwrap().ended.push(Injection { fault: fault.name(), proxy, began, ended });
            // Once all faults were injected, the working time is longer than the broken time: a fault shows nothing
            // where nothing works.
            let lasted = ended - began;
            let pause = match (missing.is_empty(), fault) {
                (true, Fault::Failover(_) | Fault::CutReplication) => 2 * lasted,
                (true, _) => 2 * lasted.min(PAUSE_MAX),
                (false, _) => lasted.min(PAUSE_MAX),
            };
            sleep(pause.min(self.duration.saturating_sub(begun.elapsed()))).await;
        }
    }

    fn rules(&self) -> Rules {
        let faults = self.faults.iter().map(|(fault, quota)| (fault.name(), *quota));
        let others = [(CONNECTION_FAULTS, self.connection_faults), (OPERATIONS, self.operations)];
        let all = faults.chain(others.map(|(name, quota)| (name.to_owned(), quota)));
        let quotas = all.map(|(name, quota)| (name, quota.due(self.duration))).collect();
        Rules { policy: self.policy, quotas }
    }

    fn write_history(&self, seed: u64, history: &History, injections: &[Injection]) {
        let policy = match self.policy {
            Policy::Hold => "hold",
            Policy::Retry => "retry",
            Policy::RetryWhenQuiet(_) => "retry-when-quiet",
        };
        let store = self.on.name();
        let start = json!({ "store": store, "policy": policy, "proxies": self.proxies, "seed": format!("{seed:#x}") });
        let name = format!("{}-{seed:016x}", store.to_lowercase());
        if let Some(path) = history_file::write_if_wanted(&name, start, history, injections) {
            eprintln!("history: {}", path.display());
        }
    }
}

/// The injections so far.
#[derive(Default)]
struct Schedule {
    /// The number of injections of each fault, with those that have not ended.
    begun: BTreeMap<Fault, usize>,
    ended: Vec<Injection>,
}

impl Schedule {
    fn times(&self, fault: Fault) -> usize {
        self.begun.get(&fault).copied().unwrap_or(0)
    }
}

/// Waits until each message and key of a batch is executed, or its outcome unknown. One for which that never comes is
/// found lost by the request with its key, or in a batch with it.
async fn wait_for_deliveries(mut left: BTreeSet<ScopedKey>, service: &Service, deployment: &Deployment) {
    let begun = Instant::now();
    while !left.is_empty() && begun.elapsed() < MESSAGES_TIMEOUT {
        for effect in service.effects() {
            left.remove(&effect.name);
        }
        let unknown = deployment.unknown_keys().await;
        left.retain(|name| !unknown.contains(&name.key));
        sleep(Duration::from_millis(500)).await;
    }
}

/// Notes the states of the keys of batches at the end: an answer to a batch does not name an operation.
async fn note_states_of_batches(ops: &mut [Op], service: &Service, deployment: &Deployment) {
    let accepted =
        |op: &&mut Op| op.last && op.route == TargetRoute::Batched && op.kind() == Some(AnswerKind::Accepted);
    let names = ops.iter_mut().filter(accepted).map(|op| op.name.clone()).collect();
    wait_for_deliveries(names, service, deployment).await;
    let unknown = deployment.unknown_keys().await;
    for op in ops.iter_mut().filter(accepted) {
        let state = if unknown.contains(&op.name.key) { "unknown" } else { "completed" };
        let answer = op.answer.as_mut().expect("it was accepted");
        answer.operation = Some(state.to_owned());
    }
}

fn count(injections: &[Injection]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for injection in injections {
        *counts.entry(injection.fault.clone()).or_insert(0) += 1;
    }
    counts
}

/// Panics with the breaches and the timelines of some keys, if there are any.
fn assert_no_breach(history: &History, breaches: &[Breach]) {
    if breaches.is_empty() {
        return;
    }
    let mut message = format!("{} breaches\n", breaches.len());
    for breach in breaches {
        writeln!(message, "{breach}").unwrap();
    }
    let mut names: Vec<&ScopedKey> = breaches.iter().filter_map(|breach| breach.name.as_ref()).collect();
    names.dedup();
    for name in names.into_iter().take(STORIES_MAX) {
        write!(message, "{name}\n{}", history.timeline(name)).unwrap();
    }
    panic!("{message}");
}

async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// The seed from `ONCEGATE_SEED`, to repeat the same faults; otherwise random.
pub fn seed() -> u64 {
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
    let executed: BTreeSet<_> = history.effects.iter().map(|effect| &effect.name).collect();
    let mut spurious = 0;
    for op in history.ops.iter().filter(|op| op.last) {
        *ends.entry(op.kind().map_or("NoAnswer".to_owned(), |one| format!("{one:?}"))).or_default() += 1;
        spurious += usize::from(op.kind() == Some(AnswerKind::Unknown) && !executed.contains(&op.name));
    }
    let during: usize = kinds.values().sum();
    let (succeeded, keys) = keys_that_succeeded(history);
    format!(
        "seed {seed:#x}, {lasted:.1?}: faults {:?}\n  requests {during}: {kinds:?}\n  \
         keys {}, {} % succeeded, effects {}; at the end {ends:?}, of the unknown {spurious} never executed; {report:?}",
        history.faults,
        ends.values().sum::<usize>(),
        succeeded * 100 / keys.max(1),
        history.effects.len(),
    )
}
