//! Reservations that committed after their requests had given up.

use crate::harness::{Store, TEST_TIMEOUT, World, eventually};

#[tokio::test]
async fn thousands_of_orphans_are_settled_in_batches_beside_a_locked_one() {
    let store = Store::postgres().await;
    let Store::Postgres(database) = &store else { unreachable!("it is PostgreSQL") };
    let (client, holder) = (database.client().await, database.client().await);
    let _world = World::with(store, |setup| setup.store("timeout = \"1s\"").store("sweep_every = \"200ms\"")).await;
    // Their age counts from later on, so that one of them can be locked before the instance lists them.
    let orphans = "
      insert into oncegate.keys (id, service, scope, space, key, route, recipe, fingerprint, token, instance, attempt,
                                 state, created_at, reserved_at, deadline)
      select sha256(n::text::bytea), 'shop', sha256('s'), 'p', n::text::bytea, 'pay', '1', sha256('f'),
             substr(sha256(n::text::bytea), 1, 16), i.id, 1, 'in_flight', now(), now() + interval '1 s',
             now() + interval '1 hour'
        from generate_series(1, 3000) as n, oncegate.instances as i";
    client.batch_execute(orphans).await.unwrap();
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
