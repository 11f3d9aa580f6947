//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::failure::PgFailure;
use super::upkeep::{Parameter, column, query};
use super::{Postgres, RetryBudget, retry_until_known};
use crate::domain::ids::RecordId;
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportKind, ReportResult, RouteRetention, ServiceReport};
use crate::store::StoreFuture;
use crate::store::row::millis;
use crate::store::service_reports::{ServiceReports, report_result};

const REPORT_NOT_EXECUTED: &str = durable!("report_not_executed");
const APPLY_DEFERRED_REPORTS: &str = durable!("apply_deferred_reports");
const STORE_ROUTE_RETENTION: &str = durable!("store_route_retention");
const REPORT_RECOVERY_POINT: &str = durable!("report_recovery_point");

impl ServiceReports for Postgres {
    fn record_report(&self, report: ServiceReport) -> StoreFuture<'_, ReportResult> {
        let (report, deadline) = (Arc::new(report), self.deadline());
        // A report is idempotent.
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            self.record_report_once(Arc::clone(&report), deadline)
        }))
    }

    fn apply_deferred(&self, limit: u32) -> StoreFuture<'_, Vec<RecordId>> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| async move {
            let rows =
                query(&self.upkeep, deadline, APPLY_DEFERRED_REPORTS, &[(/* limit */ &i64::from(limit), Type::INT8)])
                    .await?;
            let id = |row: &tokio_postgres::Row| {
                Ok(RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(CorruptRow("id"))?)
            };
            rows.iter().map(id).collect()
        }))
    }

    fn store_route_retention(&self, service: Arc<str>, terms: Vec<RouteRetention>) -> StoreFuture<'_, ()> {
        let deadline = self.deadline();
        let left = Arc::new((service, terms));
        Box::pin(retry_until_known(deadline, RetryBudget::Always, move |_| {
            self.store_route_retention_once(Arc::clone(&left), deadline)
        }))
    }
}

impl Postgres {
    async fn record_report_once(
        &self,
        report: Arc<ServiceReport>,
        deadline: Instant,
    ) -> Result<ReportResult, PgFailure> {
        let ServiceReport { service, handle, kind } = &*report;
        let (id, token) = (handle.id.as_bytes().as_slice(), handle.token.as_bytes().as_slice());
        let named: [Parameter<'_>; 3] =
            [(/* id */ &id, Type::BYTEA), (/* token */ &token, Type::BYTEA), (/* service */ &&**service, Type::TEXT)];
        let [id, token, service] = named;
        let rows = match kind {
            ReportKind::NotExecuted(ttl) => {
                let ttl_ms = millis(*ttl);
                let parameters = [id, token, service, (/* ttl_ms */ &ttl_ms as _, Type::INT8)];
                query(&self.upkeep, deadline, REPORT_NOT_EXECUTED, &parameters).await?
            }
            ReportKind::Reached(point) => {
                let name = point.as_str();
                let parameters = [id, token, service, (/* recovery_point */ &name as _, Type::TEXT)];
                query(&self.upkeep, deadline, REPORT_RECOVERY_POINT, &parameters).await?
            }
        };
        let Some(row) = rows.first() else { return Ok(ReportResult::Gone) };
        let state: &str = row.try_get("state").map_err(column)?;
        Ok(match report_result(state, row.try_get("held").map_err(column)?) {
            // A recovery point applies at once.
            ReportResult::Noted if matches!(kind, ReportKind::Reached(_)) => ReportResult::Taken,
            result => result,
        })
    }

    async fn store_route_retention_once(
        &self,
        left: Arc<(Arc<str>, Vec<RouteRetention>)>,
        deadline: Instant,
    ) -> Result<(), PgFailure> {
        let (service, terms) = &*left;
        let each = |of: fn(&RouteRetention) -> i64| terms.iter().map(of).collect::<Vec<_>>();
        let routes: Vec<&str> = terms.iter().map(|terms| &*terms.route).collect();
        let remember: Vec<Option<i64>> = terms.iter().map(|terms| terms.remember.map(millis)).collect();
        let dropped =
            |terms: &RouteRetention| terms.drop_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
        let dropped: Vec<String> = terms.iter().map(dropped).collect();
        let parameters: [Parameter<'_>; 6] = [
            (/* service */ &&**service, Type::TEXT),
            (/* route */ &routes, Type::TEXT_ARRAY),
            (/* ttl_ms */ &each(|terms| millis(terms.ttl)), Type::INT8_ARRAY),
            (/* remember_ms */ &remember, Type::INT8_ARRAY),
            (/* body_max */ &each(|terms| i64::try_from(terms.body_max).unwrap_or(i64::MAX)), Type::INT8_ARRAY),
            (/* drop_headers */ &dropped, Type::TEXT_ARRAY),
        ];
        query(&self.upkeep, deadline, STORE_ROUTE_RETENTION, &parameters).await.map(drop)
    }
}
