//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::batcher::{BatchStatement, Batcher};
use super::calls::{self, BatchedCall, CallAnswer};
use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::failure::PgFailure;
use super::functions::{self, Function};
use super::lookups::at_moment;
use super::upkeep::write_on;
use crate::domain::ids::{RecordId, Token};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{
    ReportKind, ReportResult, ReservationHandle, ReservedKey, RouteRetention, ServiceReport,
};
use crate::store::columns::{Columns, columns};
use crate::store::row::{RowReader, millis};
use crate::store::service_reports::{read_reserved_key, report_result};
use crate::store::statement::statements;
use crate::store::{FindReservationParams, StoreRouteRetentionParams};

const FIND_RESERVATION: &str = include_str!("sql/find_reservation.sql");
const STORE_ROUTE_RETENTION: &str = include_str!("sql/store_route_retention.sql");

statements! { "sql/":
    ENDED_REPORTS = "ended_reports";
}

/// The batched statements of services' reports, on the connections of settlements. Each has one lane, so that the reports
/// of one kind take one connection at most.
pub(super) struct ReportBatchers {
    reservations: Batcher<FindReservationStatement>,
    recovery_points: Batcher<RecoveryPointCall>,
    not_executed: Batcher<NotExecutedCall>,
}

impl ReportBatchers {
    /// Starts the lanes on the connections of settlements.
    pub fn open(settle: &PgPool) -> Self {
        Self {
            reservations: Batcher::open(settle, 1),
            recovery_points: Batcher::open(settle, 1),
            not_executed: Batcher::open(settle, 1),
        }
    }
}

/// Finds the key of a reservation.
pub(super) async fn find_reservation(
    reports: &ReportBatchers,
    params: Arc<FindReservationParams>,
    deadline: Instant,
) -> Result<Option<ReservedKey>, PgFailure> {
    Ok(reports.reservations.call(FindReservationStatement(params), deadline).await??)
}

/// Records a report.
pub(super) async fn record_report(
    reports: &ReportBatchers,
    report: Arc<ServiceReport>,
    deadline: Instant,
) -> Result<ReportResult, PgFailure> {
    let ServiceReport { service, handle, kind } = &*report;
    let (service, handle) = (Arc::clone(service), *handle);
    let answer = match kind {
        ReportKind::NotExecuted(ttl) => {
            reports.not_executed.call(NotExecutedCall { service, handle, ttl: *ttl }, deadline).await
        }
        ReportKind::Reached(point) => {
            reports.recovery_points.call(RecoveryPointCall { service, handle, point: point.clone() }, deadline).await
        }
    };
    match answer {
        Err(PgFailure::Held(_)) => Ok(ReportResult::Held),
        answer => Ok(match (answer??, kind) {
            // A recovery point applies at once.
            (ReportResult::Noted, ReportKind::Reached(_)) => ReportResult::Taken,
            (result, _) => result,
        }),
    }
}

/// Applies the reports "not executed" of attempts that have ended since.
pub(super) async fn apply_deferred_reports(
    pool: &PgPool,
    limit: Arc<u32>,
    deadline: Instant,
) -> Result<Vec<RecordId>, PgFailure> {
    let rows = calls::run(pool, deadline, &ENDED_REPORTS, columns! { limit: i64::from(*limit) }).await?;
    let read = |row: &Row| Ok::<_, CorruptRow>((row.read::<RecordId>("id")?, row.read::<Token>("token")?));
    let ended = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let reports: Vec<Columns<'_>> = ended.iter().map(|(id, token)| columns! { id: id, token: token }).collect();
    let applied = calls::call_each(pool, deadline, &functions::APPLY_DEFERRED_REPORT, &reports).await?;
    Ok(ended.iter().zip(applied).filter(|(_, row)| row.is_some()).map(|((id, _), _)| *id).collect())
}

/// Finds the key of a reservation.
struct FindReservationStatement(Arc<FindReservationParams>);

impl BatchStatement for FindReservationStatement {
    type Answer = Result<Option<ReservedKey>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.0.handle.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut ids: Vec<&[u8]> = requests.iter().map(|q| q.0.handle.id.as_bytes().as_slice()).collect();
        // Sorted, as all batches are.
        ids.dedup();
        let parameters: [Parameter<'_>; 1] = [(/* id */ &ids, Type::BYTEA_ARRAY)];
        let (_, rows) = at_moment(client, FIND_RESERVATION, &parameters).await?;
        let mut found = HashMap::new();
        for row in &rows {
            found.insert(row.try_get::<_, &[u8]>("id")?, row);
        }
        let answer = |q: &&Self| match found.get(q.0.handle.id.as_bytes().as_slice()) {
            Some(row) => read_reserved_key(*row, &q.0),
            None => Ok(None),
        };
        Ok(requests.iter().map(answer).collect())
    }
}

/// [`ReportResult::Gone`] where the attempt is not the newest any more.
impl CallAnswer for ReportResult {
    fn read(row: Option<&Row>) -> Result<Self, CorruptRow> {
        row.map_or(Ok(Self::Gone), |row| Ok(report_result(row.read("state")?)))
    }
}

/// Sets the recovery point of an attempt.
struct RecoveryPointCall {
    service: Arc<str>,
    handle: ReservationHandle,
    point: RecoveryPoint,
}

impl BatchedCall for RecoveryPointCall {
    type Answer = ReportResult;

    const FUNCTION: &'static Function = &functions::REPORT_RECOVERY_POINT;

    fn id(&self) -> RecordId {
        self.handle.id
    }

    fn columns(&self) -> Columns<'_> {
        columns! {
            id: &self.handle.id,
            token: &self.handle.token,
            service: &*self.service,
            recovery_point: self.point.as_str(),
        }
    }
}

/// Releases the key of an attempt that was not executed, or stores the report while the attempt runs.
struct NotExecutedCall {
    service: Arc<str>,
    handle: ReservationHandle,
    ttl: Duration,
}

impl BatchedCall for NotExecutedCall {
    type Answer = ReportResult;

    const FUNCTION: &'static Function = &functions::REPORT_NOT_EXECUTED;

    fn id(&self) -> RecordId {
        self.handle.id
    }

    fn columns(&self) -> Columns<'_> {
        columns! {
            id: &self.handle.id,
            token: &self.handle.token,
            service: &*self.service,
            ttl_ms: millis(self.ttl),
        }
    }
}

pub(super) async fn store_route_retention(
    pool: &PgPool,
    params: Arc<StoreRouteRetentionParams>,
    deadline: Instant,
) -> Result<(), PgFailure> {
    let StoreRouteRetentionParams { service, retention } = &*params;
    let each = |of: fn(&RouteRetention) -> i64| retention.iter().map(of).collect::<Vec<_>>();
    let routes: Vec<&str> = retention.iter().map(|kept| &*kept.route).collect();
    let remember: Vec<Option<i64>> = retention.iter().map(|kept| kept.remember.map(millis)).collect();
    let dropped =
        |kept: &RouteRetention| kept.drop_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
    let dropped: Vec<String> = retention.iter().map(dropped).collect();
    let encrypted = retention.iter().any(|kept| kept.encrypted);
    let parameters: [Parameter<'_>; 7] = [
        (/* service */ &&**service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* ttl_ms */ &each(|kept| millis(kept.ttl)), Type::INT8_ARRAY),
        (/* remember_ms */ &remember, Type::INT8_ARRAY),
        (/* body_max */ &each(|kept| i64::try_from(kept.body_max).unwrap_or(i64::MAX)), Type::INT8_ARRAY),
        (/* drop_headers */ &dropped, Type::TEXT_ARRAY),
        (/* encrypted */ &encrypted, Type::BOOL),
    ];
    write_on(pool, deadline, STORE_ROUTE_RETENTION, &parameters).await.map(drop)
}
