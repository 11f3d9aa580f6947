//! What must never be, and the weakenings that bring it about.

use stateright::Property;

use crate::protocol::Oncegate;
use crate::state::World;

/// A promise broken. Noted in the world at the moment it happens, so that each is a property of worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// A second effect within one life of the key.
    SecondEffect,
    /// An effect of an attempt after the next one has begun.
    Superseded,
    /// Two answers that differ, both promised to be the one.
    Differing,
    /// An answer promised to be replayed that the store does not have.
    NotStored,
    /// Two answers that both say they are the first.
    TwoFirsts,
    /// What was completed is something else.
    CompletedChanged,
    /// A response completed under a token whose effect did not make it.
    ForeignToken,
    /// A state after which this one may not come.
    IllegalStep,
    /// "Nothing has happened" was said of a request that has been sent.
    FalseDenial,
    /// A key began anew after the store had answered the settlement of a response.
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

    /// The promise, as a property of every world that can be reached.
    pub fn property(self) -> Property<Oncegate> {
        let (name, holds): (_, fn(&Oncegate, &World) -> bool) = match self {
            Self::SecondEffect => ("one effect a life", |_, world| !world.breaches.has(Self::SecondEffect)),
            Self::Superseded => ("no effect once superseded", |_, world| !world.breaches.has(Self::Superseded)),
            Self::Differing => ("equal answers", |_, world| !world.breaches.has(Self::Differing)),
            Self::NotStored => ("told is stored", |_, world| !world.breaches.has(Self::NotStored)),
            Self::TwoFirsts => ("one first answer", |_, world| !world.breaches.has(Self::TwoFirsts)),
            Self::CompletedChanged => ("completed stays", |_, world| !world.breaches.has(Self::CompletedChanged)),
            Self::ForeignToken => ("token made the body", |_, world| !world.breaches.has(Self::ForeignToken)),
            Self::IllegalStep => ("legal steps", |_, world| !world.breaches.has(Self::IllegalStep)),
            Self::FalseDenial => ("denials are true", |_, world| !world.breaches.has(Self::FalseDenial)),
            Self::Forgotten => ("filed is not forgotten", |_, world| !world.breaches.has(Self::Forgotten)),
        };
        Property::always(name, holds)
    }
}

/// Those that have happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Breaches(u16);

impl Breaches {
    pub fn note(&mut self, breach: Breach, happened: bool) {
        self.0 |= u16::from(happened) << breach as u16;
    }

    pub fn has(self, breach: Breach) -> bool {
        self.0 & 1 << breach as u16 != 0
    }
}

/// One rule left out. The checker must find what it costs: that proves that it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weakness {
    /// A settlement names the key alone.
    SettleWithoutToken,
    /// A settlement overwrites what is completed.
    SettleOverCompleted,
    /// A taker does not compare what it has seen.
    TakeOverUnseen,
    /// What is in flight under a lapsed lease is taken over.
    TakeOverLapsed,
    /// The sweeper frees instead of calling it unknown.
    SweepFrees,
    /// The first byte goes out while the reservation is on its way.
    SendBeforeReserved,
    /// Whoever has reserved in doubt takes whatever is in flight for its own.
    DoubtTakesAny,
    /// Whoever finds its own reservation unknown takes it over under the same token.
    TokenTwice,
    /// The client is answered before the response is stored.
    AnswerBeforeStored,
    /// Whose settlement was fenced off answers with its own response.
    LoserTellsItsOwn,
    /// A settlement repeated in doubt takes any completion under its token for its own.
    DoubtTrustsState,
    /// A call that broke off counts as never sent.
    BrokenIsReleased,
    /// The lease is not looked at again before the first byte.
    NoSecondLook,
    /// It is, but not at the attempt's own time: after a long pause the lease may have been renewed first.
    LeaseAloneBeforeSending,
    /// The pause before the first byte lasts longer than it takes to be sure. No rule of ours prevents this one.
    PauseOutlastsQuiet,
    /// "Not executed" is believed at once.
    NotExecutedTooSoon,
    /// What the service said of an attempt is written down whichever is the newest by then.
    VerdictWithoutToken,
    /// What the service said is written down although somebody else has settled the key.
    VerdictOverSettled,
    /// `retry-when-quiet` does not wait.
    RetryBeforeQuiet,
    /// The pass over strays asks the store first, and then looks at what runs.
    StraysStoreFirst,
    /// The pass over strays releases what began after it had looked.
    StraysWithoutAge,
    /// An attempt whose end could not be stored counts as underway no more.
    ForgottenBeforeStored,
    /// The TTL ends what is in flight or unknown, too.
    TtlOnOpen,
    /// A settlement whose row is gone is dropped.
    LostIsLost,
    /// What stands in flight and does not run here is released, although its end was stored.
    LostEndIsStray,
}
