//! The identity of a store, by which a reload tells another address of the same store from another store.

use tokio_postgres::Client;

use super::failure::without_detail;
use super::primaries::{PrimaryIdentity, ServerRole, ask_server};
use super::tls::BoxError;

const STORE_IDENTITY: &str = include_str!("sql/store_identity.sql");

/// The identity of a store. It survives a failover to a physical standby, and is another one in each copy by a dump.
#[derive(Clone, Debug)]
pub(super) struct StoreIdentity {
    /// The server that was asked; `None` where it does not say which one it is.
    server: Option<PrimaryIdentity>,
    /// The numbers of the database and of a table in it, and the time when the table was made.
    store: Vec<i64>,
}

impl StoreIdentity {
    /// Asks the server. `None` where its database has no schema of Oncegate's.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn read(client: &Client) -> Result<Option<Self>, BoxError> {
        let Some(row) = ask_server(client, STORE_IDENTITY).await? else { return Ok(None) };
        let server = match ServerRole::ask(client).await? {
            ServerRole::Primary(server) => Some(server),
            ServerRole::ReadOnly | ServerRole::Unidentified => None,
        };
        let numbers = ["database", "relation", "created_at_us"].map(|column| row.try_get::<_, Option<i64>>(column));
        let store: Option<Vec<i64>> = numbers.into_iter().collect::<Result<_, _>>().map_err(without_detail)?;
        Ok(store.map(|store| Self { server, store }))
    }

    pub fn is_same(&self, other: &Self) -> bool {
        let is_other_cluster = self.server.zip(other.server).is_some_and(|(one, other)| one.system != other.system);
        !is_other_cluster && self.store == other.store
    }

    /// Whether one server has said both, without a restart in between: it has all that was written.
    pub fn is_of_same_server(&self, other: &Self) -> bool {
        self.server.is_some() && self.server == other.server
    }
}
