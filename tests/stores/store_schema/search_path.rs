//! What other roles create in the schemas of a search path, and statements that could take it for the server's own.

use oncegate_store::{self as store, StoreSettings};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::distribution::configuration;
use super::statements::{parameter_type, sql_files, statement};
use harness::operator::oncegate;
use harness::postgres::{self, TestDatabase};
use harness::store_fixture::{completion, new_reserve_request, unwrap_lease};
use harness::{Proxy, Upstream, traps};

/// A migrated database, as a role sees it that owns the schema and nothing else, and the role's name.
async fn database_of_a_role() -> (TestDatabase, String) {
    let database = postgres::empty_database().await;
    let role = format!("oncegate_{}", database.name);
    let sql = format!("create role {role} login password 'x'; grant create on database {} to {role}", database.name);
    database.client().await.batch_execute(&sql).await.unwrap();
    let url = database.url.replace("postgres://postgres@", &format!("postgres://{role}:x@"));
    store::migrate(&postgres::settings(&format!("{url}?sslmode=disable"))).await.unwrap();
    (TestDatabase { url, name: database.name }, role)
}

/// The store's settings for that role.
fn settings(database: &TestDatabase) -> StoreSettings {
    postgres::settings(&format!("{}?sslmode=disable", database.url))
}

/// A connection of a superuser.
async fn superuser(database: &TestDatabase, role: &str) -> Client {
    let url = database.url.replace(&format!("{role}:x@"), "postgres@");
    TestDatabase { url, name: database.name.clone() }.client().await
}

#[tokio::test]
async fn no_statement_or_object_of_the_schema_uses_what_others_may_create_in_public() {
    let database = traps::database().await;
    let client = database.client().await;
    let version: i32 =
        client.query_one("select current_setting('server_version_num'::text)::int", &[]).await.unwrap().get(0);
    if version < 140_000 {
        return; // No function there says what it depends on.
    }
    client.batch_execute("drop schema if exists oncegate cascade").await.unwrap();
    store::migrate(&StoreSettings { events: true, ..postgres::settings(&database.url) }).await.unwrap();
    // Of what the test has planted, nothing else has such a number.
    let traps = "select c.relname::text, pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0)
                   from pg_catalog.pg_depend as d join pg_catalog.pg_class as c on c.oid = d.classid
                  where d.refobjid between '1000000'::oid and '9000000'::oid";
    let taken = async || -> Vec<String> {
        let rows = client.query(traps, &[]).await.unwrap();
        rows.iter().map(|row| format!("{} uses {}", row.get::<_, &str>(0), row.get::<_, &str>(1))).collect()
    };
    assert_eq!(taken().await, [] as [String; 0], "in the schema");
    for folder in ["sql", "postgres/sql"] {
        for (name, sql) in sql_files(folder) {
            if ["nodes", "nodes_not_durable"].contains(&&*name) {
                continue; // They name what only a cluster has.
            }
            let statement = statement(sql);
            let types: Vec<Type> = match statement.parameter_names() {
                [] => client.prepare(statement.for_postgres()).await.unwrap().params().to_vec(),
                names => names.iter().map(|name| parameter_type(name)).collect(),
            };
            let types = types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let function = format!(
                "create function pg_temp.statement({types}) returns void language sql begin atomic {}; end",
                statement.for_postgres()
            );
            client.batch_execute(&function).await.unwrap_or_else(|error| panic!("{name}: {error:?}\n{function}"));
            assert_eq!(taken().await, [] as [String; 0], "{name}");
            client.batch_execute("drop function pg_temp.statement").await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_operator_in_public_is_not_called_by_a_store_that_has_the_schema_in_its_path() {
    let (database, role) = database_of_a_role().await;
    let client = superuser(&database, &role).await;
    // In the path before the server's own as well, as the database's owner can set it.
    let plant = format!(
        "create sequence public.stolen; grant all on public.stolen to public;
         create function public.steal(double precision, integer) returns double precision language plpgsql as
         'begin perform nextval(''public.stolen''); return 0; end';
         create operator public.* (leftarg = double precision, rightarg = integer, function = public.steal);
         create function public.steal(bytea, bytea) returns boolean language plpgsql as
         'begin perform nextval(''public.stolen''); return true; end';
         create operator public.= (leftarg = bytea, rightarg = bytea, function = public.steal);
         alter database {} set search_path = public, pg_catalog",
        database.name
    );
    client.batch_execute(&plant).await.unwrap();
    let store = store::open(&settings(&database)).await.unwrap();
    let (settled, other) = (new_reserve_request("settled"), new_reserve_request("other"));
    for request in [&settled, &other] {
        unwrap_lease(store.reserve(request.clone()).await.unwrap());
    }
    store.settle(completion(&settled, b"paid")).await.unwrap();
    assert_eq!(store.find(settled.id).await.unwrap().unwrap().state.name(), "completed");
    assert_eq!(store.find(other.id).await.unwrap().unwrap().state.name(), "in_flight");
    let stolen = client.query_one("select is_called from public.stolen", &[]).await.unwrap();
    assert!(!stolen.get::<_, bool>(0), "the store has called somebody else's operator");
}

#[tokio::test]
async fn check_and_start_warn_where_others_may_create_something_in_a_schema_of_the_path() {
    let (database, role) = database_of_a_role().await;
    let client = superuser(&database, &role).await;
    let name = &*database.name;
    let shop = format!("shop_{name}");
    client
        .batch_execute(&format!(
            "create role {shop}; create schema extras authorization {shop}; grant usage on schema extras to {role}"
        ))
        .await
        .unwrap();
    let version = client.query_one("select current_setting('server_version_num')::int", &[]).await.unwrap();
    // Before PostgreSQL 15, a database's owner may create nothing in public.
    let of_owner = (version.get::<_, i32>(0) >= 150_000).then_some((&*shop, "public of the search path"));
    for (change, expected) in [
        (String::new(), None),
        ("grant create on schema public to public".into(), Some(("everybody", "public of the search path"))),
        (
            format!("revoke create on schema public from public; grant create on schema public to {shop}"),
            Some((&*shop, "public of the search path")),
        ),
        (format!("revoke create on schema public from {shop}; alter database {name} owner to {shop}"), of_owner),
        (
            format!("alter database {name} set search_path = extras, pg_catalog"),
            Some((&*shop, "extras of the search path")),
        ),
        (format!("alter role {role} set search_path = pg_catalog"), None),
        (format!("grant create on schema oncegate to {shop}"), Some((&*shop, "oncegate"))),
    ] {
        client.batch_execute(&change).await.unwrap();
        let warnings = store::warnings(&settings(&database)).await.unwrap();
        let expected = expected.map(|(who, schema)| {
            format!("others ({who}) may create functions and operators in the schema {schema}, which the store's role")
        });
        assert_eq!(warnings.len(), usize::from(expected.is_some()), "{change}: {warnings:?}");
        assert!(
            warnings.iter().zip(&expected).all(|(warning, begin)| warning.starts_with(begin)),
            "{change}: {warnings:?}"
        );
    }
    let expected = "may create functions and operators in the schema oncegate,";
    let upstream = Upstream::start().await;
    let url = format!("{}?sslmode=disable", database.url);
    let proxy = Proxy::on(&url).upstream(upstream.address).start().await;
    assert!(proxy.logged().iter().any(|line| line["message"].as_str().unwrap_or_default().contains(expected)));
    let home = tempfile::tempdir().unwrap();
    let checked = oncegate("check", &configuration(&home, &database, ""), &["--connect"]).await;
    assert!(checked.err.contains("warning: others (") && checked.err.contains(expected), "{checked:?}");
}
