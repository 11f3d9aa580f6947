//! The statements for requests and upkeep. The writer begins and commits their transaction.

use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::writer::SqliteFailure;
use crate::domain::attempt::{AttemptLease, ReserveRequest, ReserveResult, Settlement};
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::seeded_bug::SeededBug;
use crate::store::row::{self, FoundRecord, OutcomeColumns, accepted_ms, millis, since_1970_ms, state_after};
use crate::store::{
    CountLiveKeysParams, ExpectedRecord, ExtendDeadlineParams, LeaseRenewal, ListInFlightParams, MoveLiveKeysParams,
    ReapParams, ReapedRows, RememberRouteIdentitiesParams, RenewResult, ReservedAttempt, RouteIdentity, SettleResult,
    SweepParams, SweptKey,
};

const EXPIRE_RESPONSES: &str = include_str!("sql/expire_responses.sql");
const EXTEND_DEADLINE: &str = include_str!("sql/extend_deadline.sql");
const FORGET: &str = include_str!("sql/forget.sql");
const COUNT_LIVE_KEYS: &str = include_str!("sql/count_live_keys.sql");
const FIND: &str = include_str!("sql/find.sql");
const HOLD_TTLS: &str = include_str!("sql/hold_ttls.sql");
const MARK_INTERRUPTED_UNKNOWN: &str = include_str!("sql/mark_interrupted_unknown.sql");
const MOVE_LIVE_KEYS: &str = include_str!("sql/move_live_keys.sql");
const REAP: &str = include_str!("sql/reap.sql");
const RENEW_LEASE: &str = include_str!("sql/renew_lease.sql");
const RESERVE: &str = include_str!("sql/reserve.sql");
const RESTORE: &str = include_str!("sql/restore.sql");
const RELEASE_LEASE: &str = include_str!("sql/release_lease.sql");
const FORGET_ROUTE_IDENTITIES: &str = include_str!("sql/forget_route_identities.sql");
const LIST_ROUTE_IDENTITIES: &str = include_str!("sql/list_route_identities.sql");
const REMEMBER_ROUTE_IDENTITIES: &str = include_str!("sql/remember_route_identities.sql");
const SETTLE: &str = include_str!("sql/settle.sql");
const DELETE_ORPHANED_REQUESTS: &str = include_str!("sql/delete_orphaned_requests.sql");
const DELETE_EXPIRED_REQUESTS: &str = include_str!("sql/delete_expired_requests.sql");
const LIST_IN_FLIGHT: &str = include_str!("sql/list_in_flight.sql");
const SWEEP: &str = include_str!("sql/sweep.sql");
const TAKE_OVER: &str = include_str!("sql/take_over.sql");

pub(super) fn reserve(
    db: &Connection,
    now: i64,
    reserve_request: &Arc<ReserveRequest>,
) -> Result<ReserveResult, SqliteFailure> {
    let reserved = db.prepare_cached(RESERVE)?.execute(named_params! {
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
        ":time_limit_ms": millis(reserve_request.time_limit),
        ":holder": reserve_request.holder.as_ref().map(KeyHolder::as_bytes),
        ":now": now,
    })?;
    if reserved == 1 {
        return Ok(fresh(reserve_request, 1, None));
    }
    // Nobody else writes: the conflicting row still exists, or the file is inconsistent.
    let found = find(db, now, reserve_request.id)?.ok_or(CorruptRow("the index of keys"))?;
    Ok(ReserveResult::Taken(found.record))
}

pub(super) fn take_over(
    db: &Connection,
    now: i64,
    reserve_request: &Arc<ReserveRequest>,
    from: ExpectedRecord,
) -> Result<ReserveResult, SqliteFailure> {
    let parameters = named_params! {
        ":id": reserve_request.id.as_bytes(),
        ":path": reserve_request.path.as_deref(),
        ":route": &*reserve_request.route,
        ":recipe": reserve_request.recipe.to_stored(),
        ":fingerprint": reserve_request.fingerprint.as_bytes(),
        ":instance": reserve_request.instance.get(),
        ":token": reserve_request.token.as_bytes(),
        ":time_limit_ms": millis(reserve_request.time_limit),
        ":seen_token": from.token.as_bytes(),
        ":seen_state": from.state.name(),
        ":past_ttl_at": from.past_ttl_at.map(since_1970_ms),
        ":now": now,
    };
    let taken: Option<(i64, Option<String>)> =
        db.prepare_cached(TAKE_OVER)?.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some((attempt, reached)) = taken {
        let taken = fresh(reserve_request, row::attempt(attempt)?, row::recovery_point(reached.as_deref())?);
        return Ok(taken.taken_over_from(from.replaced()));
    }
    match find(db, now, reserve_request.id)? {
        Some(found) => Ok(ReserveResult::Taken(found.record)),
        None => Ok(reserve(db, now, reserve_request)?.taken_over_from(from.replaced())),
    }
}

pub(super) fn settle(db: &Connection, now: i64, settlement: &Settlement) -> Result<SettleResult, SqliteFailure> {
    if settlement.outcome.forgets_key() {
        let parameters = named_params! { ":id": settlement.id.as_bytes(), ":token": settlement.token.as_bytes() };
        if db.prepare_cached(FORGET)?.execute(parameters)? == 1 {
            return Ok(SettleResult::Done { expires_at: None });
        }
    }
    let terms = OutcomeColumns::from_outcome(&settlement.outcome);
    let parameters = named_params! {
        ":id": settlement.id.as_bytes(),
        ":token": settlement.token.as_bytes(),
        ":state": state_after(&settlement.outcome),
        ":ttl_ms": terms.ttl_ms,
        ":due_ms": settlement.retry_in.map(millis),
        ":remember_ms": terms.remember_ms,
        ":status": terms.status,
        ":fields": terms.fields,
        ":body": terms.body,
        ":cause": terms.cause,
        ":now": now,
    };
    let expires_at_ms: Option<Option<i64>> =
        db.prepare_cached(SETTLE)?.query_row(parameters, |row| row.get(0)).optional()?;
    if let Some(expires_at_ms) = expires_at_ms {
        return Ok(SettleResult::Done { expires_at: expires_at_ms.map(row::time).transpose()? });
    }
    let found = find(db, now, settlement.id)?.map(|found| found.record);
    match settlement.lease_to_restore() {
        Some(lost) if settlement.is_lost_from(found.as_ref()) => restore(db, now, lost, settlement),
        _ => Ok(SettleResult::Fenced(found)),
    }
}

/// Writes the whole row of an ended attempt, over the row that its lost takeover had replaced. Nobody else writes, so no other
/// row can be in the way.
fn restore(
    db: &Connection,
    now: i64,
    lost: &AttemptLease,
    settlement: &Settlement,
) -> Result<SettleResult, SqliteFailure> {
    let (reserve_request, terms) = (&lost.reserve_request, OutcomeColumns::from_outcome(&settlement.outcome));
    let parameters = named_params! {
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
        ":time_limit_ms": millis(reserve_request.time_limit),
        ":attempt": lost.attempt,
        ":accepted_at": accepted_ms(lost),
        ":replaced_token": lost.taken_from.as_ref().map(|replaced| replaced.token.as_bytes()),
        ":replaced_was_completed": lost.taken_from.map(|replaced| replaced.was_completed),
        ":state": state_after(&settlement.outcome),
        ":due_ms": settlement.retry_in.map(millis),
        ":ttl_ms": terms.ttl_ms,
        ":remember_ms": terms.remember_ms,
        ":status": terms.status,
        ":fields": terms.fields,
        ":body": terms.body,
        ":cause": terms.cause,
        ":holder": reserve_request.holder.as_ref().map(KeyHolder::as_bytes),
        ":now": now,
    };
    let expires_at_ms: Option<i64> = db.prepare_cached(RESTORE)?.query_row(parameters, |row| row.get(0))?;
    Ok(SettleResult::Done { expires_at: expires_at_ms.map(row::time).transpose()? })
}

pub(super) fn count_live_keys(db: &Connection, params: &CountLiveKeysParams) -> Result<u32, SqliteFailure> {
    let parameters = named_params! { ":holder": params.holder.as_bytes(), ":limit": params.limit };
    Ok(db.prepare_cached(COUNT_LIVE_KEYS)?.query_row(parameters, |row| row.get(0))?)
}

pub(super) fn move_live_keys(db: &Connection, params: &MoveLiveKeysParams) -> Result<u32, SqliteFailure> {
    let MoveLiveKeysParams { id, scope, holder } = params;
    let parameters = named_params! { ":id": id.as_bytes(), ":scope": scope.as_bytes(), ":holder": holder.as_bytes() };
    let moved = db.prepare_cached(MOVE_LIVE_KEYS)?.execute(parameters)?;
    Ok(u32::try_from(moved).unwrap_or(u32::MAX))
}

pub(super) fn find(db: &Connection, now: i64, id: RecordId) -> Result<Option<FoundRecord>, SqliteFailure> {
    let mut statement = db.prepare_cached(FIND)?;
    let mut rows = statement.query(named_params! { ":id": id.as_bytes(), ":now": now })?;
    match rows.next()? {
        Some(row) => Ok(Some(read(row)?.decode()?)),
        None => Ok(None),
    }
}

fn read<'a>(row: &'a Row<'_>) -> Result<row::RawRecord<'a>, SqliteFailure> {
    Ok(row::RawRecord {
        id: blob(row, "id")?.ok_or(CorruptRow("id"))?,
        attempt: row.get("attempt")?,
        token: blob(row, "token")?.ok_or(CorruptRow("token"))?,
        recipe: text(row, "recipe")?,
        fingerprint: blob(row, "fingerprint")?.ok_or(CorruptRow("fingerprint"))?,
        state: text(row, "state")?,
        running_ms: row.get("running_ms")?,
        deadline_in_ms: row.get("deadline_in_ms")?,
        past_ttl: row.get("past_ttl")?,
        late: row.get("late")?,
        now_ms: row.get("now_ms")?,
        settled_ms: row.get("settled_ms")?,
        recovery_point: optional_text(row, "recovery_point")?,
        expires_at_ms: row.get("expires_at_ms")?,
        accepted_at_ms: row.get("accepted_at_ms")?,
        status: row.get("status")?,
        fields: blob(row, "fields")?,
        body: blob(row, "body")?.map(bytes::Bytes::copy_from_slice),
    })
}

/// Executes several writing statements, of which either all or none take effect. The transaction's other jobs are not
/// affected.
pub(super) fn in_savepoint<T>(
    db: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, SqliteFailure>,
) -> Result<T, SqliteFailure> {
    db.execute_batch("savepoint job")?;
    let done = work(db);
    let ended = match &done {
        Ok(_) => db.execute_batch("release job"),
        // SQLite has rolled back the whole transaction, and the savepoint with it.
        Err(_) if db.is_autocommit() => Ok(()),
        Err(_) => db.execute_batch("rollback to job; release job"),
    };
    // The first failure is the one to return.
    let done = done?;
    ended?;
    Ok(done)
}

pub(super) fn blob<'a>(row: &'a Row<'_>, column: &str) -> Result<Option<&'a [u8]>, SqliteFailure> {
    row.get_ref(column)?.as_blob_or_null().map_err(|_| CorruptRow("a column's type").into())
}

pub(super) fn optional_text<'a>(row: &'a Row<'_>, column: &str) -> Result<Option<&'a str>, SqliteFailure> {
    row.get_ref(column)?.as_str_or_null().map_err(|_| CorruptRow("a column's type").into())
}

pub(super) fn text<'a>(row: &'a Row<'_>, column: &str) -> Result<&'a str, SqliteFailure> {
    row.get_ref(column)?.as_str().map_err(|_| CorruptRow("a column's type").into())
}

pub(super) fn renew_lease(db: &Connection, now: i64, renewal: &LeaseRenewal) -> Result<RenewResult, SqliteFailure> {
    let parameters = named_params! {
        ":instance": renewal.instance.get(),
        ":service": &*renewal.service,
        ":expiry_ms": millis(renewal.expiry),
        ":purges_seen": renewal.purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX)),
        ":now": now,
    };
    if let Some(until) = renewal.hold_ttls_until {
        db.prepare_cached(HOLD_TTLS)?.execute(named_params! { ":until_ms": since_1970_ms(until) })?;
    }
    let mut statement = db.prepare_cached(RENEW_LEASE)?;
    let (purges, held_until): (i64, i64) = statement.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(RenewResult { now: row::time(now)?, purges: purges.unsigned_abs(), ttls_held_until: row::time(held_until)? })
}

pub(super) fn release_lease(db: &Connection, _: i64, instance: &InstanceId) -> Result<(), SqliteFailure> {
    db.prepare_cached(RELEASE_LEASE)?.execute(named_params! { ":instance": instance.get() })?;
    Ok(())
}

pub(super) fn sweep(db: &Connection, now: i64, params: &SweepParams) -> Result<Vec<SweptKey>, SqliteFailure> {
    let mut statement = db.prepare_cached(SWEEP)?;
    let rows = statement.query(named_params! {
        ":expiry_ms": millis(params.expiry),
        ":limit": params.limit,
        ":as_of": no_later_than(now, params.as_of),
        ":estimate": since_1970_ms(params.as_of),
        ":now": now,
    })?;
    read_swept_keys(rows)
}

/// Makes all keys in flight unknown, and ends all leases. To be called at opening: this process alone has the file, so
/// no attempt is running.
pub(super) fn mark_interrupted_unknown(db: &Connection, now: i64) -> Result<Vec<SweptKey>, SqliteFailure> {
    let transaction = db.unchecked_transaction()?;
    db.execute("delete from instances", [])?;
    let orphans = read_swept_keys(db.prepare(MARK_INTERRUPTED_UNKNOWN)?.query(named_params! { ":now": now })?)?;
    transaction.commit()?;
    Ok(orphans)
}

fn read_swept_keys(mut rows: rusqlite::Rows<'_>) -> Result<Vec<SweptKey>, SqliteFailure> {
    let mut swept = Vec::new();
    while let Some(row) = rows.next()? {
        swept.push(SweptKey {
            id: blob(row, "id")?.and_then(RecordId::from_stored).ok_or(CorruptRow("id"))?,
            route: row.get("route")?,
            attempt: row::attempt(row.get("attempt")?)?,
            instance: InstanceId::from_stored(row.get("instance")?),
            is_logged: false,
        });
    }
    Ok(swept)
}

pub(super) fn list_in_flight(
    db: &Connection,
    now: i64,
    params: &ListInFlightParams,
) -> Result<Vec<ReservedAttempt>, SqliteFailure> {
    let mut statement = db.prepare_cached(LIST_IN_FLIGHT)?;
    let (instance, older_than_ms) = (params.instance.get(), millis(params.older_than));
    let parameters = named_params! { ":instance": instance, ":older_than_ms": older_than_ms, ":now": now };
    let mut rows = statement.query(parameters)?;
    let mut standing = Vec::new();
    while let Some(row) = rows.next()? {
        let id = blob(row, "id")?.and_then(RecordId::from_stored).ok_or(CorruptRow("id"))?;
        let token = blob(row, "token")?.and_then(Token::from_stored).ok_or(CorruptRow("token"))?;
        standing.push(ReservedAttempt { id, token, route: row.get("route")? });
    }
    Ok(standing)
}

pub(super) fn extend_deadline(db: &Connection, now: i64, params: &ExtendDeadlineParams) -> Result<bool, SqliteFailure> {
    let parameters = named_params! {
        ":id": params.id.as_bytes(),
        ":token": params.token.as_bytes(),
        ":time_limit_ms": millis(params.time_limit),
        ":now": now,
    };
    Ok(db.prepare_cached(EXTEND_DEADLINE)?.execute(parameters)? == 1)
}

/// The store's time, limited by the caller's estimate of it: a clock that was set forward ends nothing early.
pub(super) fn no_later_than(now: i64, estimate: SystemTime) -> i64 {
    now.min(since_1970_ms(estimate))
}

pub(super) fn reap(db: &Connection, now: i64, params: &ReapParams) -> Result<ReapedRows, SqliteFailure> {
    let ReapParams { limit, scope } = params;
    let (as_of, settled_since) = (no_later_than(now, scope.as_of), since_1970_ms(scope.settled_since));
    let lapsed = named_params! { ":limit": limit, ":as_of": as_of, ":settled_since": settled_since };
    if SeededBug::TtlOnOpen.is_active() {
        db.execute("delete from keys where state = 'unknown'", [])?;
    }
    db.prepare_cached(DELETE_EXPIRED_REQUESTS)?.execute(lapsed)?;
    db.prepare_cached(DELETE_ORPHANED_REQUESTS)?.execute(named_params! { ":limit": limit })?;
    Ok(ReapedRows {
        responses_dropped: db.prepare_cached(EXPIRE_RESPONSES)?.execute(lapsed)? as u64,
        deleted: db.prepare_cached(REAP)?.execute(lapsed)? as u64,
    })
}

pub(super) fn remember_route_identities(
    db: &Connection,
    _: i64,
    params: &RememberRouteIdentitiesParams,
) -> Result<Vec<RouteIdentity>, SqliteFailure> {
    let service = &*params.service;
    in_savepoint(db, |db| {
        let mut listed = db.prepare_cached(LIST_ROUTE_IDENTITIES)?;
        let mut rows = listed.query(named_params! { ":service": service })?;
        let mut before = Vec::new();
        while let Some(row) = rows.next()? {
            let (route, finds): (String, String) = (row.get("route")?, row.get("finds")?);
            before.push(RouteIdentity { route: route.into(), finds });
        }
        db.prepare_cached(FORGET_ROUTE_IDENTITIES)?.execute(named_params! { ":service": service })?;
        for RouteIdentity { route, finds } in &params.identities {
            let written = named_params! { ":service": service, ":route": &**route, ":finds": finds };
            db.prepare_cached(REMEMBER_ROUTE_IDENTITIES)?.execute(written)?;
        }
        Ok(before)
    })
}

fn fresh(reserve_request: &Arc<ReserveRequest>, attempt: u32, recovery_point: Option<RecoveryPoint>) -> ReserveResult {
    ReserveResult::Fresh(AttemptLease {
        reserve_request: Arc::clone(reserve_request),
        attempt,
        taken_from: None,
        recovery_point,
        delivery: None,
    })
}
