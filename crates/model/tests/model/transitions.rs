//! The effect of each action, as the gate and the tasks implement it.

use std::sync::atomic::Ordering;

use crate::breaches::{Breach, Weakness};
use crate::protocol::{ActionKind, AnswerKind, OnUnknown, Oncegate};
use crate::state::{
    Body, ClockWatch, ExpectedRecord, GONE, OrphanPass, Outcome, Proxy, REQUESTS, Record, Request, ServiceReply, State,
    Statement, Step, Token, Upstream, World,
};

impl Oncegate {
    pub fn apply(&self, world: &mut World, what: ActionKind, who: u8) {
        match what {
            ActionKind::ComeTo0 | ActionKind::ComeTo1 | ActionKind::ComeTo2 => {
                let request = request(world, who);
                (request.at, request.step) = (what as u8, Step::Reserving { doubt: false });
            }
            ActionKind::Reserve => self.reserve(world, who),
            ActionKind::TakeOver => self.take_over(world, who),
            ActionKind::ReadOnly => match world.record {
                None => self.answer(world, who, AnswerKind::StoreUnavailable, None),
                Some(record) => {
                    self.decide(world, who, &record);
                    if matches!(request(world, who).step, Step::TakingOver { .. }) {
                        self.answer(world, who, AnswerKind::StoreUnavailable, None);
                    }
                }
            },
            ActionKind::LoseReply => lose_reply(world, who),
            ActionKind::ExecutePending => match request(world, who).pending.take() {
                Some(Statement::Reserve) => drop(self.insert(world, who)),
                Some(Statement::TakeOver(seen)) => drop(self.overwrite(world, who, seen)),
                Some(Statement::Settle(outcome)) => {
                    self.settle(world, who, outcome.state(self.answering(world, who)));
                }
                None => {}
            },
            ActionKind::GiveUp => match request(world, who).step {
                Step::Settling { outcome, .. } => {
                    self.answer_unstored(world, who, outcome);
                    request(world, who).step = match self.is(Weakness::ForgottenBeforeStored) {
                        true => Step::Ended,
                        false => Step::SettlingInBackground { outcome },
                    };
                }
                _ => self.answer(world, who, AnswerKind::StoreUnavailable, None),
            },
            ActionKind::CheckLease => {
                let at = usize::from(request(world, who).at);
                let in_time = !request(world, who).late || self.is(Weakness::LeaseAloneBeforeSending);
                let good = (world.proxies[at].lease && in_time) || self.is(Weakness::NoLeaseCheck);
                request(world, who).step = if good { Step::Checked } else { settling(Outcome::Abandoned) };
            }
            ActionKind::Write => {
                let request = request(world, who);
                if let Step::Reserving { .. } = request.step {
                    request.pending = Some(Statement::Reserve);
                }
                (request.step, request.upstream) = (Step::Waiting, Upstream::Arrived);
            }
            ActionKind::CannotConnect => request(world, who).step = settling(Outcome::NeverSent),
            ActionKind::Execute => {
                let request = &mut world.requests[usize::from(who)];
                request.upstream = Upstream::Executed;
                if self.on_unknown == OnUnknown::Vendor && !world.vendor.has_forgotten {
                    if world.vendor.executed.is_some() {
                        return;
                    }
                    world.vendor.executed = Some(who);
                }
                let effects = &mut world.life.effects[usize::from(request.life)];
                *effects += 1;
                let second = *effects > 1;
                let newest = world.record.is_some_and(|record| record.token == who);
                world.breaches.record_if(Breach::SecondEffect, second);
                world.breaches.record_if(Breach::Superseded, !newest);
            }
            ActionKind::Decline => request(world, who).upstream = Upstream::Declined,
            ActionKind::ReceiveResponse => self.receive_response(world, who),
            ActionKind::LoseResponse => {
                let outcome = match self.is(Weakness::BrokenIsReleased) {
                    true => Outcome::NeverSent,
                    false => Outcome::Broken,
                };
                request(world, who).step = settling(outcome);
            }
            ActionKind::Settle => self.settle_and_answer(world, who),
            ActionKind::SettleInBackground => {
                if let Step::SettlingInBackground { outcome } = request(world, who).step {
                    world.life.response_stored |= outcome == Outcome::Answered && !world.is_superseded(who);
                    self.settle(world, who, outcome.state(self.answering(world, who)));
                    request(world, who).acted = outcome.is_restored();
                }
                request(world, who).step = Step::Ended;
            }
            ActionKind::Lapse => {
                world.left.lapses -= 1;
                world.proxies[usize::from(who)].lease = false;
            }
            ActionKind::Renew => world.proxies[usize::from(who)].lease = true,
            ActionKind::Crash => self.crash(world, who),
            ActionKind::Sweep => {
                let state = if self.is(Weakness::SweepFrees) { State::Retryable } else { State::Unknown };
                self.rewrite(world, |record| record.state = state);
            }
            ActionKind::OrphansListRunning | ActionKind::OrphansReadStore => self.run_orphan_pass(world, who),
            ActionKind::OrphansRelease => {
                if let OrphanPass::Found(token) = world.proxies[usize::from(who)].orphan_pass {
                    let lost = request(world, token).acted && !self.is(Weakness::LostSettlementIsOrphan);
                    self.settle(world, token, if lost { State::Unknown } else { State::Retryable });
                }
                world.proxies[usize::from(who)].orphan_pass = OrphanPass::Idle;
            }
            ActionKind::Quiet => pass_quiet_time(world),
            ActionKind::RepeatsEnd => world.vendor.repeats_ended = true,
            ActionKind::VendorForgets => world.vendor.has_forgotten = true,
            ActionKind::TtlEnds => {
                world.left.ttls -= 1;
                if let Some(record) = &mut world.record {
                    record.past_ttl = true;
                    // By then the store has executed the statement, or never does.
                    world.requests[usize::from(record.token)].pending = None;
                }
                // The same holds for statements sent before this state, and its TTL, began.
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
            ActionKind::Reap => self.write_record(world, None),
            ActionKind::ServiceCompletes => drop(self.settle(world, who, State::Completed(Body::ServiceReply(who)))),
            ActionKind::ServiceDenies => match world.record.map(|record| record.state) {
                Some(State::InFlight) => world.denied = Some(who),
                Some(State::Dead | State::Unknown) => self.rewrite(world, |record| record.state = State::Retryable),
                _ => {}
            },
            ActionKind::ApplyDeferred => self.rewrite(world, |record| record.state = State::Retryable),
            ActionKind::AskService => {
                let Some(Record { token, .. }) = world.record else { return };
                world.service_reply = match world.requests[usize::from(token)].upstream {
                    _ if world.vendor.executed.is_some() => ServiceReply::Executed(token),
                    Upstream::Executed => ServiceReply::Executed(token),
                    _ => ServiceReply::Absent(token),
                };
            }
            ActionKind::Resolve => self.resolve(world),
            ActionKind::Dead => self.rewrite(world, |record| record.state = State::Dead),
            ActionKind::ReconciledExecuted => {
                self.rewrite(world, |record| record.state = State::Completed(Body::ServiceReply(record.token)));
            }
            ActionKind::ReconciledNotExecuted => self.rewrite(world, |record| record.state = State::Retryable),
            ActionKind::LoseReservation => {
                world.left.losses -= 1;
                self.write_record(world, None);
            }
            ActionKind::LoseSettlement => {
                world.left.lost_settlements -= 1;
                // A loss is no step of the protocol, so the rules for steps do not apply.
                if let Some(record) = &mut world.record {
                    (record.state, record.past_ttl) = (State::InFlight, false);
                }
            }
            ActionKind::LoseTakeOver => {
                world.left.lost_take_overs -= 1;
                // As above. An unknown record was taken over because it was quiet.
                if let Some(record) = &mut world.record
                    && let Some((token, state)) = record.replaced.take()
                {
                    *record = Record { token, state, instance: GONE, quiet: state == State::Unknown, ..*record };
                }
            }
            ActionKind::Risk => {
                world.left.risks -= 1;
                self.rewrite(world, |record| record.state = State::Retryable);
            }
            ActionKind::ClockJumps => {
                world.left.clock_jumps -= 1;
                world.proxies.iter_mut().for_each(|proxy| proxy.watch = ClockWatch::Unnoticed);
                if let Some(record) = &mut world.record {
                    record.overtaken = true;
                }
            }
            ActionKind::NoticeJump => {
                world.proxies[usize::from(who)].watch = ClockWatch::Doubt;
                world.ttls_held = true;
            }
            ActionKind::WatchEnds => world.proxies[usize::from(who)].watch = ClockWatch::Steady,
            ActionKind::HoldEnds => world.ttls_held = false,
        }
    }

    fn rewrite(&self, world: &mut World, change: impl Fn(&mut Record)) {
        let mut record = world.record;
        record.iter_mut().for_each(change);
        self.write_record(world, record);
    }

    /// `Gate::guarded`, up to the attempt or the answer.
    fn reserve(&self, world: &mut World, token: Token) {
        if self.insert(world, token) {
            request(world, token).step = Step::Reserved;
            return;
        }
        let Some(record) = world.record else { return };
        let doubt = matches!(
            request(world, token).step,
            Step::Reserving { doubt: true } | Step::TakingOver { doubt: true, .. }
        );
        let ours = record.token == token || self.is(Weakness::DoubtTakesAny);
        if doubt && ours && record.state == State::InFlight {
            request(world, token).step = Step::Reserved;
        } else {
            self.decide(world, token, &record);
        }
    }

    fn take_over(&self, world: &mut World, token: Token) {
        let Step::TakingOver { seen, .. } = request(world, token).step else { return };
        if self.overwrite(world, token, seen) {
            request(world, token).step = Step::Reserved;
        } else {
            // The record has changed or is gone: it starts from the beginning.
            self.reserve(world, token);
        }
    }

    /// `domain::decision::decide`. A duplicate that waits is modeled as one that comes later; one that waits in vain
    /// gets 409 like the rest.
    fn decide(&self, world: &mut World, token: Token, record: &Record) {
        let lapsed = world.has_lapsed(record);
        let at = request(world, token).at;
        let past_ttl = self.believes_past_ttl(world, at, record);
        let takes = past_ttl
            || match record.state {
                State::Completed(_) | State::Dead => false,
                State::InFlight => lapsed && self.is(Weakness::TakeOverLapsed),
                State::Retryable => true,
                State::Unknown => {
                    self.may_retry(world, self.believes_quiet(world, at, record))
                        || self.retries_too_soon()
                        || self.is(Weakness::TakeOverUnknown)
                }
            };
        if takes && record.token == token && !self.is(Weakness::TokenTwice) {
            // Its own reservation, executed late and marked unknown meanwhile. One token is one attempt, so no second
            // attempt starts under it.
            return self.answer(world, token, AnswerKind::StoreUnavailable, None);
        }
        if takes {
            let Record { token: newest, state, overtaken, .. } = *record;
            let seen = ExpectedRecord { token: newest, state, past_ttl, overtaken: past_ttl && overtaken };
            request(world, token).step = Step::TakingOver { seen, doubt: false };
            return;
        }
        match record.state {
            State::Completed(body) => self.answer(world, token, AnswerKind::Replayed, Some(body)),
            State::InFlight | State::Retryable => self.answer(world, token, AnswerKind::InFlight, None),
            State::Dead | State::Unknown => self.answer(world, token, AnswerKind::OutcomeUnknown, None),
        }
    }

    fn retries_too_soon(&self) -> bool {
        self.on_unknown == OnUnknown::RetryWhenQuiet && self.is(Weakness::RetryBeforeQuiet)
    }

    fn receive_response(&self, world: &mut World, token: Token) {
        let outcome = match request(world, token).upstream {
            Upstream::Executed => Outcome::Answered,
            _ => Outcome::Declined,
        };
        if outcome == Outcome::Answered && self.is(Weakness::AnswerBeforeStored) {
            let answering = self.answering(world, token);
            self.answer(world, token, AnswerKind::Executed, Some(Body::Answered(answering)));
        }
        request(world, token).step = settling(outcome);
    }

    /// The settlement and the answer, as in `Gate::forward`.
    fn settle_and_answer(&self, world: &mut World, token: Token) {
        let Step::Settling { outcome, doubt } = request(world, token).step else { return };
        world.life.response_stored |= outcome == Outcome::Answered && !world.is_superseded(token);
        let written = self.settle(world, token, outcome.state(self.answering(world, token)));
        request(world, token).acted = outcome.is_restored();
        if written {
            match outcome {
                Outcome::Answered => {
                    let answering = self.answering(world, token);
                    self.answer(world, token, AnswerKind::Executed, Some(Body::Answered(answering)));
                }
                Outcome::Declined => self.answer(world, token, AnswerKind::Released, None),
                Outcome::Abandoned => self.answer(world, token, AnswerKind::StoreUnavailable, None),
                Outcome::NeverSent => self.answer(world, token, AnswerKind::Unreachable, None),
                Outcome::Broken => self.answer(world, token, AnswerKind::Broken, None),
            }
            return;
        }
        let own = (outcome == Outcome::Answered).then(|| Body::Answered(self.answering(world, token)));
        let stored = world.record.and_then(|record| match record.state {
            State::Completed(body) => Some((body, record.token == token)),
            _ => None,
        });
        match stored {
            Some((_, true)) if doubt && own.is_some() && self.is(Weakness::DoubtTrustsState) => {
                self.answer(world, token, AnswerKind::Executed, own);
            }
            Some(_) if own.is_some() && self.is(Weakness::LoserAnswersItsOwn) => {
                self.answer(world, token, AnswerKind::Executed, own);
            }
            // The answer is the durable one, whichever attempt stored it.
            Some((body, ours)) if outcome != Outcome::Abandoned => {
                let kind = if ours { AnswerKind::Executed } else { AnswerKind::Replayed };
                self.answer(world, token, kind, Some(body));
            }
            _ => self.answer_unstored(world, token, outcome),
        }
    }

    fn answer_unstored(&self, world: &mut World, token: Token, outcome: Outcome) {
        let kind = match outcome {
            Outcome::Answered | Outcome::Declined => AnswerKind::Unstored,
            Outcome::Abandoned => AnswerKind::StoreUnavailable,
            Outcome::NeverSent => AnswerKind::Unreachable,
            Outcome::Broken => AnswerKind::Broken,
        };
        self.answer(world, token, kind, None);
    }

    /// Answers the client, which ends the request.
    fn answer(&self, world: &mut World, token: Token, kind: AnswerKind, body: Option<Body>) {
        self.answered.fetch_or(1 << kind as u64, Ordering::Relaxed);
        let denies = matches!(kind, AnswerKind::Unreachable | AnswerKind::StoreUnavailable);
        let sent = request(world, token).upstream != Upstream::Nothing;
        world.breaches.record_if(Breach::FalseDenial, denies && sent);
        if let Some(body) = body {
            let stored = world.record.is_some_and(|record| record.state == State::Completed(body));
            world.breaches.record_if(Breach::NotStored, !stored);
            world.breaches.record_if(Breach::Differing, world.life.promised.is_some_and(|promised| promised != body));
            world.breaches.record_if(Breach::TwoFirsts, kind == AnswerKind::Executed && world.life.first);
            world.life.promised = Some(body);
            world.life.first |= kind == AnswerKind::Executed;
        }
        request(world, token).step = Step::Ended;
    }

    /// The pass over attempts in flight under a proxy's name that do not run there: it lists the running ones first,
    /// then reads the store.
    fn run_orphan_pass(&self, world: &mut World, proxy: u8) {
        let (running, in_flight_token, arrived) = (world.running(proxy), world.in_flight_token(proxy), world.arrived());
        let orphan_pass = &mut world.proxies[usize::from(proxy)].orphan_pass;
        let found = |found: Option<Token>| found.map_or(OrphanPass::Idle, OrphanPass::Found);
        *orphan_pass = match *orphan_pass {
            OrphanPass::Idle if self.is(Weakness::OrphansStoreFirst) => {
                in_flight_token.map_or(OrphanPass::Idle, OrphanPass::InFlightInStore)
            }
            OrphanPass::Idle => OrphanPass::ListedRunning { running, arrived },
            OrphanPass::InFlightInStore(token) => found(Some(token).filter(|token| running & 1 << token == 0)),
            OrphanPass::ListedRunning { running, arrived } => {
                let old = |token: &Token| *token < arrived || self.is(Weakness::OrphansWithoutAge);
                found(in_flight_token.filter(|token| running & 1 << token == 0).filter(old))
            }
            OrphanPass::Found(token) => OrphanPass::Found(token),
        };
    }

    /// Everything that ran there is gone, and so is the instance: its successor is another one, which has not watched
    /// the store's clock.
    fn crash(&self, world: &mut World, proxy: u8) {
        world.left.crashes -= 1;
        for request in world.requests.iter_mut().filter(|request| request.at == proxy) {
            (request.at, request.step) = (GONE, Step::Ended);
        }
        if let Some(record) = &mut world.record
            && record.instance == proxy
        {
            record.instance = GONE;
        }
        let is_trusted = self.is(Weakness::StartTrustsClock) || self.is(Weakness::JumpsIgnored);
        let watch = if is_trusted { ClockWatch::Steady } else { ClockWatch::Doubt };
        world.proxies[usize::from(proxy)] = Proxy { lease: true, watch, orphan_pass: OrphanPass::Idle };
    }
}

fn request(world: &mut World, token: Token) -> &mut Request {
    &mut world.requests[usize::from(token)]
}

fn settling(outcome: Outcome) -> Step {
    Step::Settling { outcome, doubt: false }
}

fn lose_reply(world: &mut World, token: Token) {
    world.left.doubts -= 1;
    let request = request(world, token);
    request.pending = match &mut request.step {
        Step::Reserving { doubt } => {
            *doubt = true;
            Some(Statement::Reserve)
        }
        Step::TakingOver { seen, doubt } => {
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

/// A request that the upstream has not begun by now is never executed: the upstream's time is up, too.
fn pass_quiet_time(world: &mut World) {
    if let Some(record) = &mut world.record {
        record.quiet = true;
        // Those that it repeats began before it.
        let repeated =
            if record.is_repeat { 0..REQUESTS } else { usize::from(record.token)..usize::from(record.token) + 1 };
        for attempt in &mut world.requests[repeated] {
            attempt.late = true;
            if attempt.upstream == Upstream::Arrived {
                attempt.upstream = Upstream::Nothing;
            }
        }
    }
}
