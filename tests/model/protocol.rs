//! The protocol's model: what proxies, upstream, store, time and people may do next.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::breach::{Breach, Weakness};
use crate::state::{Left, Request, Said, State, Step, Strays, Token, Upstream, World};

/// The protocol, its bounds, and what is checked of it.
#[derive(Debug)]
pub struct Oncegate {
    pub on_unknown: OnUnknown,
    pub proxies: u8,
    pub requests: u8,
    pub bounds: Left,
    /// Whether the service may complete its keys by itself, or say that its attempt was not executed.
    pub service_speaks: bool,
    pub weakness: Option<Weakness>,
    pub checked: Vec<Breach>,
    /// What has happened anywhere: a bit for each kind of action, and one for each kind of answer.
    pub done: AtomicU64,
    pub told: AtomicU64,
}

/// What a retry of an unknown outcome gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnUnknown {
    Hold,
    RetryWhenQuiet,
}

/// Who does what: a request (or its attempt, or the upstream with it), a proxy, or nobody in particular (0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action(pub What, pub u8);

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
    What {
        ComeTo0, ComeTo1, ComeTo2,
        Reserve, TakeOver,
        /// The lease is gone already when the request comes: nothing is begun, what stands there is told.
        LookOnly,
        /// A statement of which the proxy hears nothing. It is carried out later, or never.
        Unanswered, CarriedOut,
        /// The store's time for a call is up.
        GiveUp,
        LookAtLease, Write, CannotConnect,
        Execute, Decline, Hear, Lose,
        Settle, SettleBehind,
        Lapse, Renew, Crash,
        Sweep, StraysLook, StraysAsk, StraysRelease,
        /// The attempt's deadline, a lease and the time to be sure pass.
        Quiet,
        TtlEnds, Reap,
        ServiceCompletes,
        /// The service says "not executed" of an attempt; what was in flight then is carried out when it has ended.
        ServiceDenies, Heed,
        /// The reconciler asks, writes down what it hears, or has asked often enough.
        AskService, Resolve, Dead,
        /// An operator who knows.
        ReconciledExecuted, ReconciledNotExecuted,
        /// An operator says "not executed", at their own risk.
        Risk,
        /// A failover: the store loses a reservation that it has acknowledged.
        Forget,
        /// It loses the settlement, and not the reservation.
        ForgetEnd,
    }
}

kinds! {
    /// A kind of answer, by its status field.
    Told {
        Executed, Replayed, Unstored, Released, InFlight, OutcomeUnknown, Broken, Unreachable, StoreUnavailable,
    }
}

impl What {
    /// What brings things to their end: no fault, no new work, and nothing that may just as well never happen.
    pub fn helps(self) -> bool {
        !matches!(
            self,
            Self::ComeTo0
                | Self::ComeTo1
                | Self::ComeTo2
                | Self::Unanswered
                | Self::CarriedOut
                | Self::Lapse
                | Self::Crash
                | Self::TtlEnds
                | Self::Reap
                | Self::Dead
                | Self::Risk
                | Self::Forget
                | Self::ForgetEnd
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
        // Coming to a proxy is nobody else's business, and so is done in one go with what it asks the store.
        let comes = |request: &Request| request.step == Step::Asking { doubt: false };
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
        self.act(&mut world, what, who);
        self.done.fetch_or(1 << what as u64, Ordering::Relaxed);
        let world = world.normal();
        let any = self.is(Weakness::VerdictWithoutToken) || self.is(Weakness::VerdictOverSettled);
        Some(if any { world } else { world.without_stale_words() })
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
            // They come in order, and to the first proxies that have nothing to do with the key yet: the rest is the same
            // with other names.
            Step::NotYet if token == world.come() => {
                let busy = |proxy: u8| {
                    let here = world.requests.iter().any(|request| request.at == proxy);
                    let passes = world.proxies[usize::from(proxy)].strays != Strays::Idle;
                    here || passes || world.record.is_some_and(|record| record.instance == proxy)
                };
                let first_idle = (0..self.proxies).find(|proxy| !busy(*proxy));
                for (proxy, what) in (0..self.proxies).zip([What::ComeTo0, What::ComeTo1, What::ComeTo2]) {
                    if busy(proxy) || first_idle == Some(proxy) {
                        may(what);
                    }
                }
            }
            Step::NotYet | Step::Ended => {}
            Step::Asking { doubt } => {
                may(What::Reserve);
                if !lease && !doubt {
                    may(What::LookOnly);
                }
                if in_doubt(doubt) {
                    may(What::Unanswered);
                }
                if doubt {
                    may(What::GiveUp);
                }
                if self.is(Weakness::SendBeforeReserved) && !doubt {
                    may(What::Write);
                }
            }
            Step::Taking { doubt, .. } => {
                may(What::TakeOver);
                if in_doubt(doubt) {
                    may(What::Unanswered);
                }
                if doubt {
                    may(What::GiveUp);
                }
            }
            Step::Reserved => may(What::LookAtLease),
            Step::Checked => {
                may(What::Write);
                may(What::CannotConnect);
            }
            Step::Waiting => {
                may(What::Lose);
                if matches!(request.upstream, Upstream::Executed | Upstream::Declined) {
                    may(What::Hear);
                }
            }
            Step::Settling { doubt, .. } => {
                may(What::Settle);
                if in_doubt(doubt) {
                    may(What::Unanswered);
                }
                if doubt {
                    may(What::GiveUp);
                }
            }
            Step::Behind { .. } => may(What::SettleBehind),
        }
        if request.upstream == Upstream::Arrived {
            may(What::Execute);
            may(What::Decline);
        }
        if self.service_speaks
            && world.record.is_some_and(|record| record.token == token && !record.state.is_completed())
        {
            match request.upstream {
                Upstream::Executed => may(What::ServiceCompletes),
                Upstream::Declined => may(What::ServiceDenies),
                Upstream::Arrived | Upstream::Nothing => {}
            }
        }
        if request.pending.is_some() {
            may(What::CarriedOut);
        }
    }

    fn proxys_actions(&self, world: &World, proxy: u8, actions: &mut Vec<Action>) {
        let mut may = |what| actions.push(Action(what, proxy));
        let running = world.running(proxy);
        let standing = world.standing(proxy);
        let at = world.proxies[usize::from(proxy)];
        if (running != 0 || standing.is_some()) && at.lease && world.left.lapses > 0 {
            may(What::Lapse);
        }
        if !at.lease {
            may(What::Renew);
        }
        if (running != 0 || standing.is_some()) && world.left.crashes > 0 {
            may(What::Crash);
        }
        match at.strays {
            // A pass that cannot find anything is left out: what it releases must have been in flight and not running
            // when it began.
            Strays::Idle => {
                let can_find = standing.is_some_and(|token| running & 1 << token == 0);
                let weak = standing.is_some() && self.is(Weakness::StraysStoreFirst);
                if can_find || weak || (running != 0 && self.is(Weakness::StraysWithoutAge)) {
                    may(What::StraysLook);
                }
            }
            Strays::Looked { .. } | Strays::Standing(_) => may(What::StraysAsk),
            Strays::Found(_) => may(What::StraysRelease),
        }
    }

    fn records_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let mut may = |what| actions.push(Action(what, 0));
        let Some(record) = &world.record else { return };
        let attempt = &world.requests[usize::from(record.token)];
        // Nobody pauses for longer before the first byte than it takes to be sure, and no upstream works for longer.
        let pauses = attempt.step == Step::Checked && !self.is(Weakness::PauseOutlastsQuiet);
        if matches!(record.state, State::InFlight | State::Unknown) && !record.quiet && !pauses {
            may(What::Quiet);
        }
        if record.state == State::InFlight && (record.quiet || world.has_lapsed(record)) {
            may(What::Sweep);
        }
        let executed = attempt.upstream == Upstream::Executed;
        // Before it is quiet, nobody asks; but who knows that it was executed knows it at once.
        let may_say = executed || record.quiet || self.is(Weakness::NotExecutedTooSoon);
        if record.state == State::Unknown && may_say && world.said == Said::Nothing {
            may(What::AskService);
        }
        if world.said != Said::Nothing {
            may(What::Resolve);
        }
        if record.state == State::Unknown && record.quiet {
            may(What::Dead);
        }
        if matches!(record.state, State::Dead | State::Unknown) {
            if world.denied == Some(record.token) {
                may(What::Heed);
            }
            if executed {
                may(What::ReconciledExecuted);
            }
            if !executed && (record.quiet || self.is(Weakness::NotExecutedTooSoon)) {
                may(What::ReconciledNotExecuted);
            }
            if world.left.risks > 0 && record.state == State::Unknown {
                may(What::Risk);
            }
        }
        if record.state == State::InFlight && world.left.losses > 0 {
            may(What::Forget);
        }
        if record.state != State::InFlight && world.left.lost_ends > 0 {
            may(What::ForgetEnd);
        }
        let ends = matches!(record.state, State::Completed(_) | State::Retryable) || self.is(Weakness::TtlOnOpen);
        // A request's call of the store does not outlast a TTL.
        let still_asks = matches!(attempt.step, Step::Asking { .. } | Step::Taking { .. });
        // Nor does another's, from a look before this state, and its TTL, began.
        let outlasts = |request: &Request| match request.step {
            Step::Taking { seen, .. } => seen.token != record.token || !record.state.is_named_as(seen.state),
            _ => false,
        };
        let still_asks = still_asks || world.requests.iter().any(outlasts);
        if ends && !still_asks && !record.past_ttl && world.left.ttls > 0 {
            may(What::TtlEnds);
        }
        if record.past_ttl {
            may(What::Reap);
        }
    }
}
