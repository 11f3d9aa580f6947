//! The statements for requests and upkeep. The writer begins and commits their transaction.

use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::{Connection, Row};

use super::run::{execute, in_savepoint, query, query_one};
use super::writer::SqliteFailure;
use crate::domain::attempt::{AttemptLease, ReserveRequest, ReserveResult, Settlement};
use crate::domain::ids::{InstanceId, RecordId};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::seeded_bug::SeededBug;
use crate::store::columns::{self, columns};
use crate::store::row::{self, FoundRecord, RowReader, millis, since_1970_ms};
use crate::store::statement::{shared, statements};
use crate::store::{
    CountLiveKeysParams, ExpectedRecord, ExtendDeadlineParams, LeaseRenewal, ListInFlightParams, MoveLiveKeysParams,
    ReapParams, ReapedRows, RememberRouteIdentitiesParams, RenewResult, ReservedAttempt, RouteIdentity, SettleResult,
    SweepParams, SweptKey,
};

statements! { "sql/":
    COUNT_LIVE_KEYS = "count_live_keys";
    DELETE_EXPIRED_REQUESTS = "delete_expired_requests";
    EXPIRE_RESPONSES = "expire_responses";
    EXTEND_DEADLINE = "extend_deadline";
    FIND = "find";
    FORGET = "forget";
    FORGET_ROUTE_IDENTITIES = "forget_route_identities";
    HOLD_TTLS = "hold_ttls";
    LIST_ROUTE_IDENTITIES = "list_route_identities";
    MARK_INTERRUPTED_UNKNOWN = "mark_interrupted_unknown";
    MOVE_LIVE_KEYS = "move_live_keys";
    REAP = "reap";
    RELEASE_LEASE = "release_lease";
    REMEMBER_ROUTE_IDENTITIES = "remember_route_identities";
    RENEW_LEASE = "renew_lease";
    RESERVE = "reserve";
    RESTORE = "restore";
    SETTLE = "settle";
    SWEEP = "sweep";
    TAKE_OVER = "take_over";
}

pub(super) fn reserve(
    db: &Connection,
    now: i64,
    reserve_request: &Arc<ReserveRequest>,
) -> Result<ReserveResult, SqliteFailure> {
    let mut columns = columns::reservation(reserve_request);
    columns.extend(columns! { time_limit_ms: millis(reserve_request.time_limit), now: now });
    if execute(db, &RESERVE, &columns)? == 1 {
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
    let mut columns = columns::next_attempt(reserve_request);
    columns.extend(columns::seen(Some(&from)));
    columns.extend(columns! { time_limit_ms: millis(reserve_request.time_limit), now: now });
    let taken = query_one(db, &TAKE_OVER, &columns, |row| Ok((row.read("attempt")?, row.read("recovery_point")?)))?;
    if let Some((attempt, reached)) = taken {
        return Ok(fresh(reserve_request, attempt, reached).taken_over_from(from.replaced()));
    }
    match find(db, now, reserve_request.id)? {
        Some(found) => Ok(ReserveResult::Taken(found.record)),
        None => Ok(reserve(db, now, reserve_request)?.taken_over_from(from.replaced())),
    }
}

pub(super) fn settle(db: &Connection, now: i64, settlement: &Settlement) -> Result<SettleResult, SqliteFailure> {
    let mut columns = columns! {
        id: &settlement.id,
        token: &settlement.token,
        due_ms: settlement.retry_in.map(millis),
        now: now,
    };
    if settlement.outcome.forgets_key() && execute(db, &FORGET, &columns)? == 1 {
        return Ok(SettleResult::Done { expires_at: None });
    }
    columns.extend(columns::outcome(&settlement.outcome));
    if let Some(expires_at) = query_one(db, &SETTLE, &columns, |row| row.read("expires_at"))? {
        return Ok(SettleResult::Done { expires_at });
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
    let mut columns = columns::restored(lost, settlement);
    columns.extend(columns! { now: now });
    let expires_at = query_one(db, &RESTORE, &columns, |row| row.read("expires_at"))?;
    Ok(SettleResult::Done { expires_at: expires_at.ok_or(CorruptRow("the index of keys"))? })
}

pub(super) fn count_live_keys(db: &Connection, params: &CountLiveKeysParams) -> Result<u32, SqliteFailure> {
    let columns = columns! { holder: &params.holder, limit: i64::from(params.limit) };
    Ok(query_one(db, &COUNT_LIVE_KEYS, &columns, |row| row.read("count"))?.unwrap_or(0))
}

pub(super) fn move_live_keys(db: &Connection, params: &MoveLiveKeysParams) -> Result<u32, SqliteFailure> {
    let columns = columns! { id: &params.id, scope: &params.scope, holder: &params.holder };
    let moved = execute(db, &MOVE_LIVE_KEYS, &columns)?;
    Ok(u32::try_from(moved).unwrap_or(u32::MAX))
}

pub(super) fn find(db: &Connection, now: i64, id: RecordId) -> Result<Option<FoundRecord>, SqliteFailure> {
    query_one(db, &FIND, &columns! { id: &id }, |row| FoundRecord::read(row, now))
}

pub(super) fn renew_lease(db: &Connection, now: i64, renewal: &LeaseRenewal) -> Result<RenewResult, SqliteFailure> {
    let columns = columns! {
        id: renewal.instance,
        service: &*renewal.service,
        expiry_ms: millis(renewal.expiry),
        purges_seen: renewal.purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX)),
        hold_ttls_until: renewal.hold_ttls_until,
        now: now,
    };
    if renewal.hold_ttls_until.is_some() {
        execute(db, &HOLD_TTLS, &columns)?;
    }
    let read = |row: &Row<'_>| {
        let (purges, ttls_held_until) = (row.read("purges")?, row.read("ttls_held_until")?);
        Ok(RenewResult { now: row::time(now)?, purges, ttls_held_until })
    };
    Ok(query_one(db, &RENEW_LEASE, &columns, read)?.ok_or(CorruptRow("the lease"))?)
}

pub(super) fn release_lease(db: &Connection, _: i64, instance: &InstanceId) -> Result<(), SqliteFailure> {
    execute(db, &RELEASE_LEASE, &columns! { id: *instance }).map(drop)
}

pub(super) fn sweep(db: &Connection, now: i64, params: &SweepParams) -> Result<Vec<SweptKey>, SqliteFailure> {
    let columns = columns! {
        expiry_ms: millis(params.expiry),
        limit: i64::from(params.limit),
        as_of: no_later_than(now, params.as_of),
        estimate: params.as_of,
        now: now,
    };
    query(db, &SWEEP, &columns, read_swept_key)
}

/// Makes all keys in flight unknown, and ends all leases. To be called at opening: this process alone has the file, so
/// no attempt is running.
pub(super) fn mark_interrupted_unknown(db: &Connection, now: i64) -> Result<Vec<SweptKey>, SqliteFailure> {
    let transaction = db.unchecked_transaction()?;
    db.execute("delete from instances", [])?;
    let orphans = query(db, &MARK_INTERRUPTED_UNKNOWN, &columns! { now: now }, read_swept_key)?;
    transaction.commit()?;
    Ok(orphans)
}

fn read_swept_key(row: &Row<'_>) -> Result<SweptKey, CorruptRow> {
    Ok(SweptKey {
        id: row.read("id")?,
        route: row.read("route")?,
        attempt: row.read("attempt")?,
        instance: row.read("instance")?,
        is_logged: false,
    })
}

pub(super) fn list_in_flight(
    db: &Connection,
    now: i64,
    params: &ListInFlightParams,
) -> Result<Vec<ReservedAttempt>, SqliteFailure> {
    let columns = columns! { instance: params.instance, older_than_ms: millis(params.older_than), now: now };
    query(db, &shared::LIST_IN_FLIGHT, &columns, |row| {
        Ok(ReservedAttempt { id: row.read("id")?, token: row.read("token")?, route: row.read("route")? })
    })
}

pub(super) fn extend_deadline(db: &Connection, now: i64, params: &ExtendDeadlineParams) -> Result<bool, SqliteFailure> {
    let columns = columns! {
        id: &params.id,
        token: &params.token,
        time_limit_ms: millis(params.time_limit),
        now: now,
    };
    Ok(execute(db, &EXTEND_DEADLINE, &columns)? == 1)
}

/// The store's time, limited by the caller's estimate of it: a clock that was set forward ends nothing early.
pub(super) fn no_later_than(now: i64, estimate: SystemTime) -> i64 {
    now.min(since_1970_ms(estimate))
}

pub(super) fn reap(db: &Connection, now: i64, params: &ReapParams) -> Result<ReapedRows, SqliteFailure> {
    let ReapParams { limit, scope } = params;
    let columns = columns! {
        limit: i64::from(*limit),
        as_of: no_later_than(now, scope.as_of),
        settled_since: scope.settled_since,
    };
    if SeededBug::TtlOnOpen.is_active() {
        db.execute("delete from keys where state = 'unknown'", [])?;
    }
    execute(db, &DELETE_EXPIRED_REQUESTS, &columns)?;
    Ok(ReapedRows {
        responses_dropped: execute(db, &EXPIRE_RESPONSES, &columns)? as u64,
        deleted: execute(db, &REAP, &columns)? as u64,
    })
}

pub(super) fn remember_route_identities(
    db: &Connection,
    _: i64,
    params: &RememberRouteIdentitiesParams,
) -> Result<Vec<RouteIdentity>, SqliteFailure> {
    let of_service = columns! { service: &*params.service };
    in_savepoint(db, |db| {
        let before = query(db, &LIST_ROUTE_IDENTITIES, &of_service, |row| {
            Ok(RouteIdentity { route: row.read("route")?, finds: row.read("finds")? })
        })?;
        execute(db, &FORGET_ROUTE_IDENTITIES, &of_service)?;
        for RouteIdentity { route, finds } in &params.identities {
            let columns = columns! { service: &*params.service, route: &**route, finds: finds.as_str() };
            execute(db, &REMEMBER_ROUTE_IDENTITIES, &columns)?;
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
