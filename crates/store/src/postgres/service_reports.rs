//! Services' reports about their attempts, in PostgreSQL. Reports in a service's own transaction go to the functions
//! that the migrations create.

use std::sync::Arc;

use http::HeaderName;
use serde_json::{Value, json};
use tokio_postgres::{Error, Row};

use super::client::PgClient;
use super::failure::PgResult;
use super::key_calls::KeyCall;
use super::lane::LaneCall;
use super::lookups::find_rows;
use super::{PgTry, functions, unless_held};
use crate::columns::columns;
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

impl PgTry<'_> {
    pub async fn find_reservation(self, params: Arc<FindReservationParams>) -> PgResult<Option<ReservedKey>> {
        Ok(self.store.find_reservation.call(FindReservationCall(params), self.deadline).await??)
    }

    pub async fn record_report(self, report: Arc<ServiceReport>) -> PgResult<ReportResult> {
        let applies_at_once = matches!(report.kind, ReportKind::Reached(_));
        let reported = unless_held(self.store.report.call(KeyCall::report(report), self.deadline).await)?;
        let Some(row) = reported else { return Ok(ReportResult::Held) };
        Ok(match row.map_or(Ok(ReportResult::Gone), |row| row.read("state").map(report_result))? {
            ReportResult::Noted if applies_at_once => ReportResult::Taken,
            result => result,
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

pub(super) struct FindReservationCall(Arc<FindReservationParams>);

impl LaneCall for FindReservationCall {
    type Answer = Result<Option<ReservedKey>, CorruptRow>;

    fn id(&self) -> RecordId {
        self.0.handle.id
    }

    async fn run(client: &PgClient, calls: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut ids: Vec<RecordId> = calls.iter().map(|call| call.0.handle.id).collect();
        // Sorted, as all batches are.
        ids.dedup();
        let (_, rows) = find_rows(client, FIND_RESERVATION, &ids, &[]).await?;
        let answer = |call: &&Self| match rows.get(&call.0.handle.id.as_bytes()[..]) {
            Some(row) => read_reserved_key(row, &call.0.services, &call.0.handle.token),
            None => Ok(None),
        };
        Ok(calls.iter().map(answer).collect())
    }
}
