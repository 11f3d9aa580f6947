//! A run: load, faults, rest, every key asked once more, and the checker's word.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checker::{Policy, Rules, check};
use crate::clients::Crowd;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::history::{History, Meaning, Name, Op};
use crate::service::Service;
use crate::site::{LEASE, On, SWEEP, Site};

/// What a busy machine takes, beside what the promise allows.
const SLACK: Duration = Duration::from_millis(600);

/// How much longer a run may last until each fault has struck.
const OVERTIME: Duration = Duration::from_secs(20);

/// How long at most nothing is broken after a fault, or twice that.
const REPOSE_MAX: Duration = Duration::from_millis(1_500);

/// Breaches that are told with their whole story; one fault of ours is mostly many breaches.
const STORIES_MAX: usize = 4;

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub on: On,
    pub proxies: usize,
    pub clients: usize,
    pub policy: Policy,
    /// What strikes, and how often at least.
    pub faults: Vec<(Fault, usize)>,
    /// How many faults there may be at once.
    pub at_once: usize,
    pub lasts: Duration,
}

/// What a run came to, for tests that want more than the rules.
#[derive(Debug)]
pub struct Report {
    /// Keys that were executed more than once, each time by the route's leave.
    pub repeated: usize,
    /// Keys of which nobody knew, and then it was known: the late answer was taken.
    #[expect(dead_code, reason = "told in the summary")]
    pub resolved: usize,
    /// Requests that have felt the store's trouble.
    pub troubled: usize,
}

impl Plan {
    /// Three proxies on PostgreSQL that never repeat, for so many seconds.
    pub fn new(on: On, seconds: u64) -> Self {
        let proxies = if on == On::Sqlite { 1 } else { 3 };
        let lasts = Duration::from_secs(seconds);
        Self { on, proxies, clients: 24, policy: Policy::Hold, faults: Vec::new(), at_once: 1, lasts }
    }

    /// The run's length, where it is said from outside.
    pub fn seconds_from(mut self, variable: &str) -> Self {
        if let Ok(seconds) = std::env::var(variable) {
            self.lasts = Duration::from_secs(seconds.parse().expect("whole seconds"));
        }
        self
    }

    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    pub fn at_once(self, at_once: usize) -> Self {
        Self { at_once, ..self }
    }

    pub fn strikes(mut self, fault: Fault, quota: usize) -> Self {
        self.faults.push((fault, quota));
        self
    }

    /// Makes the run. Panics with the breaches and their stories, if there are any.
    pub async fn run(self) -> Report {
        let seed = seed();
        eprintln!("seed {seed:#x}: {self:?}");
        let (mut dice, begun) = (Dice::new(seed), Instant::now());
        let service = Service::start(dice.split(), begun).await;
        let site = Arc::new(Site::start(self.on, self.proxies, self.policy, service.address).await);
        let crowd = Crowd::new(Arc::clone(&site.addresses), begun);
        let mut clients = crowd.start(self.clients, &mut dice);
        let faults = self.strike(&site, &mut dice).await;
        let over = Instant::now();
        // The service holds nobody up any more, and the load goes on for a while where nothing breaks.
        service.calm_down();
        sleep(LEASE).await;
        crowd.stop();
        join(&mut clients).await;
        sleep_until(over + LEASE + 2 * SWEEP + SLACK).await;
        crowd.ask_all_again(&mut dice).await;
        let unknown = site.close().await;
        let states = site.store.states().await;
        let history = History { ops: crowd.ops(), effects: service.effects(), unknown, faults };
        let report = report(&history);
        eprintln!("{}", summary(seed, begun.elapsed(), &history, &report));
        self.judge(&history);
        assert!(!states.iter().any(|state| state == "in_flight"), "the store has a key that is in flight: {states:?}");
        report
    }

    /// Strikes until the time is up and each fault has struck often enough.
    async fn strike(&self, site: &Arc<Site>, dice: &mut Dice) -> BTreeMap<String, usize> {
        let struck = Arc::new(Mutex::new(BTreeMap::new()));
        let mut hands = JoinSet::new();
        for _ in 0..self.at_once {
            let (plan, site, struck, dice) = (self.clone(), Arc::clone(site), Arc::clone(&struck), dice.split());
            hands.spawn(async move { plan.hand(&site, &struck, dice).await });
        }
        join(&mut hands).await;
        struck.lock().unwrap().clone()
    }

    async fn hand(&self, site: &Site, struck: &Mutex<BTreeMap<String, usize>>, mut dice: Dice) {
        let begun = Instant::now();
        loop {
            sleep(dice.millis(300, 1_000)).await;
            let missing: Vec<_> = {
                let struck = struck.lock().unwrap();
                let times = |fault: &Fault| struck.get(&format!("{fault:?}")).copied().unwrap_or(0);
                self.faults.iter().filter(|(fault, quota)| times(fault) < *quota).copied().collect()
            };
            let over = begun.elapsed() > self.lasts;
            // The quotas are the checker's business; a machine that is so slow is told so by it.
            if over && (missing.is_empty() || begun.elapsed() > self.lasts + OVERTIME) {
                return;
            }
            let (fault, _) = *dice.one_of(if missing.is_empty() { &self.faults } else { &missing });
            let struck_at = Instant::now();
            *struck.lock().unwrap().entry(format!("{fault:?}")).or_insert(0) += 1;
            fault.strike(site, &mut dice).await;
            // Longer in order than it was out of order, once all have struck: nothing breaks where nothing works.
            let repose = struck_at.elapsed().min(REPOSE_MAX);
            sleep(if missing.is_empty() { 2 * repose } else { repose }).await;
        }
    }

    fn judge(&self, history: &History) {
        let quotas = self.faults.iter().map(|(fault, quota)| (format!("{fault:?}"), *quota)).collect();
        let breaches = check(history, &Rules { policy: self.policy, quotas });
        if breaches.is_empty() {
            return;
        }
        let mut told = format!("{} breaches\n", breaches.len());
        for breach in &breaches {
            writeln!(told, "{breach}").unwrap();
        }
        let mut names: Vec<&Name> = breaches.iter().filter_map(|breach| breach.name.as_ref()).collect();
        names.dedup();
        for name in names.into_iter().take(STORIES_MAX) {
            write!(told, "{name}\n{}", history.story(name)).unwrap();
        }
        panic!("{told}");
    }
}

async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// From `ONCEGATE_SEED`, to have the same faults once more; else by chance.
fn seed() -> u64 {
    match std::env::var("ONCEGATE_SEED") {
        Ok(told) => u64::from_str_radix(told.trim_start_matches("0x"), 16).expect("a seed in hex"),
        Err(_) => getrandom::u64().unwrap(),
    }
}

fn report(history: &History) -> Report {
    let mut keys: BTreeMap<&Name, (usize, bool, bool)> = BTreeMap::new();
    for effect in &history.effects {
        keys.entry(&effect.name).or_default().0 += 1;
    }
    let mut ops: Vec<_> = history.ops.iter().collect();
    ops.sort_by_key(|op| op.returned);
    for op in ops {
        let (_, unknown, resolved) = keys.entry(&op.name).or_default();
        *unknown |= op.meaning() == Some(Meaning::Unknown);
        *resolved |= *unknown && op.acknowledges();
    }
    let repeated = keys.values().filter(|(effects, ..)| *effects > 1).count();
    let resolved = keys.values().filter(|(_, _, resolved)| *resolved).count();
    let trouble = |op: &&Op| matches!(op.meaning(), Some(Meaning::Rejected | Meaning::Unstored));
    Report { repeated, resolved, troubled: history.ops.iter().filter(trouble).count() }
}

/// What happened, in a few lines.
fn summary(seed: u64, lasted: Duration, history: &History, report: &Report) -> String {
    let mut meanings: BTreeMap<String, usize> = BTreeMap::new();
    for op in history.ops.iter().filter(|op| !op.last) {
        *meanings.entry(op.meaning().map_or("NoAnswer".to_owned(), |one| format!("{one:?}"))).or_default() += 1;
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let executed: std::collections::BTreeSet<_> = history.effects.iter().map(|effect| &effect.name).collect();
    let mut spurious = 0;
    for op in history.ops.iter().filter(|op| op.last) {
        *ends.entry(op.meaning().map_or("NoAnswer".to_owned(), |one| format!("{one:?}"))).or_default() += 1;
        spurious += usize::from(op.meaning() == Some(Meaning::Unknown) && !executed.contains(&op.name));
    }
    let during: usize = meanings.values().sum();
    let succeeded = history.ops.iter().filter(|op| !op.last && op.acknowledges()).count();
    format!(
        "seed {seed:#x}, {lasted:.1?}: faults {:?}\n  requests {during}, {} % succeeded: {meanings:?}\n  \
         keys {}, effects {}; at the end {ends:?}, of the unknown {spurious} never executed; {report:?}",
        history.faults,
        succeeded * 100 / during.max(1),
        ends.values().sum::<usize>(),
        history.effects.len(),
    )
}
