//! The protocol of events about one key, explored whole: publishers claim, send and delete; each may die at any moment,
//! and any claim may end while its try runs.
//!
//! Every event gets to its receiver, and its first copy comes after the first copies of the events before it.

use stateright::{Checker, Model, Property};

const EVENTS: usize = 3;
const PUBLISHERS: usize = 2;
/// The tries of each event. More add no other situation: only the newest claim counts.
const TRIES_MAX: u8 = 3;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Only the oldest event of a key that waits is claimed.
    OldestOnly,
    /// An event is deleted after its receiver has it, and not before.
    DeleteAfterSending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Event {
    is_claimed: bool,
    tries: u8,
}

/// A publisher, with the event that it has claimed and the number of its try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PublisherStep {
    Idle,
    Claimed(usize, u8),
    Taken(usize, u8),
    Failed(usize, u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PublicationState {
    /// `None` once it is deleted.
    events: [Option<Event>; EVENTS],
    publishers: [PublisherStep; PUBLISHERS],
    /// The first copies, in the order in which they came.
    received: Vec<usize>,
}

impl PublicationState {
    fn first() -> Self {
        let event = Event { is_claimed: false, tries: 0 };
        Self { events: [Some(event); EVENTS], publishers: [PublisherStep::Idle; PUBLISHERS], received: Vec::new() }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// All states after one step, without this rule.
    fn next(&self, without: Option<Rule>) -> Vec<Self> {
        let mut next = Vec::new();
        for (number, event) in self.events.iter().enumerate() {
            // The claim's lease ends, whoever has it.
            if event.is_some_and(|event| event.is_claimed) {
                next.push(
                    self.with(|state| state.events[number].iter_mut().for_each(|event| event.is_claimed = false)),
                );
            }
        }
        for (place, publisher) in self.publishers.iter().enumerate() {
            let becomes = |publisher| self.with(|state| state.publishers[place] = publisher);
            match *publisher {
                PublisherStep::Idle => next.extend(self.claims(place, without)),
                PublisherStep::Claimed(number, tries) => {
                    let taken = self.with(|state| {
                        if !state.received.contains(&number) {
                            state.received.push(number);
                        }
                        state.publishers[place] = PublisherStep::Taken(number, tries);
                    });
                    // The receiver has it and the publisher does not learn it, or it never came.
                    let unknown = taken.with(|state| state.publishers[place] = PublisherStep::Failed(number, tries));
                    next.extend([
                        taken,
                        unknown,
                        becomes(PublisherStep::Failed(number, tries)),
                        becomes(PublisherStep::Idle),
                    ]);
                }
                PublisherStep::Taken(number, _) => {
                    next.push(becomes(PublisherStep::Idle).with(|state| state.events[number] = None));
                    next.push(becomes(PublisherStep::Idle));
                }
                PublisherStep::Failed(number, tries) => {
                    let is_own = |event: &Event| event.tries == tries;
                    next.push(becomes(PublisherStep::Idle).with(|state| {
                        if let Some(event) = state.events[number].as_mut().filter(|event| is_own(event)) {
                            event.is_claimed = false;
                        }
                    }));
                    next.push(becomes(PublisherStep::Idle));
                }
            }
        }
        next
    }

    fn claims(&self, place: usize, without: Option<Rule>) -> Vec<Self> {
        let waits = |event: &Event| !event.is_claimed && event.tries < TRIES_MAX;
        let oldest = self.events.iter().position(Option::is_some);
        let is_next = |number: usize| Some(number) == oldest || without == Some(Rule::OldestOnly);
        let free = (0..EVENTS).filter(|number| self.events[*number].as_ref().is_some_and(waits) && is_next(*number));
        free.map(|number| {
            self.with(|state| {
                let Some(event) = &mut state.events[number] else { return };
                (event.is_claimed, event.tries) = (true, event.tries + 1);
                state.publishers[place] = PublisherStep::Claimed(number, event.tries);
                if without == Some(Rule::DeleteAfterSending) {
                    state.events[number] = None;
                }
            })
        })
        .collect()
    }

    fn has_lost_one(&self) -> bool {
        let is_gone = |number: usize| self.events[number].is_none() && !self.received.contains(&number);
        let holds =
            |number| self.publishers.iter().any(|one| matches!(one, PublisherStep::Claimed(of, _) if *of == number));
        (0..EVENTS).any(|number| is_gone(number) && !holds(number))
    }
}

/// The protocol without one of its rules.
struct Publication(Option<Rule>);

impl Model for Publication {
    type State = PublicationState;
    /// The state after a step.
    type Action = PublicationState;

    fn init_states(&self) -> Vec<PublicationState> {
        vec![PublicationState::first()]
    }

    fn actions(&self, state: &PublicationState, next: &mut Vec<PublicationState>) {
        next.extend(state.next(self.0));
    }

    fn next_state(&self, _: &PublicationState, next: PublicationState) -> Option<PublicationState> {
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IN_ORDER, |_, state: &PublicationState| state.received.is_sorted()),
            Property::always(NONE_IS_LOST, |_, state: &PublicationState| !state.has_lost_one()),
            Property::sometimes("all are published", |_, state: &PublicationState| state.events == [None; EVENTS]),
        ]
    }
}

const IN_ORDER: &str = "an event comes after the earlier ones of its key";
const NONE_IS_LOST: &str = "no event is deleted before it was received";

#[test]
fn every_event_of_a_key_comes_after_those_before_it_and_none_is_lost() {
    let checker = Publication(None).checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1_000, "{}", checker.unique_state_count());
}

#[test]
fn without_a_rule_the_model_finds_the_fault() {
    for (rule, property) in [(Rule::OldestOnly, IN_ORDER), (Rule::DeleteAfterSending, NONE_IS_LOST)] {
        let checker = Publication(Some(rule)).checker().spawn_bfs().join();
        assert!(checker.discovery(property).is_some(), "{rule:?}");
    }
}
