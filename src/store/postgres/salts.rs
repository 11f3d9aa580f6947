//! Salts in PostgreSQL.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::calls::run;
use super::client::Parameter;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::upkeep::write_on;
use crate::store::ReplaceSaltParams;
use crate::store::columns::columns;
use crate::store::row::RowReader;
use crate::store::statement::shared;

const INSERT_SALT: &str = include_str!("sql/insert_salt.sql");
const REPLACE_SALT: &str = include_str!("sql/replace_salt.sql");

pub(super) async fn find_salt(
    pool: &PgPool,
    service: Arc<Arc<str>>,
    deadline: Instant,
) -> Result<Option<Vec<u8>>, PgFailure> {
    let rows = run(pool, deadline, &shared::FIND_SALT, columns! { service: &**service }).await?;
    Ok(rows.first().map(|row| row.read("value")).transpose()?)
}

pub(super) async fn replace_salt(
    pool: &PgPool,
    params: Arc<ReplaceSaltParams>,
    deadline: Instant,
) -> Result<bool, PgFailure> {
    let ReplaceSaltParams { service, from, to } = &*params;
    let service: Parameter<'_> = (&&**service, Type::TEXT);
    let written = match from {
        None => write_on(pool, deadline, INSERT_SALT, &[service, (/* value */ to, Type::BYTEA)]).await?,
        Some(from) => {
            let parameters = [service, (/* from */ from, Type::BYTEA), (/* to */ to, Type::BYTEA)];
            write_on(pool, deadline, REPLACE_SALT, &parameters).await?
        }
    };
    Ok(!written.is_empty())
}
