//! The calls of asynchronous deliveries.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Row;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::columns::{self, columns};
use crate::deliveries::{quiet_after, read_job};
use crate::row::{RowReader, fresh, millis};
use crate::{EnqueueParams, GiveUpParams};
use oncegate_domain::attempt::ReserveResult;
use oncegate_domain::delivery::{DeliveryPolicy, EnqueueResult, GivenUpKey, PickUpRequest, PickUpResult};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::record::Record;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::state::StateKind;

struct DueDelivery {
    id: RecordId,
    token: Token,
    state: StateKind,
    /// The reason where it is not tried again.
    note: Option<String>,
    /// Whether it is a repetition whose window has closed.
    has_closed: bool,
}

impl SqliteTransaction<'_> {
    pub fn enqueue(&self, params: EnqueueParams) -> SqliteResult<EnqueueResult> {
        Ok(match self.keep(&params, None)? {
            Ok(_) => EnqueueResult::Accepted,
            Err(record) => EnqueueResult::Taken(record),
        })
    }

    pub fn reserve_kept(&self, params: EnqueueParams) -> SqliteResult<ReserveResult> {
        let time_limit = params.request.reserve_request.time_limit;
        let result = match self.keep(&params, Some(time_limit))? {
            Ok((attempt, recovery_point)) => fresh(Arc::new(params.request.reserve_request), attempt, recovery_point),
            Err(record) => ReserveResult::Taken(record),
        };
        Ok(match &params.from {
            Some(from) => result.taken_over_from(from.into()),
            None => result,
        })
    }

    /// Reserves or accepts a key, with its request.
    fn keep(
        &self,
        EnqueueParams { request, from }: &EnqueueParams,
        time_limit: Option<Duration>,
    ) -> SqliteResult<Result<(u32, Option<RecoveryPoint>), Record>> {
        let reserve_request = &request.reserve_request;
        let columns = columns! {
            time_limit_ms: time_limit.map(millis),
            ..columns::kept(request, from.as_ref()),
        };
        self.in_savepoint(|| {
            let read = |row: &Row<'_>| Ok((row.read("attempt")?, row.read("recovery_point")?));
            let over = match from {
                Some(_) => self.query_one(sql!("enqueue_over"), &columns, read)?,
                None => None,
            };
            let kept = match over {
                Some(over) => Some(over),
                None => self.query_one(sql!("enqueue"), &columns, read)?,
            };
            let Some(kept) = kept else { return Ok(Err(self.find_taken(reserve_request.id)?)) };
            self.execute(sql!("store_request"), &columns)?;
            Ok(Ok(kept))
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
                for DueDelivery { id, token: seen_token, state, note, has_closed } in
                    self.list_due(&order, policy, rows_max)?
                {
                    // A new token would fence its settlement.
                    if order.busy.contains(&id) {
                        continue;
                    }
                    if has_closed {
                        self.execute(sql!("end_repeats"), &columns! { id: &id })?;
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
            repeat_within_ms: policy.repeat_within.map(millis),
            limit: limit as i64,
            as_of: self.no_later_than(order.as_of),
            estimate: order.as_of,
        };
        let read = |row: &Row<'_>| {
            let (is_repeat, is_open) = (row.read::<bool>("is_repeat")?, row.read::<bool>("is_open")?);
            let (id, token, state, note) = (row.read("id")?, row.read("token")?, row.read("state")?, row.read("note")?);
            Ok(DueDelivery { id, token, state, note, has_closed: is_repeat && !is_open })
        };
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
