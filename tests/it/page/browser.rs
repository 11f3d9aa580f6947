//! In a real browser, on a phone and on a desk, by day and by night.

use super::Visitor;
use crate::harness::browser::{Browser, ENTER, SPACE, Screen, Scripts};
use crate::harness::operator::{Operator, not_executed};
use crate::harness::{Answer, Store, World};
use crate::operators::{dead, unknown};

const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

const SCREENS: [Screen; 4] = [
    Screen { width: 375, dark: false },
    Screen { width: 375, dark: true },
    Screen { width: 1280, dark: false },
    Screen { width: 1280, dark: true },
];

/// A night in which something went wrong: keys in every state, and somebody who has begun to look after them.
async fn night() -> World {
    let route = |name: &str| {
        format!("name = \"{name}\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nkey = {{ required = true }}")
    };
    let setup = |setup: crate::harness::Setup| {
        setup.top("service = \"payments\"").route(&route("pay")).route(&route("issue-refund"))
    };
    let mut world = World::with(Store::sqlite(), setup).await;
    dead(&mut world, "order-1001").await;
    for number in 2..7 {
        unknown(&world, &format!("order-100{number}")).await;
    }
    for number in 0..3 {
        let refund = world.post("/issue-refund").key(&format!("refund-{number}")).body("x");
        assert_eq!(refund.send().await.status, 201);
    }
    world.upstream.then(Answer::status(500));
    assert_eq!(world.pay("order-1009").send().await.told(), Some("released"));
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("order-1002", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(false)).await.0, 409);
    let body = serde_json::json!({ "outcome": "not_executed", "accept_risk": true, "note": "not in the ledger, see incident 4711" });
    assert_eq!(operator.resolve(&id, body).await.0, 200);
    world
}

#[tokio::test]
async fn each_page_can_be_used_by_everybody_on_a_phone_and_on_a_desk_by_day_and_by_night() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let world = night().await;
    let operator = Operator::of(&world.proxy);
    let (lost, given_up) = (operator.id("order-1003").await, operator.id("order-1001").await);
    let (done, retryable) = (operator.id("refund-1").await, operator.id("order-1002").await);
    let home = format!("http://{}", world.proxy.admin);
    for (name, path) in [
        ("overview", "/".to_owned()),
        ("keys", "/keys?state=unknown".to_owned()),
        ("keys-none", "/keys?route=nothing".to_owned()),
        ("key-unknown", format!("/keys/{lost}")),
        ("key-dead", format!("/keys/{given_up}")),
        ("key-completed", format!("/keys/{done}")),
        ("key-retryable", format!("/keys/{retryable}?done=not-executed")),
        ("completed", format!("/keys/{lost}/completed")),
        ("not-executed", format!("/keys/{lost}/not-executed")),
        ("purge", format!("/keys/{given_up}/purge")),
        ("several", "/keys/several?step=not-executed&state=unknown".to_owned()),
        ("audit", "/audit".to_owned()),
        ("gone", "/keys/abcdefab".to_owned()),
        ("trouble", "/keys?state=lost".to_owned()),
    ] {
        for screen in SCREENS {
            browser.is_seen_on(screen).await;
            browser.open(&format!("{home}{path}")).await;
            let what = format!("{name}-{}-{}", screen.width, if screen.dark { "dark" } else { "light" });
            browser.picture(&what).await;
            browser.fits(&what).await;
            browser.is_accessible(&what).await;
        }
        browser.is_seen_on(Screen { width: 320, dark: false }).await;
        browser.fits(&format!("{name} at 320 px")).await;
    }
    browser.is_seen_on(SCREENS[2]).await;
    browser.open(&home).await;
    browser.is_printed().await;
    browser.picture("overview-print").await;
}

#[tokio::test]
async fn a_lost_answer_is_written_down_with_the_keyboard_alone_and_without_a_script() {
    let Some(browser) = Browser::start(Scripts::Off).await else { return };
    let token = format!("token = \"{TOKEN}\"");
    let world = World::with(Store::sqlite(), |setup| setup.admin(&token)).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("order-1001").send().await.status, 502);
    browser.is_seen_on(SCREENS[0]).await;
    browser.open(&format!("http://{}/keys?state=unknown", world.proxy.admin)).await;
    browser.shows("Sign in").await;
    browser.picture("sign-in-375-light").await;
    browser.tabs_to("#name").await;
    browser.types("alice").await;
    browser.tabs_to("#token").await;
    browser.types("not-the-token").await;
    browser.press(&[ENTER]).await;
    browser.shows("This is not the listener's token").await;
    browser.tabs_to("#token").await;
    browser.types(TOKEN).await;
    browser.press(&[ENTER]).await;
    // Where somebody wanted to go before they were asked who they are.
    browser.shows("order-10…").await;
    assert!(browser.url().await.ends_with("/keys?state=unknown"));
    browser.tabs_to(".record a").await;
    browser.press(&[ENTER]).await;
    browser.shows("What was decided about it").await;
    // The first Tab is the way past the navigation.
    browser.tabs_to(".skip").await;
    browser.press(&[ENTER]).await;
    browser.tabs_to("a[href$='/completed']").await;
    browser.press(&[ENTER]).await;
    browser.shows("Status that retries get").await;
    browser.tabs_to("#status").await;
    browser.press(&['\u{e003}', '\u{e003}', '\u{e003}']).await;
    browser.types("201").await;
    browser.tabs_to("#body").await;
    browser.types("{\"charge\": 7}").await;
    browser.tabs_to("#note").await;
    browser.types("ledger line 7").await;
    browser.tabs_to(".decision button").await;
    browser.press(&[SPACE]).await;
    browser.shows("Done. The key is completed by hand").await;
    let text = browser.text().await;
    for words in ["alice (claimed) at 127.0.0.1", "unknown → completed", "quiet", "status 201, 13 bytes"] {
        assert!(words == "quiet" || text.contains(words), "{words}: {text}");
    }
    let replay = world.pay("order-1001").send().await;
    assert_eq!((replay.status, replay.text(), replay.told()), (201, "{\"charge\": 7}".to_owned(), Some("replayed")));
    browser.tabs_to("header button").await;
    browser.press(&[ENTER]).await;
    browser.shows("To the operators' page").await;
    assert_eq!(Visitor::of(&world).get("/").await.status, 303);
}

#[tokio::test]
async fn a_form_of_another_site_in_the_same_browser_changes_nothing() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "order-1001").await;
    let admin = format!("http://localhost:{}", world.proxy.admin.port());
    browser.open(&format!("{admin}/keys/{id}")).await;
    browser.shows("order-10…").await;
    let form = format!(
        "<!doctype html><form method=post action='{admin}/keys/{id}/purge'><input name=seen value=unknown-1>\
         <input name=name value=mallory><input name=accept_risk value=true><button>x</button></form>\
         <iframe src='{admin}/'></iframe>"
    );
    let there = world.upstream.then(Answer::status(200).field("Content-Type", "text/html").body(form)).address;
    browser.open(&format!("http://localhost:{}/evil", there.port())).await;
    let framed = browser.value("document.querySelector('iframe').contentDocument === null").await;
    assert_eq!(framed, true, "it shows itself in nobody's frame");
    browser.value("document.forms[0].submit()").await;
    browser.shows("other sites' pages may not ask here").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!((operator.keys("state=unknown").await.len(), operator.audit().await.len()), (1, 0));
}

#[tokio::test]
async fn the_pages_of_problems_can_be_read_by_everybody_on_a_phone_and_on_a_desk() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let world = World::start(Store::sqlite()).await;
    let home = format!("http://{}/.oncegate/problems/", world.proxy.listen);
    browser.open(&home).await;
    let slugs = browser.value("[...document.querySelectorAll('li code')].map(e => e.textContent)").await;
    let slugs: Vec<_> = slugs.as_array().unwrap().iter().map(|slug| slug.as_str().unwrap().to_owned()).collect();
    assert!(slugs.len() >= 18, "{slugs:?}");
    for slug in slugs.iter().map(String::as_str).chain(["", "none"]) {
        browser.open(&format!("{home}{slug}")).await;
        for screen in SCREENS {
            browser.is_seen_on(screen).await;
            let what = format!("problem-{slug}-{}-{}", screen.width, if screen.dark { "dark" } else { "light" });
            if ["", "outcome-unknown", "none"].contains(&slug) {
                browser.picture(&what).await;
            }
            browser.fits(&what).await;
            browser.is_accessible(&what).await;
        }
    }
}
