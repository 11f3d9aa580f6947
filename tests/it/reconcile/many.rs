//! Several proxies, and attempts that end after all.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Desk, beside, hasty, reconcile};
use crate::harness::relay::Relay;
use crate::harness::{Answer, Hold, PATIENCE, Store, Upstream, World, eventually, route};

#[tokio::test]
async fn two_proxies_ask_no_more_often_than_one_would() {
    let desk = Desk::open(Store::postgres().await, "max_attempts = 3").await;
    let _other = beside(&desk.world).await;
    desk.lookup.answers(Answer::status(500));
    let keys: Vec<String> = (0..30).map(|number| format!("k-{number}")).collect();
    for key in &keys {
        desk.lose(key, Answer::close()).await;
    }
    eventually(PATIENCE, async || {
        let states = desk.world.store.states().await;
        states.iter().all(|state| state == "dead").then_some(())
    })
    .await;
    let mut asked: HashMap<String, Vec<Instant>> = HashMap::new();
    for call in desk.lookup.executed() {
        asked.entry(call.target).or_default().push(call.at);
    }
    assert_eq!(asked.len(), keys.len());
    for (key, asked) in asked {
        let [first, _, third] = asked[..] else { panic!("{key} was asked about {} times", asked.len()) };
        // Half a second and a second; a question may be late, and the first one later than the others.
        assert!(third - first >= Duration::from_millis(1_100), "{key}: {:?}", third - first);
    }
}

#[tokio::test]
async fn an_answer_that_comes_after_it_was_given_up_is_taken() {
    let store = Store::postgres().await;
    let (user, place) = store.url().split_once('@').map(|(user, place)| (user.to_owned(), place.to_owned())).unwrap();
    let (address, database) = place.split_once('/').unwrap();
    let wire = Relay::to(address.parse::<SocketAddr>().unwrap()).await;
    let through = format!("{user}@{}/{database}", wire.address);
    let lookup = Upstream::start().await;
    lookup.answers(Answer::status(503));
    let terms = reconcile(&lookup, "max_attempts = 1, confirmations = 1");
    let world = World::with(store, |setup| hasty(setup).through(&through).route(&route("pay", &terms))).await;
    let other = world.setup.clone().through(&world.store.url()).start().await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let first = world.pay("k-1").spawn();
    world.upstream.has_executed(1).await;
    wire.cut();
    hold.release();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.told(), &*first.text()), (Some("unstored"), "effect 1"));
    other.logs("given up, an operator must decide").await;
    let same = other.post("/pay").key("k-1").json(r#"{"amount":10,"currency":"EUR"}"#);
    assert_eq!(same.send().await.outcome(), (409, "outcome-unknown".to_owned()));
    assert_eq!(world.store.states().await, ["dead"]);
    wire.mend();
    let late = eventually(PATIENCE, async || Some(same.send().await).filter(|answer| answer.status != 409)).await;
    assert_eq!((late.told(), &*late.text()), (Some("replayed"), "effect 1"));
    assert_eq!((world.upstream.calls(), lookup.calls()), (1, 1));
}
