//! The store behind a fake network, in the tests' own time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::metrics::Op;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::fingerprint::{Fingerprint, FingerprintRules, Recipe};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use oncegate_domain::key_holder::KeyHolder;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;

const TIMEOUT: Duration = Duration::from_secs(2);

/// A network to a store that it never reaches.
#[derive(Default)]
struct FakeNetwork {
    is_away: AtomicBool,
    /// Everything but pings fails.
    only_pings: AtomicBool,
    calls: Mutex<Vec<CallKind>>,
}

const FIND: CallKind = CallKind::Begins(Op::Find);
const PING: CallKind = CallKind::Always(Op::Ping);

impl StoreNetwork for FakeNetwork {
    /// An answer, of a row that cannot be read; or none within the timeout.
    fn carry(&self, call: Box<dyn CarriedCall>) -> BoxFuture<'_, Result<(), StoreError>> {
        let kind = call.kind();
        self.calls.lock().unwrap().push(kind);
        Box::pin(async move {
            if self.is_away.load(Ordering::SeqCst) || (self.only_pings.load(Ordering::SeqCst) && kind != PING) {
                sleep(TIMEOUT).await;
                return Err(StoreError::TimedOut);
            }
            Err(StoreError::Corrupt(CorruptRow("a fake")))
        })
    }
}

impl FakeNetwork {
    fn count(&self, kind: CallKind) -> usize {
        self.calls.lock().unwrap().iter().filter(|made| **made == kind).count()
    }
}

fn fake() -> (Arc<FakeNetwork>, Arc<Store>) {
    let network = Arc::new(FakeNetwork::default());
    let database = open_inline(TIMEOUT, || 0).unwrap();
    (network.clone(), Store::new(Backend::inline(&database, Some(network)), Encryption::default()))
}

/// Returns whether the store has answered.
async fn find(store: &Store) -> bool {
    matches!(store.find(RecordId::from_stored(&[7; 32]).unwrap()).await, Err(StoreError::Corrupt(_)))
}

/// Lets the breaker open.
async fn fail(store: &Store) {
    while !store.health().is_open {
        assert!(!find(store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn after_some_failures_in_a_row_nobody_waits_for_the_store() {
    let (network, store) = fake();
    network.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    let (begun, finds) = (Instant::now(), network.count(FIND));
    for _ in 0..100 {
        assert!(!find(&store).await);
    }
    let counting = store.count_live_keys(CountLiveKeysParams { holder: KeyHolder::from_bytes([1; 16]), limit: 1 });
    assert!(breaker::is_refused_by_breaker(&counting.await.unwrap_err()));
    assert_eq!((begun.elapsed(), network.count(FIND)), (Duration::ZERO, finds));
}

#[tokio::test(start_paused = true)]
async fn only_calls_that_were_made_and_have_a_label_are_counted() {
    let (network, store) = fake();
    assert!(find(&store).await);
    drop(store.count_keys("shop".into()).await);
    network.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    assert!(!find(&store).await);
    assert_eq!(store.metrics().errors.get(Op::Find), network.count(FIND) as u64);
    assert_eq!(network.count(CallKind::Direct), 1);
}

#[tokio::test(start_paused = true)]
async fn one_ping_at_a_time_goes_out_until_the_store_answers() {
    let (network, store) = fake();
    network.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    sleep(Duration::from_secs(60)).await;
    let pings = network.count(PING);
    assert!((18..=24).contains(&pings), "each takes two seconds and then a pause of up to one: {pings}");
    network.is_away.store(false, Ordering::SeqCst);
    let back = Instant::now();
    while !find(&store).await {
        sleep(Duration::from_millis(1)).await;
    }
    // One that was under way, and a pause.
    assert!(back.elapsed() <= TIMEOUT + Duration::from_secs(1), "{:?}", back.elapsed());
    let pings = network.count(PING);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(network.count(PING), pings, "nobody pings what answers");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_pings_and_nothing_else_is_tried_once_and_ever_more_seldom() {
    let (network, store) = fake();
    network.only_pings.store(true, Ordering::SeqCst);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        find(&store).await;
        sleep(Duration::from_millis(1)).await;
    }
    let finds = network.count(FIND);
    assert!((20..=30).contains(&finds), "some at first, then one in each round: {finds}");
    network.only_pings.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert!(find(&store).await);
    network.is_away.store(true, Ordering::SeqCst);
    let finds = network.count(FIND);
    fail(&store).await;
    assert_eq!(network.count(FIND) - finds, 5, "failures are counted from the start again");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_nobody_has_any_more_lets_its_backend_go() {
    let (network, store) = fake();
    network.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    drop(store);
    sleep(TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&network), 1);
}

/// A request to reserve the key `k`, with the token of `[3; 16]`.
pub(crate) fn reserve_request() -> ReserveRequest {
    let scope = Scope::from_stored(&[1; 32]).unwrap();
    let space = SpaceHash::from_text("POST /payments");
    let key = Key::parse(b"k", KeySyntax::Ietf, KeyLimits { length_min: 1, length_max: 9 }).unwrap();
    ReserveRequest {
        id: RecordId::derive("shop", &scope, &space, &key),
        service: "shop".into(),
        scope,
        space,
        key,
        path: None,
        route: "pay".into(),
        recipe: Recipe::new(FingerprintRules::default(), None),
        trace_id: None,
        client_address: None,
        lookups: None,
        parts: None,
        fingerprint: Fingerprint::from_stored(&[2; 32]).unwrap(),
        instance: InstanceId::from_stored(1),
        token: Token::from_random([3; 16]),
        time_limit: Duration::from_millis(500),
        holder: None,
    }
}
