//! Indexes on tables that are in use. They are built `concurrently`, which is slow and blocks nobody.
//!
//! Such a build runs outside of any transaction, so it can be interrupted half way and leave an invalid index. And it
//! waits for every transaction that was open before it, so no other instance may wait for it inside of a statement: the
//! two would wait for each other, for ever where the server cannot detect it. Hence the other instances poll.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connect;
use super::failure::without_detail;
use super::server::PgServer;
use crate::store::OpenError;
use crate::store::migrate::{Index, Migration};

const INDEX_STATES: &str = include_str!("sql/index_states.sql");
const IS_INDEX_BEING_BUILT: &str = include_str!("sql/is_index_being_built.sql");
const REMOVE_TIMEOUTS: &str = include_str!("sql/remove_timeouts.sql");

/// Admits one builder at a time, and never waits. The lock is held by a transaction on another connection, because
/// pooled sessions cannot hold it; an idle transaction has no snapshot, so the build does not wait for it. It must be
/// sent as a simple query: the portal of any other query stays open, and its snapshot with it. The number is random and
/// means nothing.
const TRY_BUILD_LOCK: &str = "select pg_try_advisory_xact_lock(2846193057718264409)";

/// The pause between two checks while somebody else is building.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of builds that may fail because of a build by a program that does not take our lock.
const CONFLICTS_MAX: u32 = 5;

/// The defect of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexDefect {
    /// The index does not exist.
    Missing,
    /// The index exists and cannot be used: its build was interrupted, or is running.
    Invalid,
}

/// Returns the indexes that do not exist or are not valid. One query of the catalogue.
pub(super) async fn find_defects(client: &Client, indexes: &[Index]) -> Result<Vec<(Index, IndexDefect)>, OpenError> {
    if indexes.is_empty() {
        return Ok(Vec::new());
    }
    let missing = |source| OpenError::Missing(without_detail(source));
    let names: Vec<&str> = indexes.iter().map(|index| index.name).collect();
    let rows = client.query_typed(INDEX_STATES, &[(/* names */ &names, Type::TEXT_ARRAY)]).await.map_err(missing)?;
    let row = |row: &tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
    let there: Vec<(String, bool)> = rows.iter().map(row).collect::<Result<_, _>>().map_err(missing)?;
    let defect = |index: &Index| match there.iter().find(|(name, _)| name == index.name) {
        Some((_, true)) => None,
        Some((_, false)) => Some((*index, IndexDefect::Invalid)),
        None => Some((*index, IndexDefect::Missing)),
    };
    Ok(indexes.iter().filter_map(defect).collect())
}

/// The script for building the index by hand.
pub(super) fn script((index, defect): &(Index, IndexDefect)) -> Migration {
    let alone = "-- In no transaction.\n";
    let sql = match defect {
        IndexDefect::Missing => format!("{alone}{}", index.sql),
        IndexDefect::Invalid => format!(
            "{alone}-- It is there and not valid. Unless somebody is building it (pg_stat_progress_create_index):\n\
             {};\n{}",
            drop_statement(index),
            index.sql
        ),
    };
    Migration { name: index.file.to_owned(), sql }
}

fn drop_statement(index: &Index) -> String {
    format!("drop index concurrently if exists oncegate.{}", index.name)
}

/// Builds the indexes that do not exist or are not valid, or waits for another instance that is building them. Returns
/// the names of those built here.
pub(super) async fn build_missing(
    server: &PgServer,
    client: &Client,
    indexes: &[Index],
) -> Result<Vec<String>, OpenError> {
    if find_defects(client, indexes).await?.is_empty() {
        return Ok(Vec::new());
    }
    let missing = |source| OpenError::Missing(without_detail(source));
    let mut turn = connect::connect_once(server).await?;
    loop {
        let transaction = turn.transaction().await.map_err(missing)?;
        // The transaction will be idle for as long as the build takes.
        transaction.query_typed(REMOVE_TIMEOUTS, &[(/* is_local */ &true, Type::BOOL)]).await.map_err(missing)?;
        let answer = transaction.simple_query(TRY_BUILD_LOCK).await.map_err(missing)?;
        if answer.iter().any(|answer| matches!(answer, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))) {
            let built = build(client, indexes).await;
            // The transaction has written nothing: if it is gone, so is the lock.
            drop(transaction.rollback().await);
            return built;
        }
        transaction.rollback().await.map_err(missing)?;
        tracing::debug!("another instance is building indexes of the store");
        sleep(PAUSE).await;
        if find_defects(client, indexes).await?.is_empty() {
            return Ok(Vec::new());
        }
    }
}

/// Builds the missing indexes. The lock keeps other instances out; people, and servers that have not noticed that their
/// client is dead, may still be building.
async fn build(client: &Client, indexes: &[Index]) -> Result<Vec<String>, OpenError> {
    let missing = |source| OpenError::Missing(without_detail(source));
    let mut built = Vec::new();
    let mut conflicts = 0;
    // The transaction that was next when nobody was building any more.
    let mut next_without_build: Option<i64> = None;
    loop {
        // Asked before the defects: an index whose build ends in between is valid then, and must not be dropped.
        let row = client.query_typed_one(IS_INDEX_BEING_BUILT, &[]).await.map_err(missing)?;
        let is_being_built: bool = row.try_get("building").map_err(missing)?;
        let (oldest, next): (i64, i64) =
            (row.try_get("oldest").map_err(missing)?, row.try_get("next").map_err(missing)?);
        let Some((index, defect)) = find_defects(client, indexes).await?.first().copied() else { return Ok(built) };
        let failed = |source| OpenError::Index { name: index.file.to_owned(), source };
        // A build leaves the server's list before it commits that its index is valid. An invalid index is a leftover once all
        // transactions of that time have ended; a build of ours would wait for them too.
        let may_commit = defect == IndexDefect::Invalid && oldest < *next_without_build.get_or_insert(next);
        if is_being_built {
            next_without_build = None;
        }
        if is_being_built || may_commit {
            tracing::debug!("somebody is building an index of the store");
            sleep(PAUSE).await;
            continue;
        }
        if built.iter().any(|name| name == index.file) {
            return Err(failed(format!("something else is named oncegate.{}", index.name).into()));
        }
        tracing::info!(index = index.name, "building an index of the store, as soon as older transactions have ended");
        match rebuild(client, &index, defect).await {
            Ok(()) => {
                built.push(index.file.to_owned());
                next_without_build = None;
            }
            Err(error) if conflicts < CONFLICTS_MAX && is_conflict(&error) => {
                conflicts += 1;
                sleep(PAUSE).await;
            }
            Err(error) => return Err(failed(without_detail(error))),
        }
    }
}

async fn rebuild(client: &Client, index: &Index, defect: IndexDefect) -> Result<(), tokio_postgres::Error> {
    // The one place with a session setting: there is no transaction to set it for. A pooled session may keep it without
    // harm, since our own clock ends our statements.
    client.query_typed(REMOVE_TIMEOUTS, &[(/* is_local */ &false, Type::BOOL)]).await?;
    if defect == IndexDefect::Invalid {
        client.batch_execute(&drop_statement(index)).await?;
    }
    client.batch_execute(index.sql).await
}

/// Whether somebody else was building the same index, or was in the way: a retry will succeed.
fn is_conflict(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::T_R_DEADLOCK_DETECTED, SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION].contains(code)
    })
}
