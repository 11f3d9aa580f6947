//! The calls of asynchronous deliveries.

use rusqlite::Row;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::columns::{self, columns};
use crate::deliveries::{quiet_after, read_job};
use crate::row::{RowReader, millis};
use crate::{EnqueueParams, GiveUpParams};
use oncegate_domain::delivery::{
    DeliveryPolicy, EnqueueRequest, EnqueueResult, GivenUpKey, PickUpRequest, PickUpResult,
};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::state::StateKind;

/// A key that is due, the token and state that it has, and the reason where it is not tried again.
type DueDelivery = (RecordId, Token, StateKind, Option<String>);

impl SqliteTransaction<'_> {
    pub fn enqueue(&self, EnqueueParams { request, from }: EnqueueParams) -> SqliteResult<EnqueueResult> {
        let EnqueueRequest { reserve_request, sealed } = &request;
        let columns = columns! {
            secret: &*sealed.secret,
            sealed: &sealed.bytes,
            ..columns::reservation(reserve_request),
            ..columns::seen(from.as_ref()),
        };
        self.in_savepoint(|| {
            let is_over = from.is_some() && self.execute(sql!("enqueue_over"), &columns)? == 1;
            if is_over || self.execute(sql!("enqueue"), &columns)? == 1 {
                self.execute(sql!("store_request"), &columns)?;
                return Ok(EnqueueResult::Accepted);
            }
            Ok(EnqueueResult::Taken(self.find_taken(reserve_request.id)?))
        })
    }

    pub fn pick_up(&self, order: PickUpRequest) -> SqliteResult<PickUpResult> {
        self.in_savepoint(|| {
            for id in &order.delivered {
                self.delete_request(id)?;
            }
            for (id, token) in &order.unsent {
                self.execute(sql!("discount_unsent_attempt"), &columns! { id: id, token: token })?;
            }
            let mut picked = PickUpResult::default();
            let (mut tokens, limit) = (order.tokens.iter(), order.rows_max());
            for policy in &order.policies {
                let mut slots = policy.slots;
                let rows_max = limit.saturating_sub(picked.jobs.len()).min(slots) + order.busy.len();
                for (id, seen_token, state, note) in self.list_due(&order, policy, rows_max)? {
                    // A new token would fence its settlement.
                    if order.busy.contains(&id) {
                        continue;
                    }
                    if let Some(note) = note {
                        if self.give_up_from(&id, &seen_token, state, &note)? {
                            picked.given_up.push(GivenUpKey { id, route: (*policy.route).into(), note });
                        }
                        continue;
                    }
                    // Behind a key that is not tried now there may be one to give up.
                    if slots == 0 {
                        continue;
                    }
                    let Some(token) = tokens.next() else { continue };
                    slots -= 1;
                    let columns = columns! {
                        id: &id,
                        token: token,
                        instance: order.instance,
                        time_limit_ms: millis(policy.time_limit),
                        give_up_after_ms: millis(policy.retry.give_up_after),
                        as_of: self.no_later_than(order.as_of),
                    };
                    let read = |row: &Row<'_>| Ok(read_job(row, (id, *token, seen_token), &order, policy));
                    match self.query_one(sql!("start_delivery"), &columns, read)? {
                        Some(Ok(job)) => picked.jobs.push(job),
                        // A row that cannot be read is not sent, and its attempt is released as an orphan; the others
                        // are delivered.
                        Some(Err(corrupt)) => {
                            tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered");
                        }
                        None => {}
                    }
                }
            }
            Ok(picked)
        })
    }

    fn list_due(&self, order: &PickUpRequest, policy: &DeliveryPolicy, limit: usize) -> SqliteResult<Vec<DueDelivery>> {
        let columns = columns! {
            service: &*order.service,
            route: &*policy.route,
            holds_unknown: policy.on_unknown == OnUnknown::Hold,
            quiet_after_ms: quiet_after(policy),
            max_attempts: i64::from(policy.retry.max_attempts),
            give_up_after_ms: millis(policy.retry.give_up_after),
            limit: limit as i64,
            as_of: self.no_later_than(order.as_of),
        };
        let read = |row: &Row<'_>| Ok((row.read("id")?, row.read("token")?, row.read("state")?, row.read("note")?));
        self.query(sql!("list_due_deliveries"), &columns, read)
    }

    pub fn give_up(&self, GiveUpParams { id, token, states, note }: GiveUpParams) -> SqliteResult<bool> {
        self.in_savepoint(|| {
            for state in states {
                if self.give_up_from(&id, &token, *state, &note)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn give_up_from(&self, id: &RecordId, token: &Token, before: StateKind, note: &str) -> SqliteResult<bool> {
        let (actor, action, after) = ("delivery", "give_up", StateKind::Dead);
        let mut columns =
            columns! { id: id, token: token, state: before, before: before, actor: actor, action: action };
        let service: Option<String> = self.query_one(sql!("give_up"), &columns, |row| row.read("service"))?;
        let Some(service) = service else { return Ok(false) };
        columns.extend(columns! { service: service, after: after, note: note });
        self.audit(&columns)?;
        Ok(true)
    }
}
