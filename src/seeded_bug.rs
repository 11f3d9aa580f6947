//! Bugs that are built in on purpose, to find out whether the tests notice them: RELIABILITY.md has the results.
//!
//! Only a build with the feature `seeded-bugs` has them, and no release is built with it. There, the environment variable
//! `ONCEGATE_SEEDED_BUG` activates one of them. In every other build [`SeededBug::is_active`] is a constant.

/// Defines the bugs and, where they are built in, the list of all.
macro_rules! define_bugs {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $bug:ident,)+ }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $bug,)+
        }

        /// All bugs.
        #[cfg(feature = "seeded-bugs")]
        pub const ALL: &[$name] = &[$($name::$bug),+];
    };
}

define_bugs! {
/// A bug that breaks one of the promises. Where `crates/model` leaves the same rule out, its `Weakness` has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeededBug {
    /// A message is acknowledged before it is executed.
    AcknowledgeEarly,
    /// The client is answered before the response is stored.
    AnswerBeforeStored,
    /// A broken call counts as never sent.
    BrokenIsReleased,
    /// An outcome of a bypassed request is not kept in memory until it is stored.
    BypassForgets,
    /// The cache answers after the TTL.
    CachePastTtl,
    /// A commit returns before it is on the disk.
    CommitNotDurable,
    /// A delivery that was picked up is picked up again while it runs.
    DeliveryTwice,
    /// The process ends without waiting for its running attempts.
    DrainAbandons,
    /// An attempt whose settlement could not be stored is no longer listed as running, and nobody stores it later.
    ForgottenBeforeStored,
    /// The store's clock is believed whatever it does.
    JumpsIgnored,
    /// Callers share their keys.
    KeyWithoutScope,
    /// A lease ends in the store at once, and another instance's sweeper ends its attempts.
    LivingLeaseSwept,
    /// An attempt whose settlement lost answers with its own response.
    LoserAnswersItsOwn,
    /// An attempt in flight that does not run here is released, although it has executed.
    LostSettlementIsOrphan,
    /// A different request under the key of a running attempt waits for that attempt's response.
    MismatchJoins,
    /// The lease is not checked again before the first byte.
    NoLeaseCheck,
    /// The pass over orphans releases attempts that began after it listed the running ones.
    OrphansWithoutAge,
    /// A response that breaks off is stored as a whole one.
    PartialResponseStored,
    /// A purge leaves the cache as it is.
    PurgeLeavesCache,
    /// A reload changes how keys are found.
    ReloadChangesIdentity,
    /// Of a repeated field, only one value is stored.
    RepeatedFieldsMerged,
    /// A request is sent again on another connection after the first one broke.
    ResendBroken,
    /// `retry-when-quiet` does not wait.
    RetryBeforeQuiet,
    /// This process goes on with its own salt, whatever salt the store has.
    SaltNotCompared,
    /// The first byte is sent before the reservation is durable.
    SendBeforeReserved,
    /// A 5xx response counts as "not executed".
    ServerErrorIsReleased,
    /// A settlement compares only the key.
    SettleWithoutToken,
    /// Each spelling of a path has keys of its own.
    SpellingsApart,
    /// An attempt's unstored response is repeated although a later attempt may have been made.
    SupersededAnswered,
    /// A retry takes over a key whose attempt may have been sent.
    TakeOverUnknown,
    /// A timeout counts as never sent.
    TimeoutIsReleased,
    /// The reaper deletes keys of unknown outcome.
    TtlOnOpen,
}
}

impl SeededBug {
    /// Whether this bug is active in this process.
    #[cfg(not(feature = "seeded-bugs"))]
    #[inline(always)]
    pub const fn is_active(self) -> bool {
        false
    }

    /// Whether this bug is active in this process.
    #[cfg(feature = "seeded-bugs")]
    pub fn is_active(self) -> bool {
        matches!(choice(), Choice::Active(active) if *active == self)
    }
}

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("the feature `seeded-bugs` is for tests: a release must not have it");

#[cfg(feature = "seeded-bugs")]
pub use choice::{Choice, VARIABLE, choice};

/// The choice of a bug by the environment.
#[cfg(feature = "seeded-bugs")]
mod choice {
    use std::sync::OnceLock;

    use super::{ALL, SeededBug};

    /// The environment variable that names the active bug.
    pub const VARIABLE: &str = "ONCEGATE_SEEDED_BUG";

    /// The variable's meaning.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Choice {
        /// This bug is active.
        Active(SeededBug),
        /// None is active, and the process warns as with one: the control of the experiment.
        Nothing,
        /// It is not set.
        Unset,
        /// It names no bug.
        Wrong(String),
    }

    /// The choice, read once.
    pub fn choice() -> &'static Choice {
        static CHOICE: OnceLock<Choice> = OnceLock::new();
        CHOICE.get_or_init(|| match std::env::var(VARIABLE) {
            Err(_) => Choice::Unset,
            Ok(name) if name == "Nothing" => Choice::Nothing,
            Ok(name) => {
                let wanted = ALL.iter().copied().find(|bug| format!("{bug:?}") == name);
                wanted.map_or(Choice::Wrong(name), Choice::Active)
            }
        })
    }
}
