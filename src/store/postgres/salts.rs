//! Salts in PostgreSQL.

use std::sync::Arc;

use tokio::time::Instant;

use super::calls::run;
use super::connect::PgPool;
use super::failure::PgFailure;
use super::upkeep::write_on;
use crate::store::ReplaceSaltParams;
use crate::store::columns::columns;
use crate::store::row::RowReader;
use crate::store::statement::{shared, statements};

statements! { "sql/":
    INSERT_SALT = "insert_salt";
    REPLACE_SALT = "replace_salt";
}

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
    let statement = if from.is_none() { &INSERT_SALT } else { &REPLACE_SALT };
    let columns = columns! { service: &**service, from: from.as_deref(), to: &to[..] };
    Ok(!write_on(pool, deadline, statement, columns).await?.is_empty())
}
