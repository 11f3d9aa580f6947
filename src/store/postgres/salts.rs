//! Salts in PostgreSQL.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::Postgres;
use super::client::Parameter;
use super::retry::{RetryBudget, retry_until_known};
use super::upkeep::{column, execute, query};
use crate::store::StoreFuture;
use crate::store::salts::SaltStore;

const FIND_SALT: &str = include_str!("sql/find_salt.sql");
const INSERT_SALT: &str = durable!("insert_salt");
const REPLACE_SALT: &str = durable!("replace_salt");

impl SaltStore for Postgres {
    fn find_salt(&self, service: Arc<str>) -> StoreFuture<'_, Option<Vec<u8>>> {
        let deadline = self.deadline();
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            let service = Arc::clone(&service);
            async move {
                let parameters: [Parameter<'_>; 1] = [(/* service */ &&*service, Type::TEXT)];
                // With the heartbeat, behind nothing else.
                let rows = query(&self.lease, deadline, FIND_SALT, &parameters).await?;
                Ok(rows.first().map(|row| row.try_get("value")).transpose().map_err(column)?)
            }
        }))
    }

    // A second try after one that may have been executed stores nothing: the caller then finds the salt of the first.
    fn replace_salt(&self, service: Arc<str>, from: Option<Vec<u8>>, to: Vec<u8>) -> StoreFuture<'_, bool> {
        let (call, deadline) = (Arc::new((service, from, to)), self.deadline());
        Box::pin(retry_until_known(deadline, RetryBudget::InDoubt, move |_| {
            let call = Arc::clone(&call);
            async move {
                let (service, from, to) = &*call;
                let rows = match from {
                    None => {
                        let parameters: [Parameter<'_>; 2] =
                            [(/* service */ &&**service, Type::TEXT), (/* value */ to, Type::BYTEA)];
                        execute(&self.upkeep, deadline, INSERT_SALT, &parameters).await?
                    }
                    Some(from) => {
                        let parameters: [Parameter<'_>; 3] = [
                            (/* service */ &&**service, Type::TEXT),
                            (/* from */ from, Type::BYTEA),
                            (/* to */ to, Type::BYTEA),
                        ];
                        execute(&self.upkeep, deadline, REPLACE_SALT, &parameters).await?
                    }
                };
                Ok(rows > 0)
            }
        }))
    }
}
