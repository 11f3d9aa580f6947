//! The store's part of inquiries for unknown attempts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::ids::RecordId;
use oncegate_domain::inquiry::{Inquiry, InquiryFinding, InquirySchedule, InquiryVerdict, SettledKey};
use oncegate_domain::kept_path::keep_path;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::{ClaimInquiriesParams, ExpectedRecord, ListSettledKeysParams};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, any_time, completion, new_reserve_request, new_reserve_request_in,
    next_attempt_request, response, settlement, unwrap_lease,
};

const ZERO: Duration = Duration::ZERO;

/// A schedule for the route of all these requests: quiet at once, and always due.
fn at_once() -> InquirySchedule {
    InquirySchedule { route: "pay".into(), quiet_after: ZERO, pause_first: ZERO, pause_cap: ZERO }
}

/// An attempt whose time limit has ended.
fn over(key: &str) -> ReserveRequest {
    ReserveRequest { time_limit: ZERO, ..new_reserve_request(key) }
}

impl StoreFixture {
    async fn unknown(&self, reserve_request: &ReserveRequest) {
        self.reserve(reserve_request).await;
        self.settle(settlement(reserve_request, UNKNOWN)).await;
    }

    async fn claim_inquiries(&self, schedule: InquirySchedule, limit: u32) -> Vec<Inquiry> {
        self.store()
            .claim_inquiries(ClaimInquiriesParams {
                service: "shop".into(),
                schedules: vec![schedule],
                limit,
                as_of: any_time(),
            })
            .await
            .unwrap()
    }

    /// Claims the only unknown key.
    pub(super) async fn inquire(&self) -> Inquiry {
        let mut inquiries = self.claim_inquiries(at_once(), 10).await;
        assert_eq!(inquiries.len(), 1);
        inquiries.remove(0)
    }

    pub(super) async fn resolve(&self, inquiry: &Inquiry, verdict: InquiryVerdict) -> bool {
        let (id, token) = (inquiry.subject.id, inquiry.subject.token);
        let finding = InquiryFinding { id, token, inquiry: inquiry.number, verdict, note: "because".into() };
        self.store().apply_inquiry_finding(finding).await.unwrap()
    }

    async fn state(&self, reserve_request: &ReserveRequest) -> &'static str {
        self.find(reserve_request).await.state.name()
    }

    async fn pages(&self, service: &str, routes: &[&str], since: Duration, limit: u32) -> Vec<SettledKey> {
        let routes: Vec<Arc<str>> = routes.iter().map(|route| (*route).into()).collect();
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .store()
                .list_settled_keys(ListSettledKeysParams {
                    service: service.into(),
                    routes: routes.clone(),
                    since,
                    after,
                    limit,
                })
                .await
                .unwrap();
            assert!(page.keys.len() <= limit as usize);
            keys.extend(page.keys);
            after = page.next;
            if after.is_none() {
                return keys;
            }
        }
    }
}

fn completed(body: &[u8]) -> InquiryVerdict {
    InquiryVerdict::Completed { response: response(body), ttl: DAY, remember: None }
}

fn ids(inquiries: &[Inquiry]) -> Vec<RecordId> {
    inquiries.iter().map(|inquiry| inquiry.subject.id).collect()
}

pub async fn only_unknown_quiet_and_due_keys_are_claimed(world: StoreFixture) {
    let due = over("due");
    world.unknown(&due).await;
    let other_service = ReserveRequest { time_limit: ZERO, ..new_reserve_request_in("shop2", [7; 32], "", "k") };
    for other in
        [other_service, ReserveRequest { route: "other".into(), ..over("other") }, new_reserve_request("not-over-yet")]
    {
        world.unknown(&other).await;
    }
    world.reserve(&over("in-flight")).await;
    for (key, outcome) in [
        ("completed", AttemptOutcome::Completed { response: response(b""), ttl: DAY, remember: None }),
        ("retryable", AttemptOutcome::Retryable { ttl: DAY }),
    ] {
        let reserve_request = over(key);
        world.reserve(&reserve_request).await;
        world.settle(settlement(&reserve_request, outcome)).await;
    }
    assert_eq!(
        world.claim_inquiries(InquirySchedule { quiet_after: DAY, ..at_once() }, 10).await,
        [],
        "it may still be running"
    );
    assert_eq!(ids(&world.claim_inquiries(at_once(), 10).await), [due.id]);
}

pub async fn a_clock_ahead_of_the_caller_makes_no_key_quiet(world: StoreFixture) {
    world.unknown(&over("k")).await;
    let claim = async |as_of| {
        world
            .store()
            .claim_inquiries(ClaimInquiriesParams {
                service: "shop".into(),
                schedules: vec![at_once()],
                limit: 10,
                as_of,
            })
            .await
            .unwrap()
    };
    assert_eq!(claim(world.an_hour_ago().await).await, []);
    assert_eq!(claim(any_time()).await.len(), 1);
}

pub async fn an_inquiry_is_counted_when_claimed_and_the_intervals_grow(world: StoreFixture) {
    world.unknown(&over("k")).await;
    let [first, cap] = [200, 350].map(Duration::from_millis);
    let schedule = InquirySchedule { pause_first: first, pause_cap: cap, ..at_once() };
    let mut at = Vec::new();
    for number in 1..=4 {
        let (asked_at, inquiry) = loop {
            let asked_at = tokio::time::Instant::now();
            match world.claim_inquiries(schedule.clone(), 10).await.pop() {
                Some(inquiry) => break (asked_at, inquiry),
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        at.push((asked_at, tokio::time::Instant::now()));
        assert_eq!((inquiry.number, inquiry.absences), (number, 0));
    }
    // From before one claim to after the next: the store's own times lie in between, in milliseconds.
    let pauses: Vec<_> = at.windows(2).map(|pair| pair[1].1 - pair[0].0).collect();
    for (pause, least) in pauses.iter().zip([first, cap, cap]) {
        assert!(*pause + Duration::from_millis(1) >= least, "{pauses:?}");
    }
}

pub async fn concurrent_claims_get_disjoint_keys(world: StoreFixture) {
    join_all(
        (0..40).map(|i| over(&format!("k-{i}"))).map(async |reserve_request| world.unknown(&reserve_request).await),
    )
    .await;
    let later = InquirySchedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let claims = join_all((0..10).map(|_| world.claim_inquiries(later.clone(), 3))).await;
    let mut claimed: Vec<_> = claims.iter().flat_map(|claim| ids(claim)).collect();
    loop {
        let more = world.claim_inquiries(later.clone(), 3).await;
        if more.is_empty() {
            break;
        }
        claimed.extend(ids(&more));
    }
    assert_eq!(claimed.len(), 40);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>().len(), 40);
}

pub async fn a_claim_takes_at_most_its_limit_oldest_first(world: StoreFixture) {
    let reserve_requests = ["first", "second", "third"].map(over);
    for reserve_request in &reserve_requests {
        world.unknown(reserve_request).await;
        // The store's clock has milliseconds, and the order must be unambiguous.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let later = InquirySchedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let mut claimed = ids(&world.claim_inquiries(later.clone(), 2).await);
    claimed.sort();
    let mut oldest = [reserve_requests[0].id, reserve_requests[1].id];
    oldest.sort();
    assert_eq!(claimed, oldest);
    let none = InquirySchedule { route: "none".into(), ..later.clone() };
    let rest = world
        .store()
        .claim_inquiries(ClaimInquiriesParams {
            service: "shop".into(),
            schedules: vec![none, later],
            limit: 2,
            as_of: any_time(),
        })
        .await
        .unwrap();
    assert_eq!(ids(&rest), [reserve_requests[2].id]);
}

pub async fn a_claim_takes_at_most_its_limit_of_several_routes(world: StoreFixture) {
    for (route, key) in [("one", "k-1"), ("one", "k-2"), ("other", "k-3"), ("other", "k-4")] {
        world.unknown(&ReserveRequest { route: route.into(), ..over(key) }).await;
    }
    let schedules = ["one", "other"].map(|route| InquirySchedule { route: route.into(), ..at_once() });
    let claimed = world
        .store()
        .claim_inquiries(ClaimInquiriesParams {
            service: "shop".into(),
            schedules: schedules.into(),
            limit: 3,
            as_of: any_time(),
        })
        .await
        .unwrap();
    assert_eq!(claimed.len(), 3);
}

pub async fn a_claim_returns_the_data_of_its_reservation(world: StoreFixture) {
    let first = ReserveRequest { path: Some(Bytes::from_static(b"/pay?a=\0\xff")), ..over("it's-a-key") };
    world.unknown(&first).await;
    let inquiry = world.inquire().await;
    let subject = &inquiry.subject;
    assert_eq!((subject.id, subject.token, subject.scope), (first.id, first.token, first.scope));
    assert_eq!((&subject.key[..], &*subject.route, &subject.path), (&b"it's-a-key"[..], "pay", &first.path));
    let second = ReserveRequest { path: Some(Bytes::from_static(b"/pay?b")), ..next_attempt_request(&first) };
    // A path for people may lack its end and its query: the service would not know it.
    let for_people = ReserveRequest { path: Some(keep_path("/pay")), ..next_attempt_request(&first) };
    for (next, path) in [
        (&second, second.path.clone()),
        (&ReserveRequest { path: None, ..next_attempt_request(&first) }, None),
        (&for_people, None),
    ] {
        let seen = ExpectedRecord::from(&world.find(&first).await);
        unwrap_lease(world.take_over(next.clone(), seen).await);
        world.settle(settlement(next, UNKNOWN)).await;
        assert_eq!(world.inquire().await.subject.path, path);
    }
}

pub async fn an_inquirys_response_completes_an_unknown_key(world: StoreFixture) {
    let reserve_request = over("k");
    world.unknown(&reserve_request).await;
    let [old, _new] = [world.inquire().await, world.inquire().await];
    let remember = Some(DAY);
    let verdict = InquiryVerdict::Completed { response: response(b"\0\xff"), ttl: ZERO, remember };
    assert!(world.resolve(&old, verdict).await, "proof is proof, whenever it comes");
    let record = world.find(&reserve_request).await;
    let KeyState::Completed(completed) = record.state else { panic!("{:?}", record.state) };
    assert_eq!((completed.response, record.late), (response(b"\0\xff"), true));
}

pub async fn a_key_found_not_executed_is_taken_over_as_any_released_one(world: StoreFixture) {
    let reserve_request = over("k");
    world.unknown(&reserve_request).await;
    let inquiry = world.inquire().await;
    assert!(world.resolve(&inquiry, InquiryVerdict::Open { absences: 1 }).await);
    let inquiry = world.inquire().await;
    assert_eq!((inquiry.number, inquiry.absences), (2, 1));
    assert!(world.resolve(&inquiry, InquiryVerdict::Retryable { ttl: DAY }).await);
    assert_eq!(world.state(&reserve_request).await, "retryable");
    let seen = ExpectedRecord::from(&world.find(&reserve_request).await);
    assert_eq!(unwrap_lease(world.take_over(next_attempt_request(&reserve_request), seen).await).attempt, 2);
}

pub async fn a_key_given_up_cannot_be_taken_over_and_accepts_its_late_completion(world: StoreFixture) {
    let reserve_request = over("k");
    world.unknown(&reserve_request).await;
    let inquiry = world.inquire().await;
    assert!(world.resolve(&inquiry, InquiryVerdict::Dead).await);
    assert_eq!(world.state(&reserve_request).await, "dead");
    assert_eq!(world.claim_inquiries(at_once(), 10).await, []);
    assert_eq!(world.reap(10).await.deleted, 0, "it is kept until somebody decides");
    let seen = ExpectedRecord::from(&world.find(&reserve_request).await);
    assert!(matches!(world.take_over(next_attempt_request(&reserve_request), seen).await, ReserveResult::Taken(_)));
    world.settle(completion(&reserve_request, b"late")).await;
    assert_eq!(world.state(&reserve_request).await, "completed");
}

pub async fn a_not_executed_reply_counts_only_for_the_last_inquiry(world: StoreFixture) {
    let reserve_request = over("k");
    world.unknown(&reserve_request).await;
    let [old, new] = [world.inquire().await, world.inquire().await];
    for verdict in [InquiryVerdict::Open { absences: 1 }, InquiryVerdict::Dead, InquiryVerdict::Retryable { ttl: DAY }]
    {
        assert!(!world.resolve(&old, verdict).await);
    }
    assert_eq!(world.state(&reserve_request).await, "unknown");
    assert!(world.resolve(&new, InquiryVerdict::Retryable { ttl: DAY }).await);
    assert_eq!(world.state(&reserve_request).await, "retryable");
}

pub async fn an_inquirys_result_overwrites_no_decision(world: StoreFixture) {
    let endings: [fn(&ReserveRequest) -> Settlement; 2] = [
        |reserve_request| completion(reserve_request, b"theirs"),
        |reserve_request| settlement(reserve_request, AttemptOutcome::Retryable { ttl: DAY }),
    ];
    for (number, outcome) in endings.into_iter().enumerate() {
        let reserve_request = over(&format!("k-{number}"));
        world.unknown(&reserve_request).await;
        let inquiry = world.inquire().await;
        world.settle(outcome(&reserve_request)).await;
        let before = world.state(&reserve_request).await;
        for verdict in [
            completed(b"ours"),
            InquiryVerdict::Dead,
            InquiryVerdict::Open { absences: 1 },
            InquiryVerdict::Retryable { ttl: ZERO },
        ] {
            assert!(!world.resolve(&inquiry, verdict).await);
        }
        let record = world.find(&reserve_request).await;
        assert_eq!((record.state.name(), record.past_ttl), (before, false));
        if let KeyState::Completed(completed) = record.state {
            assert_eq!(completed.response, response(b"theirs"));
        }
    }
}

pub async fn an_inquirys_result_applies_only_to_its_attempt(world: StoreFixture) {
    let first = over("k");
    world.unknown(&first).await;
    let inquiry = world.inquire().await;
    let second = next_attempt_request(&first);
    let seen = ExpectedRecord::from(&world.find(&first).await);
    unwrap_lease(world.take_over(second.clone(), seen).await);
    world.settle(settlement(&second, UNKNOWN)).await;
    assert_eq!(world.inquire().await.number, inquiry.number, "the numbers are the same, the attempts are not");
    for verdict in [completed(b"first"), InquiryVerdict::Dead, InquiryVerdict::Retryable { ttl: DAY }] {
        assert!(!world.resolve(&inquiry, verdict).await);
    }
    assert_eq!(world.state(&second).await, "unknown");
}

pub async fn each_inquiry_decision_is_audited_with_its_reason(mut world: StoreFixture) {
    for (key, verdict) in [
        ("a", completed(b"")),
        ("b", InquiryVerdict::Dead),
        ("c", InquiryVerdict::Retryable { ttl: DAY }),
        ("d", InquiryVerdict::Open { absences: 0 }),
    ] {
        world.unknown(&over(key)).await;
        let inquiry = world.inquire().await;
        assert!(world.resolve(&inquiry, verdict.clone()).await);
        assert_eq!(world.resolve(&inquiry, verdict).await, key == "d", "once more is once");
        if key == "d" {
            break;
        }
    }
    let reported: HashSet<_> = world.audit().await.into_iter().collect();
    let line = |key: &str, action: &str, after: &str| {
        let id = over(key).id.to_string();
        ["shop", "reconciler", action, &id, "unknown", after, "because"].join(" ")
    };
    let expected = [line("a", "resolve", "completed"), line("b", "give_up", "dead"), line("c", "resolve", "retryable")];
    assert_eq!(reported, expected.into());
}

pub async fn the_next_attempts_inquiries_start_at_zero(world: StoreFixture) {
    let first = over("k");
    world.unknown(&first).await;
    let later = InquirySchedule { pause_first: DAY, pause_cap: DAY, ..at_once() };
    let inquiry = world.claim_inquiries(later, 1).await.remove(0);
    assert!(world.resolve(&inquiry, InquiryVerdict::Open { absences: 1 }).await);
    let second = next_attempt_request(&first);
    let seen = ExpectedRecord::from(&world.find(&first).await);
    unwrap_lease(world.take_over(second.clone(), seen).await);
    world.settle(settlement(&second, UNKNOWN)).await;
    let inquiry = world.inquire().await;
    assert_eq!((inquiry.subject.token, inquiry.number, inquiry.absences), (second.token, 1, 0));
}

pub async fn pages_of_recent_settlements_have_each_one_once(world: StoreFixture) {
    let reserve_requests: Vec<ReserveRequest> = (0..11).map(|i| over(&format!("k-{i}"))).collect();
    for (number, reserve_request) in reserve_requests.iter().enumerate() {
        world.reserve(reserve_request).await;
        let outcome = match number % 3 {
            0 => AttemptOutcome::Completed { response: response(b""), ttl: DAY, remember: None },
            1 => AttemptOutcome::Retryable { ttl: DAY },
            _ => UNKNOWN,
        };
        world.settle(settlement(reserve_request, outcome)).await;
    }
    world.reserve(&new_reserve_request("in-flight")).await;
    world.unknown(&ReserveRequest { route: "other".into(), ..over("other") }).await;
    world.unknown(&new_reserve_request_in("shop2", [7; 32], "", "k")).await;
    for limit in [1, 3, 14, 100] {
        let keys = world.pages("shop", &["pay"], DAY, limit).await;
        assert!(keys.is_sorted_by_key(|kept| kept.subject.id));
        assert_eq!(keys.len(), 11);
        for (number, reserve_request) in reserve_requests.iter().enumerate() {
            let kept = keys.iter().find(|kept| kept.subject.id == reserve_request.id).unwrap();
            let expected =
                [(StateKind::Completed, Some(201)), (StateKind::Retryable, None), (StateKind::Unknown, None)]
                    [number % 3];
            assert_eq!((kept.state, kept.status), expected);
            assert_eq!(
                (kept.subject.token, &kept.subject.key[..]),
                (reserve_request.token, reserve_request.key.as_bytes())
            );
        }
    }
    assert_eq!(world.pages("shop", &["pay", "other"], DAY, 5).await.len(), 12);
    assert_eq!(world.pages("shop", &[], DAY, 5).await, []);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(world.pages("shop", &["pay"], Duration::from_millis(1), 5).await, []);
}
