//! `[[events]]`.

use super::*;

/// A sink of the route `a`, with these lines.
fn with(lines: &str) -> String {
    format!("{}\n[[events]]\nname = 'bus'\nroutes = ['a']\n{lines}", route(""))
}

#[test]
fn a_sink_has_defaults_and_is_described_without_its_secrets() {
    let config =
        config(&with("url = 'https://hooks.example/s3cret'\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'"));
    let [sink] = config.live.events.as_slice() else { panic!("{:?}", config.live.events) };
    assert_eq!(
        (&*sink.name, sink.key, sink.body, sink.give_up_after.as_secs()),
        ("bus", EventKey::Plain, false, 86_400)
    );
    assert_eq!(sink.types, EventType::VALUES);
    assert!(matches!(sink.target, EventTarget::Http { secret: Some(_), .. }));
    let described = describe(&config);
    let line = "events bus      completed, refused, unknown, resolved, given-up of a to https://hooks.example/…";
    assert!(described.lines().any(|found| found == line), "{described}");
    assert!(!format!("{config:?}{described}").contains("s3cret"), "{config:?}");
}

#[test]
fn a_sink_goes_to_one_place_and_has_what_that_needs() {
    let problem = |lines: &str, why: &str| {
        let problems =
            load_in(FakeEnvironment::default(), &format!("{UPSTREAM}\n{}", with(lines))).expect_err(lines).to_string();
        assert!(problems.contains(why), "{lines}: {problems}");
    };
    problem("", "write `url`, `amqp` or `kafka`");
    problem("url = 'http://h/'\namqp = 'amqp://h'\nexchange = 'e'", "is not the only place");
    problem("url = 'h'", "events[0].url");
    problem("url = 'http://h/'\nsecret = 'hunter2'", "no secret of the Standard Webhooks");
    problem("url = 'http://h/'\nsecret = 'whsec_aGVsbG8='", "no secret of the Standard Webhooks");
    problem("amqp = 'amqp://h'", "write `exchange`");
    problem(
        "amqp = 'amqp://h'\nexchange = 'e'\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'",
        "needs `url` beside it",
    );
    problem("url = 'http://h/'\nrouting_key = 'k'", "needs `amqp` beside it");
    problem("kafka = { brokers = ['h'] }", "the topic that gets the events");
    problem("kafka = { topic = 't' }", "one broker or more");
    problem("url = 'http://h/'\ntypes = ['done']", "write completed, refused, unknown, resolved, given-up");
    problem("url = 'http://h/'\ntypes = []", "write what is told");
    problem(
        "url = 'http://h/'\n[[events]]\nname = 'bus'\nroutes = ['a']\nurl = 'http://h/'",
        "another table's name too",
    );
    let other = format!("{UPSTREAM}\n{}\n[[events]]\nname = 'Bus'\nroutes = ['b']\nurl = 'http://h/'", route(""));
    let problems = load_in(FakeEnvironment::default(), &other).expect_err("two problems").to_string();
    assert!(problems.contains("`b`, which is no route's name") && problems.contains("is no name"), "{problems}");
    assert!(!problems.contains("hunter2"));
}

#[test]
fn events_without_a_signature_are_warned_of() {
    let warnings =
        |lines: &str| config(&with(lines)).live.warnings.iter().any(|warning| warning.contains("no `secret` signs"));
    assert!(warnings("url = 'http://127.0.0.1:9/'"));
    assert!(!warnings("amqp = 'amqp://h'\nrouting_key = 'q'"));
}
