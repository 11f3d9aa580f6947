//! One key's world at one moment: the record, the requests, the proxies, and what must be remembered to judge it.

use crate::breach::Breaches;

/// Requests and attempts have one number: the request's token, should it become an attempt.
pub type Token = u8;

/// How many requests a world has room for; how many come is a bound.
pub const REQUESTS: usize = 3;
/// How many proxies a world has room for.
pub const PROXIES: usize = 3;
/// An instance that is no more. Its row may stand for a while; a lease may run out at any moment.
pub const GONE: u8 = u8::MAX;

/// Everything that can differ. Small and `Copy`: there are hundreds of thousands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub record: Option<Record>,
    pub requests: [Request; REQUESTS],
    pub proxies: [Proxy; PROXIES],
    /// What the service has said and the reconciler has not written down yet.
    pub said: Said,
    /// The attempt of which the service has said "not executed" while it was in flight.
    pub denied: Option<Token>,
    pub left: Left,
    pub life: Life,
    pub breaches: Breaches,
}

/// The row in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub token: Token,
    /// Under whose lease it is in flight.
    pub instance: u8,
    pub state: State,
    pub past_ttl: bool,
    /// The attempt's deadline, a lease and the time to be sure have passed.
    pub quiet: bool,
}

/// What the service says of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Said {
    Nothing,
    Executed(Token),
    Absent(Token),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    InFlight,
    Completed(Body),
    /// Asking has been given up.
    Dead,
    Retryable,
    Unknown,
}

/// A response, told from others by where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The upstream's response, with this attempt's effect in it.
    Heard(Token),
    /// What the service or a reconciliation says of that effect in other words.
    Said(Token),
}

impl Body {
    pub fn token(self) -> Token {
        let (Self::Heard(token) | Self::Said(token)) = self;
        token
    }
}

/// A client's request, or a retry of it: they are all the same to the proxies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// At which proxy; of no meaning before it has come and after it has ended.
    pub at: u8,
    pub step: Step,
    /// A statement without an answer, which may still be carried out.
    pub pending: Option<Statement>,
    pub upstream: Upstream,
    /// The attempt's own time is up, and then some: by the proxy's clock, which counts pauses too.
    pub late: bool,
    /// In which of the key's lives its attempt began.
    pub life: u8,
    /// An end was stored by which it may have acted. Its proxy remembers that.
    pub acted: bool,
}

/// Where a request stands, in the order of the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    NotYet,
    /// Reserving; `doubt`: an earlier try may have been carried out.
    Asking {
        doubt: bool,
    },
    /// Taking over what it has seen.
    Taking {
        seen: Seen,
        doubt: bool,
    },
    /// The reservation is durable, nothing is sent.
    Reserved,
    /// The lease was looked at again; the first byte goes out next, be that after a pause.
    Checked,
    /// Bytes have gone out.
    Waiting,
    /// The attempt has ended and is being written down.
    Settling {
        outcome: Outcome,
        doubt: bool,
    },
    /// The client has its answer; what could not be written down is tried again.
    Behind {
        outcome: Outcome,
    },
    Ended,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// A whole response with an effect in it.
    Answered,
    /// A whole response by which the upstream has done nothing.
    Declined,
    /// The lease had run out before the first byte.
    Abandoned,
    /// No connection.
    NeverSent,
    /// Broken off, or too late.
    Broken,
}

/// What a taker has seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seen {
    pub token: Token,
    pub state: State,
    pub past_ttl: bool,
}

impl From<&Record> for Seen {
    fn from(record: &Record) -> Self {
        Self { token: record.token, state: record.state, past_ttl: record.past_ttl }
    }
}

/// What the store may still carry out after nobody waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Statement {
    Reserve,
    TakeOver(Seen),
    Settle(Outcome),
}

/// The request as the upstream has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Upstream {
    Nothing,
    /// On its way or being worked on.
    Arrived,
    Executed,
    Declined,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Proxy {
    pub lease: bool,
    pub strays: Strays,
}

/// How far the pass that releases what nobody waits for has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Strays {
    Idle,
    /// These were running, and so many requests had come, when it looked at what runs.
    Looked {
        running: u8,
        come: u8,
    },
    /// Weakened: this stood in the store when it looked there first.
    Standing(Token),
    /// This is to be released.
    Found(Token),
}

/// What the bounds still allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    pub crashes: u8,
    pub lapses: u8,
    /// Statements whose answers get lost.
    pub doubts: u8,
    pub ttls: u8,
    pub risks: u8,
    /// Reservations that the store has acknowledged and loses.
    pub losses: u8,
    /// Settlements that it has acknowledged and loses, and not their reservations.
    pub lost_ends: u8,
}

/// The key's present life, one TTL long, as an observer of everything sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life {
    pub number: u8,
    /// How many effects each life's attempts have had.
    pub effects: [u8; 2],
    /// The answer that was promised to be replayed.
    pub told: Option<Body>,
    /// Whether somebody has got it as the first.
    pub first: bool,
    /// Whether the store has answered a settlement with a response in it.
    pub filed: bool,
}

impl World {
    pub fn new(left: Left) -> Self {
        let request = Request {
            at: GONE,
            step: Step::NotYet,
            pending: None,
            upstream: Upstream::Nothing,
            late: false,
            life: 0,
            acted: false,
        };
        Self {
            record: None,
            requests: [request; REQUESTS],
            proxies: [Proxy { lease: true, strays: Strays::Idle }; PROXIES],
            said: Said::Nothing,
            denied: None,
            left,
            life: Life { number: 0, effects: [0; 2], told: None, first: false, filed: false },
            breaches: Breaches::default(),
        }
    }

    pub fn come(&self) -> u8 {
        self.requests.iter().filter(|request| request.step != Step::NotYet).count() as u8
    }

    /// The requests that run at a proxy, as bits: its table of attempts underway.
    pub fn running(&self, proxy: u8) -> u8 {
        let here = |request: &Request| request.is_running() && request.at == proxy;
        (0..REQUESTS).filter(|token| here(&self.requests[*token])).map(|token| 1 << token).sum()
    }

    /// What is in flight under a proxy's name.
    pub fn standing(&self, proxy: u8) -> Option<Token> {
        self.record.filter(|record| record.state == State::InFlight && record.instance == proxy).map(|r| r.token)
    }

    /// Whether the attempt in flight may be judged by its lease.
    pub fn has_lapsed(&self, record: &Record) -> bool {
        self.proxies.get(usize::from(record.instance)).is_none_or(|proxy| !proxy.lease)
    }

    /// Nothing is open: no request waits, and the next one gets a stored answer or becomes the next attempt.
    pub fn is_settled(&self) -> bool {
        let open = |record: &Record| matches!(record.state, State::Dead | State::InFlight | State::Unknown);
        !self.record.as_ref().is_some_and(open) && !self.requests.iter().any(Request::is_running)
    }

    /// The same world without what was said of an attempt that is not the newest any more, or has its response.
    pub fn without_stale_words(mut self) -> Self {
        if let Said::Executed(token) | Said::Absent(token) = self.said
            && self.record.is_none_or(|record| record.token != token || matches!(record.state, State::Completed(_)))
        {
            self.said = Said::Nothing;
        }
        self
    }

    /// The same world with everything forgotten that can make no difference any more, and the proxies numbered in the
    /// order of their requests: they are all alike.
    pub fn normal(mut self) -> Self {
        let newest = self.record.map(|record| record.token);
        let in_flight = self.record.is_some_and(|record| record.state == State::InFlight);
        let ends_may_be_lost = self.left.lost_ends > 0;
        for (token, request) in (0..).zip(&mut self.requests) {
            // It is looked at before the first byte, and not again.
            request.late &= request.is_running() && !request.has_begun_to_send();
            // It is asked of what stands in flight again, or was found so, and of nothing else.
            let found = self.proxies.iter().any(|proxy| proxy.strays == Strays::Found(token));
            request.acted &= newest == Some(token) && (ends_may_be_lost || in_flight || found);
            if request.step != Step::Ended {
                continue;
            }
            let may_be_free = newest.is_none() || self.left.ttls > 0 || self.left.losses > 0;
            let possible = match request.pending {
                Some(Statement::Reserve) => may_be_free,
                // What was lost can be written anew.
                Some(Statement::TakeOver(seen)) => newest == Some(seen.token) || may_be_free,
                Some(Statement::Settle(outcome)) => newest == Some(token) || (may_be_free && outcome.is_restored()),
                None => false,
            };
            if !possible {
                (request.pending, request.at) = (None, GONE);
            }
            if newest != Some(token) && request.pending.is_none() && request.upstream != Upstream::Arrived {
                (request.upstream, request.life) = (Upstream::Nothing, 0);
            }
        }
        // It is carried out once the attempt has ended without a response, and is of no use to any other.
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
        self.renumbered()
    }

    fn renumbered(mut self) -> Self {
        let mut order = [GONE; PROXIES];
        let mut used = 0;
        let owner = self.record.map_or(GONE, |record| record.instance);
        let passes = (0..).zip(self.proxies).filter(|(_, proxy)| proxy.strays != Strays::Idle).map(|(at, _)| at);
        for at in self.requests.iter().map(|request| request.at).chain([owner]).chain(passes) {
            if at != GONE && order[usize::from(at)] == GONE {
                order[usize::from(at)] = used;
                used += 1;
            }
        }
        let new = |at: u8| if at == GONE { GONE } else { order[usize::from(at)] };
        // Who has nothing to do with the key is as good as new.
        let mut proxies = [Proxy { lease: true, strays: Strays::Idle }; PROXIES];
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
    /// Whether a proxy has it among those underway.
    pub fn is_running(&self) -> bool {
        !matches!(self.step, Step::NotYet | Step::Ended)
    }

    fn has_begun_to_send(&self) -> bool {
        matches!(self.step, Step::Checked | Step::Waiting | Step::Settling { .. } | Step::Behind { .. })
    }
}
