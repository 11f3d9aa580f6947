//! What comes of each action, as the gate and the tasks have it.

use std::sync::atomic::Ordering;

use crate::breach::{Breach, Weakness};
use crate::protocol::{OnUnknown, Oncegate, Told, What};
use crate::state::{
    Body, GONE, Outcome, Record, Request, Said, Seen, State, Statement, Step, Strays, Token, Upstream, World,
};

impl Oncegate {
    pub fn act(&self, world: &mut World, what: What, who: u8) {
        match what {
            What::ComeTo0 | What::ComeTo1 | What::ComeTo2 => {
                let request = request(world, who);
                (request.at, request.step) = (what as u8, Step::Asking { doubt: false });
            }
            What::Reserve => self.reserve(world, who),
            What::TakeOver => self.take_over(world, who),
            What::LookOnly => match world.record {
                None => self.tell(world, who, Told::StoreUnavailable, None),
                Some(record) => {
                    self.decide(world, who, &record);
                    if matches!(request(world, who).step, Step::Taking { .. }) {
                        self.tell(world, who, Told::StoreUnavailable, None);
                    }
                }
            },
            What::Unanswered => unanswered(world, who),
            What::CarriedOut => match request(world, who).pending.take() {
                Some(Statement::Reserve) => drop(self.insert(world, who)),
                Some(Statement::TakeOver(seen)) => drop(self.overwrite(world, who, seen)),
                Some(Statement::Settle(outcome)) => drop(self.settle(world, who, outcome.state(who))),
                None => {}
            },
            What::GiveUp => match request(world, who).step {
                Step::Settling { outcome, .. } => {
                    self.tell_unstored(world, who, outcome);
                    request(world, who).step = match self.is(Weakness::ForgottenBeforeStored) {
                        true => Step::Ended,
                        false => Step::Behind { outcome },
                    };
                }
                _ => self.tell(world, who, Told::StoreUnavailable, None),
            },
            What::LookAtLease => {
                let at = usize::from(request(world, who).at);
                let in_time = !request(world, who).late || self.is(Weakness::LeaseAloneBeforeSending);
                let good = (world.proxies[at].lease && in_time) || self.is(Weakness::NoSecondLook);
                request(world, who).step = if good { Step::Checked } else { settling(Outcome::Abandoned) };
            }
            What::Write => {
                let request = request(world, who);
                if let Step::Asking { .. } = request.step {
                    request.pending = Some(Statement::Reserve);
                }
                (request.step, request.upstream) = (Step::Waiting, Upstream::Arrived);
            }
            What::CannotConnect => request(world, who).step = settling(Outcome::NeverSent),
            What::Execute => {
                let request = request(world, who);
                request.upstream = Upstream::Executed;
                let effects = &mut world.life.effects[usize::from(request.life)];
                *effects += 1;
                let second = *effects > 1;
                let newest = world.record.is_some_and(|record| record.token == who);
                world.breaches.note(Breach::SecondEffect, second);
                world.breaches.note(Breach::Superseded, !newest);
            }
            What::Decline => request(world, who).upstream = Upstream::Declined,
            What::Hear => self.hear(world, who),
            What::Lose => {
                let outcome = match self.is(Weakness::BrokenIsReleased) {
                    true => Outcome::NeverSent,
                    false => Outcome::Broken,
                };
                request(world, who).step = settling(outcome);
            }
            What::Settle => self.file(world, who),
            What::SettleBehind => {
                if let Step::Behind { outcome } = request(world, who).step {
                    self.settle(world, who, outcome.state(who));
                    request(world, who).acted = outcome.is_restored();
                    world.life.filed |= outcome == Outcome::Answered;
                }
                request(world, who).step = Step::Ended;
            }
            What::Lapse => {
                world.left.lapses -= 1;
                world.proxies[usize::from(who)].lease = false;
            }
            What::Renew => world.proxies[usize::from(who)].lease = true,
            What::Crash => crash(world, who),
            What::Sweep => {
                let state = if self.is(Weakness::SweepFrees) { State::Retryable } else { State::Unknown };
                self.rewrite(world, |record| record.state = state);
            }
            What::StraysLook | What::StraysAsk => self.look_for_strays(world, who),
            What::StraysRelease => {
                if let Strays::Found(token) = world.proxies[usize::from(who)].strays {
                    let lost = request(world, token).acted && !self.is(Weakness::LostEndIsStray);
                    self.settle(world, token, if lost { State::Unknown } else { State::Retryable });
                }
                world.proxies[usize::from(who)].strays = Strays::Idle;
            }
            What::Quiet => pass_the_time(world),
            What::TtlEnds => {
                world.left.ttls -= 1;
                if let Some(record) = &mut world.record {
                    record.past_ttl = true;
                    // The store has carried out by then what it was asked, or never does.
                    world.requests[usize::from(record.token)].pending = None;
                }
                // Nor is what was asked before this state, and with it the TTL, began.
                let now = world.record.map(|record| (record.token, record.state));
                let recent = |asked: &Statement| match asked {
                    Statement::Reserve => true,
                    Statement::TakeOver(seen) => {
                        now.is_some_and(|(token, state)| seen.token == token && state.is_named_as(seen.state))
                    }
                    Statement::Settle(_) => false,
                };
                for request in &mut world.requests {
                    request.pending = request.pending.filter(recent);
                }
            }
            What::Reap => self.put(world, None),
            What::ServiceCompletes => drop(self.settle(world, who, State::Completed(Body::Said(who)))),
            What::ServiceDenies => match world.record.map(|record| record.state) {
                Some(State::InFlight) => world.denied = Some(who),
                Some(State::Dead | State::Unknown) => self.rewrite(world, |record| record.state = State::Retryable),
                _ => {}
            },
            What::Heed => self.rewrite(world, |record| record.state = State::Retryable),
            What::AskService => {
                let Some(Record { token, .. }) = world.record else { return };
                world.said = match request(world, token).upstream {
                    Upstream::Executed => Said::Executed(token),
                    _ => Said::Absent(token),
                };
            }
            What::Resolve => self.resolve(world),
            What::Dead => self.rewrite(world, |record| record.state = State::Dead),
            What::ReconciledExecuted => {
                self.rewrite(world, |record| record.state = State::Completed(Body::Said(record.token)));
            }
            What::ReconciledNotExecuted => self.rewrite(world, |record| record.state = State::Retryable),
            What::Forget => {
                world.left.losses -= 1;
                self.put(world, None);
            }
            What::ForgetEnd => {
                world.left.lost_ends -= 1;
                // No step of ours: what is lost is not judged by them.
                if let Some(record) = &mut world.record {
                    (record.state, record.past_ttl) = (State::InFlight, false);
                }
            }
            What::Risk => {
                world.left.risks -= 1;
                self.rewrite(world, |record| record.state = State::Retryable);
            }
        }
    }

    fn rewrite(&self, world: &mut World, change: impl Fn(&mut Record)) {
        let mut record = world.record;
        record.iter_mut().for_each(change);
        self.put(world, record);
    }

    /// `Gate::guarded`, up to the attempt or the answer.
    fn reserve(&self, world: &mut World, token: Token) {
        if self.insert(world, token) {
            request(world, token).step = Step::Reserved;
            return;
        }
        let Some(record) = world.record else { return };
        let doubt =
            matches!(request(world, token).step, Step::Asking { doubt: true } | Step::Taking { doubt: true, .. });
        let ours = record.token == token || self.is(Weakness::DoubtTakesAny);
        if doubt && ours && record.state == State::InFlight {
            request(world, token).step = Step::Reserved;
        } else {
            self.decide(world, token, &record);
        }
    }

    fn take_over(&self, world: &mut World, token: Token) {
        let Step::Taking { seen, .. } = request(world, token).step else { return };
        if self.overwrite(world, token, seen) {
            request(world, token).step = Step::Reserved;
        } else {
            // It has changed, or is gone: from the beginning.
            self.reserve(world, token);
        }
    }

    /// `gate::decide`. A duplicate that waits is one that comes later; one that waits in vain gets 409 like the rest.
    fn decide(&self, world: &mut World, token: Token, record: &Record) {
        let lapsed = world.has_lapsed(record);
        let takes = record.past_ttl
            || match record.state {
                State::Completed(_) | State::Dead => false,
                State::InFlight => lapsed && self.is(Weakness::TakeOverLapsed),
                State::Retryable => true,
                State::Unknown => self.may_retry(record) || self.retries_too_soon(),
            };
        if takes && record.token == token && !self.is(Weakness::TokenTwice) {
            // Its own reservation, come late and made unknown meanwhile. One token is one attempt: no second one under it.
            return self.tell(world, token, Told::StoreUnavailable, None);
        }
        if takes {
            request(world, token).step = Step::Taking { seen: Seen::from(record), doubt: false };
            return;
        }
        match record.state {
            State::Completed(body) => self.tell(world, token, Told::Replayed, Some(body)),
            State::InFlight | State::Retryable => self.tell(world, token, Told::InFlight, None),
            State::Dead | State::Unknown => self.tell(world, token, Told::OutcomeUnknown, None),
        }
    }

    fn retries_too_soon(&self) -> bool {
        self.on_unknown == OnUnknown::RetryWhenQuiet && self.is(Weakness::RetryBeforeQuiet)
    }

    fn hear(&self, world: &mut World, token: Token) {
        let outcome = match request(world, token).upstream {
            Upstream::Executed => Outcome::Answered,
            _ => Outcome::Declined,
        };
        if outcome == Outcome::Answered && self.is(Weakness::AnswerBeforeStored) {
            self.tell(world, token, Told::Executed, Some(Body::Heard(token)));
        }
        request(world, token).step = settling(outcome);
    }

    /// The settlement and the answer, as `Gate::forward` has them.
    fn file(&self, world: &mut World, token: Token) {
        let Step::Settling { outcome, doubt } = request(world, token).step else { return };
        let written = self.settle(world, token, outcome.state(token));
        request(world, token).acted = outcome.is_restored();
        world.life.filed |= outcome == Outcome::Answered;
        if written {
            match outcome {
                Outcome::Answered => self.tell(world, token, Told::Executed, Some(Body::Heard(token))),
                Outcome::Declined => self.tell(world, token, Told::Released, None),
                Outcome::Abandoned => self.tell(world, token, Told::StoreUnavailable, None),
                Outcome::NeverSent => self.tell(world, token, Told::Unreachable, None),
                Outcome::Broken => self.tell(world, token, Told::Broken, None),
            }
            return;
        }
        let own = (outcome == Outcome::Answered).then_some(Body::Heard(token));
        let stored = world.record.and_then(|record| match record.state {
            State::Completed(body) => Some((body, record.token == token)),
            _ => None,
        });
        match stored {
            Some((_, true)) if doubt && own.is_some() && self.is(Weakness::DoubtTrustsState) => {
                self.tell(world, token, Told::Executed, own);
            }
            Some(_) if own.is_some() && self.is(Weakness::LoserTellsItsOwn) => {
                self.tell(world, token, Told::Executed, own);
            }
            // What is durable is the answer, whosever it is.
            Some((body, ours)) if outcome != Outcome::Abandoned => {
                let told = if ours { Told::Executed } else { Told::Replayed };
                self.tell(world, token, told, Some(body));
            }
            _ => self.tell_unstored(world, token, outcome),
        }
    }

    fn tell_unstored(&self, world: &mut World, token: Token, outcome: Outcome) {
        let told = match outcome {
            Outcome::Answered | Outcome::Declined => Told::Unstored,
            Outcome::Abandoned => Told::StoreUnavailable,
            Outcome::NeverSent => Told::Unreachable,
            Outcome::Broken => Told::Broken,
        };
        self.tell(world, token, told, None);
    }

    /// Answers the client, and with it ends the request.
    fn tell(&self, world: &mut World, token: Token, told: Told, body: Option<Body>) {
        self.told.fetch_or(1 << told as u64, Ordering::Relaxed);
        let denies = matches!(told, Told::Unreachable | Told::StoreUnavailable);
        let sent = request(world, token).upstream != Upstream::Nothing;
        world.breaches.note(Breach::FalseDenial, denies && sent);
        if let Some(body) = body {
            let stored = world.record.is_some_and(|record| record.state == State::Completed(body));
            world.breaches.note(Breach::NotStored, !stored);
            world.breaches.note(Breach::Differing, world.life.told.is_some_and(|told| told != body));
            world.breaches.note(Breach::TwoFirsts, told == Told::Executed && world.life.first);
            world.life.told = Some(body);
            world.life.first |= told == Told::Executed;
        }
        request(world, token).step = Step::Ended;
    }

    /// The pass over what stands under a proxy's name and is not running there: at what runs first, then at the store.
    fn look_for_strays(&self, world: &mut World, proxy: u8) {
        let (running, standing, come) = (world.running(proxy), world.standing(proxy), world.come());
        let strays = &mut world.proxies[usize::from(proxy)].strays;
        let found = |found: Option<Token>| found.map_or(Strays::Idle, Strays::Found);
        *strays = match *strays {
            Strays::Idle if self.is(Weakness::StraysStoreFirst) => standing.map_or(Strays::Idle, Strays::Standing),
            Strays::Idle => Strays::Looked { running, come },
            Strays::Standing(token) => found(Some(token).filter(|token| running & 1 << token == 0)),
            Strays::Looked { running, come } => {
                let old = |token: &Token| *token < come || self.is(Weakness::StraysWithoutAge);
                found(standing.filter(|token| running & 1 << token == 0).filter(old))
            }
            Strays::Found(token) => Strays::Found(token),
        };
    }
}

fn request(world: &mut World, token: Token) -> &mut Request {
    &mut world.requests[usize::from(token)]
}

fn settling(outcome: Outcome) -> Step {
    Step::Settling { outcome, doubt: false }
}

fn unanswered(world: &mut World, token: Token) {
    world.left.doubts -= 1;
    let request = request(world, token);
    request.pending = match &mut request.step {
        Step::Asking { doubt } => {
            *doubt = true;
            Some(Statement::Reserve)
        }
        Step::Taking { seen, doubt } => {
            *doubt = true;
            Some(Statement::TakeOver(*seen))
        }
        Step::Settling { outcome, doubt } => {
            *doubt = true;
            Some(Statement::Settle(*outcome))
        }
        _ => None,
    };
}

/// What the upstream has not begun by now it never does: its own time is up, too.
fn pass_the_time(world: &mut World) {
    if let Some(record) = &mut world.record {
        record.quiet = true;
        let attempt = &mut world.requests[usize::from(record.token)];
        attempt.late = true;
        if attempt.upstream == Upstream::Arrived {
            attempt.upstream = Upstream::Nothing;
        }
    }
}

/// What ran there is gone, and so is the instance: who starts in its place is another one.
fn crash(world: &mut World, proxy: u8) {
    world.left.crashes -= 1;
    for request in world.requests.iter_mut().filter(|request| request.at == proxy) {
        (request.at, request.step) = (GONE, Step::Ended);
    }
    if let Some(record) = &mut world.record
        && record.instance == proxy
    {
        record.instance = GONE;
    }
    world.proxies[usize::from(proxy)].strays = Strays::Idle;
    world.proxies[usize::from(proxy)].lease = true;
}
