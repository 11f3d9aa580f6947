//! A rule of admission that a reload or a restart has made narrower: stored keys are
//! answered first, and new ones obey it.

use std::time::{Duration, SystemTime};

use harness::client::Request;
use harness::operator::Operator;
use harness::proxy::Setup;
use harness::reload::{RELOADED, reload, settles};
use harness::{Answer, Proxy, Response, Store, World, on_both_stores, route};

/// A rule, the refusal of a request that breaks it, and what makes a request break it.
struct NarrowRule {
    lines: &'static str,
    refusal: (u16, &'static str),
    breaks: fn(request: Request) -> Request,
    /// The beginning of the keys.
    key: &'static str,
}

const LARGE: usize = 300_000;

fn rules() -> [NarrowRule; 5] {
    let hour_ago = |request: Request| {
        let sent = SystemTime::now() - Duration::from_secs(3_600);
        request.field("Date", &httpdate::fmt_http_date(sent))
    };
    [
        NarrowRule {
            lines: "key = { min_length = 64 }",
            refusal: (400, "key-invalid"),
            breaks: |request| request,
            key: "k",
        },
        NarrowRule {
            lines: "key = { max_length = 8 }",
            refusal: (400, "key-invalid"),
            breaks: |request| request,
            key: "a-long-key",
        },
        NarrowRule {
            lines: "max_request_body = \"64B\"",
            refusal: (413, "request-too-large"),
            breaks: |request| request.body(vec![b'x'; LARGE]),
            key: "k",
        },
        NarrowRule {
            lines: "max_request_body = \"64B\"",
            refusal: (413, "request-too-large"),
            breaks: |request| request.body(vec![b'x'; LARGE]).chunked(),
            key: "k",
        },
        NarrowRule { lines: "max_age = \"1m\"", refusal: (400, "request-too-old"), breaks: hour_ago, key: "k" },
    ]
}

/// The same store and service, with these lines for both routes.
fn setup(setup: Setup, lines: &str) -> Setup {
    setup
        .top("secret = \"a secret of some length\"\ncache = { memory = \"0B\" }")
        .route(&route("pay", lines))
        .route(&route("later", &format!("delivery = \"async\"\n{lines}")))
}

impl NarrowRule {
    fn request(&self, proxy: &Proxy, path: &str, key: &str) -> Request {
        (self.breaks)(proxy.post(path).key(&format!("{}-{key}", self.key)).body("x"))
    }

    fn is_refused(&self, answer: &Response) -> bool {
        let (status, slug) = self.refusal;
        answer.outcome() == (status, slug.to_owned()) && answer.oncegate_status() == Some("rejected")
    }

    /// Answers of stored keys, and refusals of new ones.
    async fn check(&self, world: &World, first: &Response, keys: usize) {
        let (proxy, calls) = (&world.proxy, world.upstream.calls());
        assert_eq!(
            self.request(proxy, "/pay", "completed").send().await.comparable(),
            first.replayed(),
            "{}",
            self.lines
        );
        let unknown = self.request(proxy, "/pay", "unknown").send().await;
        assert_eq!(unknown.outcome(), (409, "outcome-unknown".to_owned()), "{}", self.lines);
        let accepted = self.request(proxy, "/later", "queued").send().await;
        assert_eq!(accepted.status, 202, "{}", self.lines);
        // The whole body is compared.
        let mut other = vec![b'x'; LARGE];
        other[LARGE - 1] = b'y';
        let reused = self.request(proxy, "/pay", "completed").body(other).send().await;
        assert_eq!(reused.outcome(), (422, "key-reused".to_owned()), "{}", self.lines);
        for (path, key) in [("/pay", "new"), ("/later", "new"), ("/pay", "retryable")] {
            let refused = self.request(proxy, path, key).send().await;
            assert!(self.is_refused(&refused), "{} {path} {key}: {refused:?}", self.lines);
        }
        assert_eq!(world.upstream.calls(), calls, "{}", self.lines);
        assert_eq!(Operator::of(proxy).keys("").await.len(), keys, "nothing was reserved");
    }
}

on_both_stores!(stored_keys_are_answered_under_a_narrower_rule_and_new_ones_obey_it);
async fn stored_keys_are_answered_under_a_narrower_rule_and_new_ones_obey_it(store: Store) {
    let mut world = World::with(store, |wide| setup(wide, "")).await;
    for (number, rule) in rules().iter().enumerate() {
        if number > 0 {
            world.restart_as(|wide| setup(wide, "")).await;
        }
        // Each rule has keys of its own.
        let rule = NarrowRule { key: Box::leak(format!("{}{number}", rule.key).into_boxed_str()), ..*rule };
        let first = rule.request(&world.proxy, "/pay", "completed").send().await;
        assert_eq!(first.oncegate_status(), Some("executed"), "{}", rule.lines);
        world.upstream.then(Answer::close());
        assert_eq!(rule.request(&world.proxy, "/pay", "unknown").send().await.status, 502);
        world.upstream.then(Answer::status(503).field("Oncegate-Decision", "release"));
        assert_eq!(rule.request(&world.proxy, "/pay", "retryable").send().await.status, 503);
        let calls = world.upstream.calls();
        world.upstream.then(Answer::close());
        assert_eq!(rule.request(&world.proxy, "/later", "queued").send().await.status, 202);
        world.upstream.wait_for_executed(calls + 1).await;

        let narrow = setup(Proxy::on(&world.store.url()).upstream(world.upstream.address), rule.lines);
        reload(&world, &narrow.text(), RELOADED, 1).await;
        // A worker that still has the wider rule executes a new key, so that each probe has its own.
        let mut probes = 0;
        settles(async || {
            probes += 1;
            rule.is_refused(&rule.request(&world.proxy, "/pay", &format!("probe-{probes}")).send().await)
        })
        .await;
        let keys = Operator::of(&world.proxy).keys("").await.len();
        rule.check(&world, &first, keys).await;
        // No instance remembers the wider rule.
        world.restart_as(|narrow| setup(narrow, rule.lines)).await;
        rule.check(&world, &first, keys).await;
    }
}

#[tokio::test]
async fn a_large_body_without_a_stored_key_is_not_read() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", "max_request_body = \"64B\""))).await;
    let mut asked =
        world.post("/pay").key("new").field("Expect", "100-continue").body(vec![b'x'; 1 << 20]).open_head().await;
    let refused = asked.response().await;
    assert_eq!((refused.outcome(), refused.interim.len()), ((413, "request-too-large".to_owned()), 0));
}

#[tokio::test]
async fn a_key_that_no_rule_allows_is_refused_before_the_store_is_read() {
    let (world, wire) = harness::relay::remote(|setup| setup.route(&route("pay", ""))).await;
    wire.cut();
    for key in ["a,b", &"x".repeat(1_025)] {
        assert_eq!(world.pay(key).send().await.outcome(), (400, "key-invalid".to_owned()));
    }
    // Without the store nobody knows whether this one was stored under a wider rule.
    let long = world.pay(&"x".repeat(1_024)).send().await;
    assert_eq!(long.outcome(), (503, "store-unavailable".to_owned()));
    assert_eq!(world.upstream.calls(), 0);
}
