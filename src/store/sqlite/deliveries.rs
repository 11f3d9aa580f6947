//! The statements for asynchronous deliveries.

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::statements::{blob, find, in_savepoint, no_later_than, optional_text, text};
use super::writer::SqliteFailure;
use crate::domain::delivery::{DeliveryPolicy, EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::ids::{RecordId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::response::CorruptRow;
use crate::store::deliveries::{GivenUpRow, RawDeliveryJob, on_unknown};
use crate::store::row::{millis, since_1970_ms};
use crate::store::{EnqueueParams, GiveUpParams};

const AUDIT_GIVE_UP: &str = include_str!("sql/audit_give_up.sql");
const GIVE_UP: &str = include_str!("sql/give_up.sql");
const LIST_DUE_DELIVERIES: &str = include_str!("sql/list_due_deliveries.sql");
const ENQUEUE: &str = include_str!("sql/enqueue.sql");
const ENQUEUE_OVER: &str = include_str!("sql/enqueue_over.sql");
const DISCOUNT_UNSENT_ATTEMPT: &str = include_str!("sql/discount_unsent_attempt.sql");
const STORE_REQUEST: &str = include_str!("sql/store_request.sql");
const DELETE_REQUEST: &str = include_str!("sql/delete_request.sql");
const START_DELIVERY: &str = include_str!("sql/start_delivery.sql");

pub(super) fn enqueue(
    db: &Connection,
    now: i64,
    EnqueueParams { request, from }: &EnqueueParams,
) -> Result<EnqueueResult, SqliteFailure> {
    let EnqueueRequest { reserve_request, sealed } = request;
    let accepted = in_savepoint(db, |db| {
        let mut accepted = match from {
            None => 0,
            Some(from) => db.prepare_cached(ENQUEUE_OVER)?.execute(named_params! {
                ":id": reserve_request.id.as_bytes(),
                ":path": reserve_request.path.as_deref(),
                ":route": &*reserve_request.route,
                ":recipe": reserve_request.recipe.to_stored(),
                ":fingerprint": reserve_request.fingerprint.as_bytes(),
                ":instance": reserve_request.instance.get(),
                ":token": reserve_request.token.as_bytes(),
                ":seen_token": from.token.as_bytes(),
                ":seen_state": from.state.name(),
                ":past_ttl_at": from.past_ttl_at.map(since_1970_ms),
                ":now": now,
            })?,
        };
        if accepted == 0 {
            accepted = db.prepare_cached(ENQUEUE)?.execute(named_params! {
                ":id": reserve_request.id.as_bytes(),
                ":service": &*reserve_request.service,
                ":scope": reserve_request.scope.as_bytes(),
                ":space": reserve_request.space.as_bytes(),
                ":key": reserve_request.key.as_bytes(),
                ":path": reserve_request.path.as_deref(),
                ":route": &*reserve_request.route,
                ":recipe": reserve_request.recipe.to_stored(),
                ":fingerprint": reserve_request.fingerprint.as_bytes(),
                ":instance": reserve_request.instance.get(),
                ":token": reserve_request.token.as_bytes(),
                ":holder": reserve_request.holder.as_ref().map(KeyHolder::as_bytes),
                ":now": now,
            })?;
        }
        if accepted == 1 {
            db.prepare_cached(STORE_REQUEST)?.execute(named_params! {
                ":id": reserve_request.id.as_bytes(),
                ":secret": sealed.secret,
                ":sealed": &sealed.bytes[..],
                ":now": now,
            })?;
        }
        Ok(accepted == 1)
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
            let parameters = named_params! { ":id": id.as_bytes(), ":token": token.as_bytes() };
            db.prepare_cached(DISCOUNT_UNSENT_ATTEMPT)?.execute(parameters)?;
        }
        let mut picked = PickUpResult::default();
        let (mut tokens, limit) = (order.tokens.iter(), order.rows_max());
        for terms in &order.policies {
            let mut slots = terms.slots;
            let rows_max = limit.saturating_sub(picked.jobs.len()).min(slots) + order.busy.len();
            for due in list_due(db, no_later_than(now, order.as_of), order, terms, rows_max)? {
                // A new token would fence its settlement.
                if order.busy.iter().any(|busy| busy.as_bytes()[..] == due.id[..]) {
                    continue;
                }
                if let Some(note) = due.note {
                    let id = due.id;
                    if give_up_from(db, now, &id, &due.token, &due.state, &note)? {
                        picked.given_up.push(GivenUpRow { id, route: terms.route.to_string(), note }.decode()?);
                    }
                    continue;
                }
                // Behind a key that is not tried now there may be one to give up.
                if slots == 0 {
                    continue;
                }
                let Some(token) = tokens.next() else { continue };
                slots -= 1;
                let mut statement = db.prepare_cached(START_DELIVERY)?;
                let mut rows = statement.query(named_params! {
                    ":id": due.id,
                    ":token": token.as_bytes(),
                    ":instance": order.instance.get(),
                    ":time_limit_ms": millis(terms.time_limit),
                    ":now": now,
                })?;
                let Some(row) = rows.next()? else { continue };
                match read_raw_job(row, token, &due).and_then(|raw| Ok(raw.decode(&order.service, order)?)) {
                    Ok(job) => picked.jobs.push(job),
                    // A row that cannot be read is not sent, and its attempt is released as an orphan; the others are
                    // delivered.
                    Err(SqliteFailure::Corrupt(corrupt)) => {
                        tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered");
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(picked)
    })
}

struct DueDelivery {
    id: Vec<u8>,
    token: Vec<u8>,
    state: String,
    spent: i64,
    give_up_in_ms: i64,
    note: Option<String>,
}

fn list_due(
    db: &Connection,
    now: i64,
    order: &PickUpRequest,
    terms: &DeliveryPolicy,
    limit: usize,
) -> Result<Vec<DueDelivery>, SqliteFailure> {
    let mut statement = db.prepare_cached(LIST_DUE_DELIVERIES)?;
    let mut rows = statement.query(named_params! {
        ":service": &*order.service,
        ":route": &*terms.route,
        ":on_unknown": on_unknown(terms.on_unknown),
        ":quiet_after_ms": millis(terms.quiet_after),
        ":max_attempts": terms.retry.max_attempts,
        ":give_up_after_ms": millis(terms.retry.give_up_after),
        ":limit": limit as i64,
        ":now": now,
    })?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        due.push(DueDelivery {
            id: row.get("id")?,
            token: row.get("token")?,
            state: row.get("state")?,
            spent: row.get::<_, Option<i64>>("spent")?.unwrap_or_default(),
            give_up_in_ms: row.get::<_, Option<i64>>("give_up_in_ms")?.unwrap_or_default(),
            note: row.get("note")?,
        });
    }
    Ok(due)
}

fn read_raw_job<'a>(
    row: &'a Row<'_>,
    token: &'a Token,
    due: &'a DueDelivery,
) -> Result<RawDeliveryJob<'a>, SqliteFailure> {
    Ok(RawDeliveryJob {
        id: blob(row, "id")?.ok_or(CorruptRow("id"))?,
        token: token.as_bytes(),
        taken_from: &due.token,
        scope: blob(row, "scope")?.ok_or(CorruptRow("scope"))?,
        space: blob(row, "space")?.ok_or(CorruptRow("space"))?,
        key: blob(row, "key")?.ok_or(CorruptRow("key"))?,
        path: blob(row, "path")?,
        route: text(row, "route")?,
        recipe: text(row, "recipe")?,
        fingerprint: blob(row, "fingerprint")?.ok_or(CorruptRow("fingerprint"))?,
        attempt: row.get("attempt")?,
        recovery_point: optional_text(row, "recovery_point")?,
        accepted_at_ms: row.get("accepted_at")?,
        spent: due.spent,
        give_up_in_ms: due.give_up_in_ms,
        secret: text(row, "secret")?,
        sealed: blob(row, "sealed")?.ok_or(CorruptRow("its request"))?,
    })
}

pub(super) fn give_up(db: &Connection, now: i64, params: &GiveUpParams) -> Result<bool, SqliteFailure> {
    let GiveUpParams { id, token, states, note } = params;
    in_savepoint(db, |db| {
        for state in *states {
            if give_up_from(db, now, id.as_bytes(), token.as_bytes(), state.name(), note)? {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

fn give_up_from(
    db: &Connection,
    now: i64,
    id: &[u8],
    token: &[u8],
    state: &str,
    note: &str,
) -> Result<bool, SqliteFailure> {
    let parameters = named_params! { ":id": id, ":token": token, ":state": state, ":now": now };
    let service: Option<String> = db.prepare_cached(GIVE_UP)?.query_row(parameters, |row| row.get(0)).optional()?;
    let Some(service) = service else { return Ok(false) };
    db.prepare_cached(AUDIT_GIVE_UP)?.execute(named_params! {
        ":now": now,
        ":service": service,
        ":id": id,
        ":state": state,
        ":note": note,
    })?;
    Ok(true)
}

/// Deletes a key's request if the key is completed or gone.
pub(super) fn delete_request(db: &Connection, id: RecordId) -> Result<(), SqliteFailure> {
    db.prepare_cached(DELETE_REQUEST)?.execute(named_params! { ":id": id.as_bytes() })?;
    Ok(())
}
