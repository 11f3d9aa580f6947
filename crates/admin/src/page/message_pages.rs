//! The page of the consumers of messages and of the sinks of events, with a requeue of dead events.
//!
//! All figures are those of `/readyz` and of the metrics: looking at them costs the store nothing.

use std::sync::Arc;

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime};
use super::{FormParams, Frame, PageAnswer, Visit, redirect_to, render_page};
use crate::key_admin::actors::remote_actor;
use crate::key_admin::problem::ApiProblem;
use oncegate_engine::instance::consumer_states::ConsumerView;
use oncegate_engine::instance::event_states::EventSinkView;
use oncegate_http::body::Body;
use oncegate_store::EventSinkParams;

#[derive(Template)]
#[template(path = "messages.html")]
struct MessagesPage {
    frame: Frame,
    consumers: Vec<ConsumerView>,
    sinks: Vec<EventSinkView>,
}

impl Visit<'_> {
    pub(super) async fn show_messages(&self) -> Response<Body> {
        let (consumers, sinks) = self.list_messages();
        render_page(StatusCode::OK, &MessagesPage { frame: self.build_frame().await, consumers, sinks })
    }

    /// Lists the consumers and the sinks of the service.
    pub(super) fn list_messages(&self) -> (Vec<ConsumerView>, Vec<EventSinkView>) {
        let metrics = &self.admin.instance.observability.metrics;
        let config = Arc::clone(&self.admin.config.borrow());
        let (mut consumers, mut sinks) = (metrics.consumers.list(), metrics.events.list());
        consumers.retain(|consumer| config.is_of_service(&consumer.route, &self.service));
        sinks.retain(|sink| config.events.iter().any(|own| *own.name == *sink.sink && own.service == self.service));
        (consumers, sinks)
    }

    /// Has the dead events of a sink published again, as `oncegate events requeue` does.
    pub(super) async fn requeue_events(&self, form: &FormParams) -> PageAnswer {
        let sink = form.get("sink");
        if sink.is_empty() {
            return Err(ApiProblem::bad("sink", "is empty: name a sink of events"));
        }
        let params = EventSinkParams { service: Arc::clone(&self.service), sink: sink.into() };
        let requeued = self.admin.requeue_events(params, &remote_actor(self.peer, None)).await?;
        Ok(redirect_to(&format!("/messages?requeued={requeued}")))
    }
}
