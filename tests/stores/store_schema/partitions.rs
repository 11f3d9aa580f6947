//! A table of keys in hash partitions, as an operator makes them with the script in `deploy`.

use harness::{Store, TEST_TIMEOUT, World, eventually, operator::Operator};

const SCRIPT: &str = include_str!("../../../deploy/postgres/partition.sql");

#[tokio::test]
async fn a_hash_partitioned_table_works_as_an_unpartitioned_one() {
    let mut world = World::with(Store::postgres().await, |setup| setup.short_leases()).await;
    let first = world.pay("before").send().await;
    world.upstream.then(harness::Answer::close());
    world.pay("lost").send().await;
    assert_eq!(world.proxy.stop().await, Some(0));

    let Store::Postgres(database) = &world.store else { unreachable!("it is one") };
    let client = database.client().await;
    client.batch_execute(&SCRIPT.replace(":'partitions'", "'4'")).await.unwrap();
    let indexes = "select count(*) from pg_indexes where schemaname = 'oncegate' and tablename = 'keys'";
    let whole = client.query_one(indexes, &[]).await.unwrap().get::<_, i64>(0);
    assert!(whole >= 5, "the indexes are those of before: {whole}");

    world.proxy = world.setup.start().await;
    assert_eq!(world.pay("before").send().await.comparable(), first.replayed());
    assert_eq!(world.pay("lost").send().await.outcome(), (409, "outcome-unknown".to_owned()));
    for number in 0..40 {
        let key = format!("after-{number}");
        let made = world.pay(&key).send().await;
        assert_eq!(made.oncegate_status(), Some("executed"));
        assert_eq!(world.pay(&key).send().await.comparable(), made.replayed());
    }
    assert_eq!(world.upstream.calls(), 42);
    let used = "select count(distinct tableoid) from oncegate.keys";
    assert_eq!(client.query_one(used, &[]).await.unwrap().get::<_, i64>(0), 4, "each partition has keys");

    // Operators can list and decide; the sweeper finds the attempts of a dead proxy.
    let operator = Operator::of(&world.proxy);
    let id = operator.id("lost").await;
    assert_eq!(operator.delete(&format!("/api/v1/keys/{id}")).await.0, 409);
    world.upstream.then(harness::Answer::never());
    let cut = world.pay("cut").spawn();
    world.upstream.wait_for_executed(43).await;
    world.crash_and_restart().await;
    cut.await.unwrap().expect_err("its proxy has died");
    let swept = async || {
        let (status, slug) = world.pay("cut").send().await.outcome();
        assert_eq!(status, 409);
        (slug == "outcome-unknown").then_some(())
    };
    eventually(TEST_TIMEOUT, swept).await;
}
