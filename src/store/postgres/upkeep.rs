//! The statements that are not batched: leases, sweeping, reaping and the like.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::Parameter;
use super::connect::{PgConnection, PgPool};
use super::failure::PgFailure;
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::response::CorruptRow;
use crate::seeded_bug::SeededBug;
use crate::store::row;
use crate::store::{
    LeaseRenewal, ListInFlightParams, ReapParams, ReapedRows, RememberRouteIdentitiesParams, RenewResult,
    ReservedAttempt, RouteIdentity, SweepParams, SweptKey,
};

const PING: &str = include_str!("sql/ping.sql");
const REAP: &str = durable!("reap");
const RENEW_LEASE: &str = durable!("renew_lease");
const RELEASE_LEASE: &str = durable!("release_lease");
const REMEMBER_ROUTE_IDENTITIES: &str = durable!("remember_route_identities");
const LIST_IN_FLIGHT: &str = include_str!("sql/list_in_flight.sql");
const SWEEP: &str = durable!("sweep");

pub(super) async fn renew_lease(
    pool: &PgPool,
    renewal: Arc<LeaseRenewal>,
    deadline: Instant,
) -> Result<RenewResult, PgFailure> {
    let LeaseRenewal { instance, service, expiry, purges_seen, hold_ttls_until } = &*renewal;
    let purges_seen = purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX));
    let parameters: [Parameter<'_>; 5] = [
        (/* id */ &instance.get(), Type::INT8),
        (/* expiry_ms */ &row::millis(*expiry), Type::INT8),
        (/* service */ &&**service, Type::TEXT),
        (/* purges_seen */ &purges_seen, Type::INT8),
        (/* hold_ttls_until_ms */ &hold_ttls_until.map(row::since_1970_ms), Type::INT8),
    ];
    let rows = query(pool, deadline, RENEW_LEASE, &parameters).await?;
    let Some(row) = rows.first() else {
        return Err(PgFailure::Refused(Arc::from(Box::from("the server returned no time"))));
    };
    let purges: i64 = row.try_get("purges").map_err(column)?;
    Ok(RenewResult {
        now: row::time(row.try_get("now_ms").map_err(column)?)?,
        purges: purges.unsigned_abs(),
        ttls_held_until: row::time(row.try_get("ttls_held_until_ms").map_err(column)?)?,
    })
}

pub(super) async fn release_lease(
    pool: &PgPool,
    instance: Arc<InstanceId>,
    deadline: Instant,
) -> Result<(), PgFailure> {
    execute(pool, deadline, RELEASE_LEASE, &[(/* id */ &instance.get(), Type::INT8)]).await.map(drop)
}

pub(super) async fn sweep(
    pool: &PgPool,
    params: Arc<SweepParams>,
    deadline: Instant,
) -> Result<Vec<SweptKey>, PgFailure> {
    let SweepParams { expiry, limit, as_of } = *params;
    let parameters: [Parameter<'_>; 3] = [
        (/* expiry_ms */ &row::millis(expiry), Type::INT8),
        (/* limit */ &i64::from(limit), Type::INT8),
        (/* as_of_ms */ &row::since_1970_ms(as_of), Type::INT8),
    ];
    let swept = |row: &Row| {
        Ok(SweptKey {
            id: RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(CorruptRow("id"))?,
            route: row.try_get("route").map_err(column)?,
            attempt: row::attempt(row.try_get::<_, i32>("attempt").map_err(column)?.into())?,
            instance: InstanceId::from_stored(row.try_get("instance").map_err(column)?),
            is_logged: false,
        })
    };
    query(pool, deadline, SWEEP, &parameters).await?.iter().map(swept).collect()
}

pub(super) async fn list_in_flight(
    pool: &PgPool,
    params: Arc<ListInFlightParams>,
    deadline: Instant,
) -> Result<Vec<ReservedAttempt>, PgFailure> {
    let ListInFlightParams { instance, older_than } = *params;
    let parameters: [Parameter<'_>; 2] =
        [(/* instance */ &instance.get(), Type::INT8), (/* older_than_ms */ &row::millis(older_than), Type::INT8)];
    let standing = |row: &Row| {
        let id = RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(CorruptRow("id"))?;
        let token = Token::from_stored(row.try_get("token").map_err(column)?).ok_or(CorruptRow("token"))?;
        Ok(ReservedAttempt { id, token, route: row.try_get("route").map_err(column)? })
    };
    query(pool, deadline, LIST_IN_FLIGHT, &parameters).await?.iter().map(standing).collect()
}

pub(super) async fn reap(pool: &PgPool, params: Arc<ReapParams>, deadline: Instant) -> Result<ReapedRows, PgFailure> {
    let ReapParams { limit, scope } = *params;
    let parameters: [Parameter<'_>; 3] = [
        (/* limit */ &i64::from(limit), Type::INT8),
        (/* as_of_ms */ &row::since_1970_ms(scope.as_of), Type::INT8),
        (/* settled_since_ms */ &row::since_1970_ms(scope.settled_since), Type::INT8),
    ];
    if SeededBug::TtlOnOpen.is_active() {
        execute(pool, deadline, "delete from oncegate.keys where state = 'unknown'", &[]).await?;
    }
    let rows = query(pool, deadline, REAP, &parameters).await?;
    let Some(row) = rows.first() else {
        return Err(PgFailure::Refused(Arc::from(Box::from("the server returned no count"))));
    };
    let count = |name| row.try_get::<_, i64>(name).map(i64::unsigned_abs).map_err(column);
    Ok(ReapedRows { deleted: count("deleted")?, responses_dropped: count("responses_dropped")? })
}

pub(super) async fn ping(pool: &PgPool, deadline: Instant) -> Result<(), PgFailure> {
    execute(pool, deadline, PING, &[]).await.map(drop)
}

pub(super) async fn remember_route_identities(
    pool: &PgPool,
    params: Arc<RememberRouteIdentitiesParams>,
    deadline: Instant,
) -> Result<Vec<RouteIdentity>, PgFailure> {
    let RememberRouteIdentitiesParams { service, identities } = &*params;
    let (routes, finds): (Vec<&str>, Vec<&str>) = identities.iter().map(|rule| (&*rule.route, &*rule.finds)).unzip();
    let parameters: [Parameter<'_>; 3] = [
        (/* service */ &&**service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* finds */ &finds, Type::TEXT_ARRAY),
    ];
    let rule = |row: &Row| {
        let route: &str = row.try_get("route").map_err(column)?;
        Ok(RouteIdentity { route: route.into(), finds: row.try_get("finds").map_err(column)? })
    };
    query(pool, deadline, REMEMBER_ROUTE_IDENTITIES, &parameters).await?.iter().map(rule).collect()
}

pub(super) async fn query(
    pool: &PgPool,
    deadline: Instant,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, PgFailure> {
    let held = PgConnection::get(pool, deadline).await?;
    held.finish(deadline, async |client| client.query_typed(sql, parameters).await).await
}

pub(super) async fn execute(
    pool: &PgPool,
    deadline: Instant,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<u64, PgFailure> {
    let held = PgConnection::get(pool, deadline).await?;
    held.finish(deadline, async |client| client.execute_typed(sql, parameters).await).await
}

pub(super) fn column(_: tokio_postgres::Error) -> CorruptRow {
    CorruptRow("a column's type")
}
