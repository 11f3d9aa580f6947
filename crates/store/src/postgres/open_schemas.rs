//! Schemas in which other roles may create what a statement could take for an operator or a function of the server.
//!
//! Functions have a fixed search path, and so have sessions that no pooler shares. In the others each name means
//! exactly one operator or function of `pg_catalog`, as long as that is first in the path; who owns the database may
//! change the path of its sessions.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::client::in_transaction;
use super::failure::open_error;
use crate::OpenError;

const DEFAULT_PATH: &str = include_str!("sql/default_path.sql");
const OPEN_SCHEMAS: &str = include_str!("sql/open_schemas.sql");

/// The path that the role has in this database, for one transaction.
const BEGIN_WITH_DEFAULT_PATH: &str = "begin; set local search_path to default";

/// Returns a sentence for each schema of the role's default search path, and for Oncegate's own, in which others may
/// create something.
pub(super) async fn find_warnings(client: &Client) -> Result<Vec<String>, OpenError> {
    let warnings = async {
        let path = in_transaction(client, BEGIN_WITH_DEFAULT_PATH, client.query_typed_one(DEFAULT_PATH, &[])).await?;
        let path: Vec<String> = path.try_get("path")?;
        let rows = client.query_typed(OPEN_SCHEMAS, &[(/* path */ &path, Type::TEXT_ARRAY)]).await?;
        let warning = |row: &Row| Ok(describe(row.try_get("schema")?, row.try_get("roles")?, row.try_get("role")?));
        rows.iter().map(warning).collect::<Result<Vec<String>, Error>>()
    };
    warnings.await.map_err(open_error)
}

fn describe(schema: &str, roles: &str, role: &str) -> String {
    let (place, mend) = match schema {
        "oncegate" => ("", String::new()),
        _ => (" of the search path", format!(", or run `alter role {role} set search_path = pg_catalog`")),
    };
    format!(
        "others ({roles}) may create functions and operators in the schema {schema}{place}, which the store's role could call \
         unawares; revoke that right{mend}"
    )
}
