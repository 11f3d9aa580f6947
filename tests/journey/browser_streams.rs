//! A stream in a page of a real browser: the page reads each event as it comes, and after an aborted fetch a retry
//! reads them all.

use serde_json::json;

use harness::browser::{Browser, Scripts};
use harness::{Answer, Feed, Store, TEST_TIMEOUT, Upstream, World, eventually};

/// Reads a stream into `now`, which holds what has come and how it went on.
const READ: &str = "
    globalThis.read = async (url, request) => {
        const own = globalThis.now = { text: '', went: '', stop: new AbortController() };
        try {
            const response = await fetch(url, { ...request, signal: own.stop.signal });
            own.went = response.headers.get('Oncegate-Status');
            const decoder = new TextDecoder();
            for (const reader = response.body.getReader();;) {
                const { done, value } = await reader.read();
                if (done) break;
                own.text += decoder.decode(value, { stream: true });
            }
            own.went += ', ended';
        } catch (error) {
            own.went += `, ${error.name}`;
        }
    };
    0";

/// Opens the shop, as a first visit or a reload does.
async fn open(browser: &Browser, shop: &str) {
    browser.open(shop).await;
    browser.wait_for_text("a shop").await;
    browser.value(READ).await;
}

/// Waits until the page has read this, and it went on so.
async fn wait_for(browser: &Browser, went: &str, text: &str) {
    let expected = json!([went, text]);
    eventually(TEST_TIMEOUT, async || (browser.value("[now.went, now.text]").await == expected).then_some(())).await;
}

#[tokio::test]
async fn a_page_reads_a_stream_as_it_comes_and_all_of_it_after_an_aborted_fetch_and_a_reload() {
    let Some(browser) = Browser::start(Scripts::On).await else { return };
    let page = Upstream::start().await;
    page.answer_all(Answer::status(200).field("Content-Type", "text/html").body("<title>shop</title>a shop"));
    let shop = format!("http://{}", page.address);
    let world =
        World::guarding(Store::sqlite(), &format!("in_flight = \"wait\"\ncors = {{ origins = [\"{shop}\"] }}")).await;
    let grant = |answer: Answer| {
        answer
            .field("Access-Control-Allow-Origin", &shop)
            .field("Access-Control-Allow-Methods", "POST")
            .field("Access-Control-Allow-Headers", "authorization, content-type, idempotency-key")
            .field("Access-Control-Expose-Headers", "Oncegate-Status")
            .field("Access-Control-Max-Age", "600")
    };
    world.upstream.answer_all(grant(Answer::status(200).body("not a stream")));
    open(&browser, &shop).await;
    let ask = async |key: &str| {
        let request = json!({ "method": "POST", "body": "{}", "headers": {
            "Idempotency-Key": key, "Content-Type": "application/json", "Authorization": "Bearer a" } });
        browser.value(&format!("void read('http://{}/pay', {request})", world.proxy.listen)).await;
    };
    // The browser keeps the answer to its preflight, so that the stream goes to the request itself.
    ask("k-0").await;
    wait_for(&browser, "executed, ended", "not a stream").await;

    let feed = Feed::new();
    world.upstream.then(grant(Answer::fed(200, "text/event-stream", &feed)));
    ask("k-1").await;
    wait_for(&browser, "streaming", "").await;
    let mut sent = String::new();
    let send_next = |sent: &mut String| {
        let event = format!("data: {}\n\n", sent.len());
        feed.send(&*event);
        sent.push_str(&event);
    };
    for _ in 0..3 {
        send_next(&mut sent);
        wait_for(&browser, "streaming", &sent).await;
    }
    browser.value("now.stop.abort()").await;
    wait_for(&browser, "streaming, AbortError", &sent).await;

    send_next(&mut sent);
    ask("k-1").await;
    wait_for(&browser, "attached", &sent).await;
    send_next(&mut sent);
    wait_for(&browser, "attached", &sent).await;

    open(&browser, &shop).await;
    ask("k-1").await;
    wait_for(&browser, "attached", &sent).await;
    feed.end();
    wait_for(&browser, "attached, ended", &sent).await;
    ask("k-1").await;
    wait_for(&browser, "replayed, ended", &sent).await;
    assert_eq!(world.upstream.executed_for("k-1"), 1);
}
