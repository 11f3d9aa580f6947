//! Services' reports about their attempts, in SQLite.

use rusqlite::{Connection, OptionalExtension, named_params};

use super::statements::{blob, in_savepoint, text};
use super::writer::SqliteFailure;
use crate::domain::ids::{RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportKind, ReportResult, ReservedKey, ServiceReport};
use crate::domain::state::StateKind;
use crate::store::FindReservationParams;
use crate::store::row::millis;
use crate::store::service_reports::report_result;

const AUDIT_NOT_EXECUTED: &str = include_str!("sql/audit_not_executed.sql");
const FIND_RESERVATION: &str = include_str!("sql/find_reservation.sql");
const REPORT_NOT_EXECUTED: &str = include_str!("sql/report_not_executed.sql");
const DELETE_SPENT_REPORTS: &str = include_str!("sql/delete_spent_reports.sql");
const APPLY_DEFERRED_REPORTS: &str = include_str!("sql/apply_deferred_reports.sql");
const DEFER_NOT_EXECUTED: &str = include_str!("sql/defer_not_executed.sql");
const REPORT_RECOVERY_POINT: &str = include_str!("sql/report_recovery_point.sql");
const RESERVATION_STATE: &str = include_str!("sql/reservation_state.sql");

pub(super) fn find_reservation(
    db: &Connection,
    _: i64,
    FindReservationParams { service, handle }: &FindReservationParams,
) -> Result<Option<ReservedKey>, SqliteFailure> {
    let mut statement = db.prepare_cached(FIND_RESERVATION)?;
    let mut rows = statement.query(named_params! { ":id": handle.id.as_bytes(), ":service": &**service })?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let token = blob(row, "token")?.and_then(Token::from_stored).ok_or(CorruptRow("token"))?;
    if !token.is_same(&handle.token) {
        return Ok(None);
    }
    let state = StateKind::parse(text(row, "state")?).ok_or(CorruptRow("state"))?;
    Ok(Some(ReservedKey { route: text(row, "route")?.to_owned(), state }))
}

pub(super) fn record_report(db: &Connection, now: i64, report: &ServiceReport) -> Result<ReportResult, SqliteFailure> {
    in_savepoint(db, |db| record_report_and_apply(db, now, report))
}

fn record_report_and_apply(db: &Connection, now: i64, report: &ServiceReport) -> Result<ReportResult, SqliteFailure> {
    let ServiceReport { service, handle, kind } = report;
    let named =
        named_params! { ":id": handle.id.as_bytes(), ":token": handle.token.as_bytes(), ":service": &**service };
    let state: Option<String> = db.prepare_cached(RESERVATION_STATE)?.query_row(named, |row| row.get(0)).optional()?;
    let Some(state) = state else { return Ok(ReportResult::Gone) };
    let result = report_result(&state, false);
    match kind {
        ReportKind::NotExecuted(ttl) => {
            let ttl_ms = millis(*ttl);
            if result == ReportResult::Noted {
                db.prepare_cached(DEFER_NOT_EXECUTED)?.execute(named_params! {
                    ":id": handle.id.as_bytes(), ":token": handle.token.as_bytes(), ":ttl_ms": ttl_ms,
                })?;
            } else {
                apply_not_executed(db, now, handle.id.as_bytes(), handle.token.as_bytes(), (service, &state), ttl_ms)?;
            }
            Ok(result)
        }
        ReportKind::Reached(point) => {
            db.prepare_cached(REPORT_RECOVERY_POINT)?.execute(named_params! {
                ":id": handle.id.as_bytes(), ":token": handle.token.as_bytes(), ":service": &**service, ":name": point.as_str(),
            })?;
            // A recovery point applies at once.
            Ok(if result == ReportResult::Noted { ReportResult::Taken } else { result })
        }
    }
}

/// Releases a key whose attempt was not executed, if it is unknown or dead, with its audit entry.
fn apply_not_executed(
    db: &Connection,
    now: i64,
    id: &[u8],
    token: &[u8],
    (service, before): (&str, &str),
    ttl_ms: i64,
) -> Result<(), SqliteFailure> {
    let denial = named_params! { ":id": id, ":token": token, ":service": service, ":ttl_ms": ttl_ms, ":now": now };
    let after: Option<String> =
        db.prepare_cached(REPORT_NOT_EXECUTED)?.query_row(denial, |row| row.get(0)).optional()?;
    if let Some(after) = after {
        let line = named_params! { ":now": now, ":service": service, ":id": id, ":before": before, ":after": after };
        db.prepare_cached(AUDIT_NOT_EXECUTED)?.execute(line)?;
    }
    Ok(())
}

pub(super) fn apply_deferred_reports(db: &Connection, now: i64, limit: &u32) -> Result<Vec<RecordId>, SqliteFailure> {
    in_savepoint(db, |db| apply_deferred_reports_now(db, now, *limit))
}

fn apply_deferred_reports_now(db: &Connection, now: i64, limit: u32) -> Result<Vec<RecordId>, SqliteFailure> {
    let mut found: Vec<([Vec<u8>; 2], [String; 2], i64)> = Vec::new();
    {
        let mut statement = db.prepare_cached(APPLY_DEFERRED_REPORTS)?;
        let mut rows = statement.query(named_params! { ":limit": limit })?;
        while let Some(row) = rows.next()? {
            let bytes =
                |column| Ok::<_, SqliteFailure>(blob(row, column)?.ok_or(CorruptRow("a column's type"))?.to_vec());
            let texts = [text(row, "service")?.to_owned(), text(row, "state")?.to_owned()];
            found.push(([bytes("id")?, bytes("token")?], texts, row.get("ttl_ms")?));
        }
    }
    for ([id, token], [service, before], ttl_ms) in &found {
        apply_not_executed(db, now, id, token, (service, before), *ttl_ms)?;
    }
    db.prepare_cached(DELETE_SPENT_REPORTS)?.execute([])?;
    found.iter().map(|([id, _], ..)| Ok(RecordId::from_stored(id).ok_or(CorruptRow("id"))?)).collect()
}
