//! The breaker around a fake store whose answers the test controls, in the test's own time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use super::*;
use crate::domain::state::StateKind;

const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct FakeStore {
    is_away: AtomicBool,
    /// Everything but pings fails.
    only_pings: AtomicBool,
    has_changed_primary: AtomicBool,
    pings: AtomicU32,
    finds: AtomicU32,
}

impl FakeStore {
    fn answer<'a, T: Send + 'a>(&'a self, fails: bool, answer: T) -> StoreFuture<'a, T> {
        Box::pin(async move {
            if fails || self.is_away.load(Ordering::SeqCst) {
                sleep(TIMEOUT).await;
                return Err(StoreError::TimedOut);
            }
            Ok(answer)
        })
    }
}

impl Store for FakeStore {
    fn reserve(&self, _: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        unreachable!("calls that begin something behave like `find`")
    }

    fn take_over(&self, _: ReserveRequest, _: ExpectedRecord) -> StoreFuture<'_, ReserveResult> {
        unreachable!("calls that begin something behave like `find`")
    }

    fn settle(&self, _: Settlement) -> StoreFuture<'_, SettleResult> {
        unreachable!("calls that always pass behave like `renew_lease`")
    }

    fn find(&self, _: RecordId) -> StoreFuture<'_, Option<Record>> {
        self.finds.fetch_add(1, Ordering::SeqCst);
        self.answer(self.only_pings.load(Ordering::SeqCst), None)
    }

    fn salts(&self) -> &dyn SaltStore {
        unreachable!("salts are not the breaker's business")
    }

    fn count_live_keys(&self, _: KeyHolder, _: u32) -> StoreFuture<'_, u32> {
        self.answer(self.only_pings.load(Ordering::SeqCst), 0)
    }

    fn move_live_keys(&self, _: RecordId, _: Scope, _: KeyHolder) -> StoreFuture<'_, u32> {
        self.answer(self.only_pings.load(Ordering::SeqCst), 0)
    }

    fn renew_lease(&self, _: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        self.answer(
            false,
            RenewResult { now: SystemTime::UNIX_EPOCH, purges: 0, ttls_held_until: SystemTime::UNIX_EPOCH },
        )
    }

    fn has_changed_primary(&self) -> bool {
        self.has_changed_primary.load(Ordering::SeqCst)
    }

    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>> {
        unreachable!("the breaker only counts what it finds")
    }

    fn service_reports(&self) -> &dyn ServiceReports {
        unreachable!("services are not the breaker's business")
    }

    fn admin(&self) -> &dyn AdminStore {
        unreachable!("operators are not the breaker's business")
    }

    fn release_lease(&self, _: InstanceId) -> StoreFuture<'_, ()> {
        self.answer(false, ())
    }

    fn sweep(&self, _: Duration, _: u32, _: SystemTime) -> StoreFuture<'_, Vec<SweptKey>> {
        self.answer(false, Vec::new())
    }

    fn extend_deadline(&self, _: RecordId, _: Token, _: Duration) -> StoreFuture<'_, bool> {
        unreachable!("calls that always pass behave like `renew_lease`")
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        unreachable!("the breaker has no part in it")
    }

    fn list_in_flight(&self, _: InstanceId, _: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        self.answer(false, Vec::new())
    }

    fn reap(&self, _: u32, _: ReapScope) -> StoreFuture<'_, ReapedRows> {
        self.answer(false, ReapedRows::default())
    }

    fn claim_probes(&self, _: &Arc<str>, _: Vec<ProbeSchedule>, _: u32, _: SystemTime) -> StoreFuture<'_, Vec<Probe>> {
        self.answer(false, Vec::new())
    }

    fn apply_probe_finding(&self, _: ProbeFinding) -> StoreFuture<'_, bool> {
        self.answer(false, true)
    }

    fn list_settled_keys(
        &self,
        _: &Arc<str>,
        _: Vec<Arc<str>>,
        _: Duration,
        _: Option<RecordId>,
        _: u32,
    ) -> StoreFuture<'_, SettledKeyPage> {
        unreachable!("calls that always pass behave like `renew_lease`")
    }

    fn remember_route_identities(&self, _: Arc<str>, _: Vec<RouteIdentity>) -> StoreFuture<'_, Vec<RouteIdentity>> {
        self.answer(false, Vec::new())
    }

    fn enqueue(&self, _: EnqueueRequest, _: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult> {
        unreachable!("calls that begin something behave like `find`")
    }

    fn pick_up(&self, _: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        self.answer(self.only_pings.load(Ordering::SeqCst), PickUpResult::default())
    }

    fn give_up(&self, _: RecordId, _: Token, _: &'static [StateKind], _: String) -> StoreFuture<'_, bool> {
        self.answer(false, true)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.pings.fetch_add(1, Ordering::SeqCst);
        self.answer(false, ())
    }
}

fn renewal() -> LeaseRenewal {
    LeaseRenewal {
        instance: InstanceId::from_stored(1),
        service: "shop".into(),
        expiry: TIMEOUT,
        purges_seen: None,
        hold_ttls_until: None,
    }
}

fn behind_a_breaker() -> (Arc<FakeStore>, Arc<Breaker>) {
    let store = Arc::new(FakeStore::default());
    (store.clone(), Breaker::new(store))
}

async fn find(breaker: &Breaker) -> Result<Option<Record>, StoreError> {
    breaker.find(RecordId::from_stored(&[7; 32]).unwrap()).await
}

async fn fail(breaker: &Breaker, times: u32) {
    for _ in 0..times {
        assert!(matches!(find(breaker).await, Err(StoreError::TimedOut)));
    }
}

#[tokio::test(start_paused = true)]
async fn after_some_failures_in_a_row_nobody_waits_for_the_store() {
    let (store, breaker) = behind_a_breaker();
    store.is_away.store(true, Ordering::SeqCst);
    fail(&breaker, FAILURES_MAX).await;
    let begun = Instant::now();
    for _ in 0..100 {
        let error = find(&breaker).await.unwrap_err();
        assert!(is_refused_by_breaker(&error), "{error:?}");
    }
    assert_eq!((begun.elapsed(), store.finds.load(Ordering::SeqCst)), (Duration::ZERO, FAILURES_MAX));
    assert!(breaker.health().is_open);
    assert_eq!(breaker.health().silent_for, Some(TIMEOUT * (FAILURES_MAX - 1)));
}

#[tokio::test(start_paused = true)]
async fn failures_that_an_answer_comes_between_do_not_add_up() {
    let (store, breaker) = behind_a_breaker();
    for _ in 0..3 {
        store.is_away.store(true, Ordering::SeqCst);
        fail(&breaker, FAILURES_MAX - 1).await;
        store.is_away.store(false, Ordering::SeqCst);
        find(&breaker).await.unwrap();
    }
    assert_eq!(breaker.health(), StoreHealth { is_open: false, silent_for: None });
    assert_eq!(store.pings.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn one_probe_at_a_time_goes_out_until_the_store_answers() {
    let (store, breaker) = behind_a_breaker();
    store.is_away.store(true, Ordering::SeqCst);
    fail(&breaker, FAILURES_MAX).await;
    sleep(Duration::from_secs(60)).await;
    let pings = store.pings.load(Ordering::SeqCst);
    assert!((18..=24).contains(&pings), "each takes two seconds and then a pause of up to one: {pings}");
    store.is_away.store(false, Ordering::SeqCst);
    let back = Instant::now();
    while find(&breaker).await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
    // One that was under way, and a pause.
    assert!(back.elapsed() <= TIMEOUT + PAUSE_CAP, "{:?}", back.elapsed());
    let pings = store.pings.load(Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(store.pings.load(Ordering::SeqCst), pings, "nobody probes what answers");
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_lease_always_passes_and_its_answer_closes() {
    let (store, breaker) = behind_a_breaker();
    store.is_away.store(true, Ordering::SeqCst);
    fail(&breaker, FAILURES_MAX).await;
    let renew = || breaker.renew_lease(renewal());
    assert!(matches!(renew().await, Err(StoreError::TimedOut)), "the store was called, and did not answer");
    store.is_away.store(false, Ordering::SeqCst);
    renew().await.unwrap();
    assert_eq!(breaker.health(), StoreHealth { is_open: false, silent_for: None });
    find(&breaker).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_probes_and_nothing_else_is_tried_once_and_ever_more_seldom() {
    let (store, breaker) = behind_a_breaker();
    store.only_pings.store(true, Ordering::SeqCst);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        drop(find(&breaker).await);
        sleep(Duration::from_millis(1)).await;
    }
    let finds = store.finds.load(Ordering::SeqCst);
    assert!((20..=30).contains(&finds), "{FAILURES_MAX} at first, then one in each round: {finds}");
    store.only_pings.store(false, Ordering::SeqCst);
    sleep(PAUSE_CAP * 2).await;
    find(&breaker).await.unwrap();
    store.is_away.store(true, Ordering::SeqCst);
    fail(&breaker, FAILURES_MAX).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_it_opened_and_fails_after_tells_nothing_new() {
    let (store, breaker) = behind_a_breaker();
    store.is_away.store(true, Ordering::SeqCst);
    let call_after = |after: u64| {
        let breaker = breaker.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(after)).await;
            find(&breaker).await
        })
    };
    let first: Vec<_> = (0..FAILURES_MAX).map(|_| call_after(0)).collect();
    let late: Vec<_> = (0..FAILURES_MAX).map(|_| call_after(1_500)).collect();
    for call in first {
        call.await.unwrap().unwrap_err();
    }
    store.is_away.store(false, Ordering::SeqCst);
    // Closed by an answer while the late ones still wait.
    breaker.renew_lease(renewal()).await.unwrap();
    for call in late {
        assert!(matches!(call.await.unwrap(), Err(StoreError::TimedOut)));
    }
    assert!(!breaker.health().is_open);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_nobody_has_any_more_lets_its_store_go() {
    let (store, breaker) = behind_a_breaker();
    store.is_away.store(true, Ordering::SeqCst);
    fail(&breaker, FAILURES_MAX).await;
    drop(breaker);
    sleep(TIMEOUT + PAUSE_CAP).await;
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn counts_of_live_keys_that_fail_do_not_open_the_breaker_and_an_open_one_refuses_them() {
    let store = Arc::new(FakeStore::default());
    let breaker = Breaker::new(Arc::<FakeStore>::clone(&store));
    let count = || breaker.count_live_keys(KeyHolder::from_bytes([1; 16]), 1);
    store.only_pings.store(true, Ordering::SeqCst);
    for _ in 0..2 * FAILURES_MAX {
        assert!(matches!(count().await, Err(StoreError::TimedOut)));
    }
    assert!(!breaker.lock().is_open);
    breaker.lock().is_open = true;
    let asked = Instant::now();
    assert!(matches!(count().await, Err(StoreError::Unavailable(_))));
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_tells_of_a_changed_primary() {
    let (store, breaker) = behind_a_breaker();
    assert!(!breaker.has_changed_primary());
    breaker.lock().is_open = true;
    store.has_changed_primary.store(true, Ordering::SeqCst);
    assert!(breaker.has_changed_primary());
}
