//! The rules of admission: a request that enforcement refuses, its copy in observe mode, `oncegate explain` and a
//! message that breaks the same rule all name the same refusal.

use std::net::Ipv4Addr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use oncegate_engine::gate::Gate;
use oncegate_engine::gate::message::{Message, MessageOutcome};
use oncegate_engine::instance::boot_time::BootInstant;
use oncegate_http::upstream::connection_slots::UpstreamSlots;

use super::explain;
use super::observe::observed;
use harness::{Proxy, Request, Setup, Store, Upstream, World, in_process, reload, route};

/// A rule, and the request that breaks it.
struct Rule {
    lines: &'static str,
    fields: &'static [(&'static str, &'static str)],
    key: Option<&'static str>,
    body: &'static str,
    refusal: &'static str,
    /// Whether a message can break it: one always has a key, and no connection of its own.
    is_of_messages: bool,
}

const RULE: Rule =
    Rule { lines: "", fields: &[], key: Some("k-1"), body: "x", refusal: "bad-request", is_of_messages: true };

const OLD: (&str, &str) = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");

const RULES: [Rule; 12] = [
    Rule { fields: &[("Connection", "authorization")], is_of_messages: false, ..RULE },
    Rule { fields: &[("Connection", "idempotency-key")], is_of_messages: false, ..RULE },
    Rule { fields: &[("X-HTTP-Method-Override", "PUT")], ..RULE },
    Rule { lines: "key = { required = true }", key: None, refusal: "key-missing", is_of_messages: false, ..RULE },
    Rule { lines: "key = { min_length = 8 }", refusal: "key-invalid", ..RULE },
    Rule { lines: "key = { max_length = 8 }", key: Some("a-long-key"), refusal: "key-invalid", ..RULE },
    Rule { key: Some("\"k-1"), refusal: "key-invalid", ..RULE },
    Rule { lines: "max_age = \"1h\"", fields: &[OLD], refusal: "request-too-old", ..RULE },
    Rule { lines: "max_age = \"1h\"", fields: &[("Date", "yesterday")], ..RULE },
    Rule { lines: "max_request_body = \"4B\"", body: "more than four bytes", refusal: "request-too-large", ..RULE },
    // The one that a request breaks first, of several.
    Rule {
        lines: "max_request_body = \"4B\"\nmax_age = \"1h\"\nkey = { max_length = 2 }",
        fields: &[OLD],
        body: "more than four bytes",
        refusal: "key-invalid",
        ..RULE
    },
    Rule {
        lines: "dialect = \"repeatability\"",
        fields: &[("Repeatability-Request-ID", "b6f3a1f0-5f0e-4e0a-9d3b-0c1f2a3b4c5d")],
        key: None,
        is_of_messages: false,
        ..RULE
    },
];

impl Rule {
    fn route(&self, mode: &str) -> String {
        let Self { lines, .. } = self;
        format!("name = \"pay\"\npath = \"/pay\"\nmethods = [\"POST\", \"PUT\"]\nmode = \"{mode}\"\n{lines}")
    }

    fn request(&self, world: &World) -> Request {
        let request = world.post("/pay").body(self.body);
        let request = self.fields.iter().fold(request, |request, (name, value)| request.field(name, value));
        self.key.into_iter().fold(request, |request, key| request.key(key))
    }

    fn explained(&self) -> String {
        let setup = Proxy::on("memory:").top("upstream = \"http://localhost:1\"").route(&self.route("enforce"));
        let key = self.key.map(|key| ("Idempotency-Key", key));
        let fields = self.fields.iter().copied().chain(key).chain([("Authorization", "Bearer a")]);
        let fields: Vec<_> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
        let mut arguments = vec!["POST", "/pay", "-d", self.body];
        fields.iter().for_each(|field| arguments.extend(["-H", field]));
        explain::json(&setup, &arguments)["code"].as_str().unwrap_or("none").to_owned()
    }
}

/// A gate that nothing but messages reaches.
async fn message_gate(setup: Setup) -> (Arc<Gate>, impl Fn(&Rule, &str) -> Message) {
    let setup = setup.consumer("amqp = \"amqp://localhost:1\"\nqueue = \"q\"\nroute = \"pay\"");
    let (instance, config) = in_process::instance(&setup, UpstreamSlots::new).await;
    instance.instance_lease.record_renewal(BootInstant::now());
    let consumer = Arc::clone(&config.consumers[0]);
    let message = move |rule: &Rule, key: &str| Message {
        topic: None,
        consumer: Arc::clone(&consumer),
        path: "/pay".to_owned(),
        key: key.to_owned().into(),
        headers: rule
            .fields
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value)))
            .collect::<HeaderMap>(),
        body: rule.body.into(),
        broker: Ipv4Addr::LOCALHOST.into(),
    };
    (Arc::new(Gate::new(instance, config)), message)
}

async fn message_refusal(gate: &Arc<Gate>, message: Message) -> &'static str {
    match gate.execute_message(message).await {
        MessageOutcome::Refused(reason) => reason.slug,
        MessageOutcome::Done => "done",
        outcome => panic!("{outcome:?}"),
    }
}

#[tokio::test]
async fn each_rule_refuses_requests_and_messages_and_is_foretold_and_explained() {
    for rule in &RULES {
        let Rule { lines, fields, refusal, .. } = rule;
        let case = format!("{lines} {fields:?}");
        let enforcing = World::with(Store::sqlite(), |setup| setup.route(&rule.route("enforce"))).await;
        assert_eq!(rule.request(&enforcing).send().await.outcome().1, *refusal, "{case}: enforced");
        assert_eq!(enforcing.upstream.calls(), 0, "{case}");
        let observing = World::with(Store::sqlite(), |setup| setup.route(&rule.route("observe"))).await;
        assert_eq!(observed(&observing, rule.request(&observing)).await.1, *refusal, "{case}: observed");
        assert_eq!(rule.explained(), *refusal, "{case}: explained");
        if rule.is_of_messages {
            let store = Store::sqlite();
            let setup = Proxy::on(&store.url()).top("upstream = \"http://localhost:1\"").route(&rule.route("enforce"));
            let (gate, message) = message_gate(setup).await;
            let message = message(rule, rule.key.unwrap());
            assert_eq!(message_refusal(&gate, message).await, *refusal, "{case}: a message");
        }
    }
}

#[tokio::test]
async fn an_equal_request_under_another_key_is_refused_and_foretold_alike() {
    const LINES: &str = "same_body = \"refuse\"";
    for mode in ["enforce", "observe"] {
        let world =
            World::with(Store::sqlite(), |setup| setup.route(&route("pay", &format!("mode = \"{mode}\"\n{LINES}"))))
                .await;
        for (key, expected) in
            [("k-1", "executed"), ("k-2", "duplicate-suspected"), ("k-1", "replayed"), ("k-2", "duplicate-suspected")]
        {
            let result = match mode {
                "observe" => observed(&world, world.pay(key)).await.1,
                _ => {
                    let response = world.pay(key).send().await;
                    let (_, slug) = response.outcome();
                    if slug.is_empty() { response.oncegate_status().unwrap().to_owned() } else { slug }
                }
            };
            assert_eq!(result, expected, "{mode} {key}");
        }
    }
    let (store, upstream) = (Store::sqlite(), Upstream::start().await);
    let top = format!("upstream = \"http://{}\"", upstream.address);
    let (gate, message) = message_gate(Proxy::on(&store.url()).top(&top).route(&route("pay", LINES))).await;
    for (key, expected) in [("k-1", "done"), ("k-2", "duplicate-suspected"), ("k-1", "done")] {
        assert_eq!(message_refusal(&gate, message(&RULE, key)).await, expected, "{key}");
    }
}

/// Requests that were observed are none that an enforced one equals.
#[tokio::test]
async fn an_observed_request_is_no_earlier_one_of_an_enforced_one() {
    let observing = "mode = \"observe\"\nsame_body = \"refuse\"";
    let world = World::guarding(Store::sqlite(), observing).await;
    assert_eq!(observed(&world, world.pay("k-1")).await.1, "executed");
    let enforcing = observing.replace("observe", "enforce");
    let narrow = Proxy::on(&world.store.url()).upstream(world.upstream.address).route(&route("pay", &enforcing));
    reload::reload(&world, &narrow.text(), reload::RELOADED, 1).await;
    reload::settles(async || world.pay("k-2").send().await.oncegate_status() != Some("observed")).await;
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("replayed"));
}
