//! The page of consumers and events, the progress of a stream, and pages that stay current.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Html, Visitor};
use harness::browser::{Browser, Screen, Scripts};
use harness::consumer_world::{consumer, route};
use harness::operator::unknown;
use harness::operator::{Operator, completed};
use harness::rabbitmq::{self, message};
use harness::streams::{EVENTS, feed, open, pay};
use harness::upstream::Upstream;
use harness::{Answer, Store, TEST_TIMEOUT, World, eventually};

/// Waits until the page has all these words.
async fn page_with(visitor: &Visitor, path: &str, words: &[&str]) -> String {
    let shown = async || Some(visitor.page(path).await).filter(|page| words.iter().all(|word| page.contains(word)));
    eventually(TEST_TIMEOUT, shown).await
}

/// A sink whose events are dead as soon as the receiver has refused them.
pub(super) fn impatient_sink(receiver: &Upstream) -> String {
    format!(
        "name = \"bus\"\nroutes = [\"pay\"]\nurl = \"http://{}/hook\"\nsecret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n\
         give_up_after = \"1ms\"",
        receiver.address
    )
}

#[tokio::test]
async fn a_key_that_streams_shows_how_far_its_response_is() {
    let world = World::guarding(Store::sqlite(), "").await;
    let feed = feed(&world, EVENTS);
    let (mut first, _) = open(pay(&world, "k-1")).await;
    let id = Operator::of(&world.proxy).id("k-1").await;
    let (visitor, path) = (Visitor::of(&world), format!("/keys/{id}"));
    page_with(&visitor, &path, &["0 bytes, 0 events so far"]).await;
    feed.send("data: 1\n\ndata: 2\n\ndata: 3");
    first.piece().await.unwrap().unwrap();
    let page = visitor.page(&path).await;
    for words in ["25 bytes, 2 events so far", "the last <time", "the store gets the response at its end"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    feed.end();
    while first.piece().await.unwrap().is_some() {}
    let page = page_with(&visitor, &path, &["Stored response"]).await;
    assert!(!page.contains("so far"), "{page}");
}

#[tokio::test]
async fn a_consumers_messages_and_a_sinks_events_are_shown_with_what_to_do() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (queue, receiver) = (broker.queue().await, Upstream::start().await);
    let sink = impatient_sink(&receiver);
    let setup =
        |setup: harness::Setup| setup.route(&route("")).consumer(&consumer(&broker.url(), &queue, "")).events(&sink);
    let world = World::with(Store::sqlite(), setup).await;
    let (visitor, operator) = (Visitor::of(&world), Operator::of(&world.proxy));
    page_with(
        &visitor,
        "/messages",
        &[&queue.name, "<b class=\"completed\">connected</b>", "<dt>Set aside</dt><dd>0<"],
    )
    .await;
    // A message of unknown outcome, one that is refused, and an event that its receiver refuses.
    world.upstream.then(Answer::close());
    receiver.answer_all(Answer::status(400));
    queue.publish([message("k-1")]).await;
    let words = ["<dt>Set aside</dt><dd>1<", "/keys?state=unknown&#38;route=pay", "<dt>Dead</dt><dd>1<"];
    let page = page_with(&visitor, "/messages", &words).await;
    for words in ["the answer has status 400", "oncegate events requeue bus", "/runbooks/consumer", "/runbooks/events"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(visitor.page("/").await.contains("1 dead event"));
    world.upstream.then(Answer::status(422));
    queue.publish([message("k-2")]).await;
    page_with(&visitor, "/messages", &["<dt>Dead letters</dt><dd>1<"]).await;
    let id = operator.id("k-1").await;
    assert_eq!(operator.resolve(&id, completed(201, "x")).await.0, 200);
    page_with(&visitor, "/messages", &["<dt>Set aside</dt><dd>0<", "<dt>In flight</dt><dd>0<"]).await;
    receiver.answer_all(Answer::status(200));
    let token = visitor.token().await;
    let done = visitor.form("/messages/requeue", &[("form", &token), ("sink", "bus")]).send().await;
    assert_eq!(done.status, 303, "{}", done.html());
    assert!(visitor.page(done.field("location").unwrap()).await.contains("published again"));
    page_with(&visitor, "/messages", &["<dt>Dead</dt><dd>0<"]).await;
    assert_eq!(visitor.form("/messages/requeue", &[("form", &token)]).send().await.status, 400);
    for runbook in ["A consumer stands still", "Events wait, or are dead"] {
        let path = if runbook.starts_with('A') { "/runbooks/consumer" } else { "/runbooks/events" };
        assert!(visitor.page(path).await.contains(runbook));
    }
}

#[tokio::test]
async fn a_page_stays_current_where_a_visitor_asks_for_it_and_no_page_with_fields_does() {
    let world = World::start(Store::sqlite()).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(600);
    let live = |path: &str| format!("{path}{}live={}", if path.contains('?') { '&' } else { '?' }, until.as_secs());
    for path in ["/", "/keys", "/keys?state=unknown", "/messages", &format!("/keys/{id}")] {
        let plain = visitor.get(path).await;
        assert!(plain.field("refresh").is_none() && plain.html().contains("Keep current"), "{path}");
        let current = visitor.get(&live(path)).await;
        assert_eq!((current.status, current.field("refresh")), (200, Some("10")), "{path}");
        let page = current.html();
        assert!(page.contains(&format!("<a href=\"{}\">Stop</a>", path.replace('&', "&#38;"))), "{path}: {page}");
        for field in ["<select", "<textarea", "type=\"checkbox\"", "<input id"] {
            assert!(!page.contains(field), "{path}: {field}");
        }
    }
    for path in [
        format!("/keys/{id}/purge"),
        "/keys/several?step=purge&state=unknown".into(),
        "/audit".into(),
        "/routes".into(),
        "/keys/abcdefab".into(),
    ] {
        assert_eq!(visitor.get(&live(&path)).await.field("refresh"), None, "{path}");
    }
    let page = visitor.get(&format!("/?live={}", until.as_secs() + 4000)).await;
    assert_eq!(page.field("refresh"), None, "more than an hour ahead");
}

#[tokio::test]
async fn a_browser_refreshes_a_page_and_keeps_the_readers_place() {
    let Some(browser) = Browser::start(Scripts::Off).await else { return };
    let world = World::start(Store::sqlite()).await;
    for number in 0..30 {
        unknown(&world, &format!("old-{number}")).await;
    }
    browser.set_screen(Screen { width: 1280, dark: false }).await;
    browser.open(&format!("http://{}/keys?state=unknown", world.proxy.admin)).await;
    browser.tab_to(".live a").await;
    browser.press(&[harness::browser::ENTER]).await;
    browser.wait_for_text("This page is loaded again").await;
    browser.value("scrollTo(0, 600)").await;
    unknown(&world, "new-1").await;
    browser.wait_for_text("new-1").await;
    let at = eventually(TEST_TIMEOUT, async || {
        browser.value("document.readyState === 'complete' ? scrollY : null").await.as_f64()
    })
    .await;
    assert!((at - 600.0).abs() < 2.0, "{at}");
    // The first Tab is the link that skips the navigation.
    browser.tab_to(".live a").await;
    browser.press(&[harness::browser::ENTER]).await;
    browser.wait_for_text("Keep current").await;
}
