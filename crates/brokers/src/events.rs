//! Events: tells other programs how keys were settled.
//!
//! The store writes an event in the settlement's own commit. A publisher takes it from there and publishes it at least
//! once: it deletes an event only after the receiver has taken it. Of each key, an event is published after those
//! before it; one that is dead holds nothing back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::publish_error::PublishError;
use super::retry::{again_after_panics, doubled};
use super::supervisor::supervise;
use message::EventMessage;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::event_states::EventSinkState;
use oncegate_machine::jitter::jittered;
use oncegate_settings::{Config, EventSink};
use oncegate_store::{ClaimEventsParams, EndEventsParams, EventSinkParams, KeyEvent, PostponedEvent, StoreError};
use oncegate_telemetry::log_limiter::LogLimiter;
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::Trust;
use receiver::EventReceiver;

mod message;
mod receiver;

/// The events that are claimed at once: enough for one commit to be a small part of each.
const BATCH: u32 = 64;

/// The same where they have bodies, which are in memory meanwhile.
const BATCH_WITH_BODIES: u32 = 16;

/// The time for which a claim lasts longer than the longest try. Events that a dead publisher has claimed wait until
/// then.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The pause between two looks into the store while there is nothing to publish.
const PERIOD: Duration = Duration::from_millis(200);

/// The time after which the waiting and the dead events are counted again.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// The pauses after a failure: doubled each time.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_CAP: Duration = Duration::from_secs(30);

/// The tries before an event may be dead: one that has waited for a program that did not run is tried, too.
const TRIES_MIN: u32 = 3;

/// The longest pause of an event that its receiver refuses while it takes others.
const REFUSED_PAUSE_CAP: Duration = Duration::from_secs(300);

/// The reasons of refused events that have a log line within a period, and the period.
const REFUSALS_LOGGED: usize = 4;
const REFUSALS_PERIOD: Duration = Duration::from_secs(60);

/// Runs a publisher for each configured sink until `stop`. A reload stops those of sinks that were removed or changed.
pub fn serve(
    instance: Arc<Instance>,
    live: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(publish_all(instance, live, stop))
}

async fn publish_all(instance: Arc<Instance>, live: watch::Receiver<Arc<Config>>, stop: CancellationToken) {
    let run = |sink, trust, stop| run_publisher(Arc::clone(&instance), sink, trust, stop);
    supervise(live, stop, |config| config.events.clone(), |_| true, run).await;
}

async fn run_publisher(instance: Arc<Instance>, sink: Arc<EventSink>, trust: Trust, stop: CancellationToken) {
    let run = || async { Publisher::new(Arc::clone(&instance), Arc::clone(&sink), &trust).run(stop.clone()).await };
    // The events that were claimed come again once their claim ends: no other one waits for a reload.
    let log = |panics| {
        tracing::error!(sink = %sink.name, panics, "the publisher of events panicked; another one takes its place");
    };
    again_after_panics(&stop, |panics| doubled(PAUSE_FIRST, panics, PAUSE_CAP), log, run).await;
}

/// The publisher of one sink. Those of other instances share its events.
struct Publisher {
    instance: Arc<Instance>,
    sink: Arc<EventSink>,
    receiver: EventReceiver,
    state: Arc<EventSinkState>,
    /// The failures of the sink as a whole, one after the other.
    failures: u32,
    /// Whether the last failure was that of a connection: then the next one that opens ends it, also without an event.
    is_disconnected: bool,
    counted: Option<Instant>,
    refusals: LogLimiter,
}

impl Publisher {
    fn new(instance: Arc<Instance>, sink: Arc<EventSink>, trust: &Trust) -> Self {
        let receiver = EventReceiver::new(&sink.target, trust, &instance.upstream_slots);
        let state = instance.observability.metrics.events.add(&sink);
        let refusals = LogLimiter::new(REFUSALS_LOGGED, REFUSALS_PERIOD);
        Self { instance, sink, receiver, state, failures: 0, is_disconnected: false, counted: None, refusals }
    }

    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.publish_batch().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(sink = %self.sink.name, cause = error_causes(&error), "{error}; events are published later");
                    Some(PAUSE_FIRST)
                }
            };
            // Also in the middle of a long pause: then the count matters.
            let mut left = pause.map_or(Duration::ZERO, jittered);
            loop {
                if self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_EVERY) {
                    self.count().await;
                }
                let part = left.min(COUNT_EVERY);
                if part.is_zero() || stop.run_until_cancelled(sleep(part)).await.is_none() {
                    break;
                }
                left -= part;
            }
        }
    }

    /// Publishes the events that are due. Returns the pause before the next look; none where there may be more.
    async fn publish_batch(&mut self) -> Result<Option<Duration>, StoreError> {
        // Before they are claimed: an outage makes no claim last longer.
        let connected = self.receiver.connect().await;
        let was_disconnected = std::mem::replace(&mut self.is_disconnected, connected.is_err());
        match connected {
            Err(cause) => return Ok(self.note_failure(Some(cause))),
            Ok(()) if was_disconnected => drop(self.note_failure(None)),
            Ok(()) => {}
        }
        let (service, sink) = (Arc::clone(&self.sink.service), Arc::clone(&self.sink.name));
        let limit = if self.sink.body { BATCH_WITH_BODIES } else { BATCH };
        let params = ClaimEventsParams { service, sink, limit, lease: self.receiver.longest_try() + LEASE_MARGIN };
        let events = self.instance.store.claim_events(params).await?;
        if events.is_empty() {
            return Ok(Some(PERIOD));
        }
        let published = join_all(events.iter().map(|event| self.publish(event))).await;
        // A receiver that answers one event in any way is there: what fails is then the event's own trouble.
        let is_away = published.iter().all(|published| matches!(published, Err(PublishError::Away(_))));
        let cause = published.iter().find_map(|published| match published {
            Err(PublishError::Away(cause)) => Some(cause.clone()),
            Ok(()) | Err(PublishError::Refused(_)) => None,
        });
        let pause = self.note_failure(cause.filter(|_| is_away));
        let mut ended = EndEventsParams { published: Vec::new(), postponed: Vec::new() };
        for (event, published) in events.iter().zip(published) {
            match published {
                Ok(()) => ended.published.push(event.handle()),
                Err(PublishError::Away(note)) if is_away => {
                    let retry_in = pause.or(Some(PAUSE_FIRST));
                    ended.postponed.push(PostponedEvent { event: event.handle(), tries: event.tries, retry_in, note });
                }
                Err(PublishError::Away(note) | PublishError::Refused(note)) => {
                    ended.postponed.push(self.postpone(event, note));
                }
            }
        }
        self.state.add_published(ended.published.len());
        let is_all_refused = ended.published.is_empty() && events.len() >= limit as usize;
        self.instance.store.end_events(ended).await?;
        Ok(pause.or(is_all_refused.then_some(PAUSE_FIRST)))
    }

    async fn publish(&self, event: &KeyEvent) -> Result<(), PublishError> {
        let message = EventMessage::new(&self.sink.service, &self.sink, event);
        self.receiver.publish(&message.map_err(|corrupt| PublishError::Refused(corrupt.to_string()))?).await
    }

    /// Logs that the sink is away, or is back. Returns the pause while it is away.
    fn note_failure(&mut self, away: Option<String>) -> Option<Duration> {
        let (sink, target) = (&self.sink.name, &self.sink.target);
        let was_away = self.failures > 0;
        let Some(cause) = away else {
            if was_away {
                tracing::info!(%sink, %target, "events are published again");
            }
            self.failures = 0;
            self.state.set_failure(None);
            return None;
        };
        self.failures = self.failures.saturating_add(1);
        if !was_away {
            tracing::warn!(%sink, %target, cause, "events cannot be published at the moment; they wait in the store");
        }
        self.state.set_failure(Some(cause));
        Some(doubled(PAUSE_FIRST, self.failures, PAUSE_CAP))
    }

    /// Postpones an event that was not published while others could be, or makes it dead.
    fn postpone(&self, event: &KeyEvent, note: String) -> PostponedEvent {
        let waited = self.instance.store_clock.now().duration_since(event.since).unwrap_or_default();
        let is_late = waited >= self.sink.give_up_after && !self.instance.store_clock.view().has_skipped_time();
        let is_dead = is_late && event.tries >= TRIES_MIN;
        if is_dead {
            tracing::error!(sink = %self.sink.name, record = %event.id, kind = event.kind().unwrap_or_default(), tries = event.tries, cause = note,
                "an event was not published in time; it is dead until an operator requeues or discards it");
        } else if let Some(refusals) = self.refusals.count(&note) {
            tracing::warn!(sink = %self.sink.name, target = %self.sink.target, record = %event.id, cause = note, refusals,
                "events were not taken, and others may be; each is tried again until give_up_after");
        }
        let retry_in = (!is_dead).then(|| doubled(PAUSE_FIRST, event.tries, REFUSED_PAUSE_CAP));
        PostponedEvent { event: event.handle(), tries: event.tries, retry_in, note }
    }

    async fn count(&mut self) {
        self.counted = Some(Instant::now());
        let (service, sink) = (Arc::clone(&self.sink.service), Arc::clone(&self.sink.name));
        match self.instance.store.count_events(EventSinkParams { service, sink }).await {
            Ok(counts) => self.state.set_counts(counts),
            Err(error) => tracing::debug!(sink = %self.sink.name, %error, "the waiting events could not be counted"),
        }
    }
}
