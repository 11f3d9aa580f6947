//! The functions that PostgreSQL runs for a program: each program has those of its own version.

use oncegate_store::{self as store, OpenError, StoreSettings};
use tokio_postgres::Client;

use super::names;
use harness::postgres::{self, TestDatabase};
use harness::store_fixture::{StoreFixture, UNKNOWN, completion, new_reserve_request, settlement};

/// The names of the installed functions, without and with the hash of their text.
pub(super) async fn installed(client: &Client) -> Vec<(String, String)> {
    let sql = "select left(p.proname, -9)::text, p.proname::text from pg_catalog.pg_proc as p
                where p.pronamespace = 'oncegate'::regnamespace and p.proname ~ '_[0-9a-f]{8}$' order by p.proname";
    client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The name of a function as this program calls it.
pub(super) async fn installed_name(client: &Client, name: &str) -> String {
    let functions = installed(client).await;
    functions.into_iter().find(|(bare, _)| bare == name).unwrap_or_else(|| panic!("{name} is missing")).1
}

/// Renames a function, as if another version had installed it.
async fn age(database: &TestDatabase, name: &str) -> (String, String) {
    let client = database.client().await;
    let (current, old) = (installed_name(&client, name).await, format!("{name}_01234567"));
    client.batch_execute(&format!("alter function oncegate.{current} rename to {old}")).await.unwrap();
    (current, old)
}

/// The query for old functions, as the page shows it; it answers with their numbers.
fn documented_query() -> String {
    let page = include_str!("../../../migrations/README.md");
    let query = page.split("```sql\n").find(|block| block.starts_with("select old.oid::regprocedure")).unwrap();
    query.split(";\n").next().unwrap().replace("old.oid::regprocedure", "old.oid")
}

#[tokio::test]
async fn a_function_whose_text_has_changed_is_installed_beside_the_old_one_and_both_versions_serve() {
    let mut world = StoreFixture::postgres().await;
    world.close();
    let (current, old) = age(world.database(), "settle").await;
    world.reopen().await;
    let client = world.database().client().await;
    let settles: Vec<String> =
        installed(&client).await.into_iter().filter(|(bare, _)| bare == "settle").map(|(_, name)| name).collect();
    assert!(settles.len() == 2 && settles.contains(&current) && settles.contains(&old), "{settles:?}");
    let found = client.query(&documented_query(), &[]).await.unwrap();
    let found: Vec<u32> = found.iter().map(|row| row.get(0)).collect();
    let of_old = format!("select oid from pg_proc where proname = '{old}'");
    assert_eq!(found, [client.query_one(&of_old, &[]).await.unwrap().get::<_, u32>(0)]);

    let (by_this, by_old) = (new_reserve_request("this"), new_reserve_request("old"));
    for reserve_request in [&by_this, &by_old] {
        world.reserve(reserve_request).await;
    }
    world.settle(completion(&by_this, b"answer")).await;
    // As the program of the old version does it.
    let settle = format!(
        "select done from oncegate.{old}(_id => $1, _token => $2, _state => 'unknown', _ttl_ms => null, \
         _remember_ms => null, _status => null, _fields => null, _body => null, _cause => 'timeout', _due_ms => null)"
    );
    let (id, token) = (by_old.id.as_bytes().to_vec(), by_old.token.as_bytes().to_vec());
    assert!(client.query_one(&settle, &[&id, &token]).await.unwrap().get::<_, bool>(0));
    assert_eq!(world.find(&by_old).await.state.name(), "unknown");
    assert!(world.settle_late(settlement(&by_old, UNKNOWN)).await.is_some(), "it was settled by the old version");
    assert_eq!(world.find(&by_this).await.state.name(), "completed");
}

#[tokio::test]
async fn a_store_that_lacks_a_function_is_refused_with_migrations_disabled() {
    let mut world = StoreFixture::postgres().await;
    world.close();
    age(world.database(), "settle").await;
    let error = store::open(&StoreSettings { migrate: false, ..world.settings.clone() }).await.map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store's schema lacks functions; run `oncegate migrate`, or set store.migrate = true"
    );
    assert!(matches!(error, OpenError::SchemaOld { pending } if pending == ["functions"]));
    let pending = store::pending(&world.settings).await.unwrap();
    assert_eq!(names(pending.clone()), ["functions"]);
    // Only the one that is missing.
    assert_eq!(pending[0].sql.matches("create or replace function").count(), 1, "{}", pending[0].sql);
    assert_eq!(store::migrate(&world.settings).await.unwrap(), ["functions"]);
    store::open(&StoreSettings { migrate: false, ..world.settings.clone() }).await.map(drop).unwrap();
}

#[tokio::test]
async fn functions_that_fail_to_install_leave_nothing_behind() {
    let database = postgres::database().await;
    let client = database.client().await;
    let (settle, _) = age(&database, "settle").await;
    let (decide, _) = age(&database, "decide").await;
    let refuse = "create function public.refuse() returns event_trigger language plpgsql as
                  'declare command record; begin
                     for command in select * from pg_event_trigger_ddl_commands() loop
                       if command.object_identity like ''oncegate.settle%'' then raise exception ''refused''; end if;
                     end loop;
                   end';
                  create event trigger refuse on ddl_command_end execute function public.refuse()";
    client.batch_execute(refuse).await.unwrap();
    let settings = postgres::settings(&database.url);
    match store::migrate(&settings).await.unwrap_err() {
        OpenError::Migration { name, source } => {
            assert_eq!(name, "functions");
            assert!(source.to_string().contains("refused"), "{source}");
        }
        error => panic!("{error:?}"),
    }
    let names: Vec<String> = installed(&client).await.into_iter().map(|(_, name)| name).collect();
    assert!(!names.contains(&decide) && !names.contains(&settle), "{names:?}");
    client.batch_execute("drop event trigger refuse").await.unwrap();
    assert_eq!(store::migrate(&settings).await.unwrap(), ["functions"]);
}
