//! Reservations that committed after their requests had given up.

use harness::database_link::DatabaseLink;
use harness::postgres::NOW_MS;
use harness::{Answer, Hold, Proxy, Setup, Store, TEST_TIMEOUT, World, eventually};

#[tokio::test]
async fn an_attempt_that_begins_while_its_instance_looks_for_orphans_keeps_its_key() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let link = DatabaseLink::to(database).await;
    let mut world = World::start(store).await;
    let other = world.setup.start().await;
    link.hold_statements("list_in_flight");
    // A statement that waits for less than the store's timeout is executed.
    let patient = |setup: Setup| setup.store("timeout = \"10s\"").store("sweep_every = \"100ms\"");
    world.restart_as(|setup| patient(setup).through(&link.url)).await;
    // The instance has looked at what runs: nothing. It has not yet asked the store what is reserved.
    link.statement_held().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let pay = |proxy: &Proxy| proxy.post("/pay").key("k-1").body("10 EUR");
    let first = pay(&world.proxy).spawn();
    world.upstream.wait_for_executed(1).await;
    // The next pass but one begins: those two are over.
    for _ in 0..2 {
        link.hold_statements("list_in_flight");
        link.statement_held().await;
    }
    link.release_statements();
    assert_eq!(pay(&other).send().await.outcome(), (409, "in-flight".to_owned()));
    hold.release();
    assert_eq!(first.await.unwrap().unwrap().oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.calls(), 1);
}

#[tokio::test]
async fn thousands_of_orphans_are_settled_in_batches_beside_a_locked_one() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let (client, holder) = (database.client().await, database.client().await);
    let _world = World::with(store, |setup| setup.store("timeout = \"1s\"").store("sweep_every = \"200ms\"")).await;
    // Their age counts from later on, so that one of them can be locked before the instance lists them.
    let orphans = format!(
        "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), i.id, 1, 'in_flight', {NOW_MS}, {NOW_MS} + 1000, {NOW_MS} + 3600000
        from generate_series(1, 3000) as n, oncegate.instances as i"
    );
    client.batch_execute(&orphans).await.unwrap();
    holder.batch_execute("begin; select from oncegate.keys where key = '1500' for update").await.unwrap();
    let released = async || {
        let sql = "select count(*), count(distinct xmin::text) from oncegate.keys where state = 'retryable'";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let commits = eventually(TEST_TIMEOUT, async || match released().await {
        (2999, commits) => Some(commits),
        _ => None,
    });
    let commits = commits.await;
    assert!(commits <= 100, "{commits} commits");
    holder.batch_execute("rollback").await.unwrap();
    eventually(TEST_TIMEOUT, async || (released().await.0 == 3000).then_some(())).await;
}
