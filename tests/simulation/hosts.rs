//! The hosts of a simulation. Each has a single-threaded runtime with paused time, and all of them run on the calling
//! thread, one after the other: a host that is not run is a stopped process, and a host
//! that is dropped is a killed one.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use oncegate_machine::SimulatedMachine;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, advance, sleep_until};

use crate::seeded_random::SeededRandom;

/// The time of a simulation in milliseconds since its beginning.
pub type Millis = u64;

/// The machines started long before the simulation.
const BOOT_MILLIS: u64 = 1_000_000;

thread_local! {
    /// The time where no host is running.
    static TIME: Cell<Millis> = const { Cell::new(0) };
    static CURRENT: Cell<Option<HostClock>> = const { Cell::new(None) };
    static RANDOM: RefCell<SeededRandom> = RefCell::new(SeededRandom::new(0));
}

/// A host's own clock, beside the time of the simulation.
#[derive(Clone, Copy)]
struct HostClock {
    started: Instant,
    started_at: Millis,
}

/// A process with its own runtime.
pub struct Host {
    runtime: Runtime,
    clock: HostClock,
    reached: Millis,
    random: SeededRandom,
}

/// Makes the calling thread the machine of all hosts.
pub fn install_machine() {
    let machine = SimulatedMachine {
        boot_millis: || BOOT_MILLIS + now(),
        fill_random: |bytes| {
            RANDOM.with_borrow_mut(|random| {
                for piece in bytes.chunks_mut(8) {
                    piece.copy_from_slice(&random.next_u64().to_le_bytes()[..piece.len()]);
                }
            });
        },
    };
    machine.install();
}

/// The time of the running host, or of the simulation.
pub fn now() -> Millis {
    match CURRENT.get() {
        Some(clock) => clock.started_at + u64::try_from(clock.started.elapsed().as_millis()).unwrap(),
        None => TIME.get(),
    }
}

/// The same as a duration.
pub fn elapsed() -> Duration {
    Duration::from_millis(now())
}

/// Sets the time of the simulation.
pub fn set_time(time: Millis) {
    TIME.set(time);
}

impl Host {
    /// A process that starts now, with random numbers of its own.
    pub fn start(random: SeededRandom) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let started = runtime.block_on(async { Instant::now() });
        let clock = HostClock { started, started_at: TIME.get() };
        Self { runtime, clock, reached: clock.started_at, random }
    }

    /// Starts a task. It begins when the host runs.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Runs all tasks until that time. If the host was stopped, all its timers of the time before are due at once.
    pub fn run_until(&mut self, time: Millis) {
        let (was_stopped, clock) = (self.reached < TIME.get(), self.clock);
        let (left, until) = (time - self.reached, clock.started + Duration::from_millis(time - clock.started_at));
        self.enter(|runtime| {
            runtime.block_on(async {
                if was_stopped {
                    advance(Duration::from_millis(left)).await;
                }
                sleep_until(until).await;
            });
        });
        self.reached = time;
    }

    /// Ends the process wherever its tasks are waiting.
    pub fn kill(self) {
        CURRENT.set(Some(self.clock));
        drop(self.runtime);
        CURRENT.set(None);
    }

    fn enter(&mut self, run: impl FnOnce(&Runtime)) {
        CURRENT.set(Some(self.clock));
        RANDOM.with_borrow_mut(|random| std::mem::swap(random, &mut self.random));
        run(&self.runtime);
        RANDOM.with_borrow_mut(|random| std::mem::swap(random, &mut self.random));
        CURRENT.set(None);
    }
}
