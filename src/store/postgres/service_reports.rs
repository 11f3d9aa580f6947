//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::sync::Arc;

use http::HeaderName;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_postgres::{Error, Row};

use super::batcher::{BatchStatement, Batcher};
use super::calls::{self, BatchedCall, CallAnswer};
use super::client::PgClient;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::functions::{self, Function};
use super::lookups::find_rows;
use super::upkeep::write_on;
use crate::domain::ids::{RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportKind, ReportResult, ReservedKey, RouteRetention, ServiceReport};
use crate::store::columns::{Columns, columns};
use crate::store::row::{RowReader, millis};
use crate::store::service_reports::{read_reserved_key, report_result};
use crate::store::statement::statements;
use crate::store::{FindReservationParams, StoreRouteRetentionParams};

const FIND_RESERVATION: &str = include_str!("sql/find_reservation.sql");

statements! { "sql/":
    ENDED_REPORTS = "ended_reports";
    STORE_ROUTE_RETENTION = "store_route_retention";
}

/// The batched statements of services' reports, on the connections of settlements. Each has one lane, and so takes one connection
/// at most.
pub(super) struct ReportBatchers {
    reservations: Batcher<FindReservationStatement>,
    reports: Batcher<ReportCall>,
}

impl ReportBatchers {
    /// Starts the lanes on the connections of settlements.
    pub fn open(settle: &PgPool) -> Self {
        Self { reservations: Batcher::open(settle, 1), reports: Batcher::open(settle, 1) }
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
    let applies_at_once = matches!(report.kind, ReportKind::Reached(_));
    match reports.reports.call(ReportCall(report), deadline).await {
        Err(PgFailure::Held(_)) => Ok(ReportResult::Held),
        answer => Ok(match answer?? {
            ReportResult::Noted if applies_at_once => ReportResult::Taken,
            result => result,
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
    let applied = calls::call_each(pool, deadline, &functions::APPLY_DEFERRED_REPORT, &ended, |(id, token)| {
        columns! { id: id, token: token }
    });
    Ok(applied.await?.into_iter().map(|((id, _), _)| *id).collect())
}

/// Finds the key of a reservation.
struct FindReservationStatement(Arc<FindReservationParams>);

impl BatchStatement for FindReservationStatement {
    type Answer = Result<Option<ReservedKey>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.0.handle.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut ids: Vec<RecordId> = requests.iter().map(|q| q.0.handle.id).collect();
        // Sorted, as all batches are.
        ids.dedup();
        let (_, rows) = find_rows(client, FIND_RESERVATION, &ids, &[]).await?;
        let answer = |q: &&Self| match rows.get(&q.0.handle.id.as_bytes()[..]) {
            Some(row) => read_reserved_key(row, &q.0),
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

/// Sets the recovery point of an attempt; or releases its key where it was not executed, or stores that report while it runs.
struct ReportCall(Arc<ServiceReport>);

impl BatchedCall for ReportCall {
    type Answer = ReportResult;

    const FUNCTION: &'static Function = &functions::REPORT;

    fn id(&self) -> RecordId {
        self.0.handle.id
    }

    fn columns(&self) -> Columns<'_> {
        let ServiceReport { service, handle, kind } = &*self.0;
        let (ttl, point) = match kind {
            ReportKind::NotExecuted(ttl) => (Some(millis(*ttl)), None),
            ReportKind::Reached(point) => (None, Some(point.as_str())),
        };
        columns! { id: &handle.id, token: &handle.token, service: &**service, ttl_ms: ttl, recovery_point: point }
    }
}

pub(super) async fn store_route_retention(
    pool: &PgPool,
    params: Arc<StoreRouteRetentionParams>,
    deadline: Instant,
) -> Result<(), PgFailure> {
    let route = |kept: &RouteRetention| {
        json!({
            "route": &*kept.route,
            "ttl_ms": millis(kept.ttl),
            "remember_ms": kept.remember.map(millis),
            "body_max": i64::try_from(kept.body_max).unwrap_or(i64::MAX),
            "drop_headers": kept.drop_headers.iter().map(HeaderName::as_str).collect::<Vec<_>>(),
        })
    };
    let columns = columns! {
        service: &*params.service,
        routes: params.retention.iter().map(route).collect::<Value>().to_string(),
        encrypted: params.retention.iter().any(|kept| kept.encrypted),
    };
    write_on(pool, deadline, &STORE_ROUTE_RETENTION, columns).await.map(drop)
}
