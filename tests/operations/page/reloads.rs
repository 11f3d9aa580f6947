//! A refused reload on the page and in `/readyz`.

use rustix::process::Signal;

use super::Visitor;
use harness::reload::{REFUSED, RELOADED, reload, with};
use harness::{Store, TEST_TIMEOUT, World, eventually, on_both_stores};

/// Waits until a page has these words: a reload is logged just before it is noted.
async fn wait_for(visitor: &Visitor, words: &str) -> String {
    eventually(TEST_TIMEOUT, async || Some(visitor.page("/").await).filter(|page| page.contains(words))).await
}

on_both_stores!(a_refused_reload_is_named_on_each_page_and_in_readyz_until_one_succeeds);
async fn a_refused_reload_is_named_on_each_page_and_in_readyz_until_one_succeeds(store: Store) {
    const CANARY: &str = "canary-411111";
    let world = World::guarding(store, "").await;
    let visitor = Visitor::of(&world);
    assert_eq!(world.proxy.readyz().await.1["reload"]["refused"], false);
    assert!(!visitor.page("/").await.contains("The last reload was refused"));

    let broken = with(&world, &format!("secret = \"{CANARY}\""), "ttl = \"soon<b>\"").text();
    reload(&world, &broken, "the running one stays", 2).await;
    wait_for(&visitor, "The last reload was refused").await;
    for path in ["/", "/keys", "/audit", "/runbooks/dead-keys"] {
        let page = visitor.page(path).await;
        for words in ["The last reload was refused", "soon&#60;b&#62;", "routes[0].ttl", "is too short to be secret"] {
            assert!(page.contains(words), "{path}: {words}: {page}");
        }
        assert!(!page.contains(CANARY), "{page}");
    }
    let (status, ready) = world.proxy.readyz().await;
    assert_eq!((status, &ready["ready"]), (200, &true.into()), "the running configuration serves");
    assert_eq!((&ready["reload"]["refused"], &ready["reload"]["problems"]), (&true.into(), &2.into()));
    assert!(ready["reload"]["refused_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{ready}");
    assert!(!ready.to_string().contains("ttl"), "the problems need a token: {ready}");

    reload(&world, &with(&world, "", "scope = [\"none\"]").text(), REFUSED, 1).await;
    let page = wait_for(&visitor, "would not find their earlier keys").await;
    assert!(!page.contains("routes[0].ttl"), "{page}");

    reload(&world, &with(&world, "", "").text(), RELOADED, 1).await;
    eventually(TEST_TIMEOUT, async || (!visitor.page("/").await.contains("The last reload was refused")).then_some(()))
        .await;
    assert_eq!(world.proxy.readyz().await.1["reload"]["refused_at"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_file_that_is_gone_at_a_hangup_is_named_on_the_page() {
    let world = World::guarding(Store::sqlite(), "").await;
    std::fs::remove_file(world.proxy.file()).unwrap();
    world.proxy.signal(Signal::HUP);
    world.proxy.wait_for_log("the running one stays").await;
    wait_for(&Visitor::of(&world), "cannot be read").await;
}
