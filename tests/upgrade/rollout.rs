//! A run: load while instances of two versions start and end, every key sent once more, and the checker's result.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::checker::{Breach, Policy, Rules, check};
use crate::clients::ClientPool;
use crate::history::{AnswerKind, History, Op, TargetRoute};
use crate::seeded_random::SeededRandom;
use crate::service::Service;
use crate::versions::Version;
use harness::{Proxy, Store};

const CLIENTS: usize = 12;

/// The load after each step.
const LOAD: Duration = Duration::from_secs(3);

/// The default `store.lease.expiry`, and two passes of the sweeper, after which no key is in flight.
const QUIET: Duration = Duration::from_secs(10 + 3);

/// Shorter than the patience of any client: a request that ends so early without an answer has found no instance.
const AT_ONCE: Duration = Duration::from_millis(5);

/// The exit code of a start whose store is unusable.
const STORE_UNUSABLE: i32 = 69;

pub struct Rollout {
    store: Store,
    service: Service,
    instances: Vec<Instance>,
    addresses: Arc<RwLock<Vec<SocketAddr>>>,
    clients: Arc<ClientPool>,
    running: JoinSet<()>,
    random: SeededRandom,
    begun: Instant,
    steps: Vec<(Duration, String)>,
    /// The number of migrations that the old version has.
    old_migrations: usize,
    /// The messages of the instances' warnings and errors, with their version.
    complaints: BTreeSet<String>,
}

struct Instance {
    proxy: Proxy,
    version: Version,
}

/// An instance's place in the run.
#[derive(Clone, Copy)]
pub struct InstanceAddress(SocketAddr);

/// What a step cost the clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub requests: usize,
    /// Answers of Oncegate that the store or the drain stood in the way.
    pub refused: usize,
    /// Requests that found no instance.
    pub unconnected: usize,
    pub slowest: Duration,
}

/// The cost of each step as a table with the instances' warnings, and of all together.
pub struct RolloutReport {
    pub table: String,
    pub cost: Cost,
}

impl Rollout {
    /// Starts this many instances of a version, and the load.
    pub async fn start(step: &str, store: Store, version: Version, instances: usize) -> Self {
        let (mut random, begun) = (SeededRandom::new(getrandom::u64().unwrap()), Instant::now());
        let service = Service::start(random.split(), begun).await;
        let addresses = Arc::new(RwLock::new(Vec::new()));
        let mut rollout = Self {
            store,
            service,
            instances: Vec::new(),
            clients: ClientPool::new(Arc::clone(&addresses), &[TargetRoute::Pay], begun),
            addresses,
            running: JoinSet::new(),
            random,
            begun,
            steps: Vec::new(),
            old_migrations: 0,
            complaints: BTreeSet::new(),
        };
        for _ in 0..instances {
            rollout.add(version).await;
        }
        rollout.old_migrations = rollout.store.migrations().await;
        rollout.step(step);
        rollout.running = rollout.clients.start(CLIENTS, &mut rollout.random);
        rollout.load().await;
        rollout
    }

    /// Names what happens from now on.
    pub fn step(&mut self, name: &str) {
        eprintln!("{name} …");
        self.steps.push((self.begun.elapsed(), name.to_owned()));
    }

    /// Lets the load run for a while.
    pub async fn load(&self) {
        sleep(LOAD).await;
    }

    /// Starts an instance, and sends clients to it.
    pub async fn add(&mut self, version: Version) -> InstanceAddress {
        let proxy = version.setup(&self.store.url(), self.service.address).start().await;
        let address = InstanceAddress(proxy.listen);
        self.instances.push(Instance { proxy, version });
        self.route_clients();
        address
    }

    /// Sends no more clients to an instance, and drains it.
    pub async fn remove(&mut self, address: InstanceAddress) {
        let place = self.instances.iter().position(|instance| instance.proxy.listen == address.0).unwrap();
        let instance = self.instances.remove(place);
        if !self.instances.is_empty() {
            self.route_clients();
        }
        self.end(&instance).await;
    }

    /// Starts an instance of one version, and then ends one of the other.
    pub async fn replace_one(&mut self, from: Version, to: Version) {
        let replaced = self.instances.iter().find(|instance| instance.version == from).unwrap().proxy.listen;
        self.add(to).await;
        self.remove(InstanceAddress(replaced)).await;
    }

    /// Ends all instances, and then starts one of this version.
    pub async fn exchange_all(&mut self, version: Version) {
        assert!(self.try_exchange_all(version).await, "{version:?} does not start");
    }

    /// The same where this version may refuse the store. Then the other version starts again.
    pub async fn try_exchange_all(&mut self, version: Version) -> bool {
        for instance in std::mem::take(&mut self.instances) {
            self.end(&instance).await;
        }
        let starts = self.starts(version).await;
        self.add(if starts { version } else { version.other() }).await;
        starts
    }

    /// Applies the migration of a version after the new one, by hand: a column more, and a table less where it
    /// `contracts`. Such a step names the program before it as the oldest, or itself.
    pub async fn migrate_further(&self, contracts: bool) {
        let Store::Postgres(database) = &self.store else {
            unreachable!("an embedded store has one version at a time")
        };
        let (change, oldest) = match contracts {
            true => ("alter table oncegate.keys drop column later", "version + 1"),
            false => ("alter table oncegate.keys add column later text", "version"),
        };
        let sql = format!(
            "begin; {change};
             insert into oncegate.migrations (version, name, oldest_program, sha256)
             select version + 1, 'step_' || version + 1, {oldest}, sha256 from oncegate.migrations order by version desc limit 1;
             commit"
        );
        database.client().await.batch_execute(&sql).await.unwrap();
    }

    /// Whether a version starts on the store; if not, it must say that the schema is newer.
    pub async fn starts(&mut self, version: Version) -> bool {
        let setup = version.setup(&self.store.url(), self.service.address);
        match setup.try_start().await {
            Ok(proxy) => {
                assert_eq!(proxy.stop().await, Some(0));
                true
            }
            Err(code) => {
                assert_eq!(code, Some(STORE_UNUSABLE));
                let refusal = setup.fails().await.stderr;
                let line = refusal.lines().find(|line| line.contains("newer"));
                eprintln!(
                    "{version:?} does not start: {}",
                    line.unwrap_or_else(|| panic!("no line says why: {refusal}"))
                );
                false
            }
        }
    }

    fn route_clients(&self) {
        *self.addresses.write().unwrap() = self.instances.iter().map(|instance| instance.proxy.listen).collect();
    }

    async fn end(&mut self, instance: &Instance) {
        assert_eq!(instance.proxy.stop().await, Some(0), "{:?} does not end as it should", instance.version);
        for line in instance.proxy.logged() {
            if line["level"] == "WARN" || line["level"] == "ERROR" {
                self.complaints.insert(format!("{:?} {} {}", instance.version, line["level"], line["message"]));
            }
        }
    }

    /// Ends the load, sends every key once more, checks the history, and reports what each step cost.
    pub async fn finish(mut self) -> RolloutReport {
        self.step("the load has ended");
        self.service.stop_misbehaving();
        self.clients.stop();
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap();
        }
        sleep(QUIET).await;
        self.clients.repeat_every_key(&mut self.random).await;
        for instance in std::mem::take(&mut self.instances) {
            self.end(&instance).await;
        }
        let history = History {
            ops: self.clients.take_ops(),
            effects: self.service.effects(),
            service_calls: self.service.calls(),
            ..History::default()
        };
        let breaches = check(&history, &Rules { policy: Policy::Hold, quotas: Vec::new() });
        let mut table =
            "| step | requests | refused | without an instance | slowest answer |\n|---|---|---|---|---|\n".to_owned();
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([Duration::MAX]);
        for ((from, name), to) in self.steps.iter().zip(ends) {
            let Cost { requests, refused, unconnected, slowest } = cost(&history.ops, *from, to);
            let slowest = slowest.as_millis();
            table.push_str(&format!("| {name} | {requests} | {refused} | {unconnected} | {slowest} ms |\n"));
        }
        let added = self.store.migrations().await - self.old_migrations;
        table.push_str(&format!("{added} migrations came to the {} of the old version\n", self.old_migrations));
        table.extend(self.complaints.iter().map(|complaint| format!("{complaint}\n")));
        let states = self.store.states().await;
        table.push_str(&format!("{} keys, {} effects\n", states.len(), history.effects.len()));
        let timeline = |breach: &Breach| breach.name.as_ref().map(|name| history.timeline(name)).unwrap_or_default();
        let told: Vec<_> = breaches.iter().take(4).map(|breach| format!("{breach}\n{}", timeline(breach))).collect();
        assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), told.join("\n"));
        assert!(!states.iter().any(|state| state == "in_flight"), "a key is in flight for ever");
        RolloutReport { table, cost: cost(&history.ops, Duration::ZERO, Duration::MAX) }
    }
}

/// What the requests of this time met.
fn cost(ops: &[Op], from: Duration, to: Duration) -> Cost {
    ops.iter().filter(|op| (from..to).contains(&op.invoked)).fold(Cost::default(), |cost, op| {
        let took = op.returned - op.invoked;
        let is_lost = op.answer.is_none() && took < AT_ONCE;
        Cost {
            requests: cost.requests + 1,
            refused: cost.refused + usize::from(op.kind() == Some(AnswerKind::Rejected)),
            unconnected: cost.unconnected + usize::from(is_lost),
            slowest: if op.answer.is_some() { cost.slowest.max(took) } else { cost.slowest },
        }
    })
}
