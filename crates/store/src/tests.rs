//! The store in front of a fake backend, in the tests' own time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use oncegate_domain::fingerprint::{Fingerprint, FingerprintRules, Recipe};
use oncegate_domain::ids::Token;
use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use oncegate_domain::key_holder::KeyHolder;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;

const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct FakeBackend {
    is_away: AtomicBool,
    /// Everything but pings fails.
    only_pings: AtomicBool,
    calls: Mutex<Vec<&'static str>>,
}

impl FakeBackend {
    /// An answer, of a row that cannot be read; or none within the timeout.
    fn answer<T: 'static>(&self, call: &'static str) -> StoreFuture<'_, T> {
        self.calls.lock().unwrap().push(call);
        Box::pin(async move {
            if self.is_away.load(Ordering::SeqCst) || (self.only_pings.load(Ordering::SeqCst) && call != "ping") {
                sleep(TIMEOUT).await;
                return Err(StoreError::TimedOut);
            }
            Err(StoreError::Corrupt(CorruptRow("a fake")))
        })
    }

    fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|made| **made == call).count()
    }
}

macro_rules! fake_calls {
    ($($(#[$about:meta])* $name:ident($($params:ident: $Params:ty)?) -> $Answer:ty:
        $kind:ident $(($op:ident, $label:literal))?;)+) => {
        $(fn $name(&self $(, _: $Params)?) -> StoreFuture<'_, $Answer> {
            self.answer(stringify!($name))
        })+
    };
}

impl Backend for FakeBackend {
    calls!(fake_calls);
}

fn fake() -> (Arc<FakeBackend>, Arc<Store>) {
    let backend = Arc::new(FakeBackend::default());
    (backend.clone(), Store::new(backend, Encryption::default()))
}

/// Returns whether the backend has answered.
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
    let (backend, store) = fake();
    backend.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    let (begun, finds) = (Instant::now(), backend.count("find"));
    for _ in 0..100 {
        assert!(!find(&store).await);
    }
    let counting = store.count_live_keys(CountLiveKeysParams { holder: KeyHolder::from_bytes([1; 16]), limit: 1 });
    assert!(breaker::is_refused_by_breaker(&counting.await.unwrap_err()));
    assert_eq!((begun.elapsed(), backend.count("find")), (Duration::ZERO, finds));
}

#[tokio::test(start_paused = true)]
async fn only_calls_that_were_made_and_have_a_label_are_counted() {
    let (backend, store) = fake();
    assert!(find(&store).await);
    drop(store.count_keys("shop".into()).await);
    backend.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    assert!(!find(&store).await);
    assert_eq!(store.metrics().errors.get(Op::Find), backend.count("find") as u64);
    assert_eq!(backend.count("count_keys"), 1);
}

#[tokio::test(start_paused = true)]
async fn one_ping_at_a_time_goes_out_until_the_store_answers() {
    let (backend, store) = fake();
    backend.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    sleep(Duration::from_secs(60)).await;
    let pings = backend.count("ping");
    assert!((18..=24).contains(&pings), "each takes two seconds and then a pause of up to one: {pings}");
    backend.is_away.store(false, Ordering::SeqCst);
    let back = Instant::now();
    while !find(&store).await {
        sleep(Duration::from_millis(1)).await;
    }
    // One that was under way, and a pause.
    assert!(back.elapsed() <= TIMEOUT + Duration::from_secs(1), "{:?}", back.elapsed());
    let pings = backend.count("ping");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(backend.count("ping"), pings, "nobody pings what answers");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_pings_and_nothing_else_is_tried_once_and_ever_more_seldom() {
    let (backend, store) = fake();
    backend.only_pings.store(true, Ordering::SeqCst);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        find(&store).await;
        sleep(Duration::from_millis(1)).await;
    }
    let finds = backend.count("find");
    assert!((20..=30).contains(&finds), "some at first, then one in each round: {finds}");
    backend.only_pings.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert!(find(&store).await);
    backend.is_away.store(true, Ordering::SeqCst);
    let finds = backend.count("find");
    fail(&store).await;
    assert_eq!(backend.count("find") - finds, 5, "failures are counted from the start again");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_nobody_has_any_more_lets_its_backend_go() {
    let (backend, store) = fake();
    backend.is_away.store(true, Ordering::SeqCst);
    fail(&store).await;
    drop(store);
    sleep(TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&backend), 1);
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
        fingerprint: Fingerprint::from_stored(&[2; 32]).unwrap(),
        instance: InstanceId::from_stored(1),
        token: Token::from_random([3; 16]),
        time_limit: Duration::from_millis(500),
        holder: None,
    }
}
