//! The operators' side in PostgreSQL: decisions on the connection of upkeep, reads on one that they share with no writes.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::connect::{PgConnection, PgPool};
use super::durability::read_durably;
use super::failure::PgFailure;
use super::rows::one;
use super::{bounded, calls, functions};
use crate::domain::ids::RecordId;
use crate::domain::state::StateKind;
use crate::store::admin::{
    AuditEntry, COUNTED_MAX, CurrentRow, DecisionResult, DecisionResults, InstanceEntry, KeyCounts, KeyPage, RowCounts,
    SCAN_ROWS_MAX, Target,
};
use crate::store::columns::{self, Columns, columns};
use crate::store::row::RowReader;
use crate::store::statement::shared;
use crate::store::{
    ApplyOperatorDecisionParams, CountInstancesBehindParams, ListAuditEntriesParams, ListInstancesParams,
    ListKeysParams,
};

pub(super) async fn list_keys(
    pool: &PgPool,
    params: Arc<ListKeysParams>,
    deadline: Instant,
) -> Result<KeyPage, PgFailure> {
    let rows = bounded::run(pool, deadline, params.statement(), columns::key_list(&params)).await?;
    let mut page = KeyPage::default();
    rows.iter().try_for_each(|row| page.add(row, params.filter.order(), params.limit))?;
    Ok(page)
}

pub(super) async fn list_audit_entries(
    pool: &PgPool,
    params: Arc<ListAuditEntriesParams>,
    deadline: Instant,
) -> Result<Vec<AuditEntry>, PgFailure> {
    let rows = bounded::run(pool, deadline, &shared::LIST_AUDIT_ENTRIES, columns::audit_list(&params)).await?;
    rows.iter().map(|row| Ok(AuditEntry::read(row)?)).collect()
}

pub(super) async fn count_keys(
    pool: &PgPool,
    service: Arc<Arc<str>>,
    deadline: Instant,
) -> Result<KeyCounts, PgFailure> {
    let columns = columns! { service: &**service, limit: i64::from(COUNTED_MAX) };
    let unsettled = bounded::run(pool, deadline, &shared::COUNT_UNSETTLED_KEYS, columns).await?;
    let columns = columns! { service: &**service, scan_limit: i64::from(SCAN_ROWS_MAX) };
    let settled = bounded::run(pool, deadline, &shared::COUNT_SETTLED_KEYS, columns).await?;
    let mut counts = RowCounts::default();
    unsettled.iter().try_for_each(|row| counts.add_unsettled(row))?;
    settled.iter().try_for_each(|row| counts.add_settled(row))?;
    Ok(counts.into())
}

pub(super) async fn count_instances_behind(
    pool: &PgPool,
    params: Arc<CountInstancesBehindParams>,
    deadline: Instant,
) -> Result<u64, PgFailure> {
    let purges = i64::try_from(params.purges).unwrap_or(i64::MAX);
    let columns = columns! { service: &*params.service, purges: purges };
    let rows = calls::run(pool, deadline, &shared::COUNT_INSTANCES_BEHIND, columns).await?;
    Ok(one(&rows)?.read("behind")?)
}

pub(super) async fn list_instances(
    pool: &PgPool,
    params: Arc<ListInstancesParams>,
    deadline: Instant,
) -> Result<Vec<InstanceEntry>, PgFailure> {
    let columns = columns! { service: &*params.service, limit: i64::from(params.limit) };
    let rows = bounded::run(pool, deadline, &shared::LIST_INSTANCES, columns).await?;
    rows.iter().map(|row| Ok(InstanceEntry::read(row)?)).collect()
}

/// `in_doubt`: whether an earlier try of this very decision may have been applied.
pub(super) async fn apply_operator_decision(
    pool: &PgPool,
    params: Arc<ApplyOperatorDecisionParams>,
    in_doubt: bool,
    deadline: Instant,
) -> Result<DecisionResults, PgFailure> {
    let ApplyOperatorDecisionParams { decision, targets, as_of, .. } = &*params;
    let allowed: Vec<&Target> = targets.iter().filter(|target| decision.is_allowed(target)).collect();
    let decided = calls::call_each(pool, deadline, &functions::DECIDE, &allowed, |target| {
        let mut columns = columns::decision(&params, target);
        columns.extend(columns::decided(&params, target));
        columns.extend(columns! { as_of: *as_of });
        columns
    });
    let mut results = DecisionResults::default();
    let mut done: Vec<RecordId> = Vec::new();
    for (target, row) in decided.await? {
        done.push(target.id);
        results.purges = row.read::<Option<u64>>("purges")?.or(results.purges);
        if row.read("queued")? {
            results.queued.push(target.id);
        }
    }
    let missed: Vec<RecordId> = allowed.iter().map(|target| target.id).filter(|id| !done.contains(id)).collect();
    let current_rows = find_current_rows(pool, &params, &missed, deadline).await?;
    let verdict = |target: &Target| match current_rows.iter().find(|row| row.id == target.id) {
        _ if !decision.is_allowed(target) => DecisionResult::Unfit,
        _ if done.contains(&target.id) => DecisionResult::Done,
        Some(row) => row.verdict(target, decision, in_doubt),
        None => DecisionResult::Gone,
    };
    results.verdicts = targets.iter().map(verdict).collect();
    if results.purges.is_none()
        && decision.change.withdraws_response()
        && results.verdicts.contains(&DecisionResult::Done)
    {
        // The answer of the try that withdrew them was lost. The count then was at most the count now.
        let rows = calls::run(pool, deadline, &shared::PURGE_COUNT, Columns::new()).await?;
        results.purges = rows.first().map(|row| row.read("purges")).transpose()?;
    }
    let found_queued = |row: &&CurrentRow| row.current.is_some_and(|(_, state)| state == StateKind::Queued);
    results.queued.extend(current_rows.iter().filter(found_queued).map(|row| row.id));
    Ok(results)
}

/// Reads what the rows are instead, and returns it once it is as durable as a decision.
async fn find_current_rows(
    pool: &PgPool,
    params: &ApplyOperatorDecisionParams,
    ids: &[RecordId],
    deadline: Instant,
) -> Result<Vec<CurrentRow>, PgFailure> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let held = PgConnection::get(pool, deadline).await?;
    let read = held.finish(deadline, async |client| {
        let read = async |id: &RecordId| {
            Ok((*id, client.run(&shared::CURRENT_ROW, &columns! { id: id, service: &*params.service }).await?))
        };
        read_durably(client, ids, try_join_all(ids.iter().map(read))).await
    });
    read.await?.iter().map(|(id, rows)| Ok(CurrentRow::read(one(rows)?, *id)?)).collect()
}
