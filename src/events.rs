//! Events: tells other programs how keys were settled.
//!
//! The store writes an event in the settlement's own commit. A publisher takes it from there and publishes it at least once: it
//! deletes an event only after the receiver has taken it. Of each key, an event is published after those before it; one that is
//! dead holds nothing back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::instance::Instance;
use crate::instance::event_states::EventSinkState;
use message::EventMessage;
use oncegate_config::{Config, EventSink, Word};

use oncegate_machine::jitter::jittered;
use oncegate_store::{
    ClaimEventsParams, EndEventsParams, EventRoute, EventSinkParams, KeyEvent, PostponedEvent,
    ReplaceEventRoutesParams, Store, StoreError,
};
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::Trust;
use receiver::{EventReceiver, PublishFailure};

mod message;
mod receiver;

/// The events that are claimed at once: enough for one commit to be a small part of each.
const BATCH: u32 = 64;

/// The same where they have bodies, which are in memory meanwhile.
const BATCH_WITH_BODIES: u32 = 16;

/// The time after which another publisher may take claimed events: longer than a try, which ends within 40 s.
const LEASE: Duration = Duration::from_secs(60);

/// The pause between two looks into the store while there is nothing to publish.
const PERIOD: Duration = Duration::from_millis(200);

/// The looks after which the waiting and the dead events are counted.
const LOOKS_OF_COUNT: u32 = 25;

/// The pauses after a failure: doubled each time.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_CAP: Duration = Duration::from_secs(30);

/// The longest pause of an event that its receiver refuses while it takes others.
const REFUSED_PAUSE_CAP: Duration = Duration::from_secs(300);

/// Tells the store which routes have events. From then on each settlement of their keys writes them.
///
/// # Errors
/// The store's.
pub async fn store_routes(store: &Store, config: &Config) -> Result<(), StoreError> {
    let routes = config.events.iter().flat_map(|sink| {
        sink.routes.iter().map(|route| EventRoute {
            route: Arc::clone(route),
            sink: Arc::clone(&sink.name),
            types: sink.types.iter().map(|kind| kind.word()).collect(),
            body: sink.body,
        })
    });
    let params = ReplaceEventRoutesParams { service: Arc::clone(&config.service), routes: routes.collect() };
    store.replace_event_routes(params).await
}

/// A running publisher, and the token that stops it.
struct RunningPublisher {
    sink: Arc<EventSink>,
    trust: Trust,
    stop: CancellationToken,
}

/// Runs a publisher for each configured sink until `stop`. A reload stops those of sinks that were removed or changed.
pub async fn serve(instance: Arc<Instance>, mut live: watch::Receiver<Arc<Config>>, stop: CancellationToken) {
    let publishers = TaskTracker::new();
    let mut running: Vec<RunningPublisher> = Vec::new();
    loop {
        let config = Arc::clone(&live.borrow_and_update());
        running.retain(|started| {
            let is_current = config.events.contains(&started.sink) && config.trust == started.trust;
            if !is_current {
                started.stop.cancel();
            }
            is_current
        });
        for sink in &config.events {
            if running.iter().all(|started| started.sink != *sink) {
                let (stop, trust) = (stop.child_token(), config.trust.clone());
                let publisher = Publisher::new(Arc::clone(&instance), Arc::clone(sink), &trust);
                publishers.spawn(publisher.run(stop.clone()));
                running.push(RunningPublisher { sink: Arc::clone(sink), trust, stop });
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            changed = live.changed() => if changed.is_err() { break },
        }
    }
    stop.cancelled().await;
    publishers.close();
    publishers.wait().await;
}

/// The publisher of one sink. Those of other instances share its events.
struct Publisher {
    instance: Arc<Instance>,
    sink: Arc<EventSink>,
    receiver: EventReceiver,
    state: Arc<EventSinkState>,
    /// The failures of the sink as a whole, one after the other.
    failures: u32,
}

impl Publisher {
    fn new(instance: Arc<Instance>, sink: Arc<EventSink>, trust: &Trust) -> Self {
        let receiver = EventReceiver::new(&sink.target, trust, &instance.upstream_slots);
        let state = instance.observability.metrics.events.add(&sink);
        Self { instance, sink, receiver, state, failures: 0 }
    }

    async fn run(mut self, stop: CancellationToken) {
        let mut looks = 0;
        while !stop.is_cancelled() {
            if looks % LOOKS_OF_COUNT == 0 {
                self.count().await;
            }
            looks += 1;
            let pause = match self.publish_batch().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(sink = %self.sink.name, cause = error_causes(&error), "{error}; events are published later");
                    Some(PAUSE_FIRST)
                }
            };
            let Some(pause) = pause else { continue };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(jittered(pause)) => {}
            }
        }
    }

    /// Publishes the events that are due. Returns the pause before the next look; none where there may be more.
    async fn publish_batch(&mut self) -> Result<Option<Duration>, StoreError> {
        let (service, sink) = (Arc::clone(&self.instance.config.service), Arc::clone(&self.sink.name));
        let limit = if self.sink.body { BATCH_WITH_BODIES } else { BATCH };
        let params = ClaimEventsParams { service, sink, limit, lease: LEASE };
        let events = self.instance.store.claim_events(params).await?;
        if events.is_empty() {
            return Ok(Some(PERIOD));
        }
        let message = |event: &KeyEvent| EventMessage::new(&self.instance.config.service, &self.sink, event);
        let messages: Vec<_> = events.iter().map(message).collect();
        let published = join_all(messages.iter().map(|message| self.receiver.publish(message))).await;
        let away = published.iter().find_map(|published| match published {
            Err(PublishFailure::Away(cause)) => Some(cause.clone()),
            Ok(()) | Err(PublishFailure::Refused(_)) => None,
        });
        let pause = self.note_failure(away);
        let mut ended = EndEventsParams { published: Vec::new(), postponed: Vec::new() };
        for (event, published) in events.iter().zip(published) {
            let (note, retry_in) = match published {
                Ok(()) => {
                    ended.published.push(event.seq);
                    continue;
                }
                Err(PublishFailure::Away(cause)) => (cause, pause.unwrap_or(PAUSE_FIRST)),
                Err(PublishFailure::Refused(cause)) => (cause, doubled(event.tries, REFUSED_PAUSE_CAP)),
            };
            ended.postponed.push(self.postpone(event, note, retry_in));
        }
        self.state.add_published(ended.published.len());
        self.instance.store.end_events(ended).await?;
        Ok(pause)
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
        Some(doubled(self.failures, PAUSE_CAP))
    }

    /// What becomes of an event that was not published.
    fn postpone(&self, event: &KeyEvent, note: String, retry_in: Duration) -> PostponedEvent {
        let waited = self.instance.store_clock.now().duration_since(event.since).unwrap_or_default();
        let is_dead = waited >= self.sink.give_up_after && !self.instance.store_clock.view().has_skipped_time();
        if is_dead {
            tracing::error!(sink = %self.sink.name, record = %event.id, kind = event.kind, tries = event.tries, cause = note,
                "an event was not published in time; it is dead until an operator requeues it");
        }
        PostponedEvent { seq: event.seq, retry_in: (!is_dead).then_some(retry_in), note }
    }

    async fn count(&self) {
        let (service, sink) = (Arc::clone(&self.instance.config.service), Arc::clone(&self.sink.name));
        match self.instance.store.count_events(EventSinkParams { service, sink }).await {
            Ok(counts) => self.state.set_counts(counts),
            Err(error) => tracing::debug!(sink = %self.sink.name, %error, "the waiting events could not be counted"),
        }
    }
}

fn doubled(tries: u32, cap: Duration) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(cap)
}
