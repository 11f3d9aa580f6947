//! The counts of each week.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use oncegate_domain::ids::InstanceId;
use oncegate_store::{AddWeeklyCountsParams, AddedCount, ForgetCallerParams, TendWeeklyCountsParams};

use crate::store_fixture::StoreFixture;

const DAY_MS: u128 = 86_400_000;

fn count(route: &str, caller: &str, count: u64) -> AddedCount {
    AddedCount { service: "shop".into(), route: route.into(), caller: caller.into(), kind: "replay", count }
}

async fn add(world: &StoreFixture, instance: i64, batch: i64, counts: Vec<AddedCount>) {
    let instance = InstanceId::from_stored(instance);
    world.store().add_weekly_counts(AddWeeklyCountsParams { instance, batch, counts }).await.unwrap();
}

async fn tend(world: &StoreFixture, route: &str) {
    let params = TendWeeklyCountsParams { service: "shop".into(), route: route.into(), callers_max: 3 };
    world.store().tend_weekly_counts(params).await.unwrap();
}

/// The counts of this week's callers on the route `pay`.
async fn callers(world: &StoreFixture) -> Vec<(String, u64)> {
    let listed = world.store().list_callers_of_week("shop", None).await.unwrap();
    let of_pay = listed.into_iter().filter(|it| it.route == "pay").map(|it| (it.caller, it.count));
    let mut callers: Vec<_> = of_pay.collect();
    callers.sort();
    callers
}

pub async fn the_counts_of_all_instances_are_added_and_no_batch_twice(world: StoreFixture) {
    let many = (0..40).map(|number| count("pay", &format!("{number:016x}"), 1)).collect::<Vec<_>>();
    join_all((1..=8).map(|instance| add(&world, instance, 1, many.clone()))).await;
    // The answer of the first batch was lost.
    add(&world, 1, 1, many.clone()).await;
    add(&world, 1, 2, vec![count("pay", "none", 5), count("refund", "none", 7)]).await;
    let found = callers(&world).await;
    assert_eq!(found.len(), 41);
    assert!(found.iter().all(|(caller, count)| *count == if caller == "none" { 5 } else { 8 }), "{found:?}");
    let weeks = world.store().list_weeks("shop").await.unwrap();
    assert_eq!(weeks.iter().map(|it| (&*it.route, it.count)).collect::<Vec<_>>(), [("pay", 325), ("refund", 7)]);
    let monday = weeks[0].week.duration_since(UNIX_EPOCH).unwrap().as_millis();
    assert_eq!((monday % DAY_MS, (monday / DAY_MS + 3) % 7), (0, 0), "a Monday: 1 January 1970 was a Thursday");
    let ago = SystemTime::now().duration_since(weeks[0].week).unwrap();
    assert!(ago < Duration::from_secs(8 * 24 * 60 * 60), "{ago:?}");
    assert_eq!(world.store().list_callers_of_week("shop", Some(weeks[0].week)).await.unwrap().len(), 42);
    assert_eq!(world.store().list_weeks("book").await.unwrap(), []);
}

pub async fn callers_past_the_limit_are_counted_together_and_old_weeks_are_deleted(mut world: StoreFixture) {
    let mut counts = (1..=9).map(|number| count("pay", &format!("{number:016x}"), number)).collect::<Vec<_>>();
    counts.extend([count("pay", "none", 100), count("refund", "00000000000000aa", 1)]);
    add(&world, 1, 1, counts).await;
    let insert = "insert into weekly_counts (week, service, route, caller, kind, count)
                  select week - 32659200000, service, route, caller, kind, count from weekly_counts where route = 'refund'";
    world.execute_sql(insert).await.unwrap();
    assert_eq!(world.rows_of("weekly_counts").await, 12);
    tend(&world, "refund").await;
    assert_eq!(callers(&world).await.len(), 10, "another route's are left");
    for _ in 0..2 {
        tend(&world, "pay").await;
        let named = |caller: &str, count| (caller.to_owned(), count);
        let highest = [7_u64, 8, 9].map(|number| (format!("{number:016x}"), number));
        let expected = [&highest[..], &[named("none", 100), named("others", 1 + 2 + 3 + 4 + 5 + 6)]].concat();
        assert_eq!(callers(&world).await, expected);
    }
    assert_eq!(world.rows_of("weekly_counts").await, 6);
    // Who is one of the others may come to the front.
    add(&world, 1, 2, vec![count("pay", "0000000000000001", 50)]).await;
    tend(&world, "pay").await;
    let found = callers(&world).await;
    assert!(found.contains(&("0000000000000001".into(), 50)) && found.contains(&("others".into(), 28)), "{found:?}");
}

pub async fn the_callers_of_a_week_come_by_their_sums_each_with_all_its_kinds(world: StoreFixture) {
    let [busy, quiet] = ["00000000000000aa", "00000000000000bb"];
    let in_flight = AddedCount { kind: "in_flight", ..count("pay", busy, 1) };
    add(&world, 1, 1, vec![count("pay", quiet, 5), count("pay", busy, 9), in_flight]).await;
    let listed = world.store().list_callers_of_week("shop", None).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|it| (&*it.caller, &*it.kind, it.count)).collect();
    assert_eq!(listed, [(busy, "in_flight", 1), (busy, "replay", 9), (quiet, "replay", 5)]);
}

pub async fn the_counts_of_a_forgotten_caller_name_nobody(world: StoreFixture) {
    let [kept, forgotten] = ["00000000000000aa", "00000000000000bb"];
    add(&world, 1, 1, vec![count("pay", kept, 1), count("pay", forgotten, 2)]).await;
    for replacement in ["erased-1", "erased-2"] {
        let (service, caller) = ("shop".into(), forgotten.to_owned());
        let params = ForgetCallerParams { service, caller, replacement: replacement.into() };
        world.store().forget_caller(params).await.unwrap();
    }
    assert_eq!(callers(&world).await, [(kept.to_owned(), 1), ("erased-1".to_owned(), 2)]);
}
