//! Two proxies that share the inquiries, and late answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{ReconcileWorld, beside, hasty, reconcile};
use harness::relay::Relay;
use harness::{Answer, Hold, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

#[tokio::test]
async fn two_proxies_inquire_no_more_often_than_one() {
    let reconciled = ReconcileWorld::open(Store::postgres().await, "max_attempts = 3").await;
    let _other = beside(&reconciled.world).await;
    reconciled.lookup.answer_all(Answer::status(500));
    let keys: Vec<String> = (0..30).map(|number| format!("k-{number}")).collect();
    for key in &keys {
        reconciled.lose(key, Answer::close()).await;
    }
    eventually(TEST_TIMEOUT, async || {
        let states = reconciled.world.store.states().await;
        states.iter().all(|state| state == "dead").then_some(())
    })
    .await;
    let mut asked: HashMap<String, Vec<Instant>> = HashMap::new();
    for call in reconciled.lookup.executed() {
        asked.entry(call.target).or_default().push(call.at);
    }
    assert_eq!(asked.len(), keys.len());
    for (key, asked) in asked {
        let [first, _, third] = asked[..] else { panic!("{key} was asked about {} times", asked.len()) };
        // Half a second and a second; an inquiry may be late, and the first one later than the others.
        assert!(third - first >= Duration::from_millis(1_100), "{key}: {:?}", third - first);
    }
}

#[tokio::test]
async fn a_late_answer_completes_a_key_that_was_given_up() {
    let store = Store::postgres().await;
    let (user, place) = store.url().split_once('@').map(|(user, place)| (user.to_owned(), place.to_owned())).unwrap();
    let (address, database) = place.split_once('/').unwrap();
    let wire = Relay::to(address.parse::<SocketAddr>().unwrap()).await;
    let through = format!("{user}@{}/{database}", wire.address);
    let lookup = Upstream::start().await;
    lookup.answer_all(Answer::status(503));
    let terms = reconcile(&lookup, "max_attempts = 1, confirmations = 1");
    let world = World::with(store, |setup| hasty(setup).through(&through).route(&route("pay", &terms))).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    wire.cut();
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.oncegate_status(), &*first.text()), (Some("unstored"), "effect 1"));
    other.wait_for_log("the reconciliation was given up").await;
    let same = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    assert_eq!(same.send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.store.states().await, ["dead"]);
    wire.restore();
    let late = eventually(TEST_TIMEOUT, async || Some(same.send().await).filter(|answer| answer.status != 409)).await;
    assert_eq!((late.oncegate_status(), &*late.text()), (Some("replayed"), "effect 1"));
    assert_eq!((world.upstream.calls(), lookup.calls()), (1, 1));
}
