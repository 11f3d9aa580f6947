//! The distribution of the keys over the nodes of a Citus cluster.

use tokio_postgres::Client;
use tokio_postgres::types::FromSql;

use super::failure::open_error;
use crate::migrate::Migration;
use crate::{OpenError, StoreSettings};

const HAS_CITUS: &str = include_str!("sql/has_citus.sql");
const HAS_KEYS: &str = include_str!("sql/has_keys.sql");
const NODES: &str = include_str!("sql/nodes.sql");
const NODES_NOT_DURABLE: &str = include_str!("sql/nodes_not_durable.sql");
const DISTRIBUTE: &str = include_str!("../../../../deploy/postgres/distribute.sql");

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
    if !read::<bool>(client, HAS_CITUS).await? {
        return Ok(Distribution::None);
    }
    match read::<i64>(client, NODES).await? {
        0 => Ok(Distribution::None),
        // A commit on another node cannot be made durable from here.
        _ if read::<i64>(client, NODES_NOT_DURABLE).await? > 0 => Err(OpenError::Missing(
            "a node of the cluster has synchronous_commit = off, so its commits are not durable; it must be on".into(),
        )),
        nodes => Ok(Distribution::Nodes(nodes.cast_unsigned())),
    }
}

/// The step that distributes the keys, where the settings want that and they are not.
///
/// # Errors
/// [`OpenError::Missing`], where the database cannot distribute them, or the store holds keys already.
pub(super) async fn missing(
    client: &Client,
    settings: &StoreSettings,
    has_schema: bool,
) -> Result<Option<Migration>, OpenError> {
    if !settings.distribute {
        return Ok(None);
    }
    if !read::<bool>(client, HAS_CITUS).await? {
        return Err(OpenError::Missing(
            "store.distribute = true, and the database lacks the extension citus; load it on each node by \
             shared_preload_libraries, and run `create extension citus` in the database there, or leave store.distribute out"
                .into(),
        ));
    }
    if has_schema {
        if find(client).await? != Distribution::None {
            return Ok(None);
        }
        if !client.query_typed(HAS_KEYS, &[]).await.map_err(open_error)?.is_empty() {
            return Err(OpenError::Missing(
                "store.distribute = true, and the store has keys already; stop all proxies and run \
                 deploy/postgres/distribute.sql"
                    .into(),
            ));
        }
    }
    Ok(Some(Migration { name: NAME.to_owned(), sql: format!("begin;\n\n{DISTRIBUTE}\ncommit;\n") }))
}

async fn read<T: for<'a> FromSql<'a>>(client: &Client, sql: &str) -> Result<T, OpenError> {
    client.query_typed_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(open_error)
}
