//! Services' reports about their own attempts.

use std::time::Duration;

use http::StatusCode;
use oncegate_domain::attempt::{AttemptOutcome, ReserveRequest, Settlement};
use oncegate_domain::grpc_status::GrpcStatus;
use oncegate_domain::ids::Token;
use oncegate_domain::recovery::RecoveryPoint;
use oncegate_domain::service_report::{ReportKind, ReportResult, ReservationHandle, ReservedKey, ServiceReport};
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_domain::unknown_cause::UnknownCause;
use oncegate_store::{ExpectedRecord, FindReservationParams};

use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, next_attempt_request, response, settlement, token,
    unwrap_lease,
};

fn report(reserve_request: &ReserveRequest, what: ReportKind) -> ServiceReport {
    ServiceReport {
        service: reserve_request.service.clone(),
        handle: ReservationHandle { id: reserve_request.id, token: reserve_request.token },
        kind: what,
    }
}

fn reached(name: &str) -> ReportKind {
    ReportKind::Reached(RecoveryPoint::parse(name).unwrap())
}

fn not_executed() -> ReportKind {
    ReportKind::NotExecuted(DAY)
}

async fn send(world: &StoreFixture, report: ServiceReport) -> ReportResult {
    world.store().record_report(report).await.unwrap()
}

async fn apply_deferred(world: &StoreFixture) -> usize {
    world.store().apply_deferred_reports(100).await.unwrap().len()
}

async fn state(world: &StoreFixture, reserve_request: &ReserveRequest) -> &'static str {
    world.find(reserve_request).await.state.name()
}

/// Starts the next attempt, and returns it with the recovery point that it gets.
async fn next(world: &StoreFixture, before: &ReserveRequest) -> (ReserveRequest, Option<String>) {
    let next = next_attempt_request(before);
    let seen = ExpectedRecord::from(&world.find(before).await);
    let lease = unwrap_lease(world.take_over(next.clone(), seen).await);
    (next, lease.recovery_point.map(|point| point.to_string()))
}

pub async fn an_attempts_recovery_point_goes_to_the_next_attempt(world: StoreFixture) {
    let first = new_reserve_request("k");
    assert_eq!(world.reserve(&first).await.recovery_point, None);
    for name in ["begun", "charge_created", "charge_created"] {
        assert_eq!(send(&world, report(&first, reached(name))).await, ReportResult::Taken);
    }
    let record = world.find(&first).await;
    assert_eq!((record.state.name(), record.recovery_point.unwrap().as_str()), ("in_flight", "charge_created"));
    world.settle(settlement(&first, UNKNOWN)).await;
    let (second, point) = next(&world, &first).await;
    assert_eq!(point.as_deref(), Some("charge_created"));
    // A late report counts too, and its recovery point stays for the attempt after the next.
    world.settle(settlement(&second, UNKNOWN)).await;
    let (third, point) = next(&world, &second).await;
    assert_eq!(point.as_deref(), Some("charge_created"));
    world.settle(settlement(&third, AttemptOutcome::Retryable { ttl: DAY })).await;
    assert_eq!(send(&world, report(&third, reached("mailed"))).await, ReportResult::Taken);
    assert_eq!(next(&world, &third).await.1.as_deref(), Some("mailed"));
}

pub async fn only_the_newest_attempt_of_an_uncompleted_key_sets_the_recovery_point(world: StoreFixture) {
    let first = new_reserve_request("k");
    assert_eq!(send(&world, report(&first, reached("a"))).await, ReportResult::Gone, "there is no such key");
    world.reserve(&first).await;
    world.settle(settlement(&first, UNKNOWN)).await;
    let (second, _) = next(&world, &first).await;
    assert_eq!(send(&world, report(&first, reached("late"))).await, ReportResult::Gone);
    assert_eq!(world.find(&first).await.recovery_point, None);
    world.settle(completion(&second, b"paid")).await;
    for reserve_request in [&first, &second] {
        let heard = if reserve_request.token == second.token { ReportResult::Completed } else { ReportResult::Gone };
        assert_eq!(send(&world, report(reserve_request, reached("late"))).await, heard);
    }
    assert_eq!(world.find(&first).await.recovery_point, None);
}

pub async fn a_key_past_its_ttl_starts_without_a_recovery_point(world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    send(&world, report(&first, reached("charge_created"))).await;
    let outcome = AttemptOutcome::Completed { response: response(b""), ttl: Duration::ZERO, remember: None };
    world.settle(settlement(&first, outcome)).await;
    assert!(world.find(&first).await.past_ttl);
    assert_eq!(next(&world, &first).await.1, None);
}

pub async fn an_ended_attempt_reported_as_not_executed_is_released_at_once(mut world: StoreFixture) {
    let requests = ["unknown", "dead", "retryable"].map(new_reserve_request);
    for reserve_request in &requests {
        world.reserve(reserve_request).await;
        world.settle(settlement(reserve_request, UNKNOWN)).await;
    }
    let [_, dead, free] = &requests;
    world
        .execute_sql(&format!("update keys set state = 'dead' where id = {}", world.bytes(&dead.id.to_string())))
        .await
        .unwrap();
    world.settle(settlement(free, AttemptOutcome::Retryable { ttl: DAY })).await;
    for reserve_request in &requests {
        assert_eq!(send(&world, report(reserve_request, not_executed())).await, ReportResult::Taken);
        assert_eq!(state(&world, reserve_request).await, "retryable");
        assert!(!world.find(reserve_request).await.past_ttl);
    }
    let mut lines = world.audit_without_notes().await;
    lines.sort();
    let line = |reserve_request: &ReserveRequest, before: &str| {
        format!("shop service not_executed {} {before} retryable", reserve_request.id)
    };
    let mut expected = [line(&requests[0], "unknown"), line(dead, "dead")];
    expected.sort();
    assert_eq!(lines, expected, "what was free already has changed in nothing");
}

pub async fn a_reservation_finds_its_key_only_for_its_service_and_its_newest_attempt(world: StoreFixture) {
    let first = new_reserve_request("k");
    let find = async |service: &str, token: Token| {
        let handle = ReservationHandle { id: first.id, token };
        let params = FindReservationParams { services: vec![service.into()], handle };
        let found = world.store().find_reservation(params).await.unwrap();
        found.map(|ReservedKey { service, route, state, settled_at }| {
            assert_eq!(settled_at.is_some(), state == StateKind::Unknown, "{state:?}");
            (service, route, state)
        })
    };
    assert_eq!(find("shop", first.token).await, None, "there is no such key");
    world.reserve(&first).await;
    let reserved = |state| Some(("shop".into(), "pay".to_owned(), state));
    assert_eq!(find("shop", first.token).await, reserved(StateKind::InFlight));
    assert_eq!((find("other", first.token).await, find("shop", token()).await), (None, None));
    world.settle(settlement(&first, UNKNOWN)).await;
    assert_eq!(find("shop", first.token).await, reserved(StateKind::Unknown));
    let (second, _) = next(&world, &first).await;
    assert_eq!(find("shop", first.token).await, None);
    assert_eq!(find("shop", second.token).await, reserved(StateKind::InFlight));
}

pub async fn a_running_attempt_reported_as_not_executed_is_released_at_its_end(mut world: StoreFixture) {
    let (running, other) = (new_reserve_request("running"), new_reserve_request("other"));
    for reserve_request in [&running, &other] {
        world.reserve(reserve_request).await;
    }
    assert_eq!(send(&world, report(&running, not_executed())).await, ReportResult::Noted);
    assert_eq!(apply_deferred(&world).await, 0);
    assert_eq!(state(&world, &running).await, "in_flight");
    // No other attempt begins at the same time.
    let from = ExpectedRecord::from(&world.find(&running).await);
    let record = crate::store_fixture::unwrap_taken(world.take_over(next_attempt_request(&running), from).await);
    assert_eq!(record.token, running.token);
    for reserve_request in [&running, &other] {
        world.settle(settlement(reserve_request, UNKNOWN)).await;
    }
    world.reopen().await;
    assert_eq!((apply_deferred(&world).await, apply_deferred(&world).await), (1, 0));
    assert_eq!((state(&world, &running).await, state(&world, &other).await), ("retryable", "unknown"));
    let line = format!("shop service not_executed {} unknown retryable", running.id);
    assert_eq!(world.audit_without_notes().await, [line]);
    assert_eq!(world.deferred_reports().await, 0);
}

pub async fn a_response_counts_after_a_report_of_not_executed(mut world: StoreFixture) {
    let requests = ["running", "ended"].map(new_reserve_request);
    for reserve_request in &requests {
        world.reserve(reserve_request).await;
    }
    world.settle(settlement(&requests[1], UNKNOWN)).await;
    for reserve_request in &requests {
        send(&world, report(reserve_request, not_executed())).await;
        world.settle(completion(reserve_request, b"paid")).await;
        assert_eq!(send(&world, report(reserve_request, not_executed())).await, ReportResult::Completed);
    }
    assert_eq!(apply_deferred(&world).await, 0);
    for reserve_request in &requests {
        assert_eq!(state(&world, reserve_request).await, "completed");
    }
    assert_eq!(world.deferred_reports().await, 0);
}

pub async fn a_response_that_leaves_the_outcome_unknown_counts_after_a_report_of_not_executed(mut world: StoreFixture) {
    let answered =
        [UnknownCause::Service, UnknownCause::Status(StatusCode::BAD_GATEWAY), UnknownCause::Grpc(GrpcStatus::Unknown)];
    let unanswered = [UnknownCause::Broken, UnknownCause::Crashed, UnknownCause::Store, UnknownCause::Timeout];
    for (number, cause) in answered.into_iter().chain(unanswered).enumerate() {
        let reserve_request = new_reserve_request(&format!("k-{number}"));
        world.reserve(&reserve_request).await;
        assert_eq!(send(&world, report(&reserve_request, not_executed())).await, ReportResult::Noted);
        world.settle(settlement(&reserve_request, AttemptOutcome::Unknown(cause))).await;
        let released = usize::from(!answered.contains(&cause));
        assert_eq!((apply_deferred(&world).await, apply_deferred(&world).await), (released, 0), "{cause}");
        assert_eq!(state(&world, &reserve_request).await, ["unknown", "retryable"][released], "{cause}");
        assert_eq!(world.deferred_reports().await, 0, "{cause}");
        // The same report after the attempt's end applies.
        assert_eq!(send(&world, report(&reserve_request, not_executed())).await, ReportResult::Taken, "{cause}");
        assert_eq!(state(&world, &reserve_request).await, "retryable", "{cause}");
    }
}

pub async fn a_report_applies_only_to_its_own_attempt(mut world: StoreFixture) {
    let first = new_reserve_request("k");
    world.reserve(&first).await;
    assert_eq!(send(&world, report(&first, not_executed())).await, ReportResult::Noted);
    world.settle(settlement(&first, AttemptOutcome::Retryable { ttl: DAY })).await;
    let (second, _) = next(&world, &first).await;
    world.settle(settlement(&second, UNKNOWN)).await;
    // The report about the first attempt does not apply to the second.
    assert_eq!(apply_deferred(&world).await, 0);
    assert_eq!((state(&world, &second).await, world.deferred_reports().await), ("unknown", 0));
    let stranger = ReserveRequest { token: token(), ..second.clone() };
    let wrong = ServiceReport { service: "other".into(), ..report(&second, not_executed()) };
    for report in [report(&first, not_executed()), report(&stranger, not_executed()), wrong] {
        assert_eq!(send(&world, report).await, ReportResult::Gone);
    }
    assert_eq!(state(&world, &second).await, "unknown");
}

pub async fn a_repeated_report_has_the_same_result(mut world: StoreFixture) {
    let (running, ended) = (new_reserve_request("running"), new_reserve_request("ended"));
    for reserve_request in [&running, &ended] {
        world.reserve(reserve_request).await;
    }
    world.settle(settlement(&ended, UNKNOWN)).await;
    for _ in 0..2 {
        assert_eq!(send(&world, report(&running, not_executed())).await, ReportResult::Noted);
        assert_eq!(send(&world, report(&ended, not_executed())).await, ReportResult::Taken);
    }
    assert_eq!((world.deferred_reports().await, world.audit_without_notes().await.len()), (1, 1));
}

pub async fn a_reported_response_completes_its_key_as_an_answer_does(world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    let given = |token: Token, body: &[u8]| {
        let outcome = AttemptOutcome::Completed { response: response(body), ttl: DAY, remember: None };
        Settlement::from_service(reserve_request.id, token, outcome)
    };
    assert!(world.settle_late(given(reserve_request.token, b"paid")).await.is_none(), "no row is made for it");
    world.reserve(&reserve_request).await;
    world.settle_late(given(token(), b"stolen")).await.unwrap();
    assert_eq!(state(&world, &reserve_request).await, "in_flight");
    world.settle(given(reserve_request.token, b"paid")).await;
    for late in [
        given(reserve_request.token, b"paid"),
        given(reserve_request.token, b"else"),
        completion(&reserve_request, b"answer"),
    ] {
        let KeyState::Completed(completed) = world.settle_late(late).await.unwrap().state else { panic!() };
        assert_eq!(completed.response, response(b"paid"));
    }
}
