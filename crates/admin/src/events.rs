//! Operators' questions about events, and what they do with dead ones.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::key_admin::problem::{ApiProblem, ProblemCode};
use super::{AdminListener, ApiAnswer};
use oncegate_domain::rfc3339;
use oncegate_settings::Word;
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
    pub(super) async fn answer_about_events(&self, method: EventMethod, sink: &str, actor: String) -> ApiAnswer {
        let answer = match method {
            EventMethod::Discard => json!({ "discarded": self.discard_events(sink, actor).await? }),
            EventMethod::List => json!({ "sinks": self.list_sinks().await? }),
            EventMethod::Requeue => json!({ "requeued": self.requeue_events(sink, &actor).await? }),
        };
        Ok((StatusCode::OK, answer))
    }

    async fn list_sinks(&self) -> Result<Vec<Value>, ApiProblem> {
        let config = Arc::clone(&self.config.borrow());
        let mut sinks = Vec::new();
        for sink in &config.events {
            let counts = self.instance.store.count_events(self.sink_params(&sink.name)).await?;
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
    pub(super) async fn requeue_events(&self, sink: &str, actor: &str) -> Result<u64, ApiProblem> {
        let params = self.sink_params(sink);
        let mut requeued = 0;
        // A call takes a part of them.
        while let part @ 1.. = self.instance.store.requeue_events(params.clone()).await? {
            requeued += part;
        }
        self.check_sink(sink, requeued).await?;
        tracing::info!(sink, requeued, actor, "an operator has requeued dead events");
        Ok(requeued)
    }

    async fn discard_events(&self, sink: &str, actor: String) -> Result<u64, ApiProblem> {
        let EventSinkParams { service, sink: name } = self.sink_params(sink);
        let params = DiscardEventsParams { service, sink: name, actor };
        let mut discarded = 0;
        while let part @ 1.. = self.instance.store.discard_events(params.clone()).await? {
            discarded += part;
        }
        self.check_sink(sink, discarded).await?;
        tracing::info!(sink, discarded, actor = params.actor, "an operator has discarded dead events");
        Ok(discarded)
    }

    /// Refuses a name that no sink has. A sink that is not configured any more is one as long as it has events: it may
    /// come back.
    async fn check_sink(&self, sink: &str, changed: u64) -> Result<(), ApiProblem> {
        let is_configured = self.config.borrow().events.iter().any(|configured| *configured.name == *sink);
        if changed > 0
            || is_configured
            || self.instance.store.count_events(self.sink_params(sink)).await? != EventCounts::default()
        {
            return Ok(());
        }
        let why = format!("no `[[events]]` has the name `{sink}`, and no event of that name waits or is dead");
        Err(ApiProblem::new(ProblemCode::NoSuchEvents, why))
    }

    fn sink_params(&self, sink: &str) -> EventSinkParams {
        EventSinkParams { service: Arc::clone(&self.instance.config.service), sink: sink.into() }
    }
}
