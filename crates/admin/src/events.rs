//! Operators' questions about events, and what they do with dead ones.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

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
            EventMethod::Discard => json!({ "discarded": self.discard_events(sink, actor).await? }),
            EventMethod::List => json!({ "sinks": self.list_sinks(service).await? }),
            EventMethod::Requeue => json!({ "requeued": self.requeue_events(sink, &actor).await? }),
        };
        Ok((StatusCode::OK, answer))
    }

    async fn list_sinks(&self, service: &Arc<str>) -> Result<Vec<Value>, ApiProblem> {
        let config = Arc::clone(&self.config.borrow());
        let mut sinks = Vec::new();
        for sink in config.events.iter().filter(|sink| sink.service == *service) {
            let params = EventSinkParams { service: Arc::clone(service), sink: Arc::clone(&sink.name) };
            let counts = self.instance.store.count_events(params).await?;
            sinks.push(json!({
                "sink": &*sink.name,
                "target": sink.target.to_string(),
                "routes": sink.routes.iter().map(|route| &**route).collect::<Vec<_>>(),
                "types": sink.types.iter().map(|kind| kind.word()).collect::<Vec<_>>(),
                "waiting": counts.waiting,
                "dead": counts.dead,
                "oldest_at": counts.oldest_at.map(rfc3339::format),
                "waiting_note": counts.waiting_note,
                "note": counts.note,
            }));
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
