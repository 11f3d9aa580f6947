//! The world of one key at one moment: the record, the requests, the proxies, and the history needed to judge it.

use crate::breaches::Breaches;

/// Requests and attempts have one number: the request's token, if it becomes an attempt.
pub type Token = u8;

/// The maximum number of requests in a world; the number that comes is a bound.
pub const REQUESTS: usize = 3;
/// The maximum number of proxies in a world.
pub const PROXIES: usize = 3;
/// A dead instance. Its row may remain for a while; a lease may lapse at any moment.
pub const GONE: u8 = u8::MAX;

/// The complete state. Small and `Copy`: there are hundreds of thousands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub record: Option<Record>,
    pub requests: [Request; REQUESTS],
    pub proxies: [Proxy; PROXIES],
    /// The service's reply to an inquiry that the reconciler has not written yet.
    pub service_reply: ServiceReply,
    /// The attempt that the service reported as not executed while it was in flight.
    pub denied: Option<Token>,
    /// The vendor behind the upstream.
    pub vendor: VendorMemory,
    /// Whether the store holds the ends of TTLs back: an instance has seen its clock jump.
    pub ttls_held: bool,
    pub left: Bounds,
    pub life: Life,
    pub breaches: Breaches,
}

/// A vendor that executes a key once while it remembers it. Other upstreams remember nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VendorMemory {
    /// The attempt that it has executed; each later one gets the same response.
    pub executed: Option<Token>,
    /// Whether the time has ended within which a request may be repeated. It is shorter than the vendor's window.
    pub repeats_ended: bool,
    /// Whether its window has ended: it remembers nothing.
    pub has_forgotten: bool,
}

/// The row in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub token: Token,
    /// The instance under whose lease it is in flight.
    pub instance: u8,
    pub state: State,
    pub past_ttl: bool,
    /// Whether the attempt's deadline, a lease and the quiet time have passed.
    pub quiet: bool,
    /// Whether the store's clock was set forward since it wrote the record's times: by that
    /// clock all of them have passed.
    pub overtaken: bool,
    /// Whether its attempt repeats one of unknown outcome.
    pub is_repeat: bool,
    /// The attempt and state before the newest takeover, where a failover may bring them back.
    pub replaced: Option<(Token, State)>,
}

/// The service's reply to an inquiry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServiceReply {
    Nothing,
    Executed(Token),
    Absent(Token),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    InFlight,
    Completed(Body),
    /// The inquiries were given up.
    Dead,
    Retryable,
    Unknown,
}

/// A response, distinguished by its origin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The upstream's response, with this attempt's effect in it.
    Answered(Token),
    /// The service's or a reconciliation's own response about that effect.
    ServiceReply(Token),
}

impl Body {
    pub fn token(self) -> Token {
        let (Self::Answered(token) | Self::ServiceReply(token)) = self;
        token
    }
}

/// A client's request or a retry of it: to the proxies they are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Its proxy; meaningless before it has come and after it has ended.
    pub at: u8,
    pub step: Step,
    /// A statement without a reply, which may still be executed.
    pub pending: Option<Statement>,
    pub upstream: Upstream,
    /// Whether the attempt's deadline has passed, by the proxy's clock, which counts pauses too.
    pub late: bool,
    /// The attempt whose record its takeover replaced, where a failover may lose the takeover.
    pub taken_from: Option<Token>,
    /// The key's life in which its attempt began.
    pub life: u8,
    /// Whether a settlement was stored that says that it may have executed. Its proxy remembers that.
    pub acted: bool,
}

/// A request's progress, in the order of the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    NotYet,
    /// Reserving; `doubt`: an earlier try may have been executed.
    Reserving {
        doubt: bool,
    },
    /// Taking over the record that it has read.
    TakingOver {
        seen: ExpectedRecord,
        doubt: bool,
    },
    /// The reservation is durable, and nothing is sent; the connection to the upstream is made.
    Reserved,
    /// The lease was checked again on the open connection; the first byte is sent next, possibly after a pause.
    Checked,
    /// Bytes have been sent.
    Waiting,
    /// The attempt has ended and is being settled.
    Settling {
        outcome: Outcome,
        doubt: bool,
    },
    /// The client has its answer; a settlement that could not be stored is retried.
    SettlingInBackground {
        outcome: Outcome,
    },
    Ended,
}

/// An attempt's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// A complete response with an effect in it.
    Answered,
    /// A complete response that says that the upstream has done nothing.
    Declined,
    /// The lease had lapsed before the first byte.
    Abandoned,
    /// The connection failed.
    NeverSent,
    /// The connection broke, or the response was late.
    Broken,
}

/// The record that a takeover expects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpectedRecord {
    pub token: Token,
    pub state: State,
    pub past_ttl: bool,
    /// Whether a jump of the clock had ended its TTL by then. A TTL that was written since then ends later.
    pub overtaken: bool,
}

/// A statement that the store may still execute after its caller gave up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Statement {
    Reserve,
    TakeOver(ExpectedRecord),
    Settle(Outcome),
}

/// The request's state at the upstream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Upstream {
    Nothing,
    /// In transit or in work.
    Arrived,
    Executed,
    Declined,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Proxy {
    pub lease: bool,
    pub watch: ClockWatch,
    pub orphan_pass: OrphanPass,
}

/// An instance's knowledge of the store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClockWatch {
    /// It has watched the clock for as long as an attempt may take, and saw no jump.
    Steady,
    /// The clock has jumped since its last heartbeat.
    Unnoticed,
    /// It has noticed a jump, or has just started: it has not watched the clock for long enough.
    Doubt,
}

/// The progress of the pass that releases orphaned attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OrphanPass {
    Idle,
    /// It has listed the running attempts, when this many requests had come.
    ListedRunning {
        running: u8,
        arrived: u8,
    },
    /// With a weakness: it read this attempt from the store first.
    InFlightInStore(Token),
    /// It releases this attempt.
    Found(Token),
}

/// The remaining bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bounds {
    pub crashes: u8,
    pub lapses: u8,
    /// Statements whose replies are lost.
    pub doubts: u8,
    pub ttls: u8,
    pub risks: u8,
    /// Acknowledged reservations that the store loses.
    pub losses: u8,
    /// Acknowledged settlements that the store loses, and not their reservations.
    pub lost_settlements: u8,
    /// Acknowledged takeovers that the store loses: the record before them is back.
    pub lost_take_overs: u8,
    /// Jumps forward of the store's clock, past every time that it has written.
    pub clock_jumps: u8,
}

/// The key's current life, one TTL long, as an omniscient observer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life {
    pub number: u8,
    /// The number of effects of each life's attempts.
    pub effects: [u8; 2],
    /// The answer that was promised to be replayed.
    pub promised: Option<Body>,
    /// Whether a client got it as the first answer.
    pub first: bool,
    /// Whether the store has acknowledged a settlement with a response.
    pub response_stored: bool,
}

const NEW_PROXY: Proxy = Proxy { lease: true, watch: ClockWatch::Steady, orphan_pass: OrphanPass::Idle };

impl World {
    pub fn new(left: Bounds) -> Self {
        let request = Request {
            at: GONE,
            step: Step::NotYet,
            pending: None,
            upstream: Upstream::Nothing,
            late: false,
            taken_from: None,
            life: 0,
            acted: false,
        };
        Self {
            record: None,
            requests: [request; REQUESTS],
            proxies: [NEW_PROXY; PROXIES],
            service_reply: ServiceReply::Nothing,
            denied: None,
            vendor: VendorMemory { executed: None, repeats_ended: false, has_forgotten: false },
            ttls_held: false,
            left,
            life: Life { number: 0, effects: [0; 2], promised: None, first: false, response_stored: false },
            breaches: Breaches::default(),
        }
    }

    pub fn arrived(&self) -> u8 {
        self.requests.iter().filter(|request| request.step != Step::NotYet).count() as u8
    }

    /// The requests that run at a proxy, as bits: its in-flight registry.
    pub fn running(&self, proxy: u8) -> u8 {
        let here = |request: &Request| request.is_running() && request.at == proxy;
        (0..REQUESTS).filter(|token| here(&self.requests[*token])).map(|token| 1 << token).sum()
    }

    /// The attempt in flight under a proxy's name.
    pub fn in_flight_token(&self, proxy: u8) -> Option<Token> {
        self.record.filter(|record| record.state == State::InFlight && record.instance == proxy).map(|r| r.token)
    }

    /// Whether the attempt in flight may be swept because its lease has lapsed.
    pub fn has_lapsed(&self, record: &Record) -> bool {
        self.proxies.get(usize::from(record.instance)).is_none_or(|proxy| !proxy.lease)
    }

    /// Whether the record is the one that this attempt's takeover replaced: a failover has lost the takeover, and no
    /// other attempt has begun since.
    pub fn lost_take_over_of(&self, token: Token) -> bool {
        let taken_from = self.requests[usize::from(token)].taken_from;
        let back = |record: &Record| {
            taken_from == Some(record.token) && matches!(record.state, State::Retryable | State::Unknown)
        };
        self.record.as_ref().is_some_and(back)
    }

    /// Whether another attempt has the record, so that the store owes nothing to this attempt's settlement.
    pub fn is_superseded(&self, token: Token) -> bool {
        self.record.is_some_and(|record| record.token != token) && !self.lost_take_over_of(token)
    }

    /// Whether nothing is open: no request waits, and the next one gets a stored answer or becomes the next attempt.
    pub fn is_settled(&self) -> bool {
        let open = |record: &Record| matches!(record.state, State::Dead | State::InFlight | State::Unknown);
        !self.record.as_ref().is_some_and(open) && !self.requests.iter().any(Request::is_running)
    }

    /// The same world without reports about an attempt that is not the newest any more, or has its response.
    pub fn without_stale_reports(mut self) -> Self {
        if let ServiceReply::Executed(token) | ServiceReply::Absent(token) = self.service_reply
            && self.record.is_none_or(|record| record.token != token || matches!(record.state, State::Completed(_)))
        {
            self.service_reply = ServiceReply::Nothing;
        }
        self
    }

    /// The same world without state that can make no difference any more, and with the proxies numbered in the order of
    /// their requests: they are interchangeable.
    pub fn normalized(mut self) -> Self {
        let newest = self.record.map(|record| record.token);
        let in_flight = self.record.is_some_and(|record| record.state == State::InFlight);
        let ends_may_be_lost = self.left.lost_settlements > 0;
        for (token, request) in (0..).zip(&mut self.requests) {
            // The deadline is checked before the first byte, and not again.
            request.late &= request.is_running() && !request.has_begun_to_send();
            // It matters only for a record that is in flight again, or was found so by a pass over orphans.
            let found = self.proxies.iter().any(|proxy| proxy.orphan_pass == OrphanPass::Found(token));
            request.acted &= newest == Some(token) && (ends_may_be_lost || in_flight || found);
            if request.step != Step::Ended {
                continue;
            }
            let may_be_free = newest.is_none() || self.left.ttls > 0 || self.left.losses > 0;
            let possible = match request.pending {
                Some(Statement::Reserve) => may_be_free,
                // A lost record can be written again.
                Some(Statement::TakeOver(seen)) => newest == Some(seen.token) || may_be_free,
                Some(Statement::Settle(outcome)) => newest == Some(token) || (may_be_free && outcome.is_restored()),
                None => false,
            };
            if !possible {
                (request.pending, request.at) = (None, GONE);
            }
            if newest != Some(token) && request.pending.is_none() && request.upstream != Upstream::Arrived {
                (request.upstream, request.life, request.taken_from) = (Upstream::Nothing, 0, None);
            }
        }
        // The report is applied once the attempt has ended without a response, and to no other attempt.
        let open = |record: &Record| matches!(record.state, State::InFlight | State::Unknown | State::Dead);
        if !self.record.as_ref().is_some_and(|record| self.denied == Some(record.token) && open(record)) {
            self.denied = None;
        }
        if let Some(record) = &mut self.record
            && record.state != State::InFlight
            && !ends_may_be_lost
        {
            record.instance = GONE;
        }
        // Only a takeover in flight is lost.
        if let Some(record) = &mut self.record
            && (record.state != State::InFlight || self.left.lost_take_overs == 0)
        {
            record.replaced = None;
        }
        // Only a record with overtaken times is judged by the knowledge of the clock.
        if !self.record.is_some_and(|record| record.overtaken) {
            self.ttls_held = false;
            self.proxies.iter_mut().for_each(|proxy| proxy.watch = ClockWatch::Steady);
        }
        self.renumbered()
    }

    fn renumbered(mut self) -> Self {
        let mut order = [GONE; PROXIES];
        let mut used = 0;
        let owner = self.record.map_or(GONE, |record| record.instance);
        let passes =
            (0..).zip(self.proxies).filter(|(_, proxy)| proxy.orphan_pass != OrphanPass::Idle).map(|(at, _)| at);
        for at in self.requests.iter().map(|request| request.at).chain([owner]).chain(passes) {
            if at != GONE && order[usize::from(at)] == GONE {
                order[usize::from(at)] = used;
                used += 1;
            }
        }
        let new = |at: u8| if at == GONE { GONE } else { order[usize::from(at)] };
        // A proxy that has nothing to do with the key is as good as new, but for its knowledge of the clock.
        let mut proxies = [NEW_PROXY; PROXIES];
        let others = order.iter().zip(self.proxies).filter(|(at, _)| **at == GONE);
        let watches = others.map(|(_, proxy)| proxy.watch);
        proxies[usize::from(used)..].iter_mut().zip(watches).for_each(|(proxy, watch)| proxy.watch = watch);
        for (at, proxy) in order.iter().zip(self.proxies).filter(|(at, _)| **at != GONE) {
            proxies[usize::from(*at)] = proxy;
        }
        self.proxies = proxies;
        for request in &mut self.requests {
            request.at = new(request.at);
        }
        if let Some(record) = &mut self.record {
            record.instance = new(record.instance);
        }
        self
    }
}

impl Request {
    /// The record that its takeover expects, be it asked for or still to be executed.
    pub fn expected_mut(&mut self) -> impl Iterator<Item = &mut ExpectedRecord> {
        let asked = match &mut self.step {
            Step::TakingOver { seen, .. } => Some(seen),
            _ => None,
        };
        let pending = match &mut self.pending {
            Some(Statement::TakeOver(seen)) => Some(seen),
            _ => None,
        };
        asked.into_iter().chain(pending)
    }

    /// Whether a proxy lists it as running.
    pub fn is_running(&self) -> bool {
        !matches!(self.step, Step::NotYet | Step::Ended)
    }

    fn has_begun_to_send(&self) -> bool {
        matches!(self.step, Step::Checked | Step::Waiting | Step::Settling { .. } | Step::SettlingInBackground { .. })
    }
}
