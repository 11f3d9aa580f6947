//! The answers of a proxy from a store, without what differs from run to run.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use harness::operator::Operator;
use harness::{Proxy, Response, Upstream};

use super::content;
use super::scenario::{Question, Scenario};

/// The proxy's view of each key, its answer to each question, and what the service got.
pub struct Observed(pub Value);

impl Observed {
    pub async fn of(proxy: &Proxy, upstream: &Upstream, scenario: &Scenario) -> Self {
        let operator = Operator::of(proxy);
        for (key, state) in &scenario.settles {
            operator.id_when(key, state).await;
        }
        let mut keys = BTreeMap::new();
        for listed in operator.keys("limit=500").await {
            let id = listed["id"].as_str().unwrap();
            let (status, shown) = operator.get(&format!("/api/v1/keys/{id}")).await;
            assert_eq!(status, 200, "{shown}");
            keys.insert(listed["key"].as_str().unwrap().to_owned(), lasting(shown));
        }
        let audit = lasting(operator.get("/api/v1/audit").await.1["entries"].take());
        let mut answers = Vec::new();
        for question in &scenario.questions {
            let before = upstream.executed().len();
            let answer = render_answer(question, &question.send(proxy).await);
            let executed: Vec<_> = upstream.executed()[before..].iter().map(render_call).collect();
            answers.push(json!({ "question": question.name, "answer": answer, "executed": executed }));
        }
        Self(json!({ "keys": keys, "audit": audit, "answers": answers }))
    }
}

/// A question's answer: of Oncegate's own only its meaning, as texts may be reworded, and of the service's every byte.
fn render_answer(question: &Question, response: &Response) -> Value {
    let meaning = json!({ "status": response.status, "oncegate_status": response.oncegate_status() });
    let json_body = || serde_json::from_slice(&response.body).unwrap();
    let is_accepted = response.field("location").is_some_and(|path| path.starts_with("/.oncegate/"));
    let mut answer = meaning;
    if response.field("content-type") == Some("application/problem+json") {
        answer["code"] = response.problem()["code"].clone();
    } else if question.target.starts_with("/.oncegate/") || is_accepted {
        answer["state"] = lasting(json_body());
    } else {
        let mut fields = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in response.comparable().fields {
            if !["idempotency-key-expires", "retry-after"].contains(&&*name) {
                fields.entry(name).or_default().push(value);
            }
        }
        answer["fields"] = json!(fields);
        answer["trailers"] = json!(response.trailers);
        answer["body"] = json!(response.text());
    }
    answer
}

fn render_call(call: &harness::upstream::Call) -> Value {
    let field = |name| call.field(name);
    json!({
        "request": format!("{} {}", call.method, call.target),
        "attempt": field("oncegate-attempt"),
        "recovery_point": field("oncegate-recovery-point"),
    })
}

/// A document without times and without the names of instances.
fn lasting(value: Value) -> Value {
    let is_of_a_run =
        |name: &str| content::is_time(name) || ["duration_ms", "instance", "lapsed", "quiet"].contains(&name);
    match value {
        Value::Object(members) => members
            .into_iter()
            .filter(|(name, _)| !is_of_a_run(name))
            .map(|(name, value)| (name, lasting(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(elements) => elements.into_iter().map(lasting).collect(),
        value => value,
    }
}

/// The places at which a recorded value is not found again. New members are no
/// difference: a later version may say more.
pub fn differences(recorded: &Value, observed: &Value) -> Vec<String> {
    match (recorded, observed) {
        (Value::Object(recorded), Value::Object(observed)) => recorded
            .iter()
            .flat_map(|(name, value)| {
                let inside = differences(value, observed.get(name).unwrap_or(&Value::Null));
                inside.into_iter().map(move |place| format!("{name}.{place}"))
            })
            .collect(),
        (Value::Array(recorded), Value::Array(observed)) if recorded.len() == observed.len() => recorded
            .iter()
            .zip(observed)
            .enumerate()
            .flat_map(|(number, (recorded, observed))| {
                let inside = differences(recorded, observed);
                inside.into_iter().map(move |place| format!("{number}.{place}"))
            })
            .collect(),
        _ if recorded == observed => Vec::new(),
        _ => vec![format!(" was {recorded}\n    is {observed}")],
    }
}
