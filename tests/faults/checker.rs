//! The rules that every history must keep, whatever fails meanwhile. The checker is pure: it reads the history and
//! returns its breaches.
//!
//! Keys are independent of each other, so each is checked by itself, in one pass over its requests and effects.
//! `checker_can_fail` proves for each rule that the checker can find a breach.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use crate::history::{Answer, AnswerKind, Attempt, Effect, History, Op, ScopedKey, ServiceCall, TargetRoute};

/// The route's `on_unknown` policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Never a second attempt.
    Hold,
    /// A second attempt, at once.
    Retry,
    /// A second attempt, once the first has had this much time.
    RetryWhenQuiet(Duration),
}

/// The rules of a run.
#[derive(Clone, Debug)]
pub struct Rules {
    pub policy: Policy,
    /// The minimum counts of faults, and of all else that a run needs, below which it proves nothing.
    pub quotas: Vec<(String, usize)>,
}

/// The percentage of keys, and in the simulation of requests, that must succeed; below it, the run proves nothing.
pub const SUCCESS_MIN: usize = 60;

/// A proxy no longer waits for the reply to a settlement after this time: it is above the `store.timeout` of all runs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// The rules, in the order in which the README states the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// One effect for each key, unless the route allows another.
    OneEffect,
    /// One effect for each attempt.
    OneEffectForAnAttempt,
    /// One request to the service for each attempt, also where the service refuses it.
    OneCallForAnAttempt,
    /// Unless the route allows it, no attempt begins at the service while an earlier one runs there.
    OneAttemptAtATime,
    /// Unless the route allows it, no attempt follows one that the service has executed.
    NothingFollowsAnExecution,
    /// Unless the route allows it, no attempt follows one that its own proxy has called unknown.
    NothingFollowsAnUnknownOutcome,
    /// Where the route allows another attempt: only after one that a proxy has called unknown.
    OnlyWhatIsUnknownIsTakenOver,
    /// With `retry-when-quiet`, another attempt does not start before the earlier one must have ended.
    NothingIsTakenOverTooSoon,
    /// All answers to a key are equal.
    AnswersAreAlike,
    /// An answered effect has happened, for this very request.
    AnAnswerHasItsEffect,
    /// At most one first answer.
    OneFirstAnswer,
    /// A request answered as not executed has no effect, not even later.
    ARefusalHasNoEffect,
    /// No effect happens after an answer.
    NothingAfterAnAnswer,
    /// A different request under the same key is refused and has no effect.
    AnotherRequestIsRefused,
    /// The same request is never refused as a different one.
    TheSameRequestIsNot,
    /// No caller gets another caller's answer.
    CallersAreApart,
    /// Every acknowledged answer is replayed from then on.
    NothingAcknowledgedIsLost,
    /// At the end, each key is completed, free or unknown, and is answered so at once.
    EveryKeyIsDefinite,
    /// At the end, the store answers. A slow moment of the store says nothing about a key, but must be the exception.
    TheStoreIsBack,
    /// Every answer is a documented one.
    AnswersMakeSense,
    /// Every effect was caused by a request of this history.
    EffectsHaveACause,
    /// The run had enough successes and faults to prove something.
    NotVacuous,
}

/// A rule that is broken.
#[derive(Clone, Debug)]
pub struct Breach {
    pub rule: Rule,
    pub name: Option<ScopedKey>,
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.rule)?;
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Returns every breach in the history, rule by rule.
pub fn check(history: &History, rules: &Rules) -> Vec<Breach> {
    let mut keys: BTreeMap<&ScopedKey, KeyHistory<'_>> = BTreeMap::new();
    for op in &history.ops {
        keys.entry(&op.name).or_default().ops.push(op);
    }
    for effect in &history.effects {
        keys.entry(&effect.name).or_default().effects.push(effect);
    }
    for call in &history.service_calls {
        keys.entry(&call.name).or_default().calls.push(call);
    }
    let index = HistoryIndex {
        rules,
        unknown: history.unknown.iter().collect(),
        first_unknown: first_unknown(&history.unknown_to_their_proxy),
        ops: history.ops.iter().map(|op| (op.id, op)).collect(),
        effects: history.effects.iter().map(|effect| (effect.id, effect)).collect(),
    };
    let mut breaches = Vec::new();
    for (name, mut key) in keys {
        key.ops.sort_by_key(|op| op.invoked);
        key.effects.sort_by_key(|effect| (effect.attempt.number, effect.at));
        let mut found = BreachCollector { name, breaches: &mut breaches };
        key.calls.sort_by_key(|call| call.began);
        index.check_executions(&key, &mut found);
        index.check_calls(&key, &mut found);
        index.check_causes(&key, &mut found);
        index.check_answers(&key, &mut found);
        index.check_lifetime(&key, &mut found);
        index.check_final_state(&key, &mut found);
    }
    check_recovery(history, &mut breaches);
    check_coverage(history, rules, &mut breaches);
    breaches.sort_by_key(|breach| breach.rule);
    breaches
}

/// The keys of which one of these rules is broken.
pub fn keys_of<'a>(breaches: &'a [Breach], rules: &[Rule]) -> BTreeSet<&'a ScopedKey> {
    let of_rules = breaches.iter().filter(|breach| rules.contains(&breach.rule));
    of_rules.filter_map(|breach| breach.name.as_ref()).collect()
}

/// The lowest number of each record's unknown attempts.
fn first_unknown(attempts: &[Attempt]) -> HashMap<&str, u64> {
    let mut first = HashMap::new();
    for Attempt { record, number } in attempts {
        first.entry(&**record).and_modify(|first: &mut u64| *first = *number.min(first)).or_insert(*number);
    }
    first
}

/// One key's requests, effects, and requests at the service.
#[derive(Default)]
struct KeyHistory<'a> {
    ops: Vec<&'a Op>,
    effects: Vec<&'a Effect>,
    calls: Vec<&'a ServiceCall>,
}

impl<'a> KeyHistory<'a> {
    /// Whether an earlier attempt of the key may be registered at the proxy of `op`: it has ended as not executed, and
    /// the proxy misses the store's reply to that, while another proxy has taken the key over.
    fn has_earlier_attempt_at(&self, op: &Op, acknowledged: &Op) -> bool {
        let is_waiting = |other: &&&Op| other.kind().is_none() || other.returned >= op.invoked;
        let mut earlier = self.ops.iter().filter(|other| other.proxy == op.proxy && other.id != op.id);
        earlier.any(|other| other.invoked < acknowledged.returned && is_waiting(&other))
    }

    /// The first request whose answer shows that the key is its own and stays so: it was executed, is accepted, or may
    /// have been executed.
    fn first_owner(&self) -> Option<&'a Op> {
        use AnswerKind::{Accepted, Broken, First, Replay, Unknown, Unstored};
        let owns = |kind| matches!(kind, First | Replay | Unstored | Accepted | Unknown | Broken);
        let owners = self.ops.iter().filter(|op| op.kind().is_some_and(owns));
        owners.min_by_key(|op| op.returned).copied()
    }

    /// The first request whose acceptance the client knows.
    fn first_accepted(&self) -> Option<&'a Op> {
        let accepted = self.ops.iter().filter(|op| op.kind() == Some(AnswerKind::Accepted));
        accepted.min_by_key(|op| op.returned).copied()
    }
}

struct HistoryIndex<'a> {
    rules: &'a Rules,
    unknown: BTreeSet<&'a Attempt>,
    first_unknown: HashMap<&'a str, u64>,
    ops: HashMap<u64, &'a Op>,
    effects: HashMap<u64, &'a Effect>,
}

struct BreachCollector<'a> {
    name: &'a ScopedKey,
    breaches: &'a mut Vec<Breach>,
}

impl BreachCollector<'_> {
    fn breach(&mut self, rule: Rule, what: impl Into<String>) {
        self.breaches.push(Breach { rule, name: Some(self.name.clone()), what: what.into() });
    }
}

impl HistoryIndex<'_> {
    /// Checks how often the key was executed.
    fn check_executions(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        if self.rules.policy == Policy::Hold && key.effects.len() > 1 {
            found.breach(Rule::OneEffect, format!("executed {} times", key.effects.len()));
        }
        for pair in key.effects.windows(2) {
            let [one, next] = pair else { continue };
            if one.attempt == next.attempt {
                found.breach(Rule::OneEffectForAnAttempt, format!("effects {} and {}", one.id, next.id));
                continue;
            }
            if self.rules.policy == Policy::Hold {
                continue;
            }
            if !self.unknown.contains(&one.attempt) {
                found.breach(Rule::OnlyWhatIsUnknownIsTakenOver, format!("effect {} follows {}", next.id, one.id));
            }
            if let Policy::RetryWhenQuiet(quiet) = self.rules.policy
                && next.at < one.at + quiet
            {
                let apart = next.at.saturating_sub(one.at);
                found.breach(Rule::NothingIsTakenOverTooSoon, format!("effect {} after {apart:?}", next.id));
            }
        }
    }

    /// Checks the requests at the service, also those that it refused, which leave no effect.
    fn check_calls(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        let mut attempts = BTreeSet::new();
        for call in key.calls.iter().filter(|call| !attempts.insert(&call.attempt)) {
            found.breach(Rule::OneCallForAnAttempt, call.to_string());
        }
        for pair in key.calls.windows(2) {
            let [one, next] = pair else { continue };
            if one.attempt == next.attempt {
                continue;
            }
            if self.rules.policy == Policy::Hold && next.began < one.ended {
                found.breach(Rule::OneAttemptAtATime, next.to_string());
            } else if self.rules.policy == Policy::Hold && !one.was_refused {
                found.breach(Rule::NothingFollowsAnExecution, next.to_string());
            }
        }
        let follows = |call: &&&ServiceCall| {
            self.first_unknown.get(&*call.attempt.record).is_some_and(|unknown| *unknown < call.attempt.number)
        };
        if self.rules.policy == Policy::Hold
            && let Some(call) = key.calls.iter().find(follows)
        {
            found.breach(Rule::NothingFollowsAnUnknownOutcome, call.to_string());
        }
    }

    /// Checks that each effect has a request, and that its answer allows the effect.
    fn check_causes(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        let answered = key.ops.iter().filter(|op| op.acknowledges()).map(|op| op.returned).min();
        let accepted = key.first_accepted().map(|op| op.returned);
        for effect in &key.effects {
            let Some(op) = self.ops.get(&effect.op).filter(|op| op.name == effect.name && op.body == effect.body)
            else {
                found.breach(Rule::EffectsHaveACause, format!("effect {} of op {}", effect.id, effect.op));
                continue;
            };
            let may_have_caused = match op.kind() {
                None | Some(AnswerKind::First | AnswerKind::Unstored | AnswerKind::Broken | AnswerKind::Nonsense) => {
                    true
                }
                Some(AnswerKind::Accepted) => true,
                // An attempt that lost the race gets the winner's answer, which is another request's. A delivery may
                // end before the answer to the request that it delivers.
                Some(AnswerKind::Replay) => self.rules.policy != Policy::Hold || op.route.is_asynchronous(),
                // The store may accept a request and be unable to say so.
                Some(AnswerKind::Rejected) => op.route.is_asynchronous(),
                Some(AnswerKind::Released | AnswerKind::Unknown | AnswerKind::InFlight | AnswerKind::Misuse) => false,
            };
            if !may_have_caused {
                found.breach(Rule::ARefusalHasNoEffect, format!("effect {} was caused by {op}", effect.id));
            }
            // Of a message's copies, any is executed.
            let is_copy = op.route == TargetRoute::Messages && !op.last;
            if accepted.is_some_and(|accepted| op.invoked > accepted) && !is_copy {
                let what = format!("effect {} was caused by a later {op}", effect.id);
                found.breach(Rule::NothingAcknowledgedIsLost, what);
            }
            if answered.is_some_and(|answered| op.invoked > answered) {
                found.breach(Rule::NothingAfterAnAnswer, format!("effect {} was caused by {op}", effect.id));
            }
        }
    }

    /// Checks that the answers agree.
    fn check_answers(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        let hold = self.rules.policy == Policy::Hold;
        let mut likeness: Option<(&Op, &Answer)> = None;
        let mut firsts = 0;
        for op in &key.ops {
            let Some(answer) = &op.answer else { continue };
            let kind = answer.kind();
            match kind {
                AnswerKind::Accepted if op.route.is_asynchronous() => {}
                AnswerKind::Nonsense | AnswerKind::Accepted => {
                    found.breach(Rule::AnswersMakeSense, format!("{op}: {answer:?}"))
                }
                AnswerKind::First | AnswerKind::Replay | AnswerKind::Unstored => self.check_effect(op, answer, found),
                _ => {}
            }
            // With a retry policy, a first attempt that could not be stored may have been followed by another.
            let counts = op.acknowledges() || (hold && kind == AnswerKind::Unstored);
            if !counts {
                continue;
            }
            firsts += usize::from(!answer.replayed);
            match likeness {
                None => likeness = Some((op, answer)),
                Some((first, model)) if !is_equivalent(answer, model) => {
                    let differs = format!("op {} and op {}: {answer:?} and {model:?}", op.id, first.id);
                    found.breach(Rule::AnswersAreAlike, differs);
                }
                Some(_) => {}
            }
        }
        if firsts > 1 {
            found.breach(Rule::OneFirstAnswer, format!("{firsts} of them"));
        }
    }

    /// Checks that an answered effect happened before the answer, for this caller's very request.
    fn check_effect(&self, op: &Op, answer: &Answer, found: &mut BreachCollector<'_>) {
        let effect = answer.effect.and_then(|id| self.effects.get(&id));
        match effect {
            Some(effect) if effect.name.caller != op.name.caller => {
                found.breach(Rule::CallersAreApart, format!("{op}: that is {}'s", effect.name));
            }
            Some(effect) if effect.name == op.name && effect.at <= op.returned => {
                if effect.body != op.body {
                    found.breach(Rule::AnotherRequestIsRefused, format!("{op}: that effect is of {}", effect.body));
                }
            }
            _ => found.breach(Rule::AnAnswerHasItsEffect, op.to_string()),
        }
    }

    /// Checks that acknowledged answers stay as they were.
    fn check_lifetime(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        // The request that the key was first used for, as far as it is certain: the one that was executed.
        let bodies: Vec<_> = key.effects.iter().map(|effect| &effect.body).collect();
        if bodies.iter().any(|body| *body != bodies[0]) {
            found.breach(Rule::AnotherRequestIsRefused, format!("both were executed: {bodies:?}"));
        }
        let only = key.ops.first().filter(|first| key.ops.iter().all(|op| op.body == first.body)).map(|op| &op.body);
        let known = bodies.first().copied().or(only);
        if let Some(owner) = key.first_owner() {
            for op in key.ops.iter().filter(|op| op.body != owner.body && op.invoked >= owner.returned) {
                // A proxy may still wait for the store's reply to the end of an earlier attempt of this request.
                let is_late = op.kind() == Some(AnswerKind::InFlight)
                    && op.invoked < owner.returned + REPLY_TIMEOUT
                    && key.has_earlier_attempt_at(op, owner);
                let is_refused = matches!(op.kind(), None | Some(AnswerKind::Misuse | AnswerKind::Rejected));
                if !is_refused && !is_late {
                    found.breach(Rule::AnotherRequestIsRefused, format!("{op}: the key is of op {}", owner.id));
                }
            }
        }
        let acknowledged = key.ops.iter().filter(|op| op.acknowledges()).min_by_key(|op| op.returned);
        let accepted = key.first_accepted();
        for op in &key.ops {
            let Some(kind) = op.kind() else { continue };
            if kind == AnswerKind::Misuse && known == Some(&op.body) {
                found.breach(Rule::TheSameRequestIsNot, op.to_string());
            }
            if accepted.is_some_and(|accepted| op.invoked >= accepted.returned) && !is_of_accepted(kind, op.route) {
                found.breach(Rule::NothingAcknowledgedIsLost, op.to_string());
            }
            let Some(acknowledged) = acknowledged.filter(|acknowledged| op.invoked >= acknowledged.returned) else {
                continue;
            };
            let remembered = match kind {
                AnswerKind::Replay | AnswerKind::Rejected | AnswerKind::Misuse | AnswerKind::Nonsense => true,
                // A proxy that misses the reply to its own commit knows the answer, but not that others can read it
                // already.
                AnswerKind::Unstored => op.effect() == acknowledged.effect(),
                // Until it no longer waits for that reply, or for the one to an earlier attempt, the attempt is in
                // flight there.
                AnswerKind::Accepted => op.invoked < acknowledged.returned + REPLY_TIMEOUT,
                AnswerKind::InFlight => {
                    op.invoked < acknowledged.returned + REPLY_TIMEOUT
                        && (self.executing_proxy(acknowledged.effect()) == Some(op.proxy)
                            || key.has_earlier_attempt_at(op, acknowledged))
                }
                _ => false,
            };
            if !remembered {
                found.breach(Rule::NothingAcknowledgedIsLost, op.to_string());
            }
        }
    }

    /// The proxy that sent the request of this effect.
    fn executing_proxy(&self, effect: Option<u64>) -> Option<usize> {
        let cause = self.effects.get(&effect?)?;
        self.ops.get(&cause.op).map(|op| op.proxy)
    }

    /// Checks that the key is in a definite state at the end.
    fn check_final_state(&self, key: &KeyHistory<'_>, found: &mut BreachCollector<'_>) {
        // Requests answered with a missing store were repeated, so they do not count.
        let oncegate_status: Vec<_> =
            key.ops.iter().filter(|op| op.last && op.kind() != Some(AnswerKind::Rejected)).collect();
        for (number, op) in oncegate_status.iter().enumerate() {
            let definite = match op.kind() {
                Some(AnswerKind::First | AnswerKind::Replay) => true,
                Some(AnswerKind::Unknown) => self.rules.policy != Policy::Retry,
                // A completed operation is asked for its response.
                Some(AnswerKind::Accepted) => match op.answer.as_ref().and_then(|answer| answer.operation.as_deref()) {
                    Some("unknown") => self.rules.policy != Policy::Retry,
                    // A batch has no response.
                    Some("completed") if op.route == TargetRoute::Batched => !key.effects.is_empty(),
                    Some("completed") => number + 1 < oncegate_status.len(),
                    _ => false,
                },
                // A different request has the key.
                Some(AnswerKind::Misuse) => key.ops.iter().any(|other| other.body != op.body),
                _ => false,
            };
            if !definite {
                found.breach(Rule::EveryKeyIsDefinite, op.to_string());
            }
        }
        if oncegate_status.is_empty() {
            found.breach(Rule::EveryKeyIsDefinite, "the key got no answer at the end");
        }
    }
}

/// At the end, one request in a hundred may find the store slow; on a short run, one in all.
fn check_recovery(history: &History, breaches: &mut Vec<Breach>) {
    let last = || history.ops.iter().filter(|op| op.last);
    let rejected = last().filter(|op| op.kind() == Some(AnswerKind::Rejected)).count();
    if rejected > 1 && rejected * 100 > last().count() {
        let what = format!("{rejected} of the last {} requests were rejected", last().count());
        breaches.push(Breach { rule: Rule::TheStoreIsBack, name: None, what });
    }
}

/// The number of keys of which a request succeeded while the load ran, and the number of all keys that it used.
pub fn keys_that_succeeded(history: &History) -> (usize, usize) {
    let during = || history.ops.iter().filter(|op| !op.last);
    let keys = during().map(|op| &op.name).collect::<BTreeSet<_>>().len();
    let succeeded = during().filter(|op| op.succeeded()).map(|op| &op.name).collect::<BTreeSet<_>>().len();
    (succeeded, keys)
}

/// Checks that enough keys succeeded while the load ran and enough faults were injected. Keys and not requests: a proxy
/// that is down refuses many requests in the time of one success, and for longer on a slow machine.
fn check_coverage(history: &History, rules: &Rules, breaches: &mut Vec<Breach>) {
    let mut breach = |what| breaches.push(Breach { rule: Rule::NotVacuous, name: None, what });
    let (succeeded, keys) = keys_that_succeeded(history);
    if succeeded * 100 < keys * SUCCESS_MIN || succeeded == 0 {
        breach(format!("{succeeded} of {keys} keys have succeeded"));
    }
    for (name, quota) in &rules.quotas {
        let count = history.faults.get(name).copied().unwrap_or(0);
        if count < *quota {
            breach(format!("{name}: {count}, and {quota} were wanted"));
        }
    }
}

/// Whether the answer is one to a key that was accepted before.
fn is_of_accepted(kind: AnswerKind, route: TargetRoute) -> bool {
    match kind {
        AnswerKind::Accepted | AnswerKind::Replay | AnswerKind::Unstored => true,
        AnswerKind::Misuse | AnswerKind::Rejected | AnswerKind::Nonsense => true,
        // A request with the key of a message is answered as any other.
        AnswerKind::Unknown => route == TargetRoute::Messages,
        AnswerKind::First | AnswerKind::Released | AnswerKind::Broken | AnswerKind::InFlight => false,
    }
}

/// Whether two answers to one key are equal, apart from the fields that mark one as a replay or as not stored.
fn is_equivalent(one: &Answer, other: &Answer) -> bool {
    let is_until = |(name, _): &&(String, String)| name == "idempotency-key-expires";
    // While an outcome is not stored, its expiry is unknown: the first client gets none, and neither do clients that
    // get the outcome again from the instance that holds it.
    let oncegate_status = [one, other].iter().all(|answer| answer.fields.iter().any(|field| is_until(&field)));
    let fields = |answer: &Answer| {
        answer.fields.iter().filter(|field| oncegate_status || !is_until(field)).cloned().collect::<Vec<_>>()
    };
    (one.status, &one.body, fields(one)) == (other.status, &other.body, fields(other))
}
