//! The statements that are not batched: leases, and what keeps the table in order.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Held, Pool};
use super::failure::Failure;
use crate::domain::attempt::{InstanceId, Token};
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::store::row;
use crate::store::{Renewal, Renewed, Rule, Swept};

const PING: &str = include_str!("sql/ping.sql");
const REAP: &str = include_str!("sql/reap.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const RETIRE: &str = include_str!("sql/retire.sql");
const RULES: &str = include_str!("sql/rules.sql");
const STANDING: &str = include_str!("sql/standing.sql");
const SWEEP: &str = include_str!("sql/sweep.sql");

pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) async fn renew(pool: &Pool, renewal: Renewal, deadline: Instant) -> Result<Renewed, Failure> {
    let Renewal { instance, service, expiry, purges_seen } = renewal;
    let purges_seen = purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX));
    let parameters: [Parameter<'_>; 4] = [
        (/* id */ &instance.get(), Type::INT8),
        (/* expiry_ms */ &row::millis(expiry), Type::INT8),
        (/* service */ &&*service, Type::TEXT),
        (/* purges_seen */ &purges_seen, Type::INT8),
    ];
    let rows = query(pool, deadline, RENEW, &parameters).await?;
    let Some(row) = rows.first() else {
        return Err(Failure::Refused(Arc::from(Box::from("the server does not tell the time"))));
    };
    let purges: i64 = row.try_get("purges").map_err(column)?;
    Ok(Renewed { now: row::time(row.try_get("now_ms").map_err(column)?)?, purges: purges.unsigned_abs() })
}

pub(super) async fn retire(pool: &Pool, instance: InstanceId, deadline: Instant) -> Result<(), Failure> {
    execute(pool, deadline, RETIRE, &[(/* id */ &instance.get(), Type::INT8)]).await.map(drop)
}

pub(super) async fn sweep(pool: &Pool, expiry_ms: i64, limit: u32, deadline: Instant) -> Result<Vec<Swept>, Failure> {
    let parameters: [Parameter<'_>; 2] =
        [(/* expiry_ms */ &expiry_ms, Type::INT8), (/* limit */ &i64::from(limit), Type::INT8)];
    let swept = |row: &Row| {
        Ok(Swept {
            id: RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(Corrupt("id"))?,
            route: row.try_get("route").map_err(column)?,
            attempt: row::attempt(row.try_get::<_, i32>("attempt").map_err(column)?.into())?,
            instance: InstanceId::from_stored(row.try_get("instance").map_err(column)?),
        })
    };
    query(pool, deadline, SWEEP, &parameters).await?.iter().map(swept).collect()
}

pub(super) async fn standing(
    pool: &Pool,
    instance: InstanceId,
    older_than_ms: i64,
    deadline: Instant,
) -> Result<Vec<(RecordId, Token)>, Failure> {
    let parameters: [Parameter<'_>; 2] =
        [(/* instance */ &instance.get(), Type::INT8), (/* older_than_ms */ &older_than_ms, Type::INT8)];
    let standing = |row: &Row| {
        let id = RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(Corrupt("id"))?;
        let token = Token::from_stored(row.try_get("token").map_err(column)?).ok_or(Corrupt("token"))?;
        Ok((id, token))
    };
    query(pool, deadline, STANDING, &parameters).await?.iter().map(standing).collect()
}

pub(super) async fn reap(pool: &Pool, limit: u32, deadline: Instant) -> Result<u64, Failure> {
    execute(pool, deadline, REAP, &[(/* limit */ &i64::from(limit), Type::INT8)]).await
}

pub(super) async fn ping(pool: &Pool, deadline: Instant) -> Result<(), Failure> {
    execute(pool, deadline, PING, &[]).await.map(drop)
}

pub(super) async fn rules(pool: &Pool, service: &str, rules: &[Rule], deadline: Instant) -> Result<Vec<Rule>, Failure> {
    let (routes, finds): (Vec<&str>, Vec<&str>) = rules.iter().map(|rule| (&*rule.route, &*rule.finds)).unzip();
    let parameters: [Parameter<'_>; 3] = [
        (/* service */ &service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* finds */ &finds, Type::TEXT_ARRAY),
    ];
    let rule = |row: &Row| {
        let route: &str = row.try_get("route").map_err(column)?;
        Ok(Rule { route: route.into(), finds: row.try_get("finds").map_err(column)? })
    };
    query(pool, deadline, RULES, &parameters).await?.iter().map(rule).collect()
}

pub(super) async fn query(
    pool: &Pool,
    deadline: Instant,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Failure> {
    let held = Held::get(pool, deadline).await?;
    held.finish(deadline, async |client| client.query_typed(sql, parameters).await).await
}

async fn execute(pool: &Pool, deadline: Instant, sql: &str, parameters: &[Parameter<'_>]) -> Result<u64, Failure> {
    let held = Held::get(pool, deadline).await?;
    held.finish(deadline, async |client| client.execute_typed(sql, parameters).await).await
}

pub(super) fn column(_: tokio_postgres::Error) -> Corrupt {
    Corrupt("a column's type")
}
