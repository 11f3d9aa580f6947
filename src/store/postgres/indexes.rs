//! Indexes on tables that are in use. They are built `concurrently`, which takes its time and holds up nobody.
//!
//! Such a build runs in no transaction, so it can be cut off half way: what it leaves is there and not valid. And it waits
//! for every transaction that was open before it, so nobody may wait for it inside of a statement: the two would wait for
//! each other, and where the server cannot see that, for ever. Hence whoever is not first asks again and again.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connect::{self, Server};
use super::failure::without_detail;
use crate::store::OpenError;
use crate::store::migrate::{Index, Migration};

const INDEXES: &str = include_str!("sql/indexes.sql");
const BUILDING: &str = include_str!("sql/building.sql");
const PATIENCE: &str = include_str!("sql/patience.sql");

/// Lets one builder at a time through, and never waits. It is held by a transaction on another connection, because
/// pooled sessions cannot hold it; an idle transaction has no snapshot, so the build does not wait for it. It must be asked
/// as a simple query: the portal of any other stays open, and its snapshot with it. The number is drawn once and means
/// nothing.
const MAY_BUILD: &str = "select pg_try_advisory_xact_lock(2846193057718264409)";

/// How long between two looks at what another is building.
const PAUSE: Duration = Duration::from_millis(50);

/// How often a build may fall victim to somebody else's, who goes without our lock.
const CONFLICTS_MAX: u32 = 5;

/// What is wrong with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// It is not there.
    Missing,
    /// It is there and cannot be used: its build was cut off, or is under way.
    Invalid,
}

/// Those that are not there or not valid. One look into the catalogue.
pub(super) async fn lacking(client: &Client, indexes: &[Index]) -> Result<Vec<(Index, Lack)>, OpenError> {
    if indexes.is_empty() {
        return Ok(Vec::new());
    }
    let missing = |source| OpenError::Missing(without_detail(source));
    let names: Vec<&str> = indexes.iter().map(|index| index.name).collect();
    let rows = client.query_typed(INDEXES, &[(/* names */ &names, Type::TEXT_ARRAY)]).await.map_err(missing)?;
    let row = |row: &tokio_postgres::Row| Ok((row.try_get(0)?, row.try_get(1)?));
    let there: Vec<(String, bool)> = rows.iter().map(row).collect::<Result<_, _>>().map_err(missing)?;
    let lack = |index: &Index| match there.iter().find(|(name, _)| name == index.name) {
        Some((_, true)) => None,
        Some((_, false)) => Some((*index, Lack::Invalid)),
        None => Some((*index, Lack::Missing)),
    };
    Ok(indexes.iter().filter_map(lack).collect())
}

/// The index for whoever builds it by hand.
pub(super) fn script((index, lack): &(Index, Lack)) -> Migration {
    let alone = "-- In no transaction.\n";
    let sql = match lack {
        Lack::Missing => format!("{alone}{}", index.sql),
        Lack::Invalid => format!(
            "{alone}-- It is there and not valid. Unless somebody is building it (pg_stat_progress_create_index):\n\
             {};\n{}",
            remove(index),
            index.sql
        ),
    };
    Migration { name: index.file.to_owned(), sql }
}

fn remove(index: &Index) -> String {
    format!("drop index concurrently if exists oncegate.{}", index.name)
}

/// Builds those that are not there or not valid, or waits for whoever is building them. Returns the names of those built
/// here.
pub(super) async fn complete(server: &Server, client: &Client, indexes: &[Index]) -> Result<Vec<String>, OpenError> {
    if lacking(client, indexes).await?.is_empty() {
        return Ok(Vec::new());
    }
    let missing = |source| OpenError::Missing(without_detail(source));
    let mut turn = connect::alone(server).await?;
    loop {
        let transaction = turn.transaction().await.map_err(missing)?;
        // It will be idle for as long as the build takes.
        transaction.query_typed(PATIENCE, &[(/* is_local */ &true, Type::BOOL)]).await.map_err(missing)?;
        let answer = transaction.simple_query(MAY_BUILD).await.map_err(missing)?;
        if answer.iter().any(|answer| matches!(answer, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))) {
            let built = build(client, indexes).await;
            // It has written nothing: if it is gone, so is the lock.
            drop(transaction.rollback().await);
            return built;
        }
        transaction.rollback().await.map_err(missing)?;
        tracing::debug!("another instance is building indexes of the store");
        sleep(PAUSE).await;
        if lacking(client, indexes).await?.is_empty() {
            return Ok(Vec::new());
        }
    }
}

/// Builds what is missing. The lock says that no other instance is at it; people, and servers that have not noticed that
/// their client is dead, may still be.
async fn build(client: &Client, indexes: &[Index]) -> Result<Vec<String>, OpenError> {
    let missing = |source| OpenError::Missing(without_detail(source));
    let mut built = Vec::new();
    let mut conflicts = 0;
    while let Some((index, lack)) = lacking(client, indexes).await?.first().copied() {
        let failed = |source| OpenError::Index { name: index.file.to_owned(), source };
        if client.query_typed_one(BUILDING, &[]).await.map_err(missing)?.try_get(0).map_err(missing)? {
            tracing::debug!("somebody is building an index of the store");
            sleep(PAUSE).await;
            continue;
        }
        if built.iter().any(|name| name == index.file) {
            return Err(failed(format!("something else is named oncegate.{}", index.name).into()));
        }
        tracing::info!(index = index.name, "building an index of the store, as soon as older transactions have ended");
        match rebuild(client, &index, lack).await {
            Ok(()) => built.push(index.file.to_owned()),
            Err(error) if conflicts < CONFLICTS_MAX && is_conflict(&error) => {
                conflicts += 1;
                sleep(PAUSE).await;
            }
            Err(error) => return Err(failed(without_detail(error))),
        }
    }
    Ok(built)
}

async fn rebuild(client: &Client, index: &Index, lack: Lack) -> Result<(), tokio_postgres::Error> {
    // The one place where a session is told anything: there is no transaction to tell. What a pooled session may keep of
    // it does no harm, since our own clock ends our statements.
    client.query_typed(PATIENCE, &[(/* is_local */ &false, Type::BOOL)]).await?;
    if lack == Lack::Invalid {
        client.batch_execute(&remove(index)).await?;
    }
    client.batch_execute(index.sql).await
}

/// Whether somebody else was building the same, or was in the way: the same again will do.
fn is_conflict(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::T_R_DEADLOCK_DETECTED, SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION].contains(code)
    })
}
