//! The breaches of the protocol's promises, and the weaknesses that cause them.

use stateright::Property;

use crate::protocol::Oncegate;
use crate::state::World;

/// A broken promise. It is recorded in the world at the moment it happens, so that each promise is a property of
/// worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// A second effect within one life of the key.
    SecondEffect,
    /// An effect of an attempt after the next one has begun.
    Superseded,
    /// Two different answers, both promised as the key's answer.
    Differing,
    /// An answer promised to be replayed that the store does not have.
    NotStored,
    /// Two answers that both say they are the first.
    TwoFirsts,
    /// A completed record has changed.
    CompletedChanged,
    /// A response is completed under a token whose attempt did not cause its effect.
    ForeignToken,
    /// A forbidden state transition.
    IllegalStep,
    /// A request that has been sent was answered as not executed.
    FalseDenial,
    /// A key started over after the store had acknowledged the settlement of a response.
    Forgotten,
}

impl Breach {
    pub const ALL: [Self; 10] = [
        Self::SecondEffect,
        Self::Superseded,
        Self::Differing,
        Self::NotStored,
        Self::TwoFirsts,
        Self::CompletedChanged,
        Self::ForeignToken,
        Self::IllegalStep,
        Self::FalseDenial,
        Self::Forgotten,
    ];

    /// The promise, as a property of every reachable world.
    pub fn property(self) -> Property<Oncegate> {
        let (name, holds): (_, fn(&Oncegate, &World) -> bool) = match self {
            Self::SecondEffect => ("one effect a life", |_, world| !world.breaches.has(Self::SecondEffect)),
            Self::Superseded => ("no effect once superseded", |_, world| !world.breaches.has(Self::Superseded)),
            Self::Differing => ("equal answers", |_, world| !world.breaches.has(Self::Differing)),
            Self::NotStored => ("answers are stored", |_, world| !world.breaches.has(Self::NotStored)),
            Self::TwoFirsts => ("one first answer", |_, world| !world.breaches.has(Self::TwoFirsts)),
            Self::CompletedChanged => ("completed stays", |_, world| !world.breaches.has(Self::CompletedChanged)),
            Self::ForeignToken => ("token made the body", |_, world| !world.breaches.has(Self::ForeignToken)),
            Self::IllegalStep => ("legal steps", |_, world| !world.breaches.has(Self::IllegalStep)),
            Self::FalseDenial => ("denials are true", |_, world| !world.breaches.has(Self::FalseDenial)),
            Self::Forgotten => ("settlements are not forgotten", |_, world| !world.breaches.has(Self::Forgotten)),
        };
        Property::always(name, holds)
    }
}

/// The set of recorded breaches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Breaches(u16);

impl Breaches {
    pub fn record_if(&mut self, breach: Breach, happened: bool) {
        self.0 |= u16::from(happened) << breach as u16;
    }

    pub fn has(self, breach: Breach) -> bool {
        self.0 & 1 << breach as u16 != 0
    }
}

/// A rule that is left out. The checker must find the resulting breach: that proves that it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weakness {
    /// A settlement compares only the key.
    SettleWithoutToken,
    /// A settlement overwrites a completed record.
    SettleOverCompleted,
    /// A takeover does not compare the record with the expected one.
    TakeOverUnchecked,
    /// A request takes over a key of unknown outcome under `hold`.
    TakeOverUnknown,
    /// A takeover applies to an attempt in flight under a lapsed lease.
    TakeOverLapsed,
    /// The sweeper marks attempts retryable instead of unknown.
    SweepFrees,
    /// The first byte is sent before the reservation is acknowledged.
    SendBeforeReserved,
    /// A request whose reservation is in doubt takes any attempt in flight for its own.
    DoubtTakesAny,
    /// A request that finds its own reservation unknown takes it over under the same token.
    TokenTwice,
    /// The client is answered before the response is stored.
    AnswerBeforeStored,
    /// An attempt whose settlement lost answers with its own response.
    LoserAnswersItsOwn,
    /// A settlement repeated in doubt takes any completion under its token for its own.
    DoubtTrustsState,
    /// A broken call counts as never sent.
    BrokenIsReleased,
    /// The lease is not checked again before the first byte.
    NoLeaseCheck,
    /// The lease is checked, but not the attempt's deadline: after a long pause the lease may have been renewed first.
    LeaseAloneBeforeSending,
    /// The pause before the first byte lasts longer than the quiet time. No rule of the protocol prevents this one.
    PauseOutlastsQuiet,
    /// "Not executed" is accepted at once.
    NotExecutedTooSoon,
    /// An inquiry's result is written although a newer attempt exists.
    VerdictWithoutToken,
    /// An inquiry's result is written although the key has been settled.
    VerdictOverSettled,
    /// `retry-when-quiet` does not wait.
    RetryBeforeQuiet,
    /// The pass over orphans reads the store before it lists the running attempts.
    OrphansStoreFirst,
    /// The pass over orphans releases attempts that began after it listed the running ones.
    OrphansWithoutAge,
    /// An attempt whose settlement could not be stored is no longer listed as running.
    ForgottenBeforeStored,
    /// The TTL also ends records that are in flight or unknown.
    TtlOnOpen,
    /// A settlement whose row is lost is dropped.
    LostIsLost,
    /// A settlement whose takeover is lost is fenced off by the record before it.
    LostTakeOverIsLost,
    /// A settlement whose record is another attempt's takes it for its own lost takeover.
    RepairUnchecked,
    /// An attempt in flight that does not run here is released, although its settlement was stored.
    LostSettlementIsOrphan,
    /// The store's clock is believed whatever it does.
    JumpsIgnored,
    /// A jump of the store's clock is found by heartbeats alone: until the next one,
    /// records are judged by the new time.
    JumpsSeenByHeartbeatsAlone,
    /// An instance believes the store's clock from its start.
    StartTrustsClock,
    /// A clock is believed again although an attempt from before its jump may be running.
    WatchTooShort,
    /// A request is repeated at a vendor without a look at the time.
    WindowUnchecked,
    /// A repetition that was not executed frees the key.
    RepeatFrees,
    /// The ends of TTLs are believed as soon as the attempts from before a jump must be over.
    TtlsNotHeld,
}
