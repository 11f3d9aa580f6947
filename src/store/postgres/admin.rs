//! The operators' side in PostgreSQL: decisions on the connection of upkeep, reads on one that they share with no writes.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::Parameter;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::lookups::AWAIT_DURABILITY;
use super::retry::RetryBudget;
use super::upkeep::{column, query};
use super::{Postgres, bounded};
use crate::domain::ids::RecordId;
use crate::domain::response::CorruptRow;
use crate::domain::state::StateKind;
use crate::store::admin::{
    AuditEntry, COUNTED_MAX, CurrentRow, DecisionResult, DecisionResults, InstanceEntry, KeyCounts, KeyEntry, KeyPage,
    ListOrder, OperatorAction, OperatorDecision, RawAuditEntry, RawCurrentRow, RawInstanceEntry, RawKeyCount,
    RawKeyEntry, SCAN_ROWS_MAX, Target,
};
use crate::store::row::{millis, since_1970_ms};
use crate::store::{
    ApplyOperatorDecisionParams, CountInstancesBehindParams, ListAuditEntriesParams, ListInstancesParams,
    ListKeysParams, StoreError,
};

const APPLY_OPERATOR_DECISION: &str = durable!("apply_operator_decision");
const COUNT_INSTANCES_BEHIND: &str = include_str!("sql/count_instances_behind.sql");
const LIST_INSTANCES: &str = include_str!("sql/list_instances.sql");
const LIST_KEYS: &str = include_str!("sql/list_keys.sql");
const LIST_KEYS_BY_AGE: &str = include_str!("sql/list_keys_by_age.sql");
const LIST_KEYS_IN_FLIGHT: &str = include_str!("sql/list_keys_in_flight.sql");
const CURRENT_ROWS: &str = include_str!("sql/current_rows.sql");
const LIST_AUDIT_ENTRIES: &str = include_str!("sql/list_audit_entries.sql");
const PURGE: &str = durable!("purge");
const PURGE_COUNT: &str = include_str!("sql/purge_count.sql");
const COUNT_SETTLED_KEYS: &str = include_str!("sql/count_settled_keys.sql");
const COUNT_UNSETTLED_KEYS: &str = include_str!("sql/count_unsettled_keys.sql");

pub(super) async fn list_audit_entries(
    pool: &PgPool,
    params: Arc<ListAuditEntriesParams>,
    deadline: Instant,
) -> Result<Vec<AuditEntry>, PgFailure> {
    let ListAuditEntriesParams { service, id, before, limit } = &*params;
    let id = id.as_ref().map(|id| id.as_bytes().as_slice());
    let parameters: [Parameter<'_>; 4] = [
        (/* service */ &&**service, Type::TEXT),
        (/* id */ &id, Type::BYTEA),
        (/* before */ before, Type::INT8),
        (/* limit */ &i64::from(*limit), Type::INT8),
    ];
    bounded::query(pool, deadline, LIST_AUDIT_ENTRIES, &parameters).await?.iter().map(read_audit_entry).collect()
}

pub(super) async fn count_instances_behind(
    pool: &PgPool,
    params: Arc<CountInstancesBehindParams>,
    deadline: Instant,
) -> Result<u64, PgFailure> {
    let purges = i64::try_from(params.purges).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 2] =
        [(/* service */ &&*params.service, Type::TEXT), (/* purges */ &purges, Type::INT8)];
    let rows = query(pool, deadline, COUNT_INSTANCES_BEHIND, &parameters).await?;
    let behind = rows.first().map(|row| row.try_get::<_, i64>("behind").map_err(column)).transpose()?;
    Ok(behind.unwrap_or(0).unsigned_abs())
}

pub(super) async fn list_instances(
    pool: &PgPool,
    params: Arc<ListInstancesParams>,
    deadline: Instant,
) -> Result<Vec<InstanceEntry>, PgFailure> {
    let parameters: [Parameter<'_>; 2] =
        [(/* service */ &&*params.service, Type::TEXT), (/* limit */ &i64::from(params.limit), Type::INT8)];
    bounded::query(pool, deadline, LIST_INSTANCES, &parameters).await?.iter().map(read_instance).collect()
}

pub(super) async fn list_keys(
    pool: &PgPool,
    params: Arc<ListKeysParams>,
    deadline: Instant,
) -> Result<KeyPage, PgFailure> {
    let ListKeysParams { service, filter, after, limit } = &*params;
    let (service, limit) = (&**service, *limit);
    let from = after.map_or_else(Vec::new, |cursor| cursor.next_id());
    let (low, high) = (&filter.ids.low, &filter.ids.high);
    let (scope_low, scope_high) = (filter.scope.as_ref().map(|s| &s.low), filter.scope.as_ref().map(|s| &s.high));
    let state = filter.state.map(StateKind::name);
    let older_than_ms = filter.older_than.map(millis);
    let ticks = after.map_or(0, |cursor| cursor.ticks);
    let (scan_limit, at_most) = (i64::from(SCAN_ROWS_MAX), i64::from(limit));
    let mut parameters: Vec<Parameter<'_>> = vec![
        (/* service */ &service, Type::TEXT),
        (/* from */ &from, Type::BYTEA),
        (/* low */ low, Type::BYTEA),
        (/* high */ high, Type::BYTEA),
        (/* state */ &state, Type::TEXT),
        (/* scope_low */ &scope_low, Type::BYTEA),
        (/* scope_high */ &scope_high, Type::BYTEA),
        (/* route */ &filter.route, Type::TEXT),
        (/* key */ &filter.key, Type::BYTEA),
        (/* older_than_ms */ &older_than_ms, Type::INT8),
    ];
    let order = filter.order();
    let sql = match order {
        ListOrder::Age => LIST_KEYS_BY_AGE,
        ListOrder::Id => LIST_KEYS,
        ListOrder::Running => LIST_KEYS_IN_FLIGHT,
    };
    match order {
        ListOrder::Age => parameters.push((/* ticks */ &ticks, Type::INT8)),
        ListOrder::Id => parameters.push((/* scan_limit */ &scan_limit, Type::INT8)),
        ListOrder::Running => {}
    }
    parameters.push((/* limit */ &at_most, Type::INT8));
    let rows = bounded::query(pool, deadline, sql, &parameters).await?;
    if order != ListOrder::Id {
        let entries = rows.iter().map(read_key_entry).collect::<Result<_, _>>()?;
        return Ok(KeyPage::from_index(entries, limit, order));
    }
    let (scanned, last) = read_scan_end(&rows)?;
    let there = |row: &&Row| row.try_get::<_, Option<&[u8]>>("id").is_ok_and(|id| id.is_some());
    let entries = rows.iter().filter(there).map(read_key_entry).collect::<Result<_, _>>()?;
    Ok(KeyPage::from_scan(entries, limit, scanned, last))
}

pub(super) async fn count_keys(
    pool: &PgPool,
    service: Arc<Arc<str>>,
    deadline: Instant,
) -> Result<KeyCounts, PgFailure> {
    let (counted, scan_limit) = (i64::from(COUNTED_MAX), i64::from(SCAN_ROWS_MAX));
    let parameters: [Parameter<'_>; 2] = [(/* service */ &&**service, Type::TEXT), (/* limit */ &counted, Type::INT8)];
    let unsettled = bounded::query(pool, deadline, COUNT_UNSETTLED_KEYS, &parameters).await?;
    let parameters: [Parameter<'_>; 2] =
        [(/* service */ &&**service, Type::TEXT), (/* scan_limit */ &scan_limit, Type::INT8)];
    let settled = bounded::query(pool, deadline, COUNT_SETTLED_KEYS, &parameters).await?;
    let (sampled, last) = read_scan_end(&settled)?;
    let there = |row: &&Row| row.try_get::<_, Option<&str>>("route").is_ok_and(|route| route.is_some());
    let unsettled = unsettled.iter().map(read_count).collect::<Result<_, _>>()?;
    let settled = settled.iter().filter(there).map(read_count).collect::<Result<_, _>>()?;
    Ok(KeyCounts::from_rows(unsettled, settled, sampled.unsigned_abs(), last))
}

impl Postgres {
    /// Applies a decision in one statement, or in one for each target with an encrypted response of its own.
    pub(super) async fn apply_decision(
        &self,
        params: ApplyOperatorDecisionParams,
    ) -> Result<DecisionResults, StoreError> {
        let ApplyOperatorDecisionParams { service, decision, targets, as_of } = params;
        let is_sealed = targets.iter().any(|target| target.sealed_response.is_some());
        let mut results = DecisionResults::default();
        for targets in targets.chunks(if is_sealed { 1 } else { targets.len().max(1) }) {
            let (service, decision, targets) = (service.clone(), decision.clone(), targets.to_vec());
            let params = ApplyOperatorDecisionParams { service, decision, targets, as_of };
            let applied = self.retry(RetryBudget::InDoubt, params, |params, in_doubt, deadline| {
                self.apply_operator_decision_once(params, in_doubt, deadline)
            });
            let DecisionResults { verdicts, queued, purges } = applied.await?;
            results.verdicts.extend(verdicts);
            results.queued.extend(queued);
            results.purges = purges.or(results.purges);
        }
        Ok(results)
    }

    async fn apply_operator_decision_once(
        &self,
        params: Arc<ApplyOperatorDecisionParams>,
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<DecisionResults, PgFailure> {
        let ApplyOperatorDecisionParams { service, decision, targets, as_of } = &*params;
        let fit: Vec<&Target> = targets.iter().filter(|target| decision.is_allowed(target)).collect();
        let DecidedRows { ids: done, mut queued, mut purges } = match decision.change {
            OperatorAction::Purge => self.purge(service, decision, &fit, deadline).await?,
            _ => self.apply_changes(service, decision, &fit, *as_of, deadline).await?,
        };
        let missed: Vec<&Target> = fit.into_iter().filter(|target| !done.contains(&target.id)).collect();
        let current_rows = self.find_current_rows(service, &missed, in_doubt, deadline).await?;
        let verdict = |target: &Target| match current_rows.iter().find(|row| row.id == target.id) {
            _ if !decision.is_allowed(target) => DecisionResult::Unfit,
            _ if done.contains(&target.id) => DecisionResult::Done,
            Some(row) => row.verdict(target, decision, in_doubt),
            None => DecisionResult::Gone,
        };
        let verdicts: Vec<_> = targets.iter().map(verdict).collect();
        if purges.is_none() && decision.change.withdraws_response() && verdicts.contains(&DecisionResult::Done) {
            // The answer of the try that withdrew them was lost. The count then was at most the count now.
            purges = self.purge_count(deadline).await?;
        }
        let found_queued = |row: &&CurrentRow| row.current.is_some_and(|(_, state)| state == StateKind::Queued);
        queued.extend(current_rows.iter().filter(found_queued).map(|row| row.id));
        Ok(DecisionResults { verdicts, queued, purges })
    }

    async fn apply_changes(
        &self,
        service: &str,
        decision: &OperatorDecision,
        targets: &[&Target],
        as_of: Option<SystemTime>,
        deadline: Instant,
    ) -> Result<DecidedRows, PgFailure> {
        if targets.is_empty() {
            return Ok(DecidedRows::default());
        }
        let (ids, tokens, states) = target_columns(targets);
        // The same for each: a target with a response of its own is alone.
        let response = targets.first().and_then(|target| decision.response(target));
        let state = decision.change.resulting_state_name();
        let forgets = !matches!(decision.change, OperatorAction::Requeue);
        let ttls: Vec<_> = targets.iter().map(|target| forgets.then(|| millis(target.ttl))).collect();
        let remember: Vec<_> = targets.iter().map(|target| response.and(target.remember).map(millis)).collect();
        let quiet: Vec<_> =
            targets.iter().map(|target| decision.requires_quiet(target).then(|| millis(target.quiet_after))).collect();
        let status = response.map(|response| response.status.as_u16().cast_signed());
        let fields = response.map(|response| response.encode_fields());
        let body = response.and_then(|response| response.body.as_deref());
        let notes: Vec<_> = targets.iter().map(|target| decision.audit_note(target)).collect();
        let parameters: [Parameter<'_>; 15] = [
            (/* id */ &ids, Type::BYTEA_ARRAY),
            (/* token */ &tokens, Type::BYTEA_ARRAY),
            (/* seen_state */ &states, Type::TEXT_ARRAY),
            (/* ttl_ms */ &ttls, Type::INT8_ARRAY),
            (/* remember_ms */ &remember, Type::INT8_ARRAY),
            (/* quiet_after_ms */ &quiet, Type::INT8_ARRAY),
            (/* service */ &service, Type::TEXT),
            (/* state */ &state, Type::TEXT),
            (/* status */ &status, Type::INT2),
            (/* fields */ &fields, Type::BYTEA),
            (/* body */ &body, Type::BYTEA),
            (/* actor */ &decision.actor, Type::TEXT),
            (/* action */ &decision.change.action(), Type::TEXT),
            (/* note */ &notes, Type::TEXT_ARRAY),
            (/* as_of_ms */ &as_of.map(since_1970_ms), Type::INT8),
        ];
        let rows = query(&self.upkeep, deadline, APPLY_OPERATOR_DECISION, &parameters).await?;
        let is_queued = |row: &&Row| row.try_get::<_, bool>("queued").unwrap_or_default();
        let queued = rows.iter().filter(is_queued).map(read_id).collect::<Result<_, _>>()?;
        Ok(DecidedRows { queued, ..read_decided_rows(&rows)? })
    }

    async fn purge(
        &self,
        service: &str,
        decision: &OperatorDecision,
        targets: &[&Target],
        deadline: Instant,
    ) -> Result<DecidedRows, PgFailure> {
        if targets.is_empty() {
            return Ok(DecidedRows::default());
        }
        let (ids, tokens, states) = target_columns(targets);
        // The same for each: a purge asks for no quiet attempt.
        let note = targets.first().and_then(|target| decision.audit_note(target));
        let parameters: [Parameter<'_>; 7] = [
            (/* id */ &ids, Type::BYTEA_ARRAY),
            (/* token */ &tokens, Type::BYTEA_ARRAY),
            (/* seen_state */ &states, Type::TEXT_ARRAY),
            (/* service */ &service, Type::TEXT),
            (/* actor */ &decision.actor, Type::TEXT),
            (/* action */ &decision.change.action(), Type::TEXT),
            (/* note */ &note, Type::TEXT),
        ];
        read_decided_rows(&query(&self.upkeep, deadline, PURGE, &parameters).await?)
    }

    async fn purge_count(&self, deadline: Instant) -> Result<Option<u64>, PgFailure> {
        let rows = query(&self.upkeep, deadline, PURGE_COUNT, &[]).await?;
        let purges = rows.first().map(|row| row.try_get::<_, i64>("value").map_err(column)).transpose()?;
        Ok(purges.map(i64::unsigned_abs))
    }

    /// `in_doubt`: whether an earlier try of this very decision may have been applied; then its result is returned only
    /// once it is durable.
    async fn find_current_rows(
        &self,
        service: &str,
        targets: &[&Target],
        in_doubt: bool,
        deadline: Instant,
    ) -> Result<Vec<CurrentRow>, PgFailure> {
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, ..) = target_columns(targets);
        let parameters: [Parameter<'_>; 2] = [(/* id */ &ids, Type::BYTEA_ARRAY), (/* service */ &service, Type::TEXT)];
        let raw = |row: &Row| {
            Ok::<_, tokio_postgres::Error>(RawCurrentRow {
                id: row.try_get("id")?,
                token: row.try_get("token")?,
                state: row.try_get("state")?,
                deadline_in_ms: row.try_get("deadline_in_ms")?,
                actor: row.try_get("actor")?,
                action: row.try_get("action")?,
                after: row.try_get("after")?,
            })
        };
        let rows = query(&self.upkeep, deadline, CURRENT_ROWS, &parameters).await?;
        if in_doubt {
            query(&self.upkeep, deadline, AWAIT_DURABILITY, &[]).await?;
        }
        rows.iter().map(|row| Ok(raw(row).map_err(column)?.decode()?)).collect()
    }
}

type TargetColumns<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>, Vec<&'static str>);

fn target_columns<'a>(targets: &[&'a Target]) -> TargetColumns<'a> {
    (
        targets.iter().map(|target| target.id.as_bytes().as_slice()).collect(),
        targets.iter().map(|target| target.token.as_bytes().as_slice()).collect(),
        targets.iter().map(|target| target.state.name()).collect(),
    )
}

/// The keys that a decision changed, those of them that are queued now, and the purge count where it has grown.
#[derive(Default)]
struct DecidedRows {
    ids: Vec<RecordId>,
    queued: Vec<RecordId>,
    purges: Option<u64>,
}

fn read_decided_rows(rows: &[Row]) -> Result<DecidedRows, PgFailure> {
    let purges: Option<Option<i64>> = rows.first().map(|row| row.try_get("purges").map_err(column)).transpose()?;
    let ids = rows.iter().map(read_id).collect::<Result<_, _>>()?;
    Ok(DecidedRows { ids, queued: Vec::new(), purges: purges.flatten().map(i64::unsigned_abs) })
}

fn read_id(row: &Row) -> Result<RecordId, PgFailure> {
    Ok(RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(CorruptRow("id"))?)
}

/// Reads the number of rows that were scanned, and the last one's id.
fn read_scan_end(rows: &[Row]) -> Result<(i64, Option<RecordId>), PgFailure> {
    let Some(row) = rows.first() else { return Ok((0, None)) };
    let last: Option<&[u8]> = row.try_get("last").map_err(column)?;
    Ok((row.try_get("scanned").map_err(column)?, last.and_then(RecordId::from_stored)))
}

fn read_count(row: &Row) -> Result<RawKeyCount, PgFailure> {
    Ok(RawKeyCount {
        route: row.try_get("route").map_err(column)?,
        state: StateKind::parse(row.try_get("state").map_err(column)?).ok_or(CorruptRow("state"))?,
        rows: row.try_get::<_, i64>("rows").map_err(column)?.unsigned_abs(),
    })
}

fn read_instance(row: &Row) -> Result<InstanceEntry, PgFailure> {
    let raw = || {
        Ok::<_, tokio_postgres::Error>(RawInstanceEntry {
            id: row.try_get("id")?,
            started_ms: row.try_get("started_ms")?,
            renewed_ms: row.try_get("renewed_ms")?,
            lease_until_ms: row.try_get("lease_until_ms")?,
            now_ms: row.try_get("now_ms")?,
        })
    };
    Ok(raw().map_err(column)?.decode()?)
}

fn read_audit_entry(row: &Row) -> Result<AuditEntry, PgFailure> {
    let raw = || {
        Ok::<_, tokio_postgres::Error>(RawAuditEntry {
            seq: row.try_get("seq")?,
            at_ms: row.try_get("at_ms")?,
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            id: row.try_get("id")?,
            before: row.try_get("before")?,
            after: row.try_get("after")?,
            note: row.try_get("note")?,
        })
    };
    Ok(raw().map_err(column)?.decode()?)
}

fn read_key_entry(row: &Row) -> Result<KeyEntry, PgFailure> {
    let raw = || {
        Ok::<_, tokio_postgres::Error>(RawKeyEntry {
            id: row.try_get("id")?,
            token: row.try_get("token")?,
            state: row.try_get("state")?,
            attempt: row.try_get::<_, i32>("attempt")?.into(),
            instance: row.try_get("instance")?,
            scope: row.try_get("scope")?,
            space: row.try_get("space")?,
            key: row.try_get("key")?,
            route: row.try_get("route")?,
            path: row.try_get("path")?,
            created_ms: row.try_get("created_ms")?,
            reserved_ms: row.try_get("reserved_ms")?,
            deadline_ms: row.try_get("deadline_ms")?,
            settled_ms: row.try_get("settled_ms")?,
            expires_ms: row.try_get("expires_ms")?,
            remember_ms: row.try_get("remember_ms")?,
            is_due: row.try_get("is_due")?,
            status: row.try_get::<_, Option<i16>>("status")?.map(i64::from),
            body_bytes: row.try_get("body_bytes")?,
            probes: row.try_get::<_, Option<i32>>("probes")?.map(i64::from),
            absences: row.try_get::<_, Option<i32>>("absences")?.map(i64::from),
            probe_ms: row.try_get("probe_ms")?,
            cause: row.try_get("cause")?,
            accepted_ms: row.try_get("accepted_ms")?,
            earlier: row.try_get("earlier")?,
            now_ms: row.try_get("now_ms")?,
            ticks: row.try_get("ticks")?,
        })
    };
    Ok(raw().map_err(column)?.decode()?)
}
