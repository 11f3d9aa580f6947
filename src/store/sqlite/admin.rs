//! The operators' side in SQLite: jobs for the writer thread.

use std::sync::Arc;

use rusqlite::Connection;

use super::audit::{self, AuditLine};
use super::deliveries::delete_request;
use super::run::{execute, in_savepoint, query, query_one};
use super::statements::no_later_than;
use super::writer::SqliteFailure;
use crate::domain::response::CorruptRow;
use crate::domain::state::StateKind;
use crate::store::admin::{
    AuditEntry, COUNTED_MAX, CurrentRow, DecisionResult, DecisionResults, InstanceEntry, KeyCounts, KeyPage,
    OperatorAction, RowCounts, SCAN_ROWS_MAX, Target,
};
use crate::store::columns::{self, columns};
use crate::store::row::RowReader;
use crate::store::statement::{shared, statements};
use crate::store::{
    ApplyOperatorDecisionParams, CountInstancesBehindParams, ListAuditEntriesParams, ListInstancesParams,
    ListKeysParams,
};

statements! { "sql/":
    APPLY_OPERATOR_DECISION = "apply_operator_decision";
    INCREMENT_PURGE_COUNT = "increment_purge_count";
    PURGE = "purge";
    RESET_RETRY_BUDGET = "reset_retry_budget";
}

pub(super) fn list_keys(db: &Connection, now: i64, params: &ListKeysParams) -> Result<KeyPage, SqliteFailure> {
    let mut columns = columns::key_list(params);
    columns.extend(columns! { now: now });
    let (mut page, mut end) = KeyPage::empty();
    query(db, params.statement(), &columns, |row| page.add(&mut end, row, params))?;
    Ok(page.finish(end, params))
}

pub(super) fn apply_operator_decision(
    db: &Connection,
    now: i64,
    params: &ApplyOperatorDecisionParams,
) -> Result<DecisionResults, SqliteFailure> {
    in_savepoint(db, |db| {
        let mut decided = DecisionResults::default();
        for target in &params.targets {
            let (verdict, state) = decide_target(db, now, params, target)?;
            decided.verdicts.push(verdict);
            if state == Some(StateKind::Queued) {
                decided.queued.push(target.id);
            }
        }
        if params.decision.change.withdraws_response() && decided.verdicts.contains(&DecisionResult::Done) {
            decided.purges = query_one(db, &INCREMENT_PURGE_COUNT, &Vec::new(), |row| row.read("value"))?;
        }
        Ok(decided)
    })
}

/// Decides about one key. Returns the result, and the key's new state where it was changed.
fn decide_target(
    db: &Connection,
    now: i64,
    params: &ApplyOperatorDecisionParams,
    target: &Target,
) -> Result<(DecisionResult, Option<StateKind>), SqliteFailure> {
    let ApplyOperatorDecisionParams { service, decision, as_of, .. } = params;
    if !decision.is_allowed(target) {
        return Ok((DecisionResult::Unfit, None));
    }
    let mut columns = columns::decision(params, target);
    columns.extend(columns! { now: now, as_of: as_of.map_or(now, |as_of| no_later_than(now, as_of)) });
    let is_purge = matches!(decision.change, OperatorAction::Purge);
    let state = if is_purge {
        (execute(db, &PURGE, &columns)? > 0).then_some(None)
    } else {
        columns.extend(columns::decided(params, target));
        query_one(db, &APPLY_OPERATOR_DECISION, &columns, |row| row.read::<StateKind>("state"))?.map(Some)
    };
    let Some(after) = state else {
        // Only one thread writes, and no answer is lost: the outcome is never in doubt.
        let read = |row: &rusqlite::Row<'_>| CurrentRow::read(row, target.id);
        let current = query_one(db, &shared::CURRENT_ROW, &columns, read)?.ok_or(CorruptRow("the current row"))?;
        return Ok((current.verdict(target, decision, false), None));
    };
    match after {
        Some(StateKind::Queued | StateKind::Unknown) => {
            execute(db, &RESET_RETRY_BUDGET, &columns)?;
        }
        _ => delete_request(db, target.id)?,
    }
    let note = decision.audit_note(target);
    let line = AuditLine {
        service,
        actor: &decision.actor,
        action: decision.change.action(),
        id: &target.id,
        before: target.state,
        after: after.map_or("none", StateKind::name),
        note: note.as_deref(),
    };
    audit::insert(db, now, &line)?;
    Ok((DecisionResult::Done, after))
}

pub(super) fn list_audit_entries(
    db: &Connection,
    _: i64,
    params: &ListAuditEntriesParams,
) -> Result<Vec<AuditEntry>, SqliteFailure> {
    query(db, &shared::LIST_AUDIT_ENTRIES, &columns::audit_list(params), |row| AuditEntry::read(row))
}

pub(super) fn count_instances_behind(
    db: &Connection,
    now: i64,
    CountInstancesBehindParams { service, purges }: &CountInstancesBehindParams,
) -> Result<u64, SqliteFailure> {
    let purges = i64::try_from(*purges).unwrap_or(i64::MAX);
    let columns = columns! { service: &**service, purges: purges, now: now };
    Ok(query_one(db, &shared::COUNT_INSTANCES_BEHIND, &columns, |row| row.read("behind"))?.unwrap_or(0))
}

pub(super) fn list_instances(
    db: &Connection,
    now: i64,
    ListInstancesParams { service, limit }: &ListInstancesParams,
) -> Result<Vec<InstanceEntry>, SqliteFailure> {
    let columns = columns! { service: &**service, limit: i64::from(*limit), now: now };
    query(db, &shared::LIST_INSTANCES, &columns, |row| InstanceEntry::read(row))
}

pub(super) fn count_keys(db: &Connection, _: i64, service: &Arc<str>) -> Result<KeyCounts, SqliteFailure> {
    let columns = columns! {
        service: &**service,
        limit: i64::from(COUNTED_MAX),
        scan_limit: i64::from(SCAN_ROWS_MAX),
    };
    let mut counts = RowCounts::default();
    query(db, &shared::COUNT_UNSETTLED_KEYS, &columns, |row| counts.add_unsettled(row))?;
    query(db, &shared::COUNT_SETTLED_KEYS, &columns, |row| counts.add_settled(row))?;
    Ok(counts.into())
}
