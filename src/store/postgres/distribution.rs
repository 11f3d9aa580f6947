//! The distribution of the keys over the nodes of a Citus cluster.

use tokio_postgres::{Client, Row};

use super::failure::open_error;
use super::rows::one;
use crate::domain::response::CorruptRow;
use crate::store::migrate::Migration;
use crate::store::row::{FromStored, RowReader};
use crate::store::{OpenError, StoreSettings};

const HAS_CITUS: &str = include_str!("sql/has_citus.sql");
const HAS_KEYS: &str = include_str!("sql/has_keys.sql");
const NODES: &str = include_str!("sql/nodes.sql");
const NODES_NOT_DURABLE: &str = include_str!("sql/nodes_not_durable.sql");
pub(super) const DISTRIBUTE: &str = include_str!("../../../deploy/postgres/distribute.sql");

/// The name of the step that distributes the keys, among those of migrations.
pub(super) const NAME: &str = "distribution";

/// Where a store has its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// In one server.
    None,
    /// On this many nodes of a cluster.
    Nodes(u64),
}

/// Finds out where the keys are. The schema must be there.
pub(super) async fn find(client: &Client) -> Result<Distribution, OpenError> {
    if !has_citus(client).await? {
        return Ok(Distribution::None);
    }
    let count = async |sql| {
        let rows = client.query_typed(sql, &[]).await.map_err(open_error)?;
        read::<u64>(&rows, "nodes")
    };
    match count(NODES).await? {
        0 => Ok(Distribution::None),
        // A commit on another node cannot be made durable from here.
        _ if count(NODES_NOT_DURABLE).await? > 0 => Err(OpenError::Missing(
            "a node of the cluster has synchronous_commit = off, so its commits are not durable; it must be on".into(),
        )),
        nodes => Ok(Distribution::Nodes(nodes)),
    }
}

/// Refuses a database that cannot distribute the keys, where the settings want it.
///
/// # Errors
/// [`OpenError::Missing`]
pub(super) async fn require(client: &Client, settings: &StoreSettings) -> Result<(), OpenError> {
    if !settings.distribute || has_citus(client).await? {
        return Ok(());
    }
    Err(OpenError::Missing(
        "store.distribute = true, and the database lacks the extension citus; load it on each node by \
         shared_preload_libraries, and run `create extension citus` in the database there, or leave store.distribute out"
            .into(),
    ))
}

/// The step that is missing, where the settings want the keys distributed and they are not.
///
/// # Errors
/// [`OpenError::Missing`], where the store holds keys already.
pub(super) async fn find_missing(client: &Client, settings: &StoreSettings) -> Result<Option<Migration>, OpenError> {
    if !settings.distribute || find(client).await? != Distribution::None {
        return Ok(None);
    }
    if !client.query_typed(HAS_KEYS, &[]).await.map_err(open_error)?.is_empty() {
        return Err(OpenError::Missing(
            "store.distribute = true, and the store has keys already; stop all proxies and run \
             deploy/postgres/distribute.sql"
                .into(),
        ));
    }
    Ok(Some(migration()))
}

/// The step that distributes the keys.
pub(super) fn migration() -> Migration {
    Migration { name: NAME.to_owned(), sql: format!("begin;\n\n{DISTRIBUTE}\ncommit;\n") }
}

async fn has_citus(client: &Client) -> Result<bool, OpenError> {
    read(&client.query_typed(HAS_CITUS, &[]).await.map_err(open_error)?, "found")
}

fn read<T: FromStored>(rows: &[Row], column: &'static str) -> Result<T, OpenError> {
    let corrupt = |part| OpenError::Missing(Box::new(part));
    one(rows).map_err(|_| corrupt(CorruptRow(column)))?.read(column).map_err(corrupt)
}
