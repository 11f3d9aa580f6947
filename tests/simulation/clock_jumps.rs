//! Whether the store was told of each jump of its clock that ends TTLs. One that nobody tells it cannot be told from a
//! long stop of all processes.

use std::sync::Mutex;
use std::time::SystemTime;

/// The jumps, in their order.
#[derive(Debug, Default)]
pub struct ClockJumps(Mutex<Vec<ClockJump>>);

#[derive(Debug)]
struct ClockJump {
    /// The store's time after it.
    to: SystemTime,
    /// Whether the store holds the ends of TTLs because of it.
    is_told: bool,
    /// The same of the replica.
    was_told: bool,
}

impl ClockJumps {
    /// Notes a jump to that time.
    pub fn add(&self, to: SystemTime) {
        self.0.lock().unwrap().push(ClockJump { to, is_told: false, was_told: false });
    }

    /// Notes that the store holds the ends of TTLs until then. A hold that lasts longer than the time of the last jump
    /// is its own: those of earlier ones have ended before it.
    pub fn tell(&self, held_until: SystemTime) {
        self.0
            .lock()
            .unwrap()
            .last_mut()
            .filter(|jump| held_until > jump.to)
            .into_iter()
            .for_each(|jump| jump.is_told = true);
    }

    /// Begins the lag of the replica.
    pub fn begin_lag(&self) {
        self.0.lock().unwrap().iter_mut().for_each(|jump| jump.was_told = jump.is_told);
    }

    /// Fails over to the replica.
    pub fn fail_over(&self) {
        self.0.lock().unwrap().iter_mut().for_each(|jump| jump.is_told = jump.was_told);
    }

    /// Whether the store has not, or no longer, been told of one of the jumps.
    pub fn is_any_untold(&self) -> bool {
        self.0.lock().unwrap().iter().any(|jump| !jump.is_told)
    }
}
