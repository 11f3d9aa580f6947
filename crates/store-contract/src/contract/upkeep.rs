//! Leases, sweeping and reaping.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult};
use oncegate_domain::ids::InstanceId;
use oncegate_store::{ExpectedRecord, LeaseRenewal, ReapScope, ReapedRows, RenewResult, RouteIdentities, SettleResult};
use oncegate_store::{
    ExtendDeadlineParams, ReapParams, RememberRouteIdentitiesParams, ReplaceSaltParams, ReservedAttempt, SweepParams,
};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, all_records, any_time, completion, new_reserve_request, own_instance, renewal,
    response, salt, settlement, token,
};

pub async fn the_sweeper_marks_attempts_without_a_live_instance_unknown(world: StoreFixture) {
    let [alive, lapsed, missing] = [10, 11, 12].map(InstanceId::from_stored);
    world.store().renew_lease(renewal(alive, DAY)).await.unwrap();
    world.store().renew_lease(renewal(lapsed, DAY)).await.unwrap();
    world.store().renew_lease(renewal(lapsed, Duration::ZERO)).await.unwrap();
    let reserve_requests = [alive, lapsed, missing]
        .map(|instance| ReserveRequest { instance, ..new_reserve_request(&instance.to_string()) });
    let settled = ReserveRequest { instance: missing, ..new_reserve_request("settled") };
    join_all(reserve_requests.iter().chain([&settled]).map(|reserve_request| world.reserve(reserve_request))).await;
    world.settle(completion(&settled, b"")).await;

    let mut swept = world.sweep(100).await;
    swept.sort_by_key(|swept| swept.instance.get());
    let reported: Vec<_> = swept.iter().map(|s| (s.id, &*s.route, s.attempt, s.instance)).collect();
    assert_eq!(reported, [(reserve_requests[1].id, "pay", 1, lapsed), (reserve_requests[2].id, "pay", 1, missing)]);
    let states = join_all(reserve_requests.iter().map(|reserve_request| world.find(reserve_request))).await;
    assert_eq!(
        states.iter().map(|record| record.state.name()).collect::<Vec<_>>(),
        ["in_flight", "unknown", "unknown"]
    );
    assert_eq!(world.sweep(100).await, []);
}

pub async fn the_sweeper_marks_attempts_past_their_deadline_unknown(world: StoreFixture) {
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    let late = ReserveRequest { time_limit: Duration::ZERO, ..new_reserve_request("late") };
    let running = new_reserve_request("running");
    world.reserve(&late).await;
    world.reserve(&running).await;
    assert_eq!(world.sweep(100).await, []);
    let swept =
        world.store().sweep(SweepParams { expiry: Duration::ZERO, limit: 100, as_of: any_time() }).await.unwrap();
    assert_eq!(swept.iter().map(|swept| swept.id).collect::<Vec<_>>(), [late.id]);
}

pub async fn the_deadline_of_an_attempt_in_flight_moves_and_never_comes_earlier(world: StoreFixture) {
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    let late = ReserveRequest { time_limit: Duration::ZERO, ..new_reserve_request("late") };
    world.reserve(&late).await;
    let extend = async |token, time_limit| {
        world.store().extend_deadline(ExtendDeadlineParams { id: late.id, token, time_limit }).await.unwrap()
    };
    assert!(!extend(token(), DAY).await, "another attempt's token");
    assert!(extend(late.token, DAY).await);
    assert!(extend(late.token, Duration::ZERO).await);
    assert!(world.find(&late).await.deadline_in_ms > 86_000_000);
    assert_eq!(
        world.store().sweep(SweepParams { expiry: Duration::ZERO, limit: 100, as_of: any_time() }).await.unwrap(),
        []
    );
    world.settle(settlement(&late, UNKNOWN)).await;
    assert!(!extend(late.token, DAY).await, "it has ended");
}

impl StoreFixture {
    /// The estimate of a caller whose own clock has not seen the last hour pass.
    pub async fn an_hour_ago(&self) -> SystemTime {
        let renewal = renewal(InstanceId::from_stored(99), Duration::ZERO);
        self.store().renew_lease(renewal).await.unwrap().now - HOUR
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);

pub async fn a_clock_ahead_of_the_caller_ends_no_lease_and_no_deadline(world: StoreFixture) {
    let lapsed = InstanceId::from_stored(11);
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    world.store().renew_lease(renewal(lapsed, Duration::ZERO)).await.unwrap();
    let late = ReserveRequest { time_limit: Duration::ZERO, ..new_reserve_request("late") };
    let without_lease = ReserveRequest { instance: lapsed, ..new_reserve_request("without-lease") };
    join_all([&late, &without_lease].map(|reserve_request| world.reserve(reserve_request))).await;
    // To this caller, its own lease was renewed an hour ahead: the clock was set forward, and not back.
    assert_eq!(
        world
            .store()
            .sweep(SweepParams { expiry: Duration::ZERO, limit: 100, as_of: world.an_hour_ago().await })
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        world.store().sweep(SweepParams { expiry: Duration::ZERO, limit: 100, as_of: any_time() }).await.unwrap().len(),
        2
    );
}

pub async fn the_sweeper_stops_at_its_limit(world: StoreFixture) {
    let reserve_requests: Vec<ReserveRequest> = (0..5).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(reserve_requests.iter().map(|reserve_request| world.reserve(reserve_request))).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(world.sweep(2).await.len());
    }
    assert_eq!(counts, [2, 2, 1, 0]);
}

pub async fn a_released_lease_expires_at_once(world: StoreFixture) {
    world.store().renew_lease(renewal(own_instance(), DAY)).await.unwrap();
    world.reserve(&new_reserve_request("k")).await;
    assert_eq!(world.sweep(100).await, []);
    world.store().release_lease(own_instance()).await.unwrap();
    world.store().release_lease(own_instance()).await.unwrap();
    assert_eq!(world.sweep(100).await.len(), 1);
}

pub async fn an_instances_attempts_are_listed_past_a_minimum_age(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.reserve(&ReserveRequest { instance: InstanceId::from_stored(2), ..new_reserve_request("other") }).await;
    let in_flight = async |older_than| world.list_in_flight(older_than).await;
    assert_eq!(in_flight(DAY).await, []);
    let listed = ReservedAttempt {
        id: reserve_request.id,
        token: reserve_request.token,
        route: reserve_request.route.to_string(),
    };
    assert_eq!(in_flight(Duration::ZERO).await, [listed]);
    world.settle(settlement(&reserve_request, UNKNOWN)).await;
    assert_eq!(in_flight(Duration::ZERO).await, []);
}

pub async fn the_reaper_deletes_the_oldest_expired_rows_and_nothing_else(world: StoreFixture) {
    let over = |key: &str, outcome: fn() -> AttemptOutcome| (new_reserve_request(key), Some(outcome()));
    let short = Duration::from_millis(1);
    let stays = [
        (new_reserve_request("in-flight"), None),
        over("unknown", || UNKNOWN),
        over("completed", || AttemptOutcome::Completed { response: response(b""), ttl: DAY, remember: None }),
        over("retryable", || AttemptOutcome::Retryable { ttl: DAY }),
    ];
    let goes = [
        (new_reserve_request("first"), Some(AttemptOutcome::Retryable { ttl: short })),
        (
            new_reserve_request("second"),
            Some(AttemptOutcome::Completed { response: response(b""), ttl: short, remember: None }),
        ),
        (new_reserve_request("third"), Some(AttemptOutcome::Retryable { ttl: short })),
    ];
    for (reserve_request, outcome) in stays.iter().chain(&goes) {
        world.reserve(reserve_request).await;
        if let Some(outcome) = outcome {
            world.settle(settlement(reserve_request, outcome.clone())).await;
            // The store's clock has milliseconds, and the order must be unambiguous.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(world.reap(2).await.deleted, 2);
    assert!(world.store().find(goes[2].0.id).await.unwrap().is_some());
    assert_eq!(world.reap(2).await.deleted, 1);
    assert_eq!(world.reap(2).await.deleted, 0);
    for (reserve_request, _) in &goes {
        assert!(world.store().find(reserve_request.id).await.unwrap().is_none());
    }
    for (reserve_request, _) in &stays {
        world.find(reserve_request).await;
    }
}

pub async fn a_backlog_of_forgotten_and_remembered_keys_is_reaped_in_one_pass(mut world: StoreFixture) {
    const LIMIT: u32 = 10;
    // Most keys of a batch are of a route that refuses late retries, and some are not.
    let reserve_requests: Vec<_> = (0..100).map(|i| new_reserve_request(&format!("k-{i}"))).collect();
    join_all(reserve_requests.iter().enumerate().map(async |(i, reserve_request)| {
        world.reserve(reserve_request).await;
        let remember = (i % 10 > 0).then_some(DAY);
        let outcome = AttemptOutcome::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember };
        world.settle(settlement(reserve_request, outcome)).await;
    }))
    .await;
    // As the reaper does it.
    let mut total = ReapedRows::default();
    loop {
        let reaped = world.reap(LIMIT).await;
        total.deleted += reaped.deleted;
        total.responses_dropped += reaped.responses_dropped;
        if !reaped.is_full_batch(LIMIT) {
            break;
        }
    }
    assert_eq!(total, ReapedRows { deleted: 10, responses_dropped: 90 });
    assert_eq!(world.rows_of("keys").await, 90);
    for reserve_request in &reserve_requests {
        let found = world.store().find(reserve_request.id).await.unwrap();
        assert!(found.is_none_or(|record| record.state.name() == "expired"));
    }
}

pub async fn a_working_store_answers_a_ping(world: StoreFixture) {
    world.store().ping().await.unwrap();
}

pub async fn a_salt_is_replaced_only_where_it_is_the_expected_one(world: StoreFixture) {
    let store = world.store();
    let replace = async |from: Option<&[u8]>, to: &[u8]| {
        store
            .replace_salt(ReplaceSaltParams { service: "bakery".into(), from: from.map(Into::into), to: to.into() })
            .await
            .unwrap()
    };
    assert!(replace(None, b"one").await);
    assert!(!replace(None, b"two").await);
    assert!(!replace(Some(b"two"), b"three").await);
    assert!(replace(Some(b"one"), b"three").await);
    assert_eq!(store.find_salt("bakery".into()).await.unwrap().as_deref(), Some(&b"three"[..]));
    assert!(!replace(Some(b"one"), b"two").await);
    assert_eq!(store.find_salt("forge".into()).await.unwrap(), None);
}

pub async fn the_salt_does_not_change(mut world: StoreFixture) {
    let before = salt(world.store().as_ref()).await;
    world.reopen().await;
    assert_eq!(salt(world.store().as_ref()).await, before);
}

/// Settles a key whose TTL ends at once, and returns the time.
async fn settle_briefly(world: &StoreFixture, key: &str, outcome: AttemptOutcome) -> SystemTime {
    let reserve_request = new_reserve_request(key);
    world.reserve(&reserve_request).await;
    world.settle(settlement(&reserve_request, outcome)).await;
    // The store's clock has milliseconds, and the order must be unambiguous.
    tokio::time::sleep(Duration::from_millis(2)).await;
    world.an_hour_ago().await + HOUR
}

fn brief_outcomes() -> [(&'static str, AttemptOutcome); 3] {
    let completed = |remember| AttemptOutcome::Completed { response: response(b""), ttl: Duration::ZERO, remember };
    let retryable = AttemptOutcome::Retryable { ttl: Duration::from_millis(1) };
    [("completed", completed(None)), ("remembered", completed(Some(DAY))), ("retryable", retryable)]
}

pub async fn a_clock_ahead_of_the_caller_ends_no_ttl(world: StoreFixture) {
    for (key, outcome) in brief_outcomes() {
        settle_briefly(&world, key, outcome).await;
    }
    let behind = ReapScope { as_of: world.an_hour_ago().await, ..all_records() };
    assert_eq!(world.store().reap(ReapParams { limit: 10, scope: behind }).await.unwrap(), ReapedRows::default());
    let reaped = world.reap(10).await;
    assert_eq!(reaped, ReapedRows { deleted: 2, responses_dropped: 1 });
}

pub async fn the_reaper_leaves_records_that_were_settled_before_the_watch(world: StoreFixture) {
    for (key, outcome) in brief_outcomes() {
        settle_briefly(&world, &format!("{key}-before"), outcome).await;
    }
    let settled_since = world.an_hour_ago().await + HOUR;
    for (key, outcome) in brief_outcomes() {
        settle_briefly(&world, &format!("{key}-since"), outcome).await;
    }
    let scope = ReapScope { settled_since, ..all_records() };
    assert_eq!(
        world.store().reap(ReapParams { limit: 10, scope }).await.unwrap(),
        ReapedRows { deleted: 2, responses_dropped: 1 }
    );
    assert_eq!(world.store().reap(ReapParams { limit: 10, scope }).await.unwrap(), ReapedRows::default());
    let reaped = world.reap(10).await;
    assert_eq!(reaped, ReapedRows { deleted: 2, responses_dropped: 1 });
}

pub async fn the_latest_hold_of_ttls_is_known_to_every_instance(mut world: StoreFixture) {
    let renew = async |world: &StoreFixture, id, hold_ttls_until| {
        let renewal = LeaseRenewal { hold_ttls_until, ..renewal(InstanceId::from_stored(id), DAY) };
        world.store().renew_lease(renewal).await.unwrap()
    };
    let held_until = |renewed: RenewResult| renewed.ttls_held_until;
    let first = renew(&world, 1, None).await;
    assert_eq!(held_until(first), SystemTime::UNIX_EPOCH);
    let (soon, late) = (first.now + HOUR, first.now + DAY);
    assert_eq!(held_until(renew(&world, 1, Some(late)).await), late);
    assert_eq!(held_until(renew(&world, 2, Some(soon)).await), late, "it never comes earlier");
    world.reopen().await;
    assert_eq!(held_until(renew(&world, 3, None).await), late);
}

pub async fn a_remembered_key_outlives_its_response(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let outcome = AttemptOutcome::Completed { response: response(b"paid"), ttl: Duration::ZERO, remember: Some(DAY) };
    world.settle(settlement(&reserve_request, outcome)).await;
    for state in ["completed", "expired", "expired"] {
        let record = world.find(&reserve_request).await;
        assert_eq!((record.state.name(), record.late, record.past_ttl), (state, true, false));
        for past_ttl_at in [None, Some(any_time())] {
            let seen = ExpectedRecord { past_ttl_at, ..ExpectedRecord::from(&record) };
            let next_attempt_request = ReserveRequest { token: token(), ..reserve_request.clone() };
            assert!(matches!(world.take_over(next_attempt_request, seen).await, ReserveResult::Taken(_)));
        }
        // Its own late settlement changes nothing either.
        let late = world.store().settle(completion(&reserve_request, b"late")).await.unwrap();
        assert!(matches!(late, SettleResult::Fenced(Some(_))));
        world.reap(10).await;
    }
}

pub async fn a_remembered_key_is_forgotten_in_the_end(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    let remember = Some(Duration::from_millis(1));
    world
        .settle(settlement(
            &reserve_request,
            AttemptOutcome::Completed { response: response(b""), ttl: Duration::ZERO, remember },
        ))
        .await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let record = world.find(&reserve_request).await;
    assert!(record.past_ttl);
    let next_attempt_request = ReserveRequest { token: token(), ..reserve_request.clone() };
    let taken = world.take_over(next_attempt_request, ExpectedRecord::from(&record)).await;
    assert!(matches!(taken, ReserveResult::Fresh(lease) if lease.attempt == 1));
}

pub async fn the_routes_that_were_read_are_replaced_and_no_others(mut world: StoreFixture) {
    let remember = async |world: &StoreFixture, service: &str, from: Option<i64>, finds: &str| {
        let params = RememberRouteIdentitiesParams { service: service.into(), from, finds: finds.to_owned() };
        world.store().remember_route_identities(params).await.unwrap()
    };
    let find = async |world: &StoreFixture, service: &str| {
        let found = world.store().list_route_identities().await.unwrap();
        let own = found.into_iter().find(|found| found.service == service);
        own.map(|RouteIdentities { generation, finds, .. }| (generation, finds))
    };
    assert_eq!(find(&world, "shop").await, None);
    assert_eq!(remember(&world, "shop", Some(1), "a").await, None, "nothing is stored");
    let first = remember(&world, "shop", None, "a").await;
    assert!(first.is_some());
    assert_eq!(remember(&world, "shop", None, "b").await, None, "something is stored by now");
    assert_eq!(remember(&world, "shop", first, "a").await, first, "nothing has changed");
    world.reopen().await;
    let quoted = "by \u{e9} \"'\\\nhost: ";
    let second = remember(&world, "shop", first, quoted).await;
    assert_eq!(find(&world, "shop").await, second.map(|generation| (generation, quoted.to_owned())));
    assert_eq!(remember(&world, "shop", first, "a").await, None, "another text is stored by now");
    let third = remember(&world, "shop", second, "a").await;
    assert!(first < second && second < third, "the first text has come back, and its generation has not");
    assert_eq!(remember(&world, "bar", None, "c").await, first, "another service has its own");
    let racing = join_all(["d", "e", "f"].map(|finds| remember(&world, "shop", third, finds))).await;
    assert_eq!(racing.iter().flatten().count(), 1, "{racing:?}");
}
