//! Operators' questions about events, and what they do with dead ones.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::key_admin::problem::{ApiProblem, ProblemCode};
use super::{AdminListener, ApiAnswer};
use oncegate_domain::rfc3339;
use oncegate_settings::{EventSink, Word};
use oncegate_store::{DiscardEventsParams, EventCounts, EventSinkParams};

/// A question about events, or a change of the dead ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventMethod {
    /// The end of the dead events of a sink.
    Discard,
    /// The sinks, with their waiting and dead events.
    List,
    /// Another try for the dead events of a sink.
    Requeue,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct EventSinkList {
    /// The places that events go to.
    sinks: Vec<ListedEventSink>,
}

#[derive(Serialize, JsonSchema)]
struct ListedEventSink {
    /// The name.
    sink: Arc<str>,
    /// The place that its events go to.
    target: String,
    /// The routes whose events it gets.
    routes: Vec<Arc<str>>,
    /// The types of the events that it gets.
    types: Vec<&'static str>,
    /// The number of events that wait.
    waiting: u64,
    /// The number of dead events.
    dead: u64,
    /// The time of the oldest event that waits.
    #[serde(serialize_with = "rfc3339::serialize")]
    #[schemars(with = "Option<rfc3339::Written>")]
    oldest_at: Option<SystemTime>,
    /// Why the last try of one of those that wait has failed.
    waiting_note: Option<String>,
    /// Why the newest dead one is dead.
    note: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DiscardedEvents {
    /// The number of events that were deleted.
    discarded: u64,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct RequeuedEvents {
    /// The number of events that are published again.
    requeued: u64,
}

impl AdminListener {
    pub(super) async fn answer_about_events(
        &self,
        method: EventMethod,
        sink: &str,
        actor: String,
        service: &Arc<str>,
    ) -> ApiAnswer {
        let sink = EventSinkParams { service: Arc::clone(service), sink: sink.into() };
        let answer = match method {
            EventMethod::Discard => json!(DiscardedEvents { discarded: self.discard_events(sink, actor).await? }),
            EventMethod::List => json!(EventSinkList { sinks: self.list_sinks(service).await? }),
            EventMethod::Requeue => json!(RequeuedEvents { requeued: self.requeue_events(sink, &actor).await? }),
        };
        Ok((StatusCode::OK, answer))
    }

    async fn list_sinks(&self, service: &Arc<str>) -> Result<Vec<ListedEventSink>, ApiProblem> {
        let config = Arc::clone(&self.config.borrow());
        let mut sinks = Vec::new();
        for sink in config.events.iter().filter(|sink| sink.service == *service) {
            let params = EventSinkParams { service: Arc::clone(service), sink: Arc::clone(&sink.name) };
            let counts = self.instance.store.count_events(params).await?;
            sinks.push(ListedEventSink {
                sink: Arc::clone(&sink.name),
                target: sink.target.to_string(),
                routes: sink.routes.iter().map(Arc::clone).collect(),
                types: sink.types.iter().map(|kind| kind.word()).collect(),
                waiting: counts.waiting,
                dead: counts.dead,
                oldest_at: counts.oldest_at,
                waiting_note: counts.waiting_note,
                note: counts.note,
            });
        }
        Ok(sinks)
    }

    /// Has the dead events of a sink published again, and returns their number.
    pub(super) async fn requeue_events(&self, params: EventSinkParams, actor: &str) -> Result<u64, ApiProblem> {
        let mut requeued = 0;
        // A call takes a part of them.
        while let part @ 1.. = self.instance.store.requeue_events(params.clone()).await? {
            requeued += part;
        }
        self.check_sink(&params, requeued).await?;
        tracing::info!(sink = %params.sink, requeued, actor, "an operator has requeued dead events");
        Ok(requeued)
    }

    async fn discard_events(&self, of: EventSinkParams, actor: String) -> Result<u64, ApiProblem> {
        let params = DiscardEventsParams { service: Arc::clone(&of.service), sink: Arc::clone(&of.sink), actor };
        let mut discarded = 0;
        while let part @ 1.. = self.instance.store.discard_events(params.clone()).await? {
            discarded += part;
        }
        self.check_sink(&of, discarded).await?;
        tracing::info!(sink = %of.sink, discarded, actor = params.actor, "an operator has discarded dead events");
        Ok(discarded)
    }

    /// Refuses a name that no sink of the service has. A sink that is not configured any more is one as long as it has
    /// events: it may come back.
    async fn check_sink(&self, params: &EventSinkParams, changed: u64) -> Result<(), ApiProblem> {
        let EventSinkParams { service, sink } = params;
        let is_own = |known: &Arc<EventSink>| known.name == *sink && known.service == *service;
        let is_configured = self.config.borrow().events.iter().any(is_own);
        if changed > 0
            || is_configured
            || self.instance.store.count_events(params.clone()).await? != EventCounts::default()
        {
            return Ok(());
        }
        let why = format!("no `[[events]]` has the name `{sink}`, and no event of that name waits or is dead");
        Err(ApiProblem::new(ProblemCode::NoSuchEvents, why))
    }
}
