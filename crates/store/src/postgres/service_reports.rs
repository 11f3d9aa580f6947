//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::sync::Arc;

use http::HeaderName;
use serde_json::{Value, json};
use tokio_postgres::{Error, Row};

use super::lane::BatchStatement;
use super::call::{BatchedCall, CallAnswer};
use super::client::PgClient;
use super::failure::PgResult;
use super::functions::{self, Function};
use super::lookups::find_rows;
use super::{PgCall, unless_held};
use crate::columns::{Columns, columns};
use crate::row::{RowReader, millis, read_reserved_key, report_result};
use crate::statement::statements;
use crate::{FindReservationParams, StoreRouteRetentionParams};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::response::CorruptRow;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservedKey, RouteRetention, ServiceReport};

const FIND_RESERVATION: &str = include_str!("sql/find_reservation.sql");

statements! { "sql/":
    ENDED_REPORTS = "ended_reports";
    STORE_ROUTE_RETENTION = "store_route_retention";
}

impl PgCall<'_> {
    pub async fn find_reservation(self, params: Arc<FindReservationParams>) -> PgResult<Option<ReservedKey>> {
        Ok(self.store.find_reservation.call(FindReservationStatement(params), self.deadline).await??)
    }

    pub async fn record_report(self, report: Arc<ServiceReport>) -> PgResult<ReportResult> {
        let applies_at_once = matches!(report.kind, ReportKind::Reached(_));
        Ok(match unless_held(self.store.report.call(ReportCall(report), self.deadline).await)? {
            None => ReportResult::Held,
            Some(ReportResult::Noted) if applies_at_once => ReportResult::Taken,
            Some(result) => result,
        })
    }

    pub async fn apply_deferred_reports(self, limit: Arc<u32>) -> PgResult<Vec<RecordId>> {
        let rows = self.run(&ENDED_REPORTS, columns! { limit: i64::from(*limit) }).await?;
        let read = |row: &Row| Ok::<_, CorruptRow>((row.read::<RecordId>("id")?, row.read::<Token>("token")?));
        let ended = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let applied = self.call_each(&functions::APPLY_DEFERRED_REPORT, &ended, |(id, token)| {
            columns! { id: id, token: token }
        });
        Ok(applied.await?.into_iter().map(|((id, _), _)| *id).collect())
    }

    pub async fn store_route_retention(self, params: Arc<StoreRouteRetentionParams>) -> PgResult<()> {
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
        self.write(&STORE_ROUTE_RETENTION, columns).await.map(drop)
    }
}

pub(super) struct FindReservationStatement(Arc<FindReservationParams>);

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
            Some(row) => read_reserved_key(row, &q.0.service, &q.0.handle.token),
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
pub(super) struct ReportCall(Arc<ServiceReport>);

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
