//! Sends what was accepted: one attempt, by the same way as any other, and what follows from it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;

use super::admit::Guarded;
use super::meters::Found;
use super::refuse::Refusal;
use super::settle::file;
use super::status::Told;
use super::tenure::Moment;
use super::underway::Entry;
use super::{Gate, Shared, Stamp, fields, letter};
use crate::body::Body;
use crate::config::Route;
use crate::domain::attempt::{Lease, Settlement, Token};
use crate::domain::job::{Delivery, Job, Retry};
use crate::domain::policy::{OnUnknown, Verdict};
use crate::domain::record::RecordId;
use crate::domain::sealed::Unopened;
use crate::telemetry::logs::causes;

/// What has become of a delivery's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The response is stored: its request is needed no more.
    Completed,
    /// It will be tried again, or somebody has to look at it.
    Open,
}

/// What an attempt that brought no response to store says about the next one.
enum Hope {
    /// Not executed, and worth another try.
    Again(String),
    /// Not executed, and the same request will get the same again.
    None(String),
    /// Nobody knows whether it was executed.
    Unknown(String),
    /// Nothing was sent, or its end is still to be stored: nothing follows from it yet.
    Open,
}

impl Gate {
    /// Runs one attempt under the lease that was taken for it.
    pub async fn deliver(self: Arc<Self>, job: Job, entry: Entry, begun: Moment) -> Delivered {
        let Job { lease, sealed } = job;
        let (id, token, attempt) = (lease.ask.id, lease.ask.token, lease.attempt);
        let live = self.live();
        let Some((guard, delivery)) = live.router.named(&lease.ask.route).zip(lease.delivery) else {
            // A reload has taken the route away. Another instance may have it, or the next one.
            file(&self.shared, not_sent(&self.shared, lease, &ELSEWHERE, Duration::ZERO), entry).await;
            return Delivered::Open;
        };
        let route = Arc::clone(&guard.route);
        let request = match sealed.open(&live.config.secrets, &id) {
            Ok(letter) => letter::read(letter).ok_or_else(|| "it is no request".to_owned()),
            Err(Unopened::SecretGone) => {
                // Where a secret is being changed, another instance has it already, and this one will.
                if is_to_be_told() {
                    tracing::warn!(record = %id, route = %route.name,
                        "a queued request was sealed under a secret that is not configured here; it is left to others");
                }
                file(&self.shared, not_sent(&self.shared, lease, &route.retry, route.ttl), entry).await;
                return Delivered::Open;
            }
            Err(Unopened::Broken) => Err(Unopened::Broken.to_string()),
        };
        let (head, body, origin) = match request {
            Ok(request) => request,
            Err(why) => {
                tracing::error!(record = %id, route = %route.name, why, "a queued request does not open; it is not sent");
                self.bury(&lease, &["in_flight"], format!("its request does not open: {why}")).await;
                return Delivered::Open;
            }
        };
        let ask = (*lease.ask).clone();
        let secrets = live.config.secrets.clone();
        let guarded = Box::new(Guarded { ask, head, body, origin, guard: guard.clone(), secrets, is_patient: true });
        let mut entry = entry;
        if self.begins(&guarded, &lease, &mut entry).is_some() {
            // An attempt of this key that the store calls over runs here all the same.
            file(&self.shared, not_sent(&self.shared, lease, &route.retry, route.ttl), entry).await;
            return Delivered::Open;
        }
        if delivery.number > 1 {
            self.shared.watch.found(&guarded.guard.meters, &guarded.ask.scope, Found::FailedRetry);
        }
        let mut stamp = Stamp::default();
        stamp.guard(&self.shared.watch, &guarded.head, &guarded.guard.meters);
        stamp.with_trail(|trail| trail.key(&guarded.ask.key));
        let answer = self.forward(guarded, lease, entry, begun, &stamp).await;
        let hope = match answer {
            Ok(answer) => match hope(answer, &route).await {
                Some(hope) => hope,
                None => {
                    tracing::info!(record = %id, route = %route.name, attempt, "delivered");
                    return Delivered::Completed;
                }
            },
            // Without a lease it was not even tried to.
            Err(Refusal::StoreUnavailable) => Hope::Open,
            Err(Refusal::UpstreamUnreachable) => Hope::Again("not sent".to_owned()),
            Err(refusal) => Hope::Unknown(refusal.slug().to_owned()),
        };
        self.follow_up(id, token, &delivery, hope, &route).await;
        Delivered::Open
    }

    /// What is not tried again is given up at once, with the reason. Should that fail, whoever picks it up next does it.
    async fn follow_up(&self, id: RecordId, token: Token, delivery: &Delivery, hope: Hope, route: &Route) {
        let last = route.retry.is_last(delivery);
        let tries = delivery.number;
        let (states, note): (&'static [&'static str], _) = match hope {
            Hope::Open => return,
            Hope::Again(said) | Hope::None(said) if last => {
                (&["queued"], format!("tried {tries} times, at last: {said}"))
            }
            Hope::None(said) => (&["queued"], format!("nothing that another try could change: {said}")),
            Hope::Unknown(said) if last && route.on_unknown != OnUnknown::Hold => {
                (&["unknown"], format!("tried {tries} times, at last: {said}"))
            }
            Hope::Again(said) | Hope::Unknown(said) => {
                tracing::info!(record = %id, route = %route.name, tries, said, "not delivered yet");
                return;
            }
        };
        match self.shared.store.bury(id, token, states, note.clone()).await {
            Ok(true) => {
                tracing::warn!(record = %id, route = %route.name, said = note, "not delivered: given up, an operator must decide");
                self.shared.waiters.nudge(id);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(record = %id, cause = causes(&error), "{error}; it is given up at its next turn")
            }
        }
    }

    async fn bury(&self, lease: &Lease, states: &'static [&'static str], note: String) {
        if let Err(error) = self.shared.store.bury(lease.ask.id, lease.ask.token, states, note).await {
            tracing::warn!(record = %lease.ask.id, cause = causes(&error), "{error}; it is given up at its next turn");
        }
    }
}

/// Takes the answer in, as a client would: only then is one that is larger than what is kept recorded. `None` where it is
/// stored.
async fn hope(answer: Response<Body>, route: &Route) -> Option<Hope> {
    let (head, mut body) = answer.into_parts();
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return Some(Hope::Unknown("its response broke off".to_owned()));
        }
    }
    let told = |told: Told| head.headers.get(fields::ONCEGATE_STATUS) == Some(&told.value());
    let said = format!("answered {}", head.status.as_u16());
    if told(Told::Unstored) {
        return Some(Hope::Open);
    }
    if told(Told::Unknown) {
        return Some(Hope::Unknown(said));
    }
    if !told(Told::Released) {
        return None;
    }
    Some(if is_final(route, head.status, &head.headers) { Hope::None(said) } else { Hope::Again(said) })
}

/// Whether the same request would get the same again. Where the table of statuses does not release it, the service itself
/// has said that it was not executed.
fn is_final(route: &Route, status: StatusCode, headers: &HeaderMap) -> bool {
    let retry_after = headers.contains_key(RETRY_AFTER);
    let passes = matches!(status.as_u16(), 408 | 425 | 429 | 500..);
    !passes && !retry_after && route.statuses.judge(status, retry_after) == Verdict::Release
}

/// Whoever made the last attempt gives the key up with what came of it. Should they die before, whoever picks it up does.
const LAST_WORD: Duration = Duration::from_secs(60);

/// The attempt has not executed, or counts as such. What was accepted is due again after a pause.
pub(super) fn release(
    lease: Lease,
    route: &Route,
    ttl: Duration,
    said: Option<(StatusCode, &HeaderMap)>,
) -> Settlement {
    let ends = said.is_some_and(|(status, headers)| is_final(route, status, headers));
    let asked = said.and_then(|(_, headers)| asked_for(headers));
    let pause = lease.delivery.map(|delivery| pause(route, &delivery, ends, asked));
    lease.release(ttl).due_in(pause)
}

/// Nothing was sent under the lease. What was accepted is due again after a pause, and this does not count as a try; the
/// more of them there have been, the longer it is left to others.
pub(super) fn not_sent(shared: &Shared, lease: Lease, retry: &Retry, ttl: Duration) -> Settlement {
    let Some(delivery) = lease.delivery else { return lease.release(ttl) };
    shared.does_not_count(lease.ask.id);
    let pause = retry.pause(&Delivery { number: lease.attempt.saturating_add(1), ..delivery }, chance(), None);
    lease.release(ttl).due_in(Some(pause))
}

impl Shared {
    /// The delivery's attempt was not sent. The store is told before it is looked for what is due.
    pub fn does_not_count(&self, id: RecordId) {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }
}

/// The pauses of what has no route here.
const ELSEWHERE: Retry = Retry {
    max_attempts: u32::MAX,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
    give_up_after: Duration::MAX,
};

/// Of thousands that this instance cannot open a line a minute is enough.
fn is_to_be_told() -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = Moment::now().millis();
    let told = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (now >= next).then_some(now + 60_000));
    told.is_ok()
}

/// Nobody knows how the attempt ended. What was accepted is due again, where the route wants that.
pub(super) fn unknown(lease: Lease, route: &Route) -> Settlement {
    let retries = route.on_unknown != OnUnknown::Hold;
    let pause = lease.delivery.filter(|_| retries).map(|delivery| pause(route, &delivery, false, None));
    lease.unknown().due_in(pause)
}

fn pause(route: &Route, delivery: &Delivery, ends: bool, asked: Option<Duration>) -> Duration {
    match ends || route.retry.is_last(delivery) {
        true => LAST_WORD,
        false => route.retry.pause(delivery, chance(), asked),
    }
}

/// `Retry-After`: seconds, or a date (RFC 9110 section 10.2.3), which is read by the service's own clock.
fn asked_for(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let asked = text(RETRY_AFTER)?;
    let until = || date(asked)?.duration_since(date(text(DATE)?)?).ok();
    asked.parse().ok().map(Duration::from_secs).or_else(until)
}

/// From 0 to 1.
fn chance() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn asked(fields: &[(HeaderName, &'static str)]) -> Option<u64> {
        let fields = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        asked_for(&fields.collect()).map(|asked| asked.as_secs())
    }

    #[test]
    fn a_date_to_come_back_at_is_read_by_the_clock_of_who_wrote_it() {
        const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";
        const LATER: &str = "Sun, 06 Nov 1994 12:00:09 GMT";
        assert_eq!(asked(&[(RETRY_AFTER, "7")]), Some(7));
        assert_eq!(asked(&[(RETRY_AFTER, LATER), (DATE, NOON)]), Some(9));
        for nothing in [
            &[][..],
            &[(RETRY_AFTER, LATER)],
            &[(RETRY_AFTER, NOON), (DATE, LATER)],
            &[(RETRY_AFTER, "soon")],
            &[(RETRY_AFTER, "-1")],
        ] {
            assert_eq!(asked(nothing), None);
        }
    }
}
