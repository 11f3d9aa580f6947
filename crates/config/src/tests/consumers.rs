//! `[[consumers]]`.

use super::*;

const CONSUMER: &str = "[[consumers]]\namqp = 'amqp://u:hunter2@b'\nqueue = 'q'\nroute = 'a'\n";

/// A consumer of the route `a`, with a line more on line 9 of the file.
fn with(line: &str) -> String {
    format!("{}\n{CONSUMER}{line}", route(""))
}

#[test]
fn a_consumer_takes_its_routes_path_and_has_defaults() {
    let config = config(&with(""));
    let [consumer] = config.live.consumers.as_slice() else { panic!("{:?}", config.live.consumers) };
    assert_eq!((&*consumer.source.to_string(), &*consumer.route, consumer.path.as_str()), ("q", "a", "/a"));
    assert_eq!((consumer.key.to_text().as_str(), consumer.prefetch), ("header:x-idempotency-key", 64));
    assert_eq!(&*consumer.scope.parts[0].name, "header:x-tenant");
    let MessageSource::Amqp(source) = &consumer.source else { panic!("{consumer:?}") };
    assert!(consumer.scope.parts[0].optional && source.dead_letter_exchange.is_none());
    assert!(load_in(FakeEnvironment::default(), UPSTREAM).expect("it loads").live.consumers.is_empty());
}

#[test]
fn a_consumer_is_described_without_its_password() {
    let lines = "key = 'message-id'\nscope = ['none']\nprefetch = 65535\ndead_letter_exchange = 'dead'";
    let config = config(&with(lines));
    let described = describe(&config);
    for line in [
        "consumer        q of amqp://b:5672",
        "  as            POST /a (a)",
        "  key           message-id",
        "  scope         none",
        "  at once       65535",
        "  dead letters  to the exchange dead",
    ] {
        assert!(described.lines().any(|found| found == line), "{line}\n{described}");
    }
    assert!(!format!("{config:?}{described}").contains("hunter2"));
}

#[test]
fn a_path_is_one_of_the_routes_own() {
    let on = |path: &str, template: &str| {
        format!("[[routes]]\nname = 'a'\npath = '{path}'\n\n{CONSUMER}path = '{template}'")
    };
    for (path, template) in [
        ("/a", "/a"),
        ("/o/{id}", "/o/{x-order}"),
        ("/o/{id}", "/o/7"),
        ("/o/{id}", "/o/{x-order}-{x-part}"),
        ("/o/{*rest}", "/o/{x-order}/pay"),
    ] {
        assert_eq!(config(&on(path, template)).live.consumers[0].path.as_str(), template);
    }
    for (path, template, why) in [
        ("/o/{id}", "", " consumers[0].path: is needed, because the route has many paths: write the route's path"),
        (
            "/o/{id}",
            "/o",
            "10:8: consumers[0].path: leads to other paths than those of the route: write the route's path",
        ),
        ("/o/{id}", "/o/{x}/pay", "10:8: consumers[0].path: leads to other paths"),
        ("/o/7", "/o/{x}", "10:8: consumers[0].path: leads to other paths"),
        ("/a", "/a?x", "10:8: consumers[0].path: `/a?x` has a character that no path has"),
    ] {
        let text = match template {
            "" => on(path, template).replace("path = ''", ""),
            _ => on(path, template),
        };
        one_problem(&text, why);
    }
}

#[test]
fn problems_of_a_consumer_have_their_positions() {
    for (line, begins) in [
        ("prefetch = 0", "10:12: consumers[0].prefetch: must be 1 to 65535"),
        ("prefetch = 65536", "10:12: consumers[0].prefetch: must be 1 to 65535"),
        ("key = 'idempotency-key'", "10:7: consumers[0].key: `idempotency-key` is no place in a message"),
        ("key = 'header:a b'", "10:7: consumers[0].key: `header:a b` names a field that HTTP does not allow"),
        ("scope = ['authorization']", "10:9: consumers[0].scope: has a part that a message does not have"),
        ("scope = ['header:a', 'query:b']", "10:9: consumers[0].scope: has a part that a message does not have"),
        ("scope = ['header:a', 'header:A']", "10:22: consumers[0].scope[1]: is listed a second time"),
        ("prefech = 1", "10:1: consumers[0].prefech: unknown key; did you mean `prefetch`?"),
    ] {
        one_problem(&with(line), begins);
    }
    let wrong = |from: &str, to: &str| with("").replace(from, to);
    one_problem(&wrong("amqp://u:hunter2@b", "http://u:hunter2@b"), "7:8: consumers[0].amqp: has an unknown scheme");
    one_problem(&wrong("queue = 'q'", "queue = ''"), "8:9: consumers[0].queue: is no name of a queue");
    one_problem(&wrong("queue = 'q'\n", ""), "6:1: consumers[0].queue: is missing");
    one_problem(&wrong("route = 'a'", "route = 'b'"), "9:9: consumers[0].route: `b` is no route's name");
    let long = format!("queue = '{}'", "q".repeat(256));
    one_problem(&wrong("queue = 'q'", &long), "8:9: consumers[0].queue: ");
    one_problem(&format!("{}{CONSUMER}", with("")), "12:9: consumers[1].queue: is another consumer's queue too");
}

#[test]
fn a_route_that_does_not_guard_a_post_takes_no_messages() {
    for (line, why) in [
        ("methods = ['PATCH']", "`a` does not guard POST"),
        ("mode = 'observe'", "`a` does not enforce"),
        ("mode = 'off'", "`a` does not enforce"),
    ] {
        one_problem(&format!("{}\n{CONSUMER}", route(line)), &format!("9:9: consumers[0].route: {why}"));
    }
}

#[test]
fn a_problem_of_a_route_is_not_reported_again_for_its_consumer() {
    one_problem(&format!("{}\n{CONSUMER}", route("ttl = '0s'")), "5:7: routes[0].ttl: ");
}

/// A consumer of a topic for the route `a`, whose `kafka` has these keys too.
fn kafka(lines: &str) -> String {
    let keys = "brokers = ['Kafka-1', 'k2:9'], topics = ['orders'], group = 'g', dead_letter_topic = 'dead'";
    format!("{}\n[[consumers]]\nroute = 'a'\nkafka = {{ {keys}{lines} }}", route(""))
}

#[test]
#[cfg(feature = "kafka")]
fn a_consumer_of_kafka_has_defaults_and_is_described_without_its_password() {
    let loaded = config(&kafka(", sasl = 'scram-sha-256', user = 'u', password = 'hunter2'"));
    let consumer = &loaded.live.consumers[0];
    let source = consumer.source.kafka().unwrap();
    assert_eq!((source.order, source.first_offset), (RecordOrder::Key, FirstOffset::Earliest));
    assert_eq!(source.cluster.brokers, ["kafka-1:9092".into(), "k2:9".into()]);
    assert_eq!((consumer.key.to_text().as_str(), source.give_up_after.as_secs()), ("message-id", 600));
    let described = describe(&loaded);
    for line in [
        "consumer        orders of kafka-1:9092, k2:9, group g, order key",
        "  key           message-id",
        "  dead letters  to the topic dead",
    ] {
        assert!(described.lines().any(|found| found == line), "{line}\n{described}");
    }
    assert!(!format!("{loaded:?}{described}").contains("hunter2"));
    for (written, shown) in [
        ("'header:X-Order'\nstep = 'pay'", "header:x-order, then `:pay`"),
        ("'json:/data/key'", "json:/data/key"),
        ("'kafka-key'", "kafka-key"),
    ] {
        let text = kafka("").replace("kafka =", &format!("key = {written}\nkafka ="));
        assert_eq!(config(&text).live.consumers[0].key.to_text(), shown);
    }
}

#[test]
#[cfg(feature = "kafka")]
fn problems_of_kafka_are_reported_where_they_are_written() {
    for (lines, message) in [
        (
            ", order = 'keys'",
            "kafka.order: `keys` is not known: write `key`, `partition` or `none`; did you mean `key`?",
        ),
        (", give_up_after = '13h'", "kafka.give_up_after: must be at most half of the route's `ttl`, which is 86400 s"),
        (", session_timeout = '2s'", "kafka.session_timeout: is too short"),
        (", sasl = 'plain'", "kafka.sasl: needs `user` and `password`"),
        (", user = 'u'", "kafka.sasl: must be written beside"),
        (", ca = 'ca.pem'", "kafka.ca: needs `tls = true`"),
        (", tls = true, ca = 'none.pem'", "/none.pem` cannot be read"),
        (", tls = true, certificate = 'c.pem'", "kafka.certificate: needs a `key`"),
    ] {
        let problems = problems(&kafka(lines));
        assert!(problems.len() == 1 && problems[0].contains(message), "{lines}: {problems:?}");
    }
    let changed = |from: &str, to: &str| kafka("").replace(from, to);
    for (text, message) in [
        (
            changed(", dead_letter_topic = 'dead'", ""),
            "kafka.dead_letter_topic: is missing: write the topic for records",
        ),
        (changed("'dead'", "'orders'"), "a dead letter would be read again"),
        (changed("['orders']", "['or/ders']"), "kafka.topics[0]: `or/ders` is no name of a topic"),
        (changed("'k2:9'", "'u@k2:9'"), "kafka.brokers[1]: "),
        (changed("'k2:9'", "'k2:x'"), "kafka.brokers[1]: "),
        (changed("kafka =", "queue = 'q'\nkafka ="), "consumers[0].queue: stands beside `kafka`"),
        (changed("kafka =", "step = 'b c'\nkafka ="), "consumers[0].step: `b c` has no proper step"),
        (changed("kafka =", "key = 'json:a'\nkafka ="), "consumers[0].key: `json:a` has no JSON Pointer"),
        (changed("kafka =", "key = 'query:a'\nkafka ="), "consumers[0].key: `query:a` is no place in a message"),
        (
            format!("{}\n[[consumers]]{}", kafka(""), kafka("").split_once("[[consumers]]").unwrap().1),
            "has a topic that another",
        ),
        (
            format!(
                "secret = 'a secret of some length'\n{}",
                kafka("").replace("path = '/a'", "path = '/a'\ndelivery = 'async'")
            ),
            "kafka.order: must be `none`",
        ),
    ] {
        let problems = problems(&text);
        assert!(problems.len() == 1 && problems[0].contains(message), "{message}: {problems:?}\n{text}");
    }
}
