//! Salts in PostgreSQL.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::client::Parameter;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::upkeep::{column, execute, query};
use crate::store::ReplaceSaltParams;

const FIND_SALT: &str = include_str!("sql/find_salt.sql");
const INSERT_SALT: &str = durable!("insert_salt");
const REPLACE_SALT: &str = durable!("replace_salt");

pub(super) async fn find_salt(
    pool: &PgPool,
    service: Arc<Arc<str>>,
    deadline: Instant,
) -> Result<Option<Vec<u8>>, PgFailure> {
    let parameters: [Parameter<'_>; 1] = [(/* service */ &&**service, Type::TEXT)];
    let rows = query(pool, deadline, FIND_SALT, &parameters).await?;
    Ok(rows.first().map(|row| row.try_get("value")).transpose().map_err(column)?)
}

pub(super) async fn replace_salt(
    pool: &PgPool,
    params: Arc<ReplaceSaltParams>,
    deadline: Instant,
) -> Result<bool, PgFailure> {
    let ReplaceSaltParams { service, from, to } = &*params;
    let rows = match from {
        None => {
            let parameters: [Parameter<'_>; 2] =
                [(/* service */ &&**service, Type::TEXT), (/* value */ to, Type::BYTEA)];
            execute(pool, deadline, INSERT_SALT, &parameters).await?
        }
        Some(from) => {
            let parameters: [Parameter<'_>; 3] =
                [(/* service */ &&**service, Type::TEXT), (/* from */ from, Type::BYTEA), (/* to */ to, Type::BYTEA)];
            execute(pool, deadline, REPLACE_SALT, &parameters).await?
        }
    };
    Ok(rows > 0)
}
