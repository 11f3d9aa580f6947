//! One run: processes, clients and faults from a seed, a quiet time, every key sent once more,
//! and the result of the checker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;

use crate::checker::{Breach, Rule, Rules, check};
use crate::clients::Clients;
use crate::history::{History, Op, TargetRoute};
use crate::hosts::{Host, Millis, install_machine, set_time};
use crate::leases::Leases;
use crate::network::{Network, Place};
use crate::process::{self, LEASE, QUIET_AFTER, RouteKind, RunningInstance, STORE_TIMEOUT, STREAM_TIMEOUT, SWEEP};
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use crate::store_link::StoreServer;
use crate::trace;

/// The time in which the first processes start.
const START: Millis = 100;
const CLIENTS: usize = 3;
/// The time for which clients send and faults strike.
const LOAD: (u64, u64) = (900, 1_800);
/// The time between two faults.
const BETWEEN_FAULTS: (u64, u64) = (60, 500);
/// The longest step of a host: events on two hosts within one step happen in the order in which the hosts are run.
const STEP: (u64, u64) = (1, 24);
/// The steps while nothing is expected but timers. Within a step the store's time can be a step away from a process's,
/// which must stay below half of what a process takes for a jump of the store's clock (a tenth of [`LEASE`]).
const QUIET_STEP: Millis = 28;
/// A run that lasts longer hangs.
const TIME_MAX: Millis = 120_000;
const HOUR: i64 = 60 * 60 * 1_000;
/// Longer than every TTL.
const DAY_AND_MORE: i64 = 30 * HOUR;

/// A fault that strikes at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed; the next one starts a short time later.
    Kill,
    /// A process is stopped for up to two leases.
    Pause,
    /// The store answers nothing for a while.
    SilenceStore,
    /// No bytes pass to and from the service for a while.
    SilenceService,
    /// No bytes pass to and from a proxy's clients for a while.
    SilenceProxy,
    /// The store's clock jumps.
    StepClock,
    /// The store fails over to a replica that lacks the latest commits.
    FailOver,
}

/// All faults.
pub const FAULTS: [Fault; 7] = [
    Fault::Kill,
    Fault::Pause,
    Fault::SilenceStore,
    Fault::SilenceService,
    Fault::SilenceProxy,
    Fault::StepClock,
    Fault::FailOver,
];

/// The result of a run.
pub struct Run {
    pub history: History,
    pub breaches: Vec<String>,
    pub trace: String,
    /// The keys whose records a failover has lost.
    pub lost: usize,
}

/// Runs a seed on a thread of its own, whose machine is the simulated one.
pub fn run(seed: u64) -> Run {
    let run = thread::Builder::new().name(format!("{seed:#x}")).spawn(move || Simulation::new(seed).run());
    run.unwrap().join().unwrap_or_else(|_| panic!("seed {seed:#x} panicked"))
}

/// A proxy's place: when its process dies, the next one takes it.
struct ProxySlot {
    host: Option<Host>,
    /// The number of the last process.
    process: usize,
    /// The process is stopped until then.
    stopped_until: Millis,
    /// The next process starts then, where there is none.
    starts_at: Millis,
    running: RunningInstance,
}

struct Simulation {
    random: SeededRandom,
    now: Millis,
    route: RouteKind,
    /// Clients, network, service and store.
    world: Host,
    proxies: Vec<ProxySlot>,
    processes: usize,
    network: Network,
    store: StoreServer,
    service: Service,
    clients: Clients,
    leases: Arc<Leases>,
    enabled: Vec<Fault>,
    struck: BTreeMap<String, usize>,
    /// The end of the replica's lag, and whether the processes are told of the failover.
    failover: Option<(Millis, bool)>,
    /// The keys of which a failover has lost something.
    lost: BTreeSet<String>,
    /// The hours by which the store's clock is behind, in milliseconds: a queued key is due by that clock.
    clock_behind: i64,
    /// The time of the last jump that ends all TTLs.
    ttls_ended_at: Millis,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        install_machine();
        set_time(0);
        let mut random = SeededRandom::new(seed);
        // Some runs have few faults, and show that the faults are not needed for what goes well.
        let faults = *random.one_of(&[0, 4, 12, 30]);
        let enabled = FAULTS.into_iter().filter(|_| faults > 0 && random.chance(500)).collect();
        let route = match random.below(10) {
            0..5 => RouteKind::Hold,
            5..7 => RouteKind::Reconciled,
            7..9 => RouteKind::Retry,
            _ => RouteKind::RetryWhenQuiet,
        };
        let leases = Arc::new(Leases::default());
        let mut world = Host::start(random.split());
        let (network, carrying) = Network::new(random.split(), faults, Arc::clone(&leases));
        let (store, serving) = StoreServer::new(STORE_TIMEOUT, faults, Arc::clone(&leases));
        let (service, answering) = Service::new(&network, random.split(), 2 * faults);
        world.spawn(carrying);
        world.spawn(serving);
        world.spawn(answering);
        let proxies = 2 + random.below(2);
        let clients = Clients::new(&network, proxies);
        let slot = |_| ProxySlot {
            host: None,
            process: 0,
            stopped_until: 0,
            starts_at: 0,
            running: RunningInstance::default(),
        };
        let proxies = (0..proxies).map(slot).collect();
        trace::record(format_args!("seed {seed:#x}: {route:?}, faults {faults}, {enabled:?}"));
        Self {
            random,
            now: 0,
            route,
            world,
            proxies,
            processes: 0,
            network,
            store,
            service,
            clients,
            leases,
            enabled,
            struck: BTreeMap::new(),
            failover: None,
            lost: BTreeSet::new(),
            clock_behind: 0,
            ttls_ended_at: 0,
        }
    }

    fn run(mut self) -> Run {
        // Most requests at the very beginning would find no process that listens.
        self.step_until(START);
        for _ in 0..CLIENTS {
            let random = self.random.split();
            self.world.spawn(self.clients.run(random));
        }
        let load = self.now + self.random.millis(LOAD.0, LOAD.1).as_millis() as u64;
        let mut next_fault = self.now + self.random.millis(BETWEEN_FAULTS.0, BETWEEN_FAULTS.1).as_millis() as u64;
        while self.now < load {
            if self.now >= next_fault {
                self.strike();
                next_fault = self.now + self.random.millis(BETWEEN_FAULTS.0, BETWEEN_FAULTS.1).as_millis() as u64;
            }
            self.step();
        }
        self.end_faults();
        // The load continues for a while without faults.
        self.step_until(self.now + millis(LEASE / 4));
        self.clients.stop();
        self.step_while(|simulation| !simulation.clients.have_ended());
        let quiet = self.now + self.settling_time();
        while self.now < quiet {
            self.step_by(QUIET_STEP);
        }
        let random = self.random.split();
        self.world.spawn(self.clients.repeat_every_key(random));
        self.step_while(|simulation| !simulation.clients.have_ended());
        self.step_until(self.now + millis(SWEEP));
        // What was accepted at last is delivered. The deliverer registers its next attempts before it looks for some.
        let end = self.now + self.settling_time();
        while self.registered() as i64 + self.store.unsettled() > 0 && self.now < end {
            self.step();
        }
        self.finish()
    }

    /// The time after which every key is settled.
    fn settling_time(&self) -> Millis {
        let settled = millis(STORE_TIMEOUT + STREAM_TIMEOUT + 2 * LEASE + 2 * SWEEP);
        let has_jumped = self.struck.contains_key(&format!("{:?}", Fault::StepClock));
        // After a jump of the clock nothing counts as quiet before the longest attempt is over.
        let watched = if has_jumped { millis(STORE_TIMEOUT + STREAM_TIMEOUT + QUIET_AFTER + LEASE) } else { 0 };
        settled + watched
    }

    /// Lets a fault strike.
    fn strike(&mut self) {
        if self.enabled.is_empty() {
            return;
        }
        let fault = *self.random.one_of(&self.enabled);
        let slot = self.random.below(self.proxies.len());
        let lasts = self.random.millis(100, 2_000).as_millis() as u64;
        let until = self.now + lasts;
        trace::record(format_args!("FAULT {fault:?} of {slot} for {lasts} ms"));
        match fault {
            Fault::Kill => self.kill(slot, self.now + lasts / 4),
            Fault::Pause => self.proxies[slot].stopped_until = until,
            Fault::SilenceStore => self.store.silence(self.now + lasts / 2),
            Fault::SilenceService => self.network.silence(Place::Service, self.now + lasts / 2),
            Fault::SilenceProxy => self.network.silence(Place::Proxy(slot), self.now + lasts / 2),
            Fault::StepClock => {
                let by = *self.random.one_of(&[-HOUR, -700, -80, 80, 700, 5_000, DAY_AND_MORE]);
                trace::record(format_args!("the store's clock jumps by {by} ms"));
                self.store.step_clock(by);
                if by == -HOUR {
                    self.clock_behind += HOUR;
                }
                if by == DAY_AND_MORE {
                    self.ttls_ended_at = self.now;
                    self.store.note_jump();
                }
            }
            Fault::FailOver if self.failover.is_some() || self.now < 600 => return,
            Fault::FailOver => {
                self.store.begin_lag();
                self.failover = Some((self.now + lasts / 5, self.random.chance(500)));
            }
        }
        *self.struck.entry(format!("{fault:?}")).or_default() += 1;
    }

    fn kill(&mut self, slot: usize, starts_at: Millis) {
        let proxy = &mut self.proxies[slot];
        if let Some(host) = proxy.host.take() {
            proxy.running.lock().unwrap().take();
            self.network.wake_connections(proxy.process, Place::Proxy(slot));
            host.kill();
            (proxy.starts_at, proxy.stopped_until) = (starts_at, 0);
        }
    }

    fn end_faults(&mut self) {
        trace::record(format_args!("the faults are over"));
        if let Some((_, is_announced)) = self.failover.take() {
            self.fail_over(is_announced);
        }
        if self.clock_behind > 0 {
            trace::record(format_args!("the store's clock is put right"));
            self.store.step_clock(self.clock_behind);
        }
        self.enabled.clear();
        self.network.stop_misbehaving();
        self.store.stop_misbehaving();
        self.service.stop_misbehaving();
        self.store.silence(0);
        self.network.silence(Place::Service, 0);
        for (slot, proxy) in self.proxies.iter_mut().enumerate() {
            self.network.silence(Place::Proxy(slot), 0);
            proxy.stopped_until = 0;
            proxy.starts_at = 0;
        }
    }

    fn fail_over(&mut self, is_announced: bool) {
        let lost = self.store.fail_over(is_announced);
        trace::record(format_args!("failover, announced: {is_announced}, lost {lost:?}"));
        self.lost.extend(lost);
    }

    fn step_until(&mut self, time: Millis) {
        while self.now < time {
            self.step();
        }
    }

    fn step_while(&mut self, is_running: impl Fn(&Self) -> bool) {
        while is_running(self) {
            assert!(self.now < TIME_MAX, "the run hangs");
            self.step();
        }
    }

    fn step(&mut self) {
        let step = self.random.millis(STEP.0, STEP.1).as_millis() as u64;
        self.step_by(step);
    }

    /// Runs every host until the end of the step, in an order of the seed.
    fn step_by(&mut self, step: Millis) {
        if let Some((_, is_announced)) = self.failover.take_if(|(at, _)| *at <= self.now) {
            self.fail_over(is_announced);
        }
        self.end_processes();
        self.start_processes();
        let until = self.now + step;
        let world_turn = self.random.below(self.proxies.len() + 1);
        let first = self.random.below(self.proxies.len());
        for turn in 0..=self.proxies.len() {
            if turn == world_turn {
                self.world.run_until(until);
            }
            if turn == self.proxies.len() {
                break;
            }
            let slot = (first + turn) % self.proxies.len();
            let proxy = &mut self.proxies[slot];
            if let Some(host) = proxy.host.as_mut().filter(|_| proxy.stopped_until <= self.now) {
                host.run_until(until);
            }
        }
        self.now = until;
        set_time(until);
    }

    /// Ends the processes that end themselves, because the store has another salt. A supervisor starts them again.
    fn end_processes(&mut self) {
        for slot in 0..self.proxies.len() {
            let running = self.proxies[slot].running.lock().unwrap().clone();
            if running.is_some_and(|instance| instance.salt_replaced.is_cancelled()) {
                trace::record(format_args!("process {} ends: another salt", self.proxies[slot].process));
                self.kill(slot, self.now);
            }
        }
    }

    fn start_processes(&mut self) {
        for (slot, proxy) in self.proxies.iter_mut().enumerate() {
            if proxy.host.is_some() || proxy.starts_at > self.now {
                continue;
            }
            let mut host = Host::start(self.random.split());
            let (number, place) = (self.processes, Place::Proxy(slot));
            self.processes += 1;
            let link = self.store.link(number, self.random.split());
            let (network, running) = (self.network.clone(), Arc::clone(&proxy.running));
            host.spawn(process::run(number, place, self.route.config(), link, network, running));
            (proxy.host, proxy.process) = (Some(host), number);
        }
    }

    /// Returns where the last event of a key, published or waiting, tells another state than it has, and where the
    /// events of a key came in another order than they happened. A failover takes events back as it takes records, and
    /// which routes have events: then the keys that are settled before the next heartbeat tell nothing.
    fn check_events(&mut self) -> Vec<String> {
        let mut breaches = Vec::new();
        let mut received: BTreeMap<String, (i64, String)> = BTreeMap::new();
        let events = self.service.events();
        self.struck.insert("Events".to_owned(), events.len());
        let keys: BTreeMap<String, String> =
            self.store.told_states().into_iter().map(|(key, record, _)| (record, key)).collect();
        let is_lost = |record: &str| keys.get(record).is_none_or(|key| self.lost.contains(key));
        let mut seen = BTreeSet::new();
        for event in events {
            if is_lost(&event.record) || !seen.insert((event.record.clone(), event.sequence)) {
                continue;
            }
            let last = received.insert(event.record.clone(), (event.sequence, event.state));
            if let Some((last, _)) = last.filter(|(last, _)| *last > event.sequence) {
                breaches.push(format!("event {} of {} came after {last}", event.sequence, event.record));
            }
        }
        for (record, sequence, state) in self.store.events() {
            received.insert(record, (sequence, state.unwrap_or_default()));
        }
        let untold = self.store.untold();
        for (_, record, state) in self.store.told_states() {
            let told = received.get(&record).map(|(_, state)| &**state);
            let is_exempt = is_lost(&record) || untold.contains(&(record.clone(), state.clone()));
            if !is_exempt && told != Some(&state) {
                breaches.push(format!("the last event of {record}, which is {state}, tells {told:?}"));
            }
        }
        breaches
    }

    /// The number of attempts that the processes run.
    fn registered(&self) -> usize {
        let of_process = |running: &RunningInstance| {
            running.lock().unwrap().as_ref().map_or(0, |instance| instance.in_flight.count())
        };
        self.proxies.iter().map(|proxy| of_process(&proxy.running)).sum()
    }

    /// The requests. The last ones of batches, whose answers name no operation, have the states of their keys.
    fn ops_with_states(&self) -> Vec<Op> {
        let states: BTreeMap<String, String> =
            self.store.told_states().into_iter().map(|(key, _, state)| (key, state)).collect();
        let mut ops = self.clients.ops();
        for op in ops.iter_mut().filter(|op| op.last && op.route == TargetRoute::Batched) {
            if let Some(answer) = &mut op.answer {
                answer.operation = states.get(&op.name.key).cloned();
            }
        }
        ops
    }

    fn finish(mut self) -> Run {
        self.struck.extend(self.clients.streams());
        let of_events = self.check_events();
        let history = History {
            ops: self.ops_with_states(),
            effects: self.service.effects(),
            service_calls: self.service.calls(),
            unknown: self.store.unknown(),
            faults: std::mem::take(&mut self.struck),
            ..History::default()
        };
        if self.store.has_untold_jump() {
            let before = history.ops.iter().filter(|op| millis(op.invoked) < self.ttls_ended_at);
            self.lost.extend(before.map(|op| op.name.key.clone()));
        }
        let mut breaches = self.leases.breaches();
        breaches.extend(check_history(
            &history,
            &Rules { policy: self.route.policy(), quotas: Vec::new() },
            &self.lost,
        ));
        breaches.extend(of_events);
        if self.store.unsettled() > 0 {
            breaches.push(format!("{} keys are in flight or queued in the store at the end", self.store.unsettled()));
        }
        if self.registered() > 0 {
            breaches.push(format!("{} attempts are registered at the end", self.registered()));
        }
        for breach in &breaches {
            trace::record(format_args!("BREACH {breach}"));
        }
        for slot in 0..self.proxies.len() {
            self.kill(slot, Millis::MAX);
        }
        self.world.kill();
        Run { history, breaches, trace: trace::take(), lost: self.lost.len() }
    }
}

/// Returns the breaches of the rules. A key whose record a failover has lost, or whose TTL was ended by a jump of the
/// store's clock that the store was not told of, may be executed once more, but nobody gets a wrong answer. It may also
/// be used for another request then, so that its own is refused at the end.
fn check_history(history: &History, rules: &Rules, lost: &BTreeSet<String>) -> Vec<String> {
    let counts = |breach: &Breach| match breach.rule {
        // Those are judged over all runs.
        Rule::NotVacuous | Rule::TheStoreIsBack => false,
        Rule::CallersAreApart | Rule::AnAnswerHasItsEffect | Rule::AnswersMakeSense | Rule::EffectsHaveACause => true,
        _ => breach.name.as_ref().is_none_or(|name| !lost.contains(&name.key)),
    };
    check(history, rules).iter().filter(|breach| counts(breach)).map(describe(history)).collect()
}

fn describe(history: &History) -> impl Fn(&Breach) -> String {
    |breach| match &breach.name {
        Some(name) => format!("{breach}\n{}", history.timeline(name)),
        None => breach.to_string(),
    }
}

/// The number of requests during the load, and of those that succeeded.
pub fn count_requests(history: &History) -> (usize, usize) {
    let during = history.ops.iter().filter(|op| !op.last);
    let succeeded = |op: &&Op| op.succeeded();
    (during.clone().count(), during.filter(succeeded).count())
}

fn millis(duration: std::time::Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap()
}
