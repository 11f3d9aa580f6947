//! The page in a real browser, on phone and desktop, in light and dark.

use std::path::Path;

use super::Visitor;
use super::messages::impatient_sink;
use harness::browser::{Browser, ENTER, SPACE, Screen, Scripts};
use harness::consumer_world;
use harness::operator::{Operator, not_executed};
use harness::operator::{dead, unknown};
use harness::rabbitmq::{self, message};
use harness::reload::reload;
use harness::streams::{EVENTS, feed, open, pay};
use harness::upstream::Upstream;
use harness::{Answer, Store, TEST_TIMEOUT, World, eventually};

const TOKEN: &str = "c29tZXRoaW5nIHNlY3JldA==";

const SCREENS: [Screen; 4] = [
    Screen { width: 390, dark: false },
    Screen { width: 390, dark: true },
    Screen { width: 1280, dark: false },
    Screen { width: 1280, dark: true },
];

/// A world after a failure: keys in every state, and an operator's first decisions.
async fn night() -> World {
    let route = |name: &str| {
        format!("name = \"{name}\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nkey = {{ required = true }}")
    };
    let setup = |setup: harness::Setup| {
        setup
            .top("service = \"payments\"")
            .route(&route("pay"))
            .route(&format!("{}\nscope = [\"none\"]", route("issue-refund")))
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
    assert_eq!(world.pay("order-1009").send().await.oncegate_status(), Some("released"));
    let operator = Operator::of(&world.proxy);
    let id = operator.id_when("order-1002", "unknown").await;
    assert_eq!(operator.resolve(&id, not_executed(false)).await.0, 409);
    let body = serde_json::json!({ "outcome": "not_executed", "accept_risk": true, "note": "not in the ledger, see incident 4711" });
    assert_eq!(operator.resolve(&id, body).await.0, 200);
    world
}

#[tokio::test]
async fn each_page_is_accessible_on_phone_and_desktop_in_light_and_dark() {
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
        (
            "several-changed",
            format!("/keys/changed?done=purge&changed=1&refused=1&key=abcdefabcdefabcd&key={lost}.key-changed"),
        ),
        ("audit", "/audit".to_owned()),
        ("routes", "/routes".to_owned()),
        ("messages", "/messages".to_owned()),
        ("instances", "/instances".to_owned()),
        ("saved", "/saved".to_owned()),
        ("gone", "/keys/abcdefab".to_owned()),
        ("trouble", "/keys?state=lost".to_owned()),
    ] {
        for screen in SCREENS {
            browser.set_screen(screen).await;
            browser.open(&format!("{home}{path}")).await;
            browser.value("document.querySelectorAll('details').forEach(part => part.open = true)").await;
            let what = format!("{name}-{}-{}", screen.width, if screen.dark { "dark" } else { "light" });
            browser.picture(&what).await;
            browser.assert_fits(&what).await;
            browser.assert_accessible(&what).await;
            let broken =
                "[...document.querySelectorAll('.steps code')].filter(e => e.getClientRects().length > 1).length";
            assert_eq!(browser.value(broken).await, 0, "{what}: a command is broken over two lines");
        }
        browser.set_screen(Screen { width: 320, dark: false }).await;
        browser.assert_fits(&format!("{name} at 320 px")).await;
    }
    reload(&world, "[[routes]]\nname = \"pay\"\npath = \"/pay\"\nttl = \"soon\"", "the running one stays", 1).await;
    eventually(TEST_TIMEOUT, async || (world.proxy.readyz().await.1["reload"]["refused"] == true).then_some(())).await;
    for screen in SCREENS {
        browser.set_screen(screen).await;
        browser.open(&home).await;
        let what = format!("refused-reload-{}-{}", screen.width, if screen.dark { "dark" } else { "light" });
        browser.picture(&what).await;
        browser.assert_fits(&what).await;
        browser.assert_accessible(&what).await;
    }
    browser.set_screen(SCREENS[2]).await;
    browser.open(&home).await;
    browser.set_print_media().await;
    browser.picture("overview-print").await;
}

/// The pictures of the README and of docs/admin.md, by `make pictures`. tests/docs.rs names a page that has none.
#[tokio::test]
#[ignore = "writes docs/images"]
async fn write_the_pictures_of_the_documents() {
    let browser = Browser::start(Scripts::On).await.expect("a browser: apt-get install chromium chromium-driver");
    let broker = rabbitmq::shared().await.expect("RabbitMQ");
    let world = night().await;
    let home = format!("http://{}", world.proxy.admin);
    for dark in [false, true] {
        browser.set_screen(Screen { width: 1000, dark }).await;
        write_picture(&browser, &home, if dark { "dark" } else { "light" }).await;
    }
    browser.set_screen(Screen { width: 1000, dark: false }).await;
    for (caller, keyed, unkeyed) in [("Bearer shop", 9, 0), ("Bearer cron", 4, 2), ("Bearer app", 2, 7)] {
        for _ in 0..keyed {
            world.pay("order-7").field("Authorization", caller).send().await;
        }
        for _ in 0..unkeyed {
            world.post("/pay").field("Authorization", caller).body("x").send().await;
        }
    }
    let operator = Operator::of(&world.proxy);
    let (lost, given_up) = (operator.id("order-1003").await, operator.id("order-1001").await);
    let result = format!("done=not-executed&changed=1&refused=1&key={lost}&key={given_up}.key-changed");
    for (name, path) in [
        ("keys", "/keys?state=unknown".to_owned()),
        ("key", format!("/keys/{lost}")),
        ("change", format!("/keys/{lost}/completed")),
        ("bulk_change", "/keys/several?step=not-executed&state=unknown".to_owned()),
        ("bulk_result", format!("/keys/changed?{result}")),
        ("audit", "/audit".to_owned()),
        ("routes", "/routes".to_owned()),
        ("instances", "/instances".to_owned()),
        ("saved", "/saved".to_owned()),
    ] {
        write_picture(&browser, &format!("{home}{path}"), name).await;
    }

    let (queue, receiver) = (broker.queue().await, Upstream::start().await);
    let sink = impatient_sink(&receiver);
    let setup = |setup: harness::Setup| {
        let token = format!("token = \"{TOKEN}\"");
        setup
            .admin(&token)
            .route(&consumer_world::route(""))
            .consumer(&consumer_world::consumer(&broker.url(), &queue, ""))
            .events(&sink)
    };
    let world = World::with(Store::sqlite(), setup).await;
    let home = format!("http://{}", world.proxy.admin);
    write_picture(&browser, &home, "sign_in").await;
    browser.tab_to("#name").await;
    browser.type_text("alice").await;
    browser.tab_to("#token").await;
    browser.type_text(TOKEN).await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("Latest decisions").await;
    world.upstream.then(Answer::close());
    receiver.answer_all(Answer::status(400));
    queue.publish([message("order-2001")]).await;
    let refused = async || {
        browser.open(&format!("{home}/messages")).await;
        browser.text().await.contains("the answer has status 400").then_some(())
    };
    eventually(TEST_TIMEOUT, refused).await;
    write_picture(&browser, &format!("{home}/messages"), "messages").await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "chat-7")).await;
    feed.send("data: {\"delta\": \"Hello\"}\n\ndata: {\"delta\": \" world\"}\n\n");
    first.piece().await.unwrap().unwrap();
    browser.open(&format!("{home}/keys?state=in_flight")).await;
    browser.tab_to(".record a").await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("so far").await;
    let here = browser.url().await;
    write_picture(&browser, &here, "stream").await;
    feed.end();
}

async fn write_picture(browser: &Browser, url: &str, name: &str) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
    std::fs::create_dir_all(&images).unwrap();
    browser.open(url).await;
    let name = format!("page-{name}");
    std::fs::copy(browser.picture(&name).await, images.join(format!("{name}.png"))).unwrap();
}

#[tokio::test]
async fn a_lost_answer_can_be_entered_by_keyboard_without_scripts() {
    let Some(browser) = Browser::start(Scripts::Off).await else { return };
    let token = format!("token = \"{TOKEN}\"");
    let world = World::with(Store::sqlite(), |setup| setup.admin(&token)).await;
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("order-1001").send().await.status, 502);
    browser.set_screen(SCREENS[0]).await;
    browser.open(&format!("http://{}/keys?state=unknown", world.proxy.admin)).await;
    browser.wait_for_text("Sign in").await;
    browser.picture("sign-in-390-light").await;
    browser.tab_to("#name").await;
    browser.type_text("alice").await;
    browser.tab_to("#token").await;
    browser.type_text("not-the-token").await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("This is not the listener's token").await;
    browser.tab_to("#token").await;
    browser.type_text(TOKEN).await;
    browser.press(&[ENTER]).await;
    // The page requested before the sign-in.
    browser.wait_for_text("order-10").await;
    assert!(browser.url().await.ends_with("/keys?state=unknown"));
    browser.tab_to(".record a").await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("History").await;
    // The first Tab is the link that skips the navigation.
    browser.tab_to(".skip").await;
    browser.press(&[ENTER]).await;
    browser.tab_to("a[href$='/completed']").await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("Status that retries get").await;
    browser.tab_to("#status").await;
    browser.press(&['\u{e003}', '\u{e003}', '\u{e003}']).await;
    browser.type_text("201").await;
    browser.tab_to("#body").await;
    browser.type_text("{\"charge\": 7}").await;
    browser.tab_to("#note").await;
    browser.type_text("ledger line 7").await;
    browser.tab_to(".decision button").await;
    browser.press(&[SPACE]).await;
    browser.wait_for_text("Done. The key is completed by hand").await;
    let text = browser.text().await;
    for words in ["alice (claimed) at 127.0.0.1", "unknown → completed", "quiet", "status 201, 13 bytes"] {
        assert!(words == "quiet" || text.contains(words), "{words}: {text}");
    }
    let replay = world.pay("order-1001").send().await;
    assert_eq!(
        (replay.status, replay.text(), replay.oncegate_status()),
        (201, "{\"charge\": 7}".to_owned(), Some("replayed"))
    );
    browser.tab_to("header button").await;
    browser.press(&[ENTER]).await;
    browser.wait_for_text("Sign in to the admin page").await;
    assert_eq!(Visitor::of(&world).get("/").await.status, 303);
}

#[tokio::test]
async fn a_form_of_another_site_in_the_same_browser_changes_nothing() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "order-1001").await;
    let admin = format!("http://localhost:{}", world.proxy.admin.port());
    browser.open(&format!("{admin}/keys/{id}")).await;
    browser.wait_for_text("order-10").await;
    let form = format!(
        "<!doctype html><form method=post action='{admin}/keys/{id}/purge'><input name=seen value=unknown-1>\
         <input name=name value=mallory><input name=accept_risk value=true><button>x</button></form>\
         <iframe src='{admin}/'></iframe>"
    );
    let there = world.upstream.then(Answer::status(200).field("Content-Type", "text/html").body(form)).address;
    browser.open(&format!("http://localhost:{}/evil", there.port())).await;
    let framed = browser.value("document.querySelector('iframe').contentDocument === null").await;
    assert_eq!(framed, true, "no other site can show it in a frame");
    browser.value("document.forms[0].submit()").await;
    browser.wait_for_text("other sites' pages may not ask here").await;
    let operator = Operator::of(&world.proxy);
    assert_eq!((operator.keys("state=unknown").await.len(), operator.audit().await.len()), (1, 0));
}

#[tokio::test]
async fn problem_pages_are_accessible_on_phone_and_desktop() {
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
            browser.set_screen(screen).await;
            let what = format!("problem-{slug}-{}-{}", screen.width, if screen.dark { "dark" } else { "light" });
            if ["", "outcome-unknown", "none"].contains(&slug) {
                browser.picture(&what).await;
            }
            browser.assert_fits(&what).await;
            browser.assert_accessible(&what).await;
        }
    }
}
