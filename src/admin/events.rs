//! Operators' questions about events, and their requeues.

use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminListener;
use super::key_admin::problem::{ApiProblem, ProblemCode};
use oncegate_config::Word;
use oncegate_domain::rfc3339;
use oncegate_store::{EventCounts, EventSinkParams};

/// A question about events, or a requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventMethod {
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
        peer: IpAddr,
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
                        "note": counts.note,
                    }));
                }
                json!({ "sinks": sinks })
            }
            // Of a sink that is not configured any more, too: it may come back.
            EventMethod::Requeue => {
                let params = EventSinkParams { service: service(), sink: sink.into() };
                let mut requeued = 0;
                // A call takes a part of them.
                loop {
                    match store.requeue_events(params.clone()).await? {
                        0 => break,
                        part => requeued += part,
                    }
                }
                let is_configured = self.config.borrow().events.iter().any(|configured| *configured.name == *sink);
                if requeued == 0 && !is_configured && store.count_events(params).await? == EventCounts::default() {
                    let why =
                        format!("no `[[events]]` has the name `{sink}`, and no event of that name waits or is dead");
                    return Err(ApiProblem::new(ProblemCode::NoSuchEvents, why));
                }
                tracing::info!(sink, requeued, %peer, "an operator has requeued dead events");
                json!({ "requeued": requeued })
            }
        };
        Ok((StatusCode::OK, answer))
    }
}
