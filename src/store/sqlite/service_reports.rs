//! Services' reports about their attempts, in SQLite.

use rusqlite::{Connection, Row};

use super::audit::{self, AuditLine};
use super::run::{execute, in_savepoint, query, query_one};
use super::writer::SqliteFailure;
use crate::domain::ids::{RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportKind, ReportResult, ReservationHandle, ReservedKey, ServiceReport};
use crate::domain::state::StateKind;
use crate::store::FindReservationParams;
use crate::store::columns::columns;
use crate::store::row::{RowReader, millis};
use crate::store::service_reports::{read_reserved_key, report_result};
use crate::store::statement::statements;

statements! { "sql/":
    APPLY_DEFERRED_REPORTS = "apply_deferred_reports";
    DEFER_NOT_EXECUTED = "defer_not_executed";
    DELETE_SPENT_REPORTS = "delete_spent_reports";
    FIND_RESERVATION = "find_reservation";
    REPORT_NOT_EXECUTED = "report_not_executed";
    REPORT_RECOVERY_POINT = "report_recovery_point";
    RESERVATION_STATE = "reservation_state";
}

pub(super) fn find_reservation(
    db: &Connection,
    _: i64,
    params: &FindReservationParams,
) -> Result<Option<ReservedKey>, SqliteFailure> {
    let read = |row: &Row<'_>| read_reserved_key(row, params);
    Ok(query_one(db, &FIND_RESERVATION, &columns! { id: &params.handle.id }, read)?.flatten())
}

pub(super) fn record_report(db: &Connection, now: i64, report: &ServiceReport) -> Result<ReportResult, SqliteFailure> {
    in_savepoint(db, |db| {
        let ServiceReport { service, handle, kind } = report;
        let mut columns = columns! { id: &handle.id, token: &handle.token, service: &**service };
        let state: Option<StateKind> = query_one(db, &RESERVATION_STATE, &columns, |row| row.read("state"))?;
        let Some(state) = state else { return Ok(ReportResult::Gone) };
        let result = report_result(state);
        match kind {
            ReportKind::NotExecuted(ttl) if result == ReportResult::Noted => {
                columns.extend(columns! { ttl_ms: millis(*ttl) });
                execute(db, &DEFER_NOT_EXECUTED, &columns)?;
            }
            ReportKind::NotExecuted(ttl) => apply_not_executed(db, now, *handle, (service, state), millis(*ttl))?,
            ReportKind::Reached(point) => {
                columns.extend(columns! { recovery_point: point.as_str() });
                execute(db, &REPORT_RECOVERY_POINT, &columns)?;
                // A recovery point applies at once.
                return Ok(if result == ReportResult::Noted { ReportResult::Taken } else { result });
            }
        }
        Ok(result)
    })
}

/// Releases a key whose attempt was not executed, if it is unknown or dead, with its audit entry.
fn apply_not_executed(
    db: &Connection,
    now: i64,
    handle: ReservationHandle,
    (service, before): (&str, StateKind),
    ttl_ms: i64,
) -> Result<(), SqliteFailure> {
    let columns = columns! { id: &handle.id, token: &handle.token, service: service, ttl_ms: ttl_ms, now: now };
    let after: Option<StateKind> = query_one(db, &REPORT_NOT_EXECUTED, &columns, |row| row.read("state"))?;
    if let Some(after) = after {
        let line = AuditLine {
            service,
            actor: "service",
            action: "not_executed",
            id: &handle.id,
            before,
            after: after.name(),
            note: None,
        };
        audit::insert(db, now, &line)?;
    }
    Ok(())
}

pub(super) fn apply_deferred_reports(db: &Connection, now: i64, limit: &u32) -> Result<Vec<RecordId>, SqliteFailure> {
    in_savepoint(db, |db| {
        let read = |row: &Row<'_>| {
            let handle = ReservationHandle { id: row.read("id")?, token: row.read::<Token>("token")? };
            Ok::<_, CorruptRow>((handle, row.read::<String>("service")?, row.read("state")?, row.read("ttl_ms")?))
        };
        let found = query(db, &APPLY_DEFERRED_REPORTS, &columns! { limit: i64::from(*limit) }, read)?;
        for (handle, service, before, ttl_ms) in &found {
            apply_not_executed(db, now, *handle, (service, *before), *ttl_ms)?;
        }
        execute(db, &DELETE_SPENT_REPORTS, &Vec::new())?;
        Ok(found.into_iter().map(|(handle, ..)| handle.id).collect())
    })
}
