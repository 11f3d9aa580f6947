//! Events about settled keys, in SQLite.

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::columns::columns;
use crate::events::types_of_outcomes;
use crate::row::{FromRow, RowReader, millis};
use crate::statement::shared;
use crate::{
    ClaimEventsParams, DiscardEventsParams, EndEventsParams, EventHandle, EventSinkParams, KeyEvent,
    StoreEventRoutesParams,
};

const EVENT_TRIGGERS: &str = include_str!("event_triggers.sql");

impl SqliteTransaction<'_> {
    pub fn store_event_routes(
        &self,
        StoreEventRoutesParams { service, routes, keeps_stored }: StoreEventRoutesParams,
    ) -> SqliteResult<()> {
        self.in_savepoint(|| {
            // Each new trigger prepares all statements anew: a heartbeat writes them only where they are lost.
            let has_triggers = keeps_stored && self.has_event_triggers()?;
            if !has_triggers && !routes.is_empty() {
                self.db.execute_batch(EVENT_TRIGGERS)?;
            }
            if !keeps_stored {
                self.execute(sql!("forget_event_routes"), &columns! { service: &*service })?;
            }
            for told in &routes {
                let columns = columns! {
                    service: &*service,
                    route: &*told.route,
                    sink: &*told.sink,
                    outcomes: told.outcomes().fold(",".to_owned(), |all, outcome| all + &outcome + ","),
                    body: told.body,
                };
                self.execute(sql!("store_event_route"), &columns)?;
            }
            Ok(())
        })
    }

    fn has_event_triggers(&self) -> SqliteResult<bool> {
        let there = self.query_one(sql!("has_event_triggers"), &vec![], |row| row.read("there"))?;
        Ok(there.unwrap_or(false))
    }

    pub fn claim_events(&self, params: ClaimEventsParams) -> SqliteResult<Vec<KeyEvent>> {
        let columns = columns! {
            service: &*params.service,
            sink: &*params.sink,
            limit: i64::from(params.limit),
            lease_ms: millis(params.lease),
        };
        let mut events = self.query(sql!("claim_events"), &columns, |row| KeyEvent::read(row))?;
        events.sort_unstable_by_key(|event| event.seq);
        Ok(events)
    }

    pub fn end_events(&self, EndEventsParams { published, postponed }: EndEventsParams) -> SqliteResult<()> {
        self.in_savepoint(|| {
            self.execute(sql!("delete_events"), &columns! { events: EventHandle::to_json(&published) })?;
            for event in &postponed {
                let columns = columns! { seq: event.event.seq, at: event.event.at, tries: i64::from(event.tries), retry_ms: event.retry_in.map(millis), note: &*event.note };
                self.execute(&shared::POSTPONE_EVENT, &columns)?;
            }
            Ok(())
        })
    }

    pub fn discard_events(&self, params: DiscardEventsParams) -> SqliteResult<u64> {
        let columns = columns! {
            service: &*params.service,
            sink: &*params.sink,
            actor: &*params.actor,
            types: types_of_outcomes(),
        };
        self.in_savepoint(|| {
            self.execute(sql!("audit_discarded_events"), &columns)?;
            Ok(self.execute(sql!("discard_events"), &columns)? as u64)
        })
    }

    pub fn requeue_events(&self, params: EventSinkParams) -> SqliteResult<u64> {
        let columns = columns! { service: &*params.service, sink: &*params.sink };
        let requeued = self.query(&shared::REQUEUE_EVENTS, &columns, |row| row.read::<i64>("seq"))?;
        Ok(requeued.len() as u64)
    }
}
