//! Operators' questions about events, and what they do with dead ones.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminListener;
use super::key_admin::problem::{ApiProblem, ProblemCode};
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
    pub(super) async fn answer_about_events(
        &self,
        method: EventMethod,
        sink: &str,
        actor: String,
    ) -> Result<(StatusCode, Value), ApiProblem> {
        let store = &self.instance.store;
        let service = || Arc::clone(&self.instance.config.service);
        let answer = match method {
            EventMethod::List => {
                let config = Arc::clone(&self.config.borrow());
                let mut sinks = Vec::new();
                for sink in &config.events {
                    let params = EventSinkParams { service: service(), sink: Arc::clone(&sink.name) };
                    let counts = store.count_events(params).await?;
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
                json!({ "sinks": sinks })
            }
            // Of a sink that is not configured any more, too: it may come back.
            EventMethod::Discard | EventMethod::Requeue => {
                let is_requeue = method == EventMethod::Requeue;
                let params = EventSinkParams { service: service(), sink: sink.into() };
                let discard = || DiscardEventsParams { service: service(), sink: sink.into(), actor: actor.clone() };
                let mut changed = 0;
                // A call takes a part of them.
                loop {
                    let part = match is_requeue {
                        true => store.requeue_events(params.clone()).await?,
                        false => store.discard_events(discard()).await?,
                    };
                    if part == 0 {
                        break;
                    }
                    changed += part;
                }
                let is_configured = self.config.borrow().events.iter().any(|configured| *configured.name == *sink);
                if changed == 0 && !is_configured && store.count_events(params).await? == EventCounts::default() {
                    let why =
                        format!("no `[[events]]` has the name `{sink}`, and no event of that name waits or is dead");
                    return Err(ApiProblem::new(ProblemCode::NoSuchEvents, why));
                }
                if is_requeue {
                    tracing::info!(sink, requeued = changed, actor, "an operator has requeued dead events");
                    json!({ "requeued": changed })
                } else {
                    tracing::info!(sink, discarded = changed, actor, "an operator has discarded dead events");
                    json!({ "discarded": changed })
                }
            }
        };
        Ok((StatusCode::OK, answer))
    }
}
