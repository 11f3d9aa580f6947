//! The statements for asynchronous deliveries.

use rusqlite::{Connection, Row};

use super::audit::{self, AuditLine};
use super::run::{execute, in_savepoint, query, query_one};
use super::statements::{find, no_later_than};
use super::writer::SqliteFailure;
use crate::domain::delivery::{DeliveryPolicy, EnqueueRequest, EnqueueResult, GivenUpKey, PickUpRequest, PickUpResult};
use crate::domain::ids::{RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::domain::response_policy::OnUnknown;
use crate::domain::state::StateKind;
use crate::store::columns::{self, columns};
use crate::store::deliveries::{quiet_after, read_job};
use crate::store::row::{RowReader, millis};
use crate::store::statement::statements;
use crate::store::{EnqueueParams, GiveUpParams};

statements! { "sql/":
    DELETE_REQUEST = "delete_request";
    DISCOUNT_UNSENT_ATTEMPT = "discount_unsent_attempt";
    ENQUEUE = "enqueue";
    ENQUEUE_OVER = "enqueue_over";
    GIVE_UP = "give_up";
    LIST_DUE_DELIVERIES = "list_due_deliveries";
    START_DELIVERY = "start_delivery";
    STORE_REQUEST = "store_request";
}

pub(super) fn enqueue(
    db: &Connection,
    now: i64,
    EnqueueParams { request, from }: &EnqueueParams,
) -> Result<EnqueueResult, SqliteFailure> {
    let EnqueueRequest { reserve_request, sealed } = request;
    let accepted = in_savepoint(db, |db| {
        let mut columns = columns::reservation(reserve_request);
        columns.extend(columns! { secret: &*sealed.secret, sealed: &sealed.bytes, now: now });
        columns.extend(columns::seen(from.as_ref()));
        let is_over = from.is_some() && execute(db, &ENQUEUE_OVER, &columns)? == 1;
        let is_accepted = is_over || execute(db, &ENQUEUE, &columns)? == 1;
        if is_accepted {
            execute(db, &STORE_REQUEST, &columns)?;
        }
        Ok(is_accepted)
    })?;
    if accepted {
        return Ok(EnqueueResult::Accepted);
    }
    // Nobody else writes: the conflicting row still exists, or the file is inconsistent.
    let found = find(db, now, reserve_request.id)?.ok_or(CorruptRow("the index of keys"))?;
    Ok(EnqueueResult::Taken(found.record))
}

/// Starts attempts for due deliveries, route by route, until all tokens are used.
pub(super) fn pick_up(db: &Connection, now: i64, order: &PickUpRequest) -> Result<PickUpResult, SqliteFailure> {
    in_savepoint(db, |db| {
        for id in &order.delivered {
            delete_request(db, *id)?;
        }
        for (id, token) in &order.unsent {
            execute(db, &DISCOUNT_UNSENT_ATTEMPT, &columns! { id: id, token: token })?;
        }
        let mut picked = PickUpResult::default();
        let (mut tokens, limit) = (order.tokens.iter(), order.rows_max());
        for policy in &order.policies {
            let mut slots = policy.slots;
            let rows_max = limit.saturating_sub(picked.jobs.len()).min(slots) + order.busy.len();
            for due in list_due(db, no_later_than(now, order.as_of), order, policy, rows_max)? {
                // A new token would fence its settlement.
                if order.busy.contains(&due.id) {
                    continue;
                }
                if let Some(note) = due.note {
                    if give_up_from(db, now, &due.id, &due.token, due.state, &note)? {
                        picked.given_up.push(GivenUpKey { id: due.id, route: (*policy.route).into(), note });
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
                    id: &due.id,
                    token: token,
                    instance: order.instance,
                    time_limit_ms: millis(policy.time_limit),
                    spent: due.spent,
                    give_up_in_ms: due.give_up_in_ms,
                    now: now,
                };
                let read = |row: &Row<'_>| Ok(read_job(row, (due.id, *token, due.token), order, policy));
                match query_one(db, &START_DELIVERY, &columns, read)? {
                    Some(Ok(job)) => picked.jobs.push(job),
                    // A row that cannot be read is not sent, and its attempt is released as an orphan; the others are
                    // delivered.
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

struct DueDelivery {
    id: RecordId,
    token: Token,
    state: StateKind,
    spent: Option<i64>,
    give_up_in_ms: Option<i64>,
    note: Option<String>,
}

fn list_due(
    db: &Connection,
    as_of: i64,
    order: &PickUpRequest,
    policy: &DeliveryPolicy,
    limit: usize,
) -> Result<Vec<DueDelivery>, SqliteFailure> {
    let columns = columns! {
        service: &*order.service,
        route: &*policy.route,
        holds_unknown: policy.on_unknown == OnUnknown::Hold,
        quiet_after_ms: quiet_after(policy),
        max_attempts: i64::from(policy.retry.max_attempts),
        give_up_after_ms: millis(policy.retry.give_up_after),
        limit: limit as i64,
        as_of: as_of,
    };
    query(db, &LIST_DUE_DELIVERIES, &columns, |row| {
        Ok(DueDelivery {
            id: row.read("id")?,
            token: row.read("token")?,
            state: row.read("state")?,
            spent: row.read("spent")?,
            give_up_in_ms: row.read("give_up_in_ms")?,
            note: row.read("note")?,
        })
    })
}

pub(super) fn give_up(db: &Connection, now: i64, params: &GiveUpParams) -> Result<bool, SqliteFailure> {
    let GiveUpParams { id, token, states, note } = params;
    in_savepoint(db, |db| {
        for state in *states {
            if give_up_from(db, now, id, token, *state, note)? {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

fn give_up_from(
    db: &Connection,
    now: i64,
    id: &RecordId,
    token: &Token,
    before: StateKind,
    note: &str,
) -> Result<bool, SqliteFailure> {
    let columns = columns! { id: id, token: token, state: before, now: now };
    let service: Option<String> = query_one(db, &GIVE_UP, &columns, |row| row.read("service"))?;
    let Some(service) = service else { return Ok(false) };
    let after = StateKind::Dead.name();
    let (actor, action, note) = ("delivery", "give_up", Some(note));
    audit::insert(db, now, &AuditLine { service: &service, actor, action, id, before, after, note })?;
    Ok(true)
}

/// Deletes a key's request if the key is completed or gone.
pub(super) fn delete_request(db: &Connection, id: RecordId) -> Result<(), SqliteFailure> {
    execute(db, &DELETE_REQUEST, &columns! { id: &id }).map(drop)
}
