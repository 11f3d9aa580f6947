//! Events about settled keys, in PostgreSQL.

use std::sync::Arc;

use serde_json::json;
use tokio_postgres::Client;

use super::PgTry;
use super::distribution::{self, Distribution};
use super::failure::{PgResult, open_error};
use crate::columns::columns;
use crate::events::types_of_outcomes;
use crate::migrate::Migration;
use crate::row::{FromRow, millis};
use crate::statement::{shared, statements};
use crate::{
    ClaimEventsParams, DiscardEventsParams, EndEventsParams, EventHandle, EventRoute, EventSinkParams, KeyEvent,
    OpenError, StoreEventRoutesParams, StoreSettings,
};

const EVENT_TRIGGERS: &str = include_str!("event_triggers.sql");
const HAS_EVENT_TRIGGERS: &str = include_str!("sql/has_event_triggers.sql");

statements! { "sql/":
    CLAIM_EVENTS = "claim_events";
    DELETE_EVENTS = "delete_events";
    DISCARD_EVENTS = "discard_events";
    STORE_EVENT_ROUTES = "store_event_routes";
}

pub(super) const NAME: &str = "events";

/// The step that lets changes of keys write events, where the settings want that and they do not.
///
/// # Errors
/// [`OpenError::Missing`] on a cluster: its nodes cannot write to another table in a trigger.
pub(super) async fn missing(
    client: &Client,
    settings: &StoreSettings,
    has_schema: bool,
) -> Result<Option<Migration>, OpenError> {
    if !settings.events {
        return Ok(None);
    }
    if settings.distribute || (has_schema && distribution::find(client).await? != Distribution::None) {
        return Err(OpenError::Missing(
            "`[[events]]` needs a store in one server, and this one is distributed over the nodes of a cluster".into(),
        ));
    }
    if has_schema {
        let there = client.query_typed_one(HAS_EVENT_TRIGGERS, &[]).await.and_then(|row| row.try_get(0));
        if there.map_err(open_error)? {
            return Ok(None);
        }
    }
    Ok(Some(Migration { name: NAME.to_owned(), sql: format!("begin;\n\n{EVENT_TRIGGERS}\ncommit;\n") }))
}

impl PgTry<'_> {
    pub async fn store_event_routes(self, params: Arc<StoreEventRoutesParams>) -> PgResult<()> {
        let route = |told: &EventRoute| {
            let outcomes: Vec<_> = told.outcomes().collect();
            json!({ "route": &*told.route, "sink": &*told.sink, "outcomes": outcomes, "body": told.body })
        };
        let routes: Vec<_> = params.routes.iter().map(route).collect();
        let columns = columns! { service: &*params.service, routes: json!(routes).to_string(), keeps_stored: params.keeps_stored };
        self.write(&STORE_EVENT_ROUTES, columns).await.map(drop)
    }

    pub async fn claim_events(self, params: Arc<ClaimEventsParams>) -> PgResult<Vec<KeyEvent>> {
        let columns = columns! {
            service: &*params.service,
            sink: &*params.sink,
            limit: i64::from(params.limit),
            lease_ms: millis(params.lease),
        };
        let rows = self.run(&CLAIM_EVENTS, columns).await?;
        let mut events = rows.iter().map(KeyEvent::read).collect::<Result<Vec<_>, _>>()?;
        events.sort_unstable_by_key(|event| event.seq);
        Ok(events)
    }

    pub async fn end_events(self, params: Arc<EndEventsParams>) -> PgResult<()> {
        if !params.published.is_empty() {
            self.run(&DELETE_EVENTS, columns! { events: EventHandle::to_json(&params.published) }).await?;
        }
        for event in &params.postponed {
            let columns = columns! { seq: event.event.seq, at: event.event.at, tries: i64::from(event.tries), retry_ms: event.retry_in.map(millis), note: &*event.note };
            self.run(&shared::POSTPONE_EVENT, columns).await?;
        }
        Ok(())
    }

    pub async fn discard_events(self, params: Arc<DiscardEventsParams>) -> PgResult<u64> {
        let columns = columns! {
            service: &*params.service,
            sink: &*params.sink,
            actor: &*params.actor,
            types: types_of_outcomes(),
        };
        Ok(self.write(&DISCARD_EVENTS, columns).await?.len() as u64)
    }

    pub async fn requeue_events(self, params: Arc<EventSinkParams>) -> PgResult<u64> {
        let columns = columns! { service: &*params.service, sink: &*params.sink };
        Ok(self.write(&shared::REQUEUE_EVENTS, columns).await?.len() as u64)
    }
}
