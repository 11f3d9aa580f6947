//! Leases, and what keeps the table in order.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate::domain::attempt::{Ending, InstanceId};
use oncegate::domain::record::{Ask, Reservation};
use oncegate::domain::scope::Scope;
use oncegate::store::{Rule, Seen, Settled};

use crate::harness::world::{DAY, World, ask, completion, renewal, response, settlement, token, us};

pub async fn the_sweeper_takes_what_nobody_can_be_running(world: World) {
    let [alive, lapsed, missing] = [10, 11, 12].map(InstanceId::from_stored);
    world.store().renew(renewal(alive, DAY)).await.unwrap();
    world.store().renew(renewal(lapsed, DAY)).await.unwrap();
    world.store().renew(renewal(lapsed, Duration::ZERO)).await.unwrap();
    let asks = [alive, lapsed, missing].map(|instance| Ask { instance, ..ask(&instance.to_string()) });
    let settled = Ask { instance: missing, ..ask("settled") };
    join_all(asks.iter().chain([&settled]).map(|ask| world.reserve(ask))).await;
    world.settle(completion(&settled, b"")).await;

    let mut swept = world.store().sweep(DAY, 100).await.unwrap();
    swept.sort_by_key(|swept| swept.instance.get());
    let told: Vec<_> = swept.iter().map(|s| (s.id, &*s.route, s.attempt, s.instance)).collect();
    assert_eq!(told, [(asks[1].id, "pay", 1, lapsed), (asks[2].id, "pay", 1, missing)]);
    let states = join_all(asks.iter().map(|ask| world.find(ask))).await;
    assert_eq!(
        states.iter().map(|record| record.state.name()).collect::<Vec<_>>(),
        ["in_flight", "unknown", "unknown"]
    );
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
}

pub async fn the_sweeper_takes_what_is_past_its_deadline_whoever_runs_it(world: World) {
    world.store().renew(renewal(us(), DAY)).await.unwrap();
    let late = Ask { time_limit: Duration::ZERO, ..ask("late") };
    let running = ask("running");
    world.reserve(&late).await;
    world.reserve(&running).await;
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
    let swept = world.store().sweep(Duration::ZERO, 100).await.unwrap();
    assert_eq!(swept.iter().map(|swept| swept.id).collect::<Vec<_>>(), [late.id]);
}

pub async fn the_sweeper_stops_at_its_limit(world: World) {
    let asks: Vec<Ask> = (0..5).map(|i| ask(&format!("k-{i}"))).collect();
    join_all(asks.iter().map(|ask| world.reserve(ask))).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(world.store().sweep(DAY, 2).await.unwrap().len());
    }
    assert_eq!(counts, [2, 2, 1, 0]);
}

pub async fn a_lease_given_back_is_over_at_once(world: World) {
    world.store().renew(renewal(us(), DAY)).await.unwrap();
    world.reserve(&ask("k")).await;
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap(), []);
    world.store().retire(us()).await.unwrap();
    world.store().retire(us()).await.unwrap();
    assert_eq!(world.store().sweep(DAY, 100).await.unwrap().len(), 1);
}

pub async fn what_stands_under_an_instance_is_listed_once_it_is_old_enough(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    world.reserve(&Ask { instance: InstanceId::from_stored(2), ..crate::harness::world::ask("other") }).await;
    let standing = async |older_than| world.store().standing(us(), older_than).await.unwrap();
    assert_eq!(standing(DAY).await, []);
    assert_eq!(standing(Duration::ZERO).await, [(ask.id, ask.token)]);
    world.settle(settlement(&ask, Ending::Unknown)).await;
    assert_eq!(standing(Duration::ZERO).await, []);
}

pub async fn the_reaper_takes_the_oldest_of_what_is_past_its_ttl_and_nothing_else(world: World) {
    let over = |key: &str, ending: fn() -> Ending| (ask(key), Some(ending()));
    let zero = Duration::ZERO;
    let stays = [
        (ask("in-flight"), None),
        over("unknown", || Ending::Unknown),
        over("completed", || Ending::Completed { response: response(b""), ttl: DAY, remember: None }),
        over("retryable", || Ending::Retryable { ttl: DAY }),
    ];
    let goes = [
        (ask("first"), Some(Ending::Retryable { ttl: zero })),
        (ask("second"), Some(Ending::Completed { response: response(b""), ttl: zero, remember: None })),
        (ask("third"), Some(Ending::Retryable { ttl: zero })),
    ];
    for (ask, ending) in stays.iter().chain(&goes) {
        world.reserve(ask).await;
        if let Some(ending) = ending {
            world.settle(settlement(ask, ending.clone())).await;
            // The store's clock ticks in milliseconds, and the oldest is to be known.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    assert_eq!(world.store().reap(2).await.unwrap(), 2);
    assert!(world.store().find(goes[2].0.id).await.unwrap().is_some());
    assert_eq!(world.store().reap(2).await.unwrap(), 1);
    assert_eq!(world.store().reap(2).await.unwrap(), 0);
    for (ask, _) in &goes {
        assert!(world.store().find(ask.id).await.unwrap().is_none());
    }
    for (ask, _) in &stays {
        world.find(ask).await;
    }
}

pub async fn a_store_that_works_answers_a_ping(world: World) {
    world.store().ping().await.unwrap();
}

pub async fn the_salt_stays_what_it_was(mut world: World) {
    let scope = |world: &World| Scope::of(&world.store().salt(), [("authorization", None)]);
    let before = scope(&world);
    world.reopen().await;
    assert_eq!(scope(&world), before);
}

pub async fn a_remembered_key_outlives_its_response(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let ending = Ending::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember: Some(DAY) };
    world.settle(settlement(&ask, ending)).await;
    for state in ["completed", "expired", "expired"] {
        let record = world.find(&ask).await;
        assert_eq!((record.state.name(), record.late, record.past_ttl), (state, true, false));
        for past_ttl in [false, true] {
            let seen = Seen { past_ttl, ..Seen::from(&record) };
            let again = Ask { token: token(), ..ask.clone() };
            assert!(matches!(world.store().take_over(again, seen).await.unwrap(), Reservation::Taken(_)));
        }
        // Its own late settlement changes nothing either.
        let late = world.store().settle(completion(&ask, b"late")).await.unwrap();
        assert!(matches!(late, Settled::Fenced(Some(_))));
        world.store().reap(10).await.unwrap();
    }
}

pub async fn a_remembered_key_is_forgotten_in_the_end(world: World) {
    let ask = ask("k");
    world.reserve(&ask).await;
    let remember = Some(Duration::from_millis(1));
    world.settle(settlement(&ask, Ending::Completed { response: response(b""), ttl: Duration::ZERO, remember })).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let record = world.find(&ask).await;
    assert!(record.past_ttl);
    let again = Ask { token: token(), ..ask.clone() };
    let taken = world.store().take_over(again, Seen::from(&record)).await.unwrap();
    assert!(matches!(taken, Reservation::Fresh(lease) if lease.attempt == 1));
}

pub async fn what_found_keys_is_told_where_it_has_changed(mut world: World) {
    let rule = |route: &str, finds: &str| Rule { route: route.into(), finds: finds.to_owned() };
    let [pay, refund] = [rule("pay", "by path"), rule("refund", "by path")];
    let both = vec![pay.clone(), refund.clone()];
    let rules = async |world: &World, service: &str, rules: &[Rule]| {
        world.store().rules(service.into(), rules.to_vec()).await.unwrap()
    };
    assert_eq!(rules(&world, "shop", &both).await, [], "nothing was known of them");
    assert_eq!(rules(&world, "shop", &both).await, []);
    assert_eq!(rules(&world, "shop", &[]).await, []);
    world.reopen().await;
    let changed = [rule("pay", "by service"), refund.clone(), rule("new", "by path")];
    assert_eq!(rules(&world, "bar", &changed).await, [], "another service has its own");
    assert_eq!(rules(&world, "shop", &changed).await, [pay]);
    assert_eq!(rules(&world, "shop", &changed).await, [], "the change is told once");
    assert_eq!(rules(&world, "shop", &both).await, [rule("pay", "by service")]);
    assert_eq!(rules(&world, "shop", &[rule("refund", "by \u{e9} \"'\\")]).await, [refund]);
}
