//! What every history must keep, whatever broke meanwhile. Pure: it reads what happened and names what must not.
//!
//! Keys are independent of each other, so that each is judged by itself, in one pass over its requests and effects.
//! That the checker can fail is shown in `checker_can_fail`, rule by rule.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use crate::history::{Answer, Attempt, Effect, History, Meaning, Name, Op};

/// What the route says about outcomes that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Never a second attempt.
    Hold,
    /// A second attempt, at once.
    Retry,
    /// A second attempt, when the first has had all this time.
    RetryWhenQuiet(Duration),
}

/// What a run must keep.
#[derive(Clone, Debug)]
pub struct Rules {
    pub policy: Policy,
    /// How often each fault has to strike for the run to say anything.
    pub quotas: Vec<(String, usize)>,
}

/// The share of requests that must succeed for the run to say anything, in percent.
pub const SUCCESS_MIN: usize = 60;

/// The rules, in the order in which a reader of the README would ask for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// One effect for each key, unless the route says otherwise.
    OneEffect,
    /// One effect for each attempt.
    OneEffectForAnAttempt,
    /// Where the route allows another attempt: only after one whose outcome a proxy has called unknown.
    OnlyWhatIsUnknownIsTakenOver,
    /// And with `retry-when-quiet` not before the earlier one must have ended.
    NothingIsTakenOverTooSoon,
    /// All answers to a key are one answer.
    AnswersAreAlike,
    /// What is answered has happened, to this very request.
    AnAnswerHasItsEffect,
    /// At most one first answer.
    OneFirstAnswer,
    /// Who is told that nothing was executed caused nothing, also not later.
    ARefusalHasNoEffect,
    /// After an answer nothing is executed any more.
    NothingAfterAnAnswer,
    /// Another request under the same key is refused, and has no effect.
    AnotherRequestIsRefused,
    /// The same request is never taken for another.
    TheSameRequestIsNot,
    /// A caller gets nothing of another caller's.
    CallersAreApart,
    /// What was acknowledged is replayed ever after.
    NothingAcknowledgedIsLost,
    /// When all has come to rest, each key is completed, free or unknown, and says so at once.
    EveryKeyIsDefinite,
    /// And the store is there: one that is slow for a moment says nothing of a key, but it must stay the exception.
    TheStoreIsBack,
    /// Every answer is one of those that Oncegate promises.
    AnswersMakeSense,
    /// Every effect was caused by a request of this history.
    EffectsHaveACause,
    /// The run has shown something.
    NotVacuous,
}

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Breach {
    pub rule: Rule,
    pub name: Option<Name>,
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

/// Every breach in the history, rule by rule.
pub fn check(history: &History, rules: &Rules) -> Vec<Breach> {
    let mut keys: BTreeMap<&Name, Key<'_>> = BTreeMap::new();
    for op in &history.ops {
        keys.entry(&op.name).or_default().ops.push(op);
    }
    for effect in &history.effects {
        keys.entry(&effect.name).or_default().effects.push(effect);
    }
    let world = World {
        rules,
        unknown: history.unknown.iter().collect(),
        ops: history.ops.iter().map(|op| (op.id, op)).collect(),
        effects: history.effects.iter().map(|effect| (effect.id, effect)).collect(),
    };
    let mut breaches = Vec::new();
    for (name, mut key) in keys {
        key.ops.sort_by_key(|op| op.invoked);
        key.effects.sort_by_key(|effect| (effect.attempt.number, effect.at));
        let mut found = Found { name, breaches: &mut breaches };
        world.executions(&key, &mut found);
        world.causes(&key, &mut found);
        world.answers(&key, &mut found);
        world.lifetime(&key, &mut found);
        world.end(&key, &mut found);
    }
    back(history, &mut breaches);
    vacuous(history, rules, &mut breaches);
    breaches.sort_by_key(|breach| breach.rule);
    breaches
}

/// What is known of one key.
#[derive(Default)]
struct Key<'a> {
    ops: Vec<&'a Op>,
    effects: Vec<&'a Effect>,
}

struct World<'a> {
    rules: &'a Rules,
    unknown: std::collections::BTreeSet<&'a Attempt>,
    ops: HashMap<u64, &'a Op>,
    effects: HashMap<u64, &'a Effect>,
}

struct Found<'a> {
    name: &'a Name,
    breaches: &'a mut Vec<Breach>,
}

impl Found<'_> {
    fn breach(&mut self, rule: Rule, what: impl Into<String>) {
        self.breaches.push(Breach { rule, name: Some(self.name.clone()), what: what.into() });
    }
}

impl World<'_> {
    /// How often was it executed?
    fn executions(&self, key: &Key<'_>, found: &mut Found<'_>) {
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

    /// Who caused it, and what had that one been told?
    fn causes(&self, key: &Key<'_>, found: &mut Found<'_>) {
        let answered = key.ops.iter().filter(|op| op.acknowledges()).map(|op| op.returned).min();
        for effect in &key.effects {
            let Some(op) = self.ops.get(&effect.op).filter(|op| op.name == effect.name && op.body == effect.body)
            else {
                found.breach(Rule::EffectsHaveACause, format!("effect {} of op {}", effect.id, effect.op));
                continue;
            };
            let may_have_caused = match op.meaning() {
                None | Some(Meaning::First | Meaning::Unstored | Meaning::Broken | Meaning::Nonsense) => true,
                // An attempt that came second is told what won, and that is somebody else's.
                Some(Meaning::Replay) => self.rules.policy != Policy::Hold,
                Some(
                    Meaning::Released | Meaning::Unknown | Meaning::InFlight | Meaning::Misuse | Meaning::Rejected,
                ) => false,
            };
            if !may_have_caused {
                found.breach(Rule::ARefusalHasNoEffect, format!("effect {} was caused by {op}", effect.id));
            }
            if answered.is_some_and(|answered| op.invoked > answered) {
                found.breach(Rule::NothingAfterAnAnswer, format!("effect {} was caused by {op}", effect.id));
            }
        }
    }

    /// What was said of it?
    fn answers(&self, key: &Key<'_>, found: &mut Found<'_>) {
        let hold = self.rules.policy == Policy::Hold;
        let mut likeness: Option<(&Op, &Answer)> = None;
        let mut firsts = 0;
        for op in &key.ops {
            let Some(answer) = &op.answer else { continue };
            let meaning = answer.meaning();
            match meaning {
                Meaning::Nonsense => found.breach(Rule::AnswersMakeSense, format!("{op}: {answer:?}")),
                Meaning::First | Meaning::Replay | Meaning::Unstored => self.effect(op, answer, found),
                _ => {}
            }
            // Whoever was first and could not be written down may have been followed, where the route says so.
            let counts = op.acknowledges() || (hold && meaning == Meaning::Unstored);
            if !counts {
                continue;
            }
            firsts += usize::from(!answer.replayed);
            match likeness {
                None => likeness = Some((op, answer)),
                Some((first, model)) if !is_like(answer, model) => {
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

    /// What is answered has happened before, to this caller's very request.
    fn effect(&self, op: &Op, answer: &Answer, found: &mut Found<'_>) {
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

    /// Is what was said once still so?
    fn lifetime(&self, key: &Key<'_>, found: &mut Found<'_>) {
        // What the key was first used for, as far as it is certain: what was executed under it.
        let bodies: Vec<_> = key.effects.iter().map(|effect| &effect.body).collect();
        if bodies.iter().any(|body| *body != bodies[0]) {
            found.breach(Rule::AnotherRequestIsRefused, format!("both were executed: {bodies:?}"));
        }
        let only = key.ops.first().filter(|first| key.ops.iter().all(|op| op.body == first.body)).map(|op| &op.body);
        let known = bodies.first().copied().or(only);
        let acknowledged = key.ops.iter().filter(|op| op.acknowledges()).min_by_key(|op| op.returned);
        for op in &key.ops {
            let Some(meaning) = op.meaning() else { continue };
            if meaning == Meaning::Misuse && known == Some(&op.body) {
                found.breach(Rule::TheSameRequestIsNot, op.to_string());
            }
            let Some(acknowledged) = acknowledged.filter(|acknowledged| op.invoked >= acknowledged.returned) else {
                continue;
            };
            let remembered = match meaning {
                Meaning::Replay | Meaning::Rejected | Meaning::Misuse | Meaning::Nonsense => true,
                // Whoever does not hear of its own commit knows the answer, and not that others can read it already.
                Meaning::Unstored => op.effect() == acknowledged.effect(),
                _ => false,
            };
            if !remembered {
                found.breach(Rule::NothingAcknowledgedIsLost, op.to_string());
            }
        }
    }

    /// Has it come to rest?
    fn end(&self, key: &Key<'_>, found: &mut Found<'_>) {
        // Whoever is told that the store is not there asks again.
        let told: Vec<_> = key.ops.iter().filter(|op| op.last && op.meaning() != Some(Meaning::Rejected)).collect();
        for op in &told {
            let definite = match op.meaning() {
                Some(Meaning::First | Meaning::Replay) => true,
                Some(Meaning::Unknown) => self.rules.policy != Policy::Retry,
                _ => false,
            };
            if !definite {
                found.breach(Rule::EveryKeyIsDefinite, op.to_string());
            }
        }
        if told.is_empty() {
            found.breach(Rule::EveryKeyIsDefinite, "nobody has been told at the end");
        }
    }
}

/// At the end one request in a hundred may find the store slow, and on a short run one.
fn back(history: &History, breaches: &mut Vec<Breach>) {
    let last = || history.ops.iter().filter(|op| op.last);
    let rejected = last().filter(|op| op.meaning() == Some(Meaning::Rejected)).count();
    if rejected > 1 && rejected * 100 > last().count() {
        let what = format!("{rejected} of the last {} requests were rejected", last().count());
        breaches.push(Breach { rule: Rule::TheStoreIsBack, name: None, what });
    }
}

/// A run in which little succeeded, or little broke, has shown little.
fn vacuous(history: &History, rules: &Rules, breaches: &mut Vec<Breach>) {
    let mut breach = |what| breaches.push(Breach { rule: Rule::NotVacuous, name: None, what });
    let during: Vec<_> = history.ops.iter().filter(|op| !op.last).collect();
    let succeeded = during.iter().filter(|op| op.acknowledges()).count();
    if succeeded * 100 < during.len() * SUCCESS_MIN || succeeded == 0 {
        breach(format!("{succeeded} of {} requests have succeeded", during.len()));
    }
    for (fault, quota) in &rules.quotas {
        let struck = history.faults.get(fault).copied().unwrap_or(0);
        if struck < *quota {
            breach(format!("{fault} struck {struck} times, and {quota} were wanted"));
        }
    }
}

/// Two answers to one key, but for what tells that one of them is a replay or could not be stored.
fn is_like(one: &Answer, other: &Answer) -> bool {
    let is_until = |(name, _): &&(String, String)| name == "idempotency-key-expires";
    // As long as an end is not written down, nobody can tell until when it is kept: not to whom it belongs, and not to
    // those who get it again from the instance that holds it.
    let told = [one, other].iter().all(|answer| answer.fields.iter().any(|field| is_until(&field)));
    let fields =
        |answer: &Answer| answer.fields.iter().filter(|field| told || !is_until(field)).cloned().collect::<Vec<_>>();
    (one.status, &one.body, fields(one)) == (other.status, &other.body, fields(other))
}
