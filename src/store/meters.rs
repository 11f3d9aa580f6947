//! How long calls of the store take, and which fail.

use super::StoreError;
use crate::telemetry::metrics::{Counters, Histograms, label};

label!(
    /// A call of the store, by the name of its method.
    Op, "op", {
        /// [`super::Store::bury`]
        Bury => "bury",
        /// [`super::Store::claim`]
        Claim => "claim",
        /// [`super::Store::enqueue`]
        Enqueue => "enqueue",
        /// [`super::Store::find`]
        Find => "find",
        /// [`super::Store::page`]
        Page => "page",
        /// [`super::Store::pick_up`]
        PickUp => "pick_up",
        /// [`super::Store::ping`]
        Ping => "ping",
        /// [`super::Store::reap`]
        Reap => "reap",
        /// [`super::Store::renew`]
        Renew => "renew",
        /// [`super::Store::reserve`]
        Reserve => "reserve",
        /// [`super::Store::resolve`]
        Resolve => "resolve",
        /// [`super::Store::retire`]
        Retire => "retire",
        /// [`super::Store::rules`]
        Rules => "rules",
        /// [`super::Store::settle`]
        Settle => "settle",
        /// [`super::Store::standing`]
        Standing => "standing",
        /// [`super::Store::sweep`]
        Sweep => "sweep",
        /// [`super::Store::take_over`]
        TakeOver => "take_over",
    }
);

/// What is counted of calls that were made; what the breaker refuses is none.
#[derive(Clone, Debug, Default)]
pub struct StoreMeters {
    /// How long they took, whatever came of them.
    pub durations: Histograms<Op>,
    /// Those that failed.
    pub errors: Counters<Op>,
}

impl StoreMeters {
    /// A call is over.
    pub(super) fn count<T>(&self, op: Op, begun: tokio::time::Instant, answer: &Result<T, StoreError>) {
        self.durations.observe(op, begun.elapsed());
        if answer.is_err() {
            self.errors.count(op);
        }
    }
}
