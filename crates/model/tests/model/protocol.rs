//! The protocol's model: the possible actions of proxies, upstream, store, time and people.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::breaches::{Breach, Weakness};
use crate::state::{
    Bounds, ClockWatch, OrphanPass, Proxy, Record, Request, ServiceReply, State, Step, Token, Upstream, World,
};

/// The protocol, its bounds, and the promises to check.
#[derive(Debug)]
pub struct Oncegate {
    pub on_unknown: OnUnknown,
    pub proxies: u8,
    pub requests: u8,
    pub bounds: Bounds,
    /// Whether the service may complete its keys by itself, or report that its attempt was not executed.
    pub service_reports: bool,
    pub weakness: Option<Weakness>,
    pub checked: Vec<Breach>,
    /// The action kinds and answer kinds that occurred anywhere, a bit for each.
    pub done: AtomicU64,
    pub answered: AtomicU64,
}

/// The policy for retries of an unknown outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnUnknown {
    Hold,
    RetryWhenQuiet,
    /// The next attempt at once, under the same key at the vendor, while a request may be repeated.
    Vendor,
}

/// An action and its actor: a request (or its attempt, or the upstream with it), a proxy, or 0 for neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action(pub ActionKind, pub u8);

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $kind:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$note])* $kind),* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

kinds! {
    /// A kind of action.
    ActionKind {
        ComeTo0, ComeTo1, ComeTo2,
        Reserve, TakeOver,
        /// The lease has lapsed when the request comes: no attempt starts, and the stored state is answered.
        ReadOnly,
        /// A statement whose reply the proxy does not get. It is executed later, or never.
        LoseReply, ExecutePending,
        /// The time limit of a store call ends.
        GiveUp,
        CheckLease, Write, CannotConnect,
        Execute, Decline, ReceiveResponse, LoseResponse,
        Settle, SettleInBackground,
        Lapse, Renew, Crash,
        Sweep, OrphansListRunning, OrphansReadStore, OrphansRelease,
        /// The attempt's deadline, a lease and the quiet time pass.
        Quiet,
        TtlEnds, Reap,
        ServiceCompletes,
        /// The service reports an attempt as not executed; for an attempt in flight, the report is applied when it has
        /// ended.
        ServiceDenies, ApplyDeferred,
        /// The reconciler inquires, writes the result, or has asked often enough.
        AskService, Resolve, Dead,
        /// An operator who knows the outcome.
        ReconciledExecuted, ReconciledNotExecuted,
        /// An operator says "not executed", at their own risk.
        Risk,
        /// A failover: the store loses an acknowledged reservation.
        LoseReservation,
        /// The store loses the settlement, and not the reservation.
        LoseSettlement,
        /// The store loses an acknowledged takeover: the record before it is back.
        LoseTakeOver,
        /// The store's clock jumps past all times that it has written.
        ClockJumps,
        /// A proxy's heartbeat finds the jump, and has the store hold the ends of TTLs.
        NoticeJump,
        /// A proxy has watched the clock for as long as an attempt may take.
        WatchEnds,
        /// The time ends within which a request may be repeated at the vendor; and the vendor's window, when nothing is
        /// on its way there any more.
        RepeatsEnd, VendorForgets,
        /// The time that the clock has skipped has passed: the TTLs that it ended have truly ended.
        HoldEnds,
    }
}

kinds! {
    /// A kind of answer, by its status field.
    AnswerKind {
        Executed, Replayed, Unstored, Released, InFlight, OutcomeUnknown, Broken, Unreachable, StoreUnavailable,
    }
}

impl ActionKind {
    /// Actions that bring requests to their end: no fault, no new work, and nothing that may never happen.
    pub fn makes_progress(self) -> bool {
        !matches!(
            self,
            Self::ComeTo0
                | Self::ComeTo1
                | Self::ComeTo2
                | Self::LoseReply
                | Self::ExecutePending
                | Self::Lapse
                | Self::Crash
                | Self::TtlEnds
                | Self::Reap
                | Self::Dead
                | Self::Risk
                | Self::LoseReservation
                | Self::LoseSettlement
                | Self::LoseTakeOver
                | Self::ClockJumps
                | Self::RepeatsEnd
                | Self::VendorForgets
        )
    }
}

impl Model for Oncegate {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.bounds)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A request's arrival affects no other actor, so it is one step with its first store call.
        let comes = |request: &Request| request.step == Step::Reserving { doubt: false };
        if let Some(token) = world.requests.iter().position(comes) {
            return self.requests_actions(world, token as u8, actions);
        }
        for token in 0..self.requests {
            self.requests_actions(world, token, actions);
        }
        for proxy in 0..self.proxies {
            self.proxys_actions(world, proxy, actions);
        }
        self.records_actions(world, actions);
    }

    fn next_state(&self, before: &World, Action(what, who): Action) -> Option<World> {
        let mut world = *before;
        self.apply(&mut world, what, who);
        self.done.fetch_or(1 << what as u64, Ordering::Relaxed);
        let world = world.normalized();
        let any = self.is(Weakness::VerdictWithoutToken) || self.is(Weakness::VerdictOverSettled);
        Some(if any { world } else { world.without_stale_reports() })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.checked.iter().map(|breach| breach.property()).collect()
    }
}

impl Oncegate {
    pub fn is(&self, weakness: Weakness) -> bool {
        self.weakness == Some(weakness)
    }

    fn requests_actions(&self, world: &World, token: Token, actions: &mut Vec<Action>) {
        let request = &world.requests[usize::from(token)];
        let mut may = |what| actions.push(Action(what, token));
        let lease = world.proxies.get(usize::from(request.at)).is_some_and(|proxy| proxy.lease);
        let in_doubt = |doubt: bool| !doubt && request.pending.is_none() && world.left.doubts > 0;
        match request.step {
            // Requests arrive in order, at the first proxies that have nothing to do with the key yet: other orders are
            // the same with other names.
            Step::NotYet if token == world.arrived() => {
                let busy = |proxy: u8| {
                    let here = world.requests.iter().any(|request| request.at == proxy);
                    let passes = world.proxies[usize::from(proxy)].orphan_pass != OrphanPass::Idle;
                    here || passes || world.record.is_some_and(|record| record.instance == proxy)
                };
                let watch = |proxy: u8| world.proxies[usize::from(proxy)].watch;
                let is_first_idle = |proxy: u8| {
                    (0..self.proxies).find(|other| !busy(*other) && watch(*other) == watch(proxy)) == Some(proxy)
                };
                for (proxy, what) in
                    (0..self.proxies).zip([ActionKind::ComeTo0, ActionKind::ComeTo1, ActionKind::ComeTo2])
                {
                    if busy(proxy) || is_first_idle(proxy) {
                        may(what);
                    }
                }
            }
            Step::NotYet | Step::Ended => {}
            Step::Reserving { doubt } => {
                may(ActionKind::Reserve);
                if !lease && !doubt {
                    may(ActionKind::ReadOnly);
                }
                if in_doubt(doubt) {
                    may(ActionKind::LoseReply);
                }
                if doubt {
                    may(ActionKind::GiveUp);
                }
                if self.is(Weakness::SendBeforeReserved) && !doubt {
                    may(ActionKind::Write);
                }
            }
            Step::TakingOver { doubt, .. } => {
                may(ActionKind::TakeOver);
                if in_doubt(doubt) {
                    may(ActionKind::LoseReply);
                }
                if doubt {
                    may(ActionKind::GiveUp);
                }
            }
            Step::Reserved => {
                may(ActionKind::CheckLease);
                may(ActionKind::CannotConnect);
            }
            Step::Checked => may(ActionKind::Write),
            Step::Waiting => {
                may(ActionKind::LoseResponse);
                if matches!(request.upstream, Upstream::Executed | Upstream::Declined) {
                    may(ActionKind::ReceiveResponse);
                }
            }
            Step::Settling { doubt, .. } => {
                may(ActionKind::Settle);
                if in_doubt(doubt) {
                    may(ActionKind::LoseReply);
                }
                if doubt {
                    may(ActionKind::GiveUp);
                }
            }
            Step::SettlingInBackground { .. } => may(ActionKind::SettleInBackground),
        }
        if request.upstream == Upstream::Arrived {
            may(ActionKind::Execute);
            may(ActionKind::Decline);
        }
        if self.service_reports
            && world.record.is_some_and(|record| record.token == token && !record.state.is_completed())
        {
            match request.upstream {
                Upstream::Executed => may(ActionKind::ServiceCompletes),
                Upstream::Declined => may(ActionKind::ServiceDenies),
                Upstream::Arrived | Upstream::Nothing => {}
            }
        }
        if request.pending.is_some() {
            may(ActionKind::ExecutePending);
        }
    }

    fn proxys_actions(&self, world: &World, proxy: u8, actions: &mut Vec<Action>) {
        let mut may = |what| actions.push(Action(what, proxy));
        let running = world.running(proxy);
        let in_flight_token = world.in_flight_token(proxy);
        let at = world.proxies[usize::from(proxy)];
        if (running != 0 || in_flight_token.is_some()) && at.lease && world.left.lapses > 0 {
            may(ActionKind::Lapse);
        }
        if !at.lease {
            may(ActionKind::Renew);
        }
        // The restart of an idle proxy matters to its knowledge of the clock.
        let forgets = at.watch == ClockWatch::Unnoticed;
        if (running != 0 || in_flight_token.is_some() || forgets) && world.left.crashes > 0 {
            may(ActionKind::Crash);
        }
        match at.watch {
            ClockWatch::Steady => {}
            ClockWatch::Unnoticed if at.lease => may(ActionKind::NoticeJump),
            ClockWatch::Unnoticed => {}
            ClockWatch::Doubt if self.has_watched_long_enough(world) => may(ActionKind::WatchEnds),
            ClockWatch::Doubt => {}
        }
        match at.orphan_pass {
            // A pass that cannot find anything is left out: an attempt that it releases must have been in flight and
            // not running when it began.
            OrphanPass::Idle => {
                let can_find = in_flight_token.is_some_and(|token| running & 1 << token == 0);
                let weak = in_flight_token.is_some() && self.is(Weakness::OrphansStoreFirst);
                if can_find || weak || (running != 0 && self.is(Weakness::OrphansWithoutAge)) {
                    may(ActionKind::OrphansListRunning);
                }
            }
            OrphanPass::ListedRunning { .. } | OrphanPass::InFlightInStore(_) => may(ActionKind::OrphansReadStore),
            OrphanPass::Found(_) => may(ActionKind::OrphansRelease),
        }
    }

    fn records_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let mut may = |what| actions.push(Action(what, 0));
        let Some(record) = &world.record else { return };
        let attempt = &world.requests[usize::from(record.token)];
        // No pause before the first byte lasts longer than the quiet time, and no upstream works for longer.
        let pauses = attempt.step == Step::Checked
            || (record.is_repeat && world.requests.iter().any(|request| request.step == Step::Checked));
        let pauses = pauses && !self.is(Weakness::PauseOutlastsQuiet);
        if matches!(record.state, State::InFlight | State::Unknown) && !record.quiet && !pauses {
            may(ActionKind::Quiet);
        }
        // A jump ends leases, too: it makes keys unknown early, which is no breach.
        if record.state == State::InFlight && (record.quiet || record.overtaken || world.has_lapsed(record)) {
            may(ActionKind::Sweep);
        }
        let executed = attempt.upstream == Upstream::Executed || world.vendor.executed.is_some();
        if self.on_unknown == OnUnknown::Vendor {
            if !world.vendor.repeats_ended {
                may(ActionKind::RepeatsEnd);
            }
            let is_under_way = |request: &Request| {
                request.upstream == Upstream::Arrived || !matches!(request.step, Step::NotYet | Step::Ended)
            };
            // The rest of the window is longer than any request takes.
            let idle = !world.requests.iter().any(is_under_way);
            if world.vendor.repeats_ended && !world.vendor.has_forgotten && idle {
                may(ActionKind::VendorForgets);
            }
        }
        // Before the quiet time nobody inquires; but an operator who knows that it was executed may say so at once.
        let quiet = self.any_believes(world, Self::believes_quiet, record);
        let may_say = executed || quiet || self.is(Weakness::NotExecutedTooSoon);
        if record.state == State::Unknown && may_say && world.service_reply == ServiceReply::Nothing {
            may(ActionKind::AskService);
        }
        if world.service_reply != ServiceReply::Nothing {
            may(ActionKind::Resolve);
        }
        if record.state == State::Unknown && record.quiet {
            may(ActionKind::Dead);
        }
        if matches!(record.state, State::Dead | State::Unknown) {
            if world.denied == Some(record.token) {
                may(ActionKind::ApplyDeferred);
            }
            if executed {
                may(ActionKind::ReconciledExecuted);
            }
            if !executed && (quiet || self.is(Weakness::NotExecutedTooSoon)) {
                may(ActionKind::ReconciledNotExecuted);
            }
            if world.left.risks > 0 && record.state == State::Unknown {
                may(ActionKind::Risk);
            }
        }
        if record.state == State::InFlight && world.left.losses > 0 {
            may(ActionKind::LoseReservation);
        }
        if record.state == State::InFlight && record.replaced.is_some() && world.left.lost_take_overs > 0 {
            may(ActionKind::LoseTakeOver);
        }
        if record.state != State::InFlight && world.left.lost_settlements > 0 {
            may(ActionKind::LoseSettlement);
        }
        let ends = matches!(record.state, State::Completed(_) | State::Retryable) || self.is(Weakness::TtlOnOpen);
        // A request's store call does not outlast a TTL.
        let still_asks = matches!(attempt.step, Step::Reserving { .. } | Step::TakingOver { .. });
        // Nor does another request's call that read the record before this state, and its TTL, began.
        let outlasts = |request: &Request| match request.step {
            Step::TakingOver { seen, .. } => seen.token != record.token || !record.state.is_named_as(seen.state),
            _ => false,
        };
        let still_asks = still_asks || world.requests.iter().any(outlasts);
        if ends && !still_asks && !record.past_ttl && world.left.ttls > 0 {
            may(ActionKind::TtlEnds);
        }
        if self.any_believes(world, Self::believes_past_ttl, record) {
            may(ActionKind::Reap);
        }
        if world.left.clock_jumps > 0 && !record.overtaken {
            may(ActionKind::ClockJumps);
        }
        if world.ttls_held && record.past_ttl {
            may(ActionKind::HoldEnds);
        }
    }

    /// Whether a proxy in doubt may have watched the clock for as long as an attempt may take: then the attempt from
    /// before the jump is over, and each proxy that can reach the store has noticed the jump.
    fn has_watched_long_enough(&self, world: &World) -> bool {
        let is_over = |record: &Record| record.quiet || !matches!(record.state, State::InFlight | State::Unknown);
        let over = world.record.as_ref().is_none_or(is_over) || self.is(Weakness::WatchTooShort);
        let unnoticed = |proxy: &Proxy| proxy.lease && proxy.watch == ClockWatch::Unnoticed;
        over && !world.proxies[..usize::from(self.proxies)].iter().any(unnoticed)
    }
}
