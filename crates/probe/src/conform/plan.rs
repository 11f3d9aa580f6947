//! The seeded plan of a lossy link: the fault of each operation, and what the link does with each request.

use oncegate_domain::macros::named;

named! {
    /// The fault that an operation meets on the link, with its stable name in JSON.
    pub(crate) enum LinkFault {
        None => "none",
        /// Its first answers are lost: the connection is closed.
        Lost => "lost",
        /// Its first answer breaks off.
        Cut => "cut",
        /// Its first answer comes late.
        Late => "late",
        /// Its first request reaches the service twice, and the second answer comes back.
        Duplicated => "duplicated",
        /// Its first request is refused: an attempt is in flight.
        InFlight => "in-flight",
        /// Its first answer is lost, and its key is then refused as another request's.
        Reused => "reused",
        /// The outcome of its first request is unknown, and stays unknown.
        Unknown => "unknown",
    }
}

/// A refusal that the link makes as Oncegate would. Displays its slug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub(crate) enum LinkRefusal {
    #[display("in-flight")]
    InFlight,
    #[display("key-reused")]
    Reused,
    /// Nobody knows whether the first attempt was executed.
    #[display("outcome-unknown")]
    Unknown,
}

/// What the link does with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStep {
    Pass,
    Lose,
    /// The answer breaks off at this share of its body, in 256ths.
    Cut(u8),
    Delay,
    Repeat,
    /// The service gets nothing.
    Refuse(LinkRefusal),
    /// The service gets the request, and its answer is replaced.
    ForwardAndRefuse(LinkRefusal),
}

/// The key of a request, beside that of the operation's first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    Missing,
    Same,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) fault: LinkFault,
    losses: usize,
    /// The share of the body that passes, in 256ths.
    cut: u8,
}

impl PlannedFault {
    /// Returns the fault of the operation with this number: each round of operations meets all faults in another order.
    pub(crate) fn draw(seed: u64, operation: usize) -> Self {
        let (round, place) = (operation / LinkFault::ALL.len(), operation % LinkFault::ALL.len());
        let mut faults = LinkFault::ALL;
        let mut random = SplitMix(seed ^ (round as u64).rotate_left(32));
        for last in (1..faults.len()).rev() {
            faults.swap(last, (random.next() % (last as u64 + 1)) as usize);
        }
        let mut random = SplitMix(random.next() ^ place as u64);
        Self { fault: faults[place], losses: 1 + (random.next() % 2) as usize, cut: (random.next() >> 56) as u8 }
    }

    /// Returns what happens to a request after so many earlier ones of its operation.
    pub(crate) fn step(self, earlier: usize, key: KeyUse) -> LinkStep {
        let is_first = earlier == 0;
        match (self.fault, key) {
            (LinkFault::Lost, _) if earlier < self.losses => LinkStep::Lose,
            (LinkFault::Cut, _) if is_first => LinkStep::Cut(self.cut),
            (LinkFault::Late, _) if is_first => LinkStep::Delay,
            (LinkFault::Duplicated, _) if is_first => LinkStep::Repeat,
            // Nobody says of a request without a key that its key is in use.
            (LinkFault::InFlight | LinkFault::Reused | LinkFault::Unknown, KeyUse::Missing) if is_first => {
                LinkStep::Lose
            }
            (LinkFault::InFlight, _) if is_first => LinkStep::Refuse(LinkRefusal::InFlight),
            (LinkFault::Reused, _) if is_first => LinkStep::Lose,
            (LinkFault::Unknown, _) if is_first => LinkStep::ForwardAndRefuse(LinkRefusal::Unknown),
            (LinkFault::Reused, KeyUse::Same) => LinkStep::Refuse(LinkRefusal::Reused),
            (LinkFault::Unknown, KeyUse::Same) => LinkStep::Refuse(LinkRefusal::Unknown),
            _ => LinkStep::Pass,
        }
    }
}

/// SplitMix64, so that a seed has the same plan in each version and on each machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_meets_each_fault_once_in_an_order_of_its_seed() {
        let order = |seed, round: usize| -> Vec<_> {
            (0..8).map(|place| PlannedFault::draw(seed, round * 8 + place).fault.name()).collect()
        };
        let mut all: Vec<_> = LinkFault::ALL.map(LinkFault::name).into();
        all.sort_unstable();
        for (seed, round) in [(0, 0), (0, 1), (7, 0), (u64::MAX, 9)] {
            let mut found = order(seed, round);
            found.sort_unstable();
            assert_eq!(found, all, "{seed} {round}");
        }
        assert_eq!(order(7, 0), order(7, 0));
        assert_ne!(order(7, 0), order(7, 1));
        assert_ne!(order(7, 0), order(8, 0));
    }

    #[test]
    fn a_key_stays_refused_and_another_one_reaches_the_service() {
        let step = |fault, earlier, key| PlannedFault { fault, losses: 2, cut: 128 }.step(earlier, key);
        for (fault, key, expected) in [
            (LinkFault::Lost, KeyUse::Same, [LinkStep::Lose, LinkStep::Lose, LinkStep::Pass]),
            (LinkFault::Cut, KeyUse::Other, [LinkStep::Cut(128), LinkStep::Pass, LinkStep::Pass]),
            (
                LinkFault::Reused,
                KeyUse::Same,
                [LinkStep::Lose, LinkStep::Refuse(LinkRefusal::Reused), LinkStep::Refuse(LinkRefusal::Reused)],
            ),
            (
                LinkFault::Unknown,
                KeyUse::Same,
                [
                    LinkStep::ForwardAndRefuse(LinkRefusal::Unknown),
                    LinkStep::Refuse(LinkRefusal::Unknown),
                    LinkStep::Refuse(LinkRefusal::Unknown),
                ],
            ),
            (LinkFault::Unknown, KeyUse::Missing, [LinkStep::Lose, LinkStep::Pass, LinkStep::Pass]),
            (
                LinkFault::InFlight,
                KeyUse::Same,
                [LinkStep::Refuse(LinkRefusal::InFlight), LinkStep::Pass, LinkStep::Pass],
            ),
        ] {
            assert_eq!([0, 1, 2].map(|earlier| step(fault, earlier, key)), expected, "{fault:?} {key:?}");
        }
        assert_eq!(step(LinkFault::Unknown, 1, KeyUse::Other), LinkStep::Pass);
        assert_eq!(step(LinkFault::Reused, 1, KeyUse::Other), LinkStep::Pass);
    }
}
