//! The statements for probing the service about unknown keys.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::bounded;
use super::client::Parameter;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::upkeep::{column, query};
use crate::domain::ids::RecordId;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, SettledKeyPage};
use crate::domain::response::CorruptRow;
use crate::store::row::{SubjectColumns, VerdictColumns, count, millis, since_1970_ms};
use crate::store::{ClaimProbesParams, ListSettledKeysParams};

const CLAIM_PROBES: &str = durable!("claim_probes");
const LIST_SETTLED_KEYS: &str = include_str!("sql/list_settled_keys.sql");
const APPLY_PROBE_FINDING: &str = durable!("apply_probe_finding");

pub(super) async fn claim_probes(
    pool: &PgPool,
    ClaimProbesParams { service, schedules, limit, as_of }: ClaimProbesParams,
    deadline: Instant,
) -> Result<Vec<Probe>, PgFailure> {
    let times =
        |time: fn(&ProbeSchedule) -> _| schedules.iter().map(|schedule| millis(time(schedule))).collect::<Vec<_>>();
    let routes: Vec<&str> = schedules.iter().map(|schedule| &*schedule.route).collect();
    let parameters: [Parameter<'_>; 7] = [
        (/* service */ &&*service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* quiet_after_ms */ &times(|schedule| schedule.quiet_after), Type::INT8_ARRAY),
        (/* pause_first_ms */ &times(|schedule| schedule.pause_first), Type::INT8_ARRAY),
        (/* pause_cap_ms */ &times(|schedule| schedule.pause_cap), Type::INT8_ARRAY),
        (/* limit */ &i64::from(limit), Type::INT8),
        (/* as_of_ms */ &since_1970_ms(as_of), Type::INT8),
    ];
    let probe = |row: &Row| {
        Ok(Probe {
            subject: read_subject(row)?.decode()?,
            number: count(row.try_get::<_, i32>("probes").map_err(column)?.into())?,
            absences: count(row.try_get::<_, i32>("absences").map_err(column)?.into())?,
        })
    };
    query(pool, deadline, CLAIM_PROBES, &parameters).await?.iter().map(probe).collect()
}

pub(super) async fn resolve(pool: &PgPool, finding: Arc<ProbeFinding>, deadline: Instant) -> Result<bool, PgFailure> {
    let VerdictColumns { state, action, absences, ttl_ms, remember_ms, response } = (&finding.verdict).into();
    let status = response.map(|response| response.status.as_u16().cast_signed());
    let fields = response.map(|response| response.encode_fields());
    let body = response.and_then(|response| response.body.as_deref());
    let parameters: [Parameter<'_>; 12] = [
        (/* id */ &finding.id.as_bytes().as_slice(), Type::BYTEA),
        (/* token */ &finding.token.as_bytes().as_slice(), Type::BYTEA),
        (/* probe */ &finding.probe.cast_signed(), Type::INT4),
        (/* state */ &state, Type::TEXT),
        (/* absences */ &absences, Type::INT4),
        (/* ttl_ms */ &ttl_ms, Type::INT8),
        (/* remember_ms */ &remember_ms, Type::INT8),
        (/* status */ &status, Type::INT2),
        (/* fields */ &fields, Type::BYTEA),
        (/* body */ &body, Type::BYTEA),
        (/* action */ &action, Type::TEXT),
        (/* note */ &finding.note, Type::TEXT),
    ];
    Ok(!query(pool, deadline, APPLY_PROBE_FINDING, &parameters).await?.is_empty())
}

pub(super) async fn list_settled_keys(
    pool: &PgPool,
    params: Arc<ListSettledKeysParams>,
    deadline: Instant,
) -> Result<SettledKeyPage, PgFailure> {
    let ListSettledKeysParams { service, routes, since, after, limit } = &*params;
    let routes: Vec<&str> = routes.iter().map(|route| &**route).collect();
    let after = after.as_ref().map_or(&[][..], |id| id.as_bytes().as_slice());
    let parameters: [Parameter<'_>; 5] = [
        (/* service */ &&**service, Type::TEXT),
        (/* routes */ &routes, Type::TEXT_ARRAY),
        (/* since_ms */ &millis(*since), Type::INT8),
        (/* after */ &after, Type::BYTEA),
        (/* limit */ &i64::from(*limit), Type::INT8),
    ];
    let mut page = SettledKeyPage::default();
    let rows = bounded::query(pool, deadline, LIST_SETTLED_KEYS, &parameters).await?;
    for row in &rows {
        if row.try_get::<_, Option<bool>>("wanted").map_err(column)? == Some(true) {
            let status = row.try_get::<_, Option<i16>>("status").map_err(column)?.map(i64::from);
            page.keys.push(read_subject(row)?.settled(row.try_get("state").map_err(column)?, status)?);
        }
    }
    if let Some(last) = rows.last().filter(|_| rows.len() == *limit as usize) {
        let id = RecordId::from_stored(last.try_get("id").map_err(column)?);
        page.next = Some(id.ok_or(CorruptRow("id"))?);
    }
    Ok(page)
}

fn read_subject(row: &Row) -> Result<SubjectColumns<'_>, CorruptRow> {
    Ok(SubjectColumns {
        id: row.try_get("id").map_err(column)?,
        token: row.try_get("token").map_err(column)?,
        scope: row.try_get("scope").map_err(column)?,
        key: row.try_get("key").map_err(column)?,
        route: row.try_get("route").map_err(column)?,
        path: row.try_get("path").map_err(column)?,
    })
}
