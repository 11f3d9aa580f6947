//! The breaker, in the tests' own time.

use tokio::time::advance;

use super::*;

const BEGINS: CallKind = CallKind::Begins(Op::Find);
const ALWAYS: CallKind = CallKind::Always(Op::RenewLease);
const UNJUDGED: CallKind = CallKind::Unjudged(Op::CountLiveKeys);

fn call(breaker: &Breaker, kind: CallKind, answer: Result<(), StoreError>) -> Option<BreakerPeriod> {
    breaker.judge(kind, breaker.admit(kind).unwrap(), &answer)
}

/// A breaker that has just opened.
fn open_breaker() -> (Breaker, BreakerPeriod) {
    let breaker = Breaker::default();
    (1..FAILURES_MAX).for_each(|_| assert_eq!(call(&breaker, BEGINS, Err(StoreError::TimedOut)), None));
    let period = call(&breaker, BEGINS, Err(StoreError::TimedOut)).unwrap();
    (breaker, period)
}

#[tokio::test(start_paused = true)]
async fn after_some_failures_in_a_row_calls_that_begin_something_are_refused() {
    let (breaker, period) = open_breaker();
    advance(PAUSE_CAP).await;
    for kind in [BEGINS, UNJUDGED] {
        let error = breaker.admit(kind).unwrap_err();
        assert!(is_refused_by_breaker(&error), "{error:?}");
    }
    for kind in [ALWAYS, CallKind::Direct] {
        breaker.admit(kind).unwrap();
    }
    assert_eq!(breaker.health(), StoreHealth { is_open: true, silent_for: Some(PAUSE_CAP) });
    assert!(breaker.is_open_since(period));
}

#[test]
fn failures_that_an_answer_comes_between_do_not_add_up() {
    let breaker = Breaker::default();
    for _ in 0..3 {
        (1..FAILURES_MAX).for_each(|_| assert_eq!(call(&breaker, BEGINS, Err(StoreError::TimedOut)), None));
        call(&breaker, BEGINS, Ok(()));
    }
    assert_eq!(breaker.health(), StoreHealth { is_open: false, silent_for: None });
}

#[test]
fn what_keeps_a_lease_always_passes_and_its_answer_closes() {
    let (breaker, period) = open_breaker();
    assert_eq!(call(&breaker, ALWAYS, Err(StoreError::TimedOut)), None);
    assert!(breaker.is_open_since(period));
    call(&breaker, ALWAYS, Ok(()));
    assert_eq!(breaker.health(), StoreHealth { is_open: false, silent_for: None });
    assert!(!breaker.is_open_since(period));
    // One answered call does not prove that all calls work.
    assert!(call(&breaker, BEGINS, Err(StoreError::TimedOut)).is_some());
}

#[test]
fn what_was_asked_before_it_opened_and_fails_after_tells_nothing_new() {
    let breaker = Breaker::default();
    let admit_some = || (0..FAILURES_MAX).map(|_| breaker.admit(BEGINS).unwrap()).collect::<Vec<_>>();
    let (first, late) = (admit_some(), admit_some());
    let fail = |began: &BreakerPeriod| breaker.judge(BEGINS, *began, &Err::<(), _>(StoreError::TimedOut));
    assert_eq!(first.iter().filter_map(fail).count(), 1);
    // Closed by an answer while the late ones still wait.
    call(&breaker, ALWAYS, Ok(()));
    assert_eq!(late.iter().filter_map(fail).count(), 0);
    assert!(!breaker.health().is_open);
}

#[test]
fn counts_of_live_keys_and_direct_calls_that_fail_do_not_open_the_breaker() {
    let breaker = Breaker::default();
    for kind in [UNJUDGED, CallKind::Direct] {
        for _ in 0..2 * FAILURES_MAX {
            assert_eq!(call(&breaker, kind, Err(StoreError::TimedOut)), None);
        }
    }
    assert_eq!(breaker.health(), StoreHealth { is_open: false, silent_for: None });
}

#[test]
fn the_pause_grows_over_several_openings_until_a_call_is_answered() {
    let (breaker, _) = open_breaker();
    assert_eq!((breaker.next_pause(), breaker.next_pause()), (Duration::ZERO, PAUSE_FIRST));
    call(&breaker, ALWAYS, Ok(()));
    call(&breaker, BEGINS, Err(StoreError::TimedOut)).unwrap();
    assert_eq!(breaker.next_pause(), PAUSE_FIRST * 2);
    for _ in 0..10 {
        breaker.next_pause();
    }
    assert_eq!(breaker.next_pause(), PAUSE_CAP);
    call(&breaker, ALWAYS, Ok(()));
    call(&breaker, BEGINS, Ok(()));
    assert_eq!(breaker.next_pause(), Duration::ZERO);
}
