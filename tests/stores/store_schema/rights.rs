//! A serving role with no more rights than it needs.

use oncegate_store::{self as store, OpenError, StoreSettings};

use super::functions;
use harness::postgres::{self, TestDatabase};
use harness::store_fixture::{new_reserve_request, unwrap_lease};

/// A role without rights in a migrated database, and the settings by which it serves.
async fn role_without_rights() -> (TestDatabase, String, StoreSettings) {
    let database = postgres::database().await;
    let role = format!("serving_{}", database.name);
    database.client().await.batch_execute(&format!("create role {role} login password 'x'")).await.unwrap();
    let url = format!("postgres://{role}:x@{}/{}", database.address(), database.name);
    (database, role, StoreSettings { migrate: false, ..postgres::settings(&url) })
}

/// The chain of an error's messages.
fn messages(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Carries out the grant that a message names.
async fn grant(database: &TestDatabase, role: &str, message: &str) -> String {
    let grant = message.split_once("`GRANT ").and_then(|(_, rest)| rest.split_once('`'));
    let grant = format!("GRANT {}", grant.unwrap_or_else(|| panic!("no grant in {message}")).0);
    database.client().await.batch_execute(&format!("{grant} TO {role}")).await.unwrap();
    grant
}

#[tokio::test]
async fn a_role_that_lacks_rights_is_told_the_grants_one_after_the_other_until_it_serves() {
    let (database, role, settings) = role_without_rights().await;
    let mut granted = Vec::new();
    let store = loop {
        match store::open(&settings).await {
            Ok(store) => break store,
            Err(error) => granted.push(grant(&database, &role, &messages(&error)).await),
        }
    };
    loop {
        match store.reserve(new_reserve_request("k")).await {
            Ok(_) => break,
            Err(error) => granted.push(grant(&database, &role, &messages(&error)).await),
        }
    }
    assert_eq!(
        granted,
        ["GRANT USAGE ON SCHEMA oncegate", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA oncegate"]
    );
}

#[tokio::test]
async fn a_role_that_cannot_migrate_is_told_the_grant_of_the_database() {
    let (database, _, settings) = role_without_rights().await;
    database.client().await.batch_execute("drop schema oncegate cascade").await.unwrap();
    let error = match store::open(&StoreSettings { migrate: true, ..settings }).await {
        Err(error @ OpenError::Migration { .. }) => messages(&error),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it has created the schema"),
    };
    assert!(error.contains("needs `GRANT CREATE ON DATABASE`"), "{error}");
}

#[tokio::test]
async fn a_role_that_cannot_install_the_functions_is_told_the_grant_of_the_schema() {
    let (database, role, settings) = role_without_rights().await;
    let client = database.client().await;
    let rights = format!(
        "grant usage on schema oncegate to {role};
         grant select, insert, update, delete on all tables in schema oncegate to {role}"
    );
    client.batch_execute(&rights).await.unwrap();
    for (_, name) in functions::installed(&client).await {
        client.batch_execute(&format!("alter function oncegate.{name} rename to old_{name}")).await.unwrap();
    }
    let settings = StoreSettings { migrate: true, ..settings };
    let error = match store::open(&settings).await {
        Err(error @ OpenError::Migration { .. }) => messages(&error),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it has created the functions"),
    };
    assert_eq!(grant(&database, &role, &error).await, "GRANT CREATE ON SCHEMA oncegate");
    let store = store::open(&settings).await.unwrap();
    unwrap_lease(store.reserve(new_reserve_request("k")).await.unwrap());
}
