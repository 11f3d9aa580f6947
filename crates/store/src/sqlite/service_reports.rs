//! The calls of services' reports about their attempts.

use rusqlite::Row;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::FindReservationParams;
use crate::columns::columns;
use crate::row::{RowReader, millis, read_reserved_key, report_result};
use oncegate_domain::ids::RecordId;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ReservedKey, ServiceReport};
use oncegate_domain::state::StateKind;

impl SqliteTransaction<'_> {
    pub fn find_reservation(&self, params: FindReservationParams) -> SqliteResult<Option<ReservedKey>> {
        let read = |row: &Row<'_>| read_reserved_key(row, &params.services, &params.handle.token);
        Ok(self.query_one(sql!("find_reservation"), &columns! { id: &params.handle.id }, read)?.flatten())
    }

    pub fn record_report(&self, ServiceReport { service, handle, kind }: ServiceReport) -> SqliteResult<ReportResult> {
        self.in_savepoint(|| {
            let params = FindReservationParams { services: vec![service.clone()], handle };
            let Some(ReservedKey { state, .. }) = self.find_reservation(params)? else { return Ok(ReportResult::Gone) };
            let mut columns = columns! { id: &handle.id, token: &handle.token, service: &*service };
            Ok(match (kind, report_result(state)) {
                (ReportKind::NotExecuted(ttl), ReportResult::Noted) => {
                    columns.extend(columns! { ttl_ms: millis(ttl) });
                    self.execute(sql!("defer_not_executed"), &columns)?;
                    ReportResult::Noted
                }
                (ReportKind::NotExecuted(ttl), result) => {
                    self.release_not_executed(handle, &service, state, millis(ttl))?;
                    result
                }
                (ReportKind::Reached(point), result) => {
                    columns.extend(columns! { recovery_point: point.as_str() });
                    self.execute(sql!("report_recovery_point"), &columns)?;
                    // A recovery point applies at once.
                    if result == ReportResult::Noted { ReportResult::Taken } else { result }
                }
            })
        })
    }

    /// Releases a key whose attempt was not executed, if it is unknown or dead, with its audit entry.
    fn release_not_executed(
        &self,
        ReservationHandle { id, token }: ReservationHandle,
        service: &str,
        before: StateKind,
        ttl_ms: i64,
    ) -> SqliteResult<()> {
        let mut columns = columns! { id: &id, token: &token, service: service, ttl_ms: ttl_ms };
        let after: Option<StateKind> =
            self.query_one(sql!("report_not_executed"), &columns, |row| row.read("state"))?;
        let Some(after) = after else { return Ok(()) };
        let (actor, action, note) = ("service", "not_executed", None::<&str>);
        columns.extend(columns! { actor: actor, action: action, before: before, after: after, note: note });
        self.audit(&columns)
    }

    pub fn apply_deferred_reports(&self, limit: u32) -> SqliteResult<Vec<RecordId>> {
        self.in_savepoint(|| {
            let read = |row: &Row<'_>| {
                let handle = ReservationHandle { id: row.read("id")?, token: row.read("token")? };
                Ok((handle, row.read::<String>("service")?, row.read("state")?, row.read("ttl_ms")?))
            };
            let found = self.query(sql!("apply_deferred_reports"), &columns! { limit: i64::from(limit) }, read)?;
            for (handle, service, before, ttl_ms) in &found {
                self.release_not_executed(*handle, service, *before, *ttl_ms)?;
            }
            self.execute(sql!("delete_spent_reports"), &vec![])?;
            Ok(found.into_iter().map(|(handle, ..)| handle.id).collect())
        })
    }
}
