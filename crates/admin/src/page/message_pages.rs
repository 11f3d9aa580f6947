//! The page of the consumers of messages and of the sinks of events, with a requeue of dead events.
//!
//! All figures are those of `/readyz` and of the metrics: looking at them costs the store nothing.

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime};
use super::{FormParams, Frame, PageAnswer, Visit, redirect_to, render_page};
use crate::key_admin::actors::remote_actor;
use crate::key_admin::problem::ApiProblem;
use oncegate_engine::instance::consumer_states::ConsumerView;
use oncegate_engine::instance::event_states::EventSinkView;
use oncegate_http::body::Body;

#[derive(Template)]
#[template(path = "messages.html")]
struct MessagesPage {
    frame: Frame,
    consumers: Vec<ConsumerView>,
    sinks: Vec<EventSinkView>,
}

impl Visit<'_> {
    pub(super) async fn show_messages(&self) -> Response<Body> {
        let metrics = &self.admin.instance.observability.metrics;
        let (consumers, sinks) = (metrics.consumers.list(), metrics.events.list());
        render_page(StatusCode::OK, &MessagesPage { frame: self.build_frame().await, consumers, sinks })
    }

    /// Has the dead events of a sink published again, as `oncegate events requeue` does.
    pub(super) async fn requeue_events(&self, form: &FormParams) -> PageAnswer {
        let sink = form.get("sink");
        if sink.is_empty() {
            return Err(ApiProblem::bad("sink", "is empty: name a sink of events"));
        }
        let requeued = self.admin.requeue_events(sink, &remote_actor(self.peer, None)).await?;
        Ok(redirect_to(&format!("/messages?requeued={requeued}")))
    }
}
