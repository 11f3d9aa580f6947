//! Responses that rules about bodies cannot read, or only a tolerant reader can: none lets a request be executed again,
//! and none is replayed as a result.

use serde_json::json;

use harness::operator::Operator;
use harness::{Answer, Request, Store, World, route};

const OWN_RULES: &str = "outcome = [\n\
     { pointer = \"/error/code\", equals = -32020, is = \"release\" },\n\
     { pointer = \"/error\", is = \"unknown\" },\n]";

/// A dialect with rules, and the texts of its protocol.
struct Protocol {
    name: &'static str,
    lines: String,
    request: String,
    /// An error that leaves the outcome unknown. `ODD` is a value within it.
    lost: &'static str,
    /// An error that releases.
    busy: Option<&'static str>,
    result: &'static str,
    /// Whether each answer has a body.
    has_bodies: bool,
}

const RPC_LOST: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"data":ODD,"code":-32603,"message":"charged"}}"#;
const RPC_RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"odd":ODD}}"#;
const RPC_BUSY: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"data":ODD,"code":-32020}}"#;
const A2A_BUSY: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"data":ODD,"code":-32009}}"#;

fn protocols() -> Vec<Protocol> {
    let call =
        |method: &str| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "name": "pay" } }).to_string();
    let rpc = |name: &'static str, rules: &str, method: &str, busy| Protocol {
        name,
        lines: format!("dialect = \"{name}\"\n{rules}"),
        request: call(method),
        lost: RPC_LOST,
        busy,
        result: RPC_RESULT,
        has_bodies: true,
    };
    vec![
        rpc("jsonrpc", "", "pay", None),
        rpc("mcp", "", "tools/call", Some(RPC_BUSY)),
        rpc("a2a", "", "message/send", Some(A2A_BUSY)),
        rpc("ucp", OWN_RULES, "tools/call", Some(RPC_BUSY)),
        Protocol {
            name: "graphql",
            lines: "dialect = \"graphql\"".to_owned(),
            request: json!({ "query": "mutation Pay { pay { id } }" }).to_string(),
            lost: r#"{"data":null,"errors":[{"message":"charged","odd":ODD}]}"#,
            busy: Some(r#"{"errors":[{"message":"busy","odd":ODD}]}"#),
            result: r#"{"data":{"odd":ODD}}"#,
            has_bodies: true,
        },
        Protocol {
            name: "rules of the route",
            lines: OWN_RULES.to_owned(),
            request: json!({ "amount": 5 }).to_string(),
            lost: r#"{"odd":ODD,"error":{"code":-32603}}"#,
            busy: Some(r#"{"odd":ODD,"error":{"code":-32020}}"#),
            result: r#"{"odd":ODD,"id":7}"#,
            has_bodies: false,
        },
    ]
}

impl Protocol {
    async fn world(&self) -> World {
        let lines = format!("{}\nmax_response_body = \"8KiB\"", self.lines);
        let world = World::guarding(Store::sqlite(), &lines).await;
        world.upstream.answer_all(of_json(200, with("1", self.result)));
        world
    }

    fn request(&self, world: &World, key: &str) -> Request {
        world.post("/pay").key(key).json(&self.request)
    }
}

fn with(odd: &str, text: &str) -> Vec<u8> {
    text.replace("ODD", odd).into_bytes()
}

fn of_json(status: u16, body: impl Into<Vec<u8>>) -> Answer {
    Answer::status(status).field("Content-Type", "application/json").body(body)
}

/// The state of a key after this answer to its first request, by the retry's `Oncegate-Status`.
async fn state_after(protocol: &Protocol, world: &World, key: &str, answer: Answer) -> &'static str {
    world.upstream.then(answer);
    protocol.request(world, key).send().await;
    let retry = protocol.request(world, key).send().await;
    match (retry.oncegate_status(), world.upstream.executed_for(key)) {
        (Some("replayed"), 1) => "stored",
        (Some("executed"), 2) => "released",
        (Some("unknown"), 1) => "unknown",
        other => panic!("{key}: {other:?} {retry:?}"),
    }
}

/// Values that RFC 8259 allows and many readers refuse.
fn odd_values() -> [(&'static str, String); 5] {
    [
        ("plain", "1".to_owned()),
        ("lone-surrogate", r#""charged, receipt lost \ud83d""#.to_owned()),
        ("large-number", "1e400".to_owned()),
        ("deep", format!("{}{}", "[".repeat(200), "]".repeat(200))),
        ("surrogate-in-a-name", r#"{"\udc00":1}"#.to_owned()),
    ]
}

#[tokio::test]
async fn what_json_allows_is_read_and_the_rule_decides_at_each_status() {
    for protocol in protocols() {
        let world = protocol.world().await;
        for (name, odd) in odd_values() {
            for status in [200, 500, 503, 429] {
                for mark in ["", "\u{feff}"] {
                    let body = |text: &str| [mark.as_bytes(), &with(&odd, text)].concat();
                    let key = |kind: &str| format!("{kind}-{name}-{status}-{}", mark.len());
                    let seen = state_after(&protocol, &world, &key("lost"), of_json(status, body(protocol.lost))).await;
                    assert_eq!(seen, "unknown", "{} {}", protocol.name, key("lost"));
                    if let Some(busy) = protocol.busy {
                        let seen = state_after(&protocol, &world, &key("busy"), of_json(status, body(busy))).await;
                        assert_eq!(seen, "released", "{} {}", protocol.name, key("busy"));
                    }
                }
            }
            let seen =
                state_after(&protocol, &world, &format!("result-{name}"), of_json(200, with(&odd, protocol.result)))
                    .await;
            assert_eq!(seen, "stored", "{} {name}", protocol.name);
        }
    }
}

/// A name, fields, and a body in which no reader of UTF-8 JSON finds the error.
type UnreadBody = (&'static str, Vec<(&'static str, &'static str)>, Vec<u8>);

fn unread(protocol: &Protocol) -> Vec<UnreadBody> {
    let json = vec![("Content-Type", "application/json")];
    let lost = |odd: &str| with(odd, protocol.lost);
    let plain = lost("1");
    let utf16 =
        |order: fn(u16) -> [u8; 2]| String::from_utf8(plain.clone()).unwrap().encode_utf16().flat_map(order).collect();
    let with_charset = vec![("Content-Type", "application/json; charset=utf-16")];
    let gzip = vec![("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    vec![
        ("NaN", json.clone(), lost("NaN")),
        ("control-character", json.clone(), lost("\"a\nb\"")),
        ("Latin-1", json.clone(), [&plain[..plain.len() - 1], b",\"a\":\"caf\xe9\"}"].concat()),
        ("UTF-16LE", with_charset.clone(), utf16(u16::to_le_bytes)),
        ("UTF-16BE", json.clone(), utf16(u16::to_be_bytes)),
        ("untyped-UTF-16", vec![], [b"\xff\xfe", &*utf16(u16::to_le_bytes)].concat()),
        ("UTF-7", vec![("Content-Type", "application/json;charset=utf-7")], plain.clone()),
        ("gzip", gzip, vec![0x1f, 0x8b, 8]),
        ("large", json.clone(), [&*plain, &[b' '; 9_000]].concat()),
        ("cut", json.clone(), plain[..plain.len() - 3].to_vec()),
        ("html-with-JSON", vec![("Content-Type", "text/html")], lost("NaN")),
        ("blank", json, b" ".to_vec()),
    ]
}

#[tokio::test]
async fn a_body_that_cannot_be_read_leaves_the_outcome_unknown_at_each_status() {
    for protocol in protocols() {
        let world = protocol.world().await;
        for (name, fields, body) in unread(&protocol) {
            for status in [200, 400, 500, 503, 429] {
                let answer = fields
                    .iter()
                    .fold(Answer::status(status).body(body.clone()), |answer, (name, value)| answer.field(name, value));
                let key = format!("{name}-{status}");
                assert_eq!(state_after(&protocol, &world, &key, answer).await, "unknown", "{} {key}", protocol.name);
            }
        }
        world.proxy.wait_for_log("no rule of `outcome` can read a response, so its outcome is unknown").await;
    }
}

#[tokio::test]
async fn a_gateways_message_keeps_the_verdict_of_a_list_that_names_its_status() {
    let page = |status| Answer::status(status).field("Content-Type", "text/html").body("<html>no</html>");
    let line = |status| Answer::status(status).field("Content-Type", "text/plain").body("no healthy upstream");
    let nothing = |status| Answer::status(status).body("");
    for protocol in protocols() {
        let world = protocol.world().await;
        let empty_200 = if protocol.has_bodies { "unknown" } else { "stored" };
        for (name, answer, expected) in [
            ("page-429", page(429), "released"),
            ("line-429", line(429), "released"),
            ("empty-429", nothing(429), "released"),
            ("page-503", page(503), "unknown"),
            ("line-503", line(503), "unknown"),
            ("empty-503", nothing(503), "unknown"),
            ("page-504", page(504), "unknown"),
            ("page-200", page(200), "unknown"),
            ("empty-200", nothing(200), empty_200),
            ("empty-204", nothing(204), empty_200),
            ("payment", nothing(402).field("PAYMENT-REQUIRED", "e30="), "released"),
            ("decided", page(500).field("Oncegate-Decision", "store"), "stored"),
        ] {
            assert_eq!(state_after(&protocol, &world, name, answer).await, expected, "{} {name}", protocol.name);
        }
        let lines = format!("{}\nstore_statuses = [\"2xx\", \"204\"]\nrelease_statuses = [\"503\"]", protocol.lines);
        let world = World::guarding(Store::sqlite(), &lines).await;
        world.upstream.answer_all(of_json(200, with("1", protocol.result)));
        let lost = with("NaN", protocol.lost);
        for (name, answer, expected) in [
            ("page-503", page(503), "released"),
            ("line-503", line(503), "released"),
            ("empty-503", nothing(503), "released"),
            ("empty-204", nothing(204), "stored"),
            ("compressed-503", page(503).field("Content-Encoding", "gzip"), "unknown"),
            ("unread-503", of_json(503, lost), "unknown"),
        ] {
            assert_eq!(state_after(&protocol, &world, name, answer).await, expected, "{} {name}", protocol.name);
        }
    }
}

#[tokio::test]
async fn the_events_of_a_stream_are_read_like_bodies() {
    for protocol in protocols() {
        let world = protocol.world().await;
        let data = |odd: &str, text: &str| format!("data: {}\n\n", text.replace("ODD", odd));
        let mut cases = vec![
            ("cut", data("1", protocol.lost).replace("}\n\n", ""), "unknown"),
            ("NaN", data("NaN", protocol.lost), "unknown"),
            ("unread-after-a-result", data("1", protocol.result) + &data("NaN", protocol.lost), "unknown"),
            ("nothing", ": idle\n\n".to_owned(), "unknown"),
            ("no-JSON", "data: ping\n\n".to_owned(), "unknown"),
            ("result", "data: ping\n\n".to_owned() + &data("1", protocol.result), "stored"),
            ("result-of-a-model", data("1", protocol.result) + "data: [DONE]\n\n", "stored"),
            ("lost-of-a-model", data("1", protocol.lost) + "data: [DONE]\n\n", "unknown"),
        ];
        for (name, odd) in odd_values() {
            cases.push((name, data(&odd, protocol.lost), "unknown"));
        }
        for status in [200, 503] {
            for (name, body, expected) in &cases {
                let answer = Answer::status(status).field("Content-Type", "text/event-stream").chunks(&[body]);
                let expected = if status == 503 && name.starts_with("result") { "released" } else { expected };
                let key = format!("{name}-{status}");
                assert_eq!(state_after(&protocol, &world, &key, answer).await, expected, "{} {key}", protocol.name);
            }
        }
    }
}

#[tokio::test]
async fn a_result_beside_a_releasing_error_is_unknown() {
    for (dialect, method, codes) in
        [("mcp", "tools/call", &[-32_020, -32_021, -32_022, -32_042][..]), ("a2a", "message/send", &[-32_008, -32_009])]
    {
        let protocol = protocols().into_iter().find(|protocol| protocol.name == dialect).unwrap();
        assert!(protocol.request.contains(method));
        let world = protocol.world().await;
        for code in codes {
            for (kind, member, expected) in [
                ("both", r#""result":"done","#, "unknown"),
                ("null", r#""result":null,"#, "unknown"),
                ("error", "", "released"),
            ] {
                let body = format!(r#"{{"jsonrpc":"2.0","id":1,{member}"error":{{"code":{code}}}}}"#);
                let seen = state_after(&protocol, &world, &format!("{kind}{code}"), of_json(200, body)).await;
                assert_eq!(seen, expected, "{dialect} {code} {kind}");
            }
        }
    }
}

#[tokio::test]
async fn an_accepted_request_whose_response_cannot_be_read_is_delivered_once() {
    let policy =
        "delivery = \"async\"\nretry = { max_attempts = 4, base = \"50ms\", cap = \"100ms\", give_up_after = \"1h\" }";
    for protocol in protocols() {
        let lines = format!("{}\n{policy}", protocol.lines);
        let world = World::with(Store::sqlite(), |setup| {
            setup.top("secret = \"a secret of some length\"").route(&route("pay", &lines))
        })
        .await;
        for (key, odd) in [("lone-surrogate", r#""\ud83d""#), ("NaN", "NaN")] {
            world.upstream.answer_for(key, of_json(500, with(odd, protocol.lost)));
            protocol.request(&world, key).send().await;
            Operator::of(&world.proxy).id_when(key, "unknown").await;
            assert_eq!(world.upstream.executed_for(key), 1, "{} {key}", protocol.name);
        }
    }
}

#[tokio::test]
async fn money_is_not_taken_for_paid_by_an_answer_that_cannot_be_read() {
    let protocol = protocols().pop().unwrap();
    let world = World::guarding(Store::sqlite(), &format!("kind = \"money\"\n{OWN_RULES}")).await;
    for (name, status, body, expected) in [
        ("result", 200, with("1", protocol.result), "stored"),
        ("unread", 200, with("NaN", protocol.lost), "unknown"),
        ("unread-4xx", 422, with("NaN", protocol.lost), "unknown"),
        ("unread-5xx", 503, with("NaN", protocol.lost), "unknown"),
    ] {
        let seen = state_after(&protocol, &world, name, of_json(status, body)).await;
        assert_eq!(seen, expected, "{name}");
    }
}
