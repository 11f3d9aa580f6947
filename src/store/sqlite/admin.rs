//! The operators' side in SQLite: jobs for the writer thread.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::deliveries::delete_request;
use super::statements::{blob, in_savepoint, no_later_than};
use super::writer::SqliteFailure;
use crate::domain::ids::RecordId;
use crate::domain::response::CorruptRow;
use crate::domain::state::StateKind;
use crate::store::admin::{
    AuditEntry, COUNTED_MAX, DecisionResult, DecisionResults, InstanceEntry, KeyCounts, KeyEntry, KeyPage, ListOrder,
    OperatorAction, OperatorDecision, RawAuditEntry, RawCurrentRow, RawInstanceEntry, RawKeyCount, RawKeyEntry,
    SCAN_ROWS_MAX, Target,
};
use crate::store::row::millis;
use crate::store::{
    ApplyOperatorDecisionParams, CountInstancesBehindParams, ListAuditEntriesParams, ListInstancesParams,
    ListKeysParams,
};

const APPLY_OPERATOR_DECISION: &str = include_str!("sql/apply_operator_decision.sql");
const COUNT_INSTANCES_BEHIND: &str = include_str!("sql/count_instances_behind.sql");
const LIST_INSTANCES: &str = include_str!("sql/list_instances.sql");
const LIST_KEYS: &str = include_str!("sql/list_keys.sql");
const LIST_KEYS_BY_AGE: &str = include_str!("sql/list_keys_by_age.sql");
const LIST_KEYS_IN_FLIGHT: &str = include_str!("sql/list_keys_in_flight.sql");
const CURRENT_ROWS: &str = include_str!("sql/current_rows.sql");
const INSERT_AUDIT_ENTRY: &str = include_str!("sql/insert_audit_entry.sql");
const LIST_AUDIT_ENTRIES: &str = include_str!("sql/list_audit_entries.sql");
const PURGE: &str = include_str!("sql/purge.sql");
const INCREMENT_PURGE_COUNT: &str = include_str!("sql/increment_purge_count.sql");
const RESET_RETRY_BUDGET: &str = include_str!("sql/reset_retry_budget.sql");
const COUNT_SETTLED_KEYS: &str = include_str!("sql/count_settled_keys.sql");
const COUNT_UNSETTLED_KEYS: &str = include_str!("sql/count_unsettled_keys.sql");

pub(super) fn list_keys(
    db: &Connection,
    now: i64,
    ListKeysParams { service, filter, after, limit }: &ListKeysParams,
) -> Result<KeyPage, SqliteFailure> {
    let (service, limit) = (&**service, *limit);
    let order = filter.order();
    let from = after.map_or_else(Vec::new, |cursor| cursor.next_id());
    let mut statement = db.prepare_cached(match order {
        ListOrder::Age => LIST_KEYS_BY_AGE,
        ListOrder::Id => LIST_KEYS,
        ListOrder::Running => LIST_KEYS_IN_FLIGHT,
    })?;
    let state = filter.state.map(StateKind::name);
    let (scope_low, scope_high) = (filter.scope.as_ref().map(|s| &s.low), filter.scope.as_ref().map(|s| &s.high));
    let older_than_ms = filter.older_than.map(millis);
    let at_most = i64::from(limit);
    let mut parameters: Vec<(&str, &dyn rusqlite::ToSql)> = vec![
        (":service", &service),
        (":from", &from),
        (":low", &filter.ids.low),
        (":high", &filter.ids.high),
        (":state", &state),
        (":scope_low", &scope_low),
        (":scope_high", &scope_high),
        (":route", &filter.route),
        (":key", &filter.key),
        (":older_than_ms", &older_than_ms),
        (":limit", &at_most),
        (":now", &now),
    ];
    let (ticks, scan_limit) = (after.map_or(0, |cursor| cursor.ticks), i64::from(SCAN_ROWS_MAX));
    match order {
        ListOrder::Age => parameters.push((":ticks", &ticks)),
        ListOrder::Id => parameters.push((":scan_limit", &scan_limit)),
        ListOrder::Running => {}
    }
    let mut rows = statement.query(&*parameters)?;
    let (mut entries, mut end) = (Vec::new(), (0, None));
    while let Some(row) = rows.next()? {
        if order == ListOrder::Id {
            end = read_scan_end(row)?;
        }
        if blob(row, "id")?.is_some() {
            entries.push(read_key_entry(row)?);
        }
    }
    Ok(match order {
        ListOrder::Id => KeyPage::from_scan(entries, limit, end.0, end.1),
        ListOrder::Age | ListOrder::Running => KeyPage::from_index(entries, limit, order),
    })
}

/// The store's time, and the time by which attempts are judged to be quiet.
#[derive(Clone, Copy)]
struct DecisionTimes {
    now: i64,
    as_of: i64,
}

pub(super) fn apply_operator_decision(
    db: &Connection,
    now: i64,
    params: &ApplyOperatorDecisionParams,
) -> Result<DecisionResults, SqliteFailure> {
    let times = DecisionTimes { now, as_of: params.as_of.map_or(now, |as_of| no_later_than(now, as_of)) };
    in_savepoint(db, |db| decide_targets(db, times, params))
}

fn decide_targets(
    db: &Connection,
    times: DecisionTimes,
    ApplyOperatorDecisionParams { service, decision, targets, .. }: &ApplyOperatorDecisionParams,
) -> Result<DecisionResults, SqliteFailure> {
    let mut decided = DecisionResults::default();
    for target in targets {
        let (verdict, state) = decide_target(db, times, service, decision, target)?;
        decided.verdicts.push(verdict);
        if state == Some(StateKind::Queued) {
            decided.queued.push(target.id);
        }
    }
    if decision.change.withdraws_response() && decided.verdicts.contains(&DecisionResult::Done) {
        let purges: Option<i64> =
            db.prepare_cached(INCREMENT_PURGE_COUNT)?.query_row([], |row| row.get(0)).optional()?;
        decided.purges = purges.map(i64::unsigned_abs);
    }
    Ok(decided)
}

/// Decides about one key. Returns the result, and the key's new state where it was changed.
fn decide_target(
    db: &Connection,
    DecisionTimes { now, as_of }: DecisionTimes,
    service: &str,
    decision: &OperatorDecision,
    target: &Target,
) -> Result<(DecisionResult, Option<StateKind>), SqliteFailure> {
    if !decision.is_allowed(target) {
        return Ok((DecisionResult::Unfit, None));
    }
    let changed: Option<String> = match &decision.change {
        OperatorAction::Purge => match db.prepare_cached(PURGE)?.execute(named_params! {
            ":id": target.id.as_bytes(),
            ":service": service,
            ":token": target.token.as_bytes(),
            ":seen_state": target.state.name(),
        })? {
            0 => None,
            _ => Some("none".to_owned()),
        },
        change => {
            let response = decision.response(target);
            let forgets = !matches!(change, OperatorAction::Requeue);
            let parameters = named_params! {
                ":action": change.action(),
                ":id": target.id.as_bytes(),
                ":service": service,
                ":token": target.token.as_bytes(),
                ":seen_state": target.state.name(),
                ":state": change.resulting_state_name(),
                ":ttl_ms": forgets.then(|| millis(target.ttl)),
                ":remember_ms": response.and(target.remember).map(millis),
                ":quiet_after_ms": decision.requires_quiet(target).then(|| millis(target.quiet_after)),
                ":status": response.map(|response| response.status.as_u16()),
                ":fields": response.map(|response| response.encode_fields()),
                ":body": response.and_then(|response| response.body.as_deref()),
                ":as_of": as_of,
                ":now": now,
            };
            db.prepare_cached(APPLY_OPERATOR_DECISION)?.query_row(parameters, |row| row.get("state")).optional()?
        }
    };
    let Some(after) = changed else {
        // Only one thread writes, and no answer is lost: the outcome is never in doubt.
        return Ok((find_current_rows(db, now, service, target, decision)?, None));
    };
    match &*after {
        "queued" | "unknown" => {
            let renewed = named_params! { ":id": target.id.as_bytes(), ":now": now };
            db.prepare_cached(RESET_RETRY_BUDGET)?.execute(renewed)?;
        }
        _ => delete_request(db, target.id)?,
    }
    db.prepare_cached(INSERT_AUDIT_ENTRY)?.execute(named_params! {
        ":now": now,
        ":service": service,
        ":actor": decision.actor,
        ":action": decision.change.action(),
        ":id": target.id.as_bytes(),
        ":before": target.state.name(),
        ":after": after,
        ":note": decision.audit_note(target),
    })?;
    Ok((DecisionResult::Done, StateKind::parse(&after)))
}

fn find_current_rows(
    db: &Connection,
    now: i64,
    service: &str,
    target: &Target,
    decision: &OperatorDecision,
) -> Result<DecisionResult, SqliteFailure> {
    let parameters = named_params! { ":id": target.id.as_bytes(), ":service": service, ":now": now };
    let raw = db.prepare_cached(CURRENT_ROWS)?.query_row(parameters, |row| {
        Ok(RawCurrentRow {
            id: row.get("id")?,
            token: row.get("token")?,
            state: row.get("state")?,
            deadline_in_ms: row.get("deadline_in_ms")?,
            actor: row.get("actor")?,
            action: row.get("action")?,
            after: row.get("after")?,
        })
    })?;
    Ok(raw.decode()?.verdict(target, decision, false))
}

pub(super) fn list_audit_entries(
    db: &Connection,
    _: i64,
    params: &ListAuditEntriesParams,
) -> Result<Vec<AuditEntry>, SqliteFailure> {
    let mut statement = db.prepare_cached(LIST_AUDIT_ENTRIES)?;
    let mut rows = statement.query(named_params! {
        ":service": &*params.service,
        ":id": params.id.as_ref().map(|id| id.as_bytes().as_slice()),
        ":before": params.before,
        ":limit": i64::from(params.limit),
    })?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(read_audit_entry(row)?);
    }
    Ok(entries)
}

pub(super) fn count_instances_behind(
    db: &Connection,
    now: i64,
    CountInstancesBehindParams { service, purges }: &CountInstancesBehindParams,
) -> Result<u64, SqliteFailure> {
    let purges = i64::try_from(*purges).unwrap_or(i64::MAX);
    let parameters = named_params! { ":service": &**service, ":purges": purges, ":now": now };
    let behind: i64 = db.prepare_cached(COUNT_INSTANCES_BEHIND)?.query_row(parameters, |row| row.get(0))?;
    Ok(behind.unsigned_abs())
}

pub(super) fn list_instances(
    db: &Connection,
    now: i64,
    ListInstancesParams { service, limit }: &ListInstancesParams,
) -> Result<Vec<InstanceEntry>, SqliteFailure> {
    let parameters = named_params! { ":service": &**service, ":limit": i64::from(*limit), ":now": now };
    let mut statement = db.prepare_cached(LIST_INSTANCES)?;
    let mut rows = statement.query(parameters)?;
    let mut instances = Vec::new();
    while let Some(row) = rows.next()? {
        instances.push(read_instance(row)?);
    }
    Ok(instances)
}

pub(super) fn count_keys(db: &Connection, _: i64, service: &Arc<str>) -> Result<KeyCounts, SqliteFailure> {
    let service = &**service;
    let mut statement = db.prepare_cached(COUNT_UNSETTLED_KEYS)?;
    let mut rows = statement.query(named_params! { ":service": service, ":limit": i64::from(COUNTED_MAX) })?;
    let mut unsettled = Vec::new();
    while let Some(row) = rows.next()? {
        unsettled.push(read_count(row)?);
    }
    let mut statement = db.prepare_cached(COUNT_SETTLED_KEYS)?;
    let mut rows = statement.query(named_params! { ":service": service, ":scan_limit": i64::from(SCAN_ROWS_MAX) })?;
    let (mut settled, mut end) = (Vec::new(), (0, None));
    while let Some(row) = rows.next()? {
        end = read_scan_end(row)?;
        if row.get::<_, Option<String>>("route")?.is_some() {
            settled.push(read_count(row)?);
        }
    }
    Ok(KeyCounts::from_rows(unsettled, settled, end.0.unsigned_abs(), end.1))
}

/// Reads the number of rows that were scanned, and the last one's id.
fn read_scan_end(row: &Row<'_>) -> Result<(i64, Option<RecordId>), SqliteFailure> {
    Ok((row.get("scanned")?, blob(row, "last")?.and_then(RecordId::from_stored)))
}

fn read_count(row: &Row<'_>) -> Result<RawKeyCount, SqliteFailure> {
    let state = StateKind::parse(&row.get::<_, String>("state")?).ok_or(CorruptRow("state"))?;
    Ok(RawKeyCount { route: row.get("route")?, state, rows: row.get::<_, i64>("rows")?.unsigned_abs() })
}

fn read_instance(row: &Row<'_>) -> Result<InstanceEntry, SqliteFailure> {
    let raw = RawInstanceEntry {
        id: row.get("id")?,
        started_ms: row.get("started_ms")?,
        renewed_ms: row.get("renewed_ms")?,
        lease_until_ms: row.get("lease_until_ms")?,
        now_ms: row.get("now_ms")?,
    };
    Ok(raw.decode()?)
}

fn read_audit_entry(row: &Row<'_>) -> Result<AuditEntry, SqliteFailure> {
    let raw = RawAuditEntry {
        seq: row.get("seq")?,
        at_ms: row.get("at_ms")?,
        actor: row.get("actor")?,
        action: row.get("action")?,
        id: row.get("id")?,
        before: row.get("before")?,
        after: row.get("after")?,
        note: row.get("note")?,
    };
    Ok(raw.decode()?)
}

fn read_key_entry(row: &Row<'_>) -> Result<KeyEntry, SqliteFailure> {
    let raw = RawKeyEntry {
        id: row.get("id")?,
        token: row.get("token")?,
        state: row.get("state")?,
        attempt: row.get("attempt")?,
        instance: row.get("instance")?,
        scope: row.get("scope")?,
        space: row.get("space")?,
        key: row.get("key")?,
        route: row.get("route")?,
        path: row.get("path")?,
        created_ms: row.get("created_ms")?,
        reserved_ms: row.get("reserved_ms")?,
        deadline_ms: row.get("deadline_ms")?,
        settled_ms: row.get("settled_ms")?,
        expires_ms: row.get("expires_ms")?,
        remember_ms: row.get("remember_ms")?,
        is_due: row.get("is_due")?,
        status: row.get("status")?,
        body_bytes: row.get("body_bytes")?,
        probes: row.get("probes")?,
        absences: row.get("absences")?,
        probe_ms: row.get("probe_ms")?,
        cause: row.get("cause")?,
        accepted_ms: row.get("accepted_ms")?,
        earlier: row.get("earlier")?,
        now_ms: row.get("now_ms")?,
        ticks: row.get("ticks")?,
    };
    Ok(raw.decode()?)
}
