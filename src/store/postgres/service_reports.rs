//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::batcher::{BatchStatement, Batcher};
use super::bounded;
use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::failure::PgFailure;
use super::statements::{OVERHEAD_BYTES, column};
use super::upkeep::{column as unreadable, query};
use crate::domain::ids::{RecordId, Token};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{
    ReportKind, ReportResult, ReservationHandle, ReservedKey, RouteRetention, ServiceReport,
};
use crate::domain::state::StateKind;
use crate::store::batch::ByteSize;
use crate::store::row::millis;
use crate::store::service_reports::report_result;
use crate::store::{FindReservationParams, StoreRouteRetentionParams};

const FIND_RESERVATION: &str = include_str!("sql/find_reservation.sql");
const REPORT_NOT_EXECUTED: &str = durable!("report_not_executed");
const APPLY_DEFERRED_REPORTS: &str = durable!("apply_deferred_reports");
const STORE_ROUTE_RETENTION: &str = durable!("store_route_retention");
const REPORT_RECOVERY_POINT: &str = durable!("report_recovery_point");

/// The batched statements of services' reports, on the connections of settlements. Each has one lane, so that the reports
/// of one kind take one connection at most.
pub(super) struct ReportBatchers {
    reservations: Batcher<FindReservationStatement>,
    recovery_points: Batcher<RecoveryPointStatement>,
    not_executed: Batcher<NotExecutedStatement>,
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
    match kind {
        ReportKind::NotExecuted(ttl) => {
            let statement = NotExecutedStatement { service, handle, ttl: *ttl, deadline };
            reports.not_executed.call(statement, deadline).await
        }
        ReportKind::Reached(point) => {
            let statement = RecoveryPointStatement { service, handle, point: point.clone() };
            Ok(match reports.recovery_points.call(statement, deadline).await? {
                // A recovery point applies at once.
                ReportResult::Noted => ReportResult::Taken,
                result => result,
            })
        }
    }
}

/// Applies the reports "not executed" of attempts that have ended since.
pub(super) async fn apply_deferred_reports(
    pool: &PgPool,
    limit: Arc<u32>,
    deadline: Instant,
) -> Result<Vec<RecordId>, PgFailure> {
    let rows = query(pool, deadline, APPLY_DEFERRED_REPORTS, &[(/* limit */ &i64::from(*limit), Type::INT8)]).await?;
    let id = |row: &Row| Ok(RecordId::from_stored(row.try_get("id").map_err(unreadable)?).ok_or(CorruptRow("id"))?);
    rows.iter().map(id).collect()
}

/// Finds the key of a reservation.
struct FindReservationStatement(Arc<FindReservationParams>);

impl ByteSize for FindReservationStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl BatchStatement for FindReservationStatement {
    type Answer = Result<Option<ReservedKey>, CorruptRow>;

    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.0.handle.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut ids = column(requests, |q| q.0.handle.id.as_bytes().as_slice());
        // Sorted, as all batches are.
        ids.dedup();
        let rows = client.query_typed(FIND_RESERVATION, &[(/* id */ &ids, Type::BYTEA_ARRAY)]).await?;
        let mut found = HashMap::new();
        for row in &rows {
            found.insert(row.try_get::<_, &[u8]>("id")?, row);
        }
        Ok(column(requests, |q| match found.get(q.0.handle.id.as_bytes().as_slice()) {
            Some(row) => read_reserved_key(row, q),
            None => Ok(None),
        }))
    }
}

fn read_reserved_key(row: &Row, request: &FindReservationStatement) -> Result<Option<ReservedKey>, CorruptRow> {
    let token = Token::from_stored(row.try_get("token").map_err(unreadable)?).ok_or(CorruptRow("token"))?;
    let service: &str = row.try_get("service").map_err(unreadable)?;
    if service != &*request.0.service || !token.is_same(&request.0.handle.token) {
        return Ok(None);
    }
    let state = StateKind::parse(row.try_get("state").map_err(unreadable)?).ok_or(CorruptRow("state"))?;
    Ok(Some(ReservedKey { route: row.try_get("route").map_err(unreadable)?, state }))
}

/// Sets the recovery point of an attempt.
struct RecoveryPointStatement {
    service: Arc<str>,
    handle: ReservationHandle,
    point: RecoveryPoint,
}

impl ByteSize for RecoveryPointStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl BatchStatement for RecoveryPointStatement {
    type Answer = ReportResult;

    // With several sources for one row, PostgreSQL would pick an arbitrary one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.handle.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<ReportResult>, Error> {
        let parameters: [Parameter<'_>; 4] = [
            (/* id */ &column(requests, |q| q.handle.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* token */ &column(requests, |q| q.handle.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(requests, |q| &*q.service), Type::TEXT_ARRAY),
            (/* recovery_point */ &column(requests, |q| q.point.as_str()), Type::TEXT_ARRAY),
        ];
        read_results(&client.query_typed(REPORT_RECOVERY_POINT, &parameters).await?, requests)
    }
}

/// Releases the key of an attempt that was not executed, or stores the report while the attempt runs.
struct NotExecutedStatement {
    service: Arc<str>,
    handle: ReservationHandle,
    ttl: Duration,
    deadline: Instant,
}

impl ByteSize for NotExecutedStatement {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl BatchStatement for NotExecutedStatement {
    type Answer = ReportResult;

    // With several sources for one row, PostgreSQL would pick an arbitrary one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.handle.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<ReportResult>, Error> {
        let parameters: [Parameter<'_>; 4] = [
            (/* id */ &column(requests, |q| q.handle.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* token */ &column(requests, |q| q.handle.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(requests, |q| &*q.service), Type::TEXT_ARRAY),
            (/* ttl_ms */ &column(requests, |q| millis(q.ttl)), Type::INT8_ARRAY),
        ];
        let deadline = requests.iter().map(|q| q.deadline).max().unwrap_or_else(Instant::now);
        // Bounded: it writes to other tables than settlements do. While one of them is locked, statements whose callers have
        // gone must not take one connection of settlements after the other.
        read_results(&bounded::query_on(client, deadline, REPORT_NOT_EXECUTED, &parameters).await?, requests)
    }
}

/// The result of each report; [`ReportResult::Gone`] where no row was returned.
fn read_results<S: BatchStatement>(rows: &[Row], requests: &[&S]) -> Result<Vec<ReportResult>, Error> {
    let mut results = HashMap::new();
    for row in rows {
        let result = report_result(row.try_get("state")?, row.try_get("held")?);
        results.insert(row.try_get::<_, &[u8]>("id")?, result);
    }
    let result = |id: RecordId| results.get(id.as_bytes().as_slice()).copied();
    Ok(column(requests, |q| result(q.id()).unwrap_or(ReportResult::Gone)))
}

pub(super) async fn store_route_retention(
    pool: &PgPool,
    params: Arc<StoreRouteRetentionParams>,
    deadline: Instant,
) -> Result<(), PgFailure> {
    let StoreRouteRetentionParams { service, retention: terms } = &*params;
    let each = |of: fn(&RouteRetention) -> i64| terms.iter().map(of).collect::<Vec<_>>();
    let routes: Vec<&str> = terms.iter().map(|terms| &*terms.route).collect();
    let remember: Vec<Option<i64>> = terms.iter().map(|terms| terms.remember.map(millis)).collect();
    let dropped =
        |terms: &RouteRetention| terms.drop_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
    let dropped: Vec<String> = terms.iter().map(dropped).collect();
    let encrypted = terms.iter().any(|terms| terms.encrypted);
    let parameters: [Parameter<'_>; 7] = [
        (/* service */ &&**service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* ttl_ms */ &each(|terms| millis(terms.ttl)), Type::INT8_ARRAY),
        (/* remember_ms */ &remember, Type::INT8_ARRAY),
        (/* body_max */ &each(|terms| i64::try_from(terms.body_max).unwrap_or(i64::MAX)), Type::INT8_ARRAY),
        (/* drop_headers */ &dropped, Type::TEXT_ARRAY),
        (/* encrypted */ &encrypted, Type::BOOL),
    ];
    query(pool, deadline, STORE_ROUTE_RETENTION, &parameters).await.map(drop)
}
