//! The requests that leave a key in each state, and the questions about them.

use serde_json::{Value, json};

use harness::operator::{Operator, completed, not_executed};
use harness::{Answer, Client, Hold, Proxy, Request, Response, Store, Upstream};

use super::Service;

/// The questions, and the states that the store reaches by itself after a start: pairs of a key and a state.
#[derive(Default)]
pub struct Scenario {
    pub settles: Vec<(String, String)>,
    pub questions: Vec<Question>,
}

/// A request whose answer depends on a stored key.
#[derive(Clone)]
pub struct Question {
    pub name: String,
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub body: String,
}

impl Scenario {
    pub fn from_json(json: &Value) -> Self {
        let settles = pairs(&json["settles"]);
        Self { settles, questions: json["questions"].as_array().unwrap().iter().map(Question::from_json).collect() }
    }

    pub fn to_json(&self) -> Value {
        json!({ "settles": self.settles, "questions": self.questions.iter().map(Question::to_json).collect::<Value>() })
    }

    fn settles(&mut self, key: &str, state: &str) {
        self.settles.push((key.to_owned(), state.to_owned()));
    }

    /// Asks the same request again.
    fn retry(&mut self, question: &Question) {
        self.ask(&format!("{} again", question.name), question.clone());
    }

    fn ask(&mut self, name: &str, question: Question) {
        self.questions.push(Question { name: name.to_owned(), ..question });
    }
}

impl Question {
    fn post(name: &str, target: &str) -> Self {
        Self {
            name: name.to_owned(),
            method: "POST".to_owned(),
            target: target.to_owned(),
            fields: Vec::new(),
            body: String::new(),
        }
        .field("Authorization", "Bearer ann")
    }

    /// An order under the key that is also its name.
    fn order(key: &str) -> Self {
        Self::post(key, &format!("/orders/{key}")).key(key).json(r#"{"amount":10,"currency":"EUR"}"#)
    }

    fn key(self, key: &str) -> Self {
        self.field("Idempotency-Key", key)
    }

    /// With this field in place of those of the same name.
    fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(found, _)| found != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(found, _)| found != name);
        self
    }

    fn json(self, body: &str) -> Self {
        self.field("Content-Type", "application/json").body(body)
    }

    fn body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    pub async fn send(&self, proxy: &Proxy) -> Response {
        self.request(proxy).send().await
    }

    fn request(&self, proxy: &Proxy) -> Request {
        let request = proxy.client().request(&self.method, &self.target).anonymous();
        let request = self.fields.iter().fold(request, |request, (name, value)| request.field(name, value));
        request.body(self.body.clone())
    }

    fn from_json(json: &Value) -> Self {
        let text = |name: &str| json[name].as_str().unwrap().to_owned();
        Self {
            name: text("name"),
            method: text("method"),
            target: text("target"),
            fields: pairs(&json["fields"]),
            body: text("body"),
        }
    }

    fn to_json(&self) -> Value {
        let Self { name, method, target, fields, body } = self;
        json!({ "name": name, "method": method, "target": target, "fields": fields, "body": body })
    }
}

fn pairs(json: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    json.as_array().unwrap().iter().map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// Fills an empty store through a running proxy, which is killed while attempts run.
pub async fn perform(service: &Service, store: &Store) -> Scenario {
    let upstream = Upstream::start().await;
    let mut scenario = Scenario::default();
    if service.name == "sealed" {
        store_under_the_earlier_secret(service, store, &upstream, &mut scenario).await;
    }
    let proxy = service.start(store, &upstream).await;
    store_responses(&proxy, &upstream, &mut scenario).await;
    match service.name {
        "plain" => store_by_each_rule(&proxy, &upstream, &mut scenario).await,
        _ => accept_requests(&proxy, &upstream, &mut scenario).await,
    }
    lose_outcomes(&proxy, &upstream, &mut scenario).await;
    decide(&proxy, &upstream, &mut scenario).await;
    if service.name == "sealed" {
        // Its next attempt is the next version's.
        accept(
            &proxy,
            &upstream,
            Answer::status(503),
            Question::post("due-soon", "/jobs").key("due-soon"),
            &mut scenario,
        )
        .await;
        Operator::of(&proxy).id_when("due-soon", "queued").await;
        scenario.settles("due-soon", "completed");
    }
    leave_in_flight(&proxy, &upstream, &mut scenario).await;
    scenario
}

/// Sends the request, which must be executed and get this answer, and asks for its replay.
async fn store_answer(proxy: &Proxy, upstream: &Upstream, answer: Answer, question: Question, scenario: &mut Scenario) {
    upstream.then(answer);
    let response = question.send(proxy).await;
    assert_eq!(response.oncegate_status(), Some("executed"), "{}: {response:?}", question.name);
    scenario.retry(&question);
}

fn receipt() -> Answer {
    Answer::status(201).field("Location", "/receipts/1").field("X-Part", "a").field("X-Part", "b").body("a \"receipt\"")
}

async fn store_under_the_earlier_secret(
    service: &Service,
    store: &Store,
    upstream: &Upstream,
    scenario: &mut Scenario,
) {
    let line = |name: &str| service.configuration().lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let earlier = line("previous_secrets").replace("previous_secrets = [", "secret = ").replace(']', "");
    let text = service.configuration().replace(&line("secret"), &earlier).replace(&line("previous_secrets"), "");
    let proxy = Proxy::from_file_text(&text, &store.url(), upstream.address).start().await;
    store_answer(&proxy, upstream, receipt(), Question::order("of-the-earlier-secret"), scenario).await;
    assert_eq!(proxy.stop().await, Some(0));
}

/// Responses of each form, and requests that differ from the stored one.
async fn store_responses(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    let order = Question::order("json");
    store_answer(proxy, upstream, receipt(), order.clone(), scenario).await;
    scenario.ask("the same JSON in other words", order.clone().json(r#"{ "currency": "EUR", "amount": 10 }"#));
    scenario.ask("the path in another spelling", Question { target: "/orders/%6Ason".to_owned(), ..order.clone() });
    scenario.ask("another amount", order.clone().json(r#"{"amount":11,"currency":"EUR"}"#));
    scenario.ask("another caller", order.clone().field("Authorization", "Bearer bob"));
    scenario.ask("another key", order.key("new"));
    let form = Question::order("form").field("Content-Type", "application/x-www-form-urlencoded");
    let form = form.body("a=1&b=%c3%a9+x");
    store_answer(proxy, upstream, Answer::status(204), form.clone(), scenario).await;
    scenario.ask("the same form in other words", form.clone().body("a=1&b=%C3%A9%20x"));
    scenario.ask("another form", form.body("a=1&b=2"));
    let parts = Question::order("parts");
    let parts = parts
        .field("Content-Type", "multipart/form-data; boundary=B")
        .body("--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\ntext\r\n--B--\r\n");
    let trailers = Answer::status(200).field("Trailer", "X-Sum").chunks(&["one ", "two"]).trailer("X-Sum", "7");
    store_answer(proxy, upstream, trailers, parts, scenario).await;
    let text = Question::order("text").field("Content-Type", "text/plain").body("words");
    store_answer(proxy, upstream, Answer::status(402).body("no"), text.clone(), scenario).await;
    scenario.ask("other words", text.body("Words"));
    let reported = Answer::status(201).field("Oncegate-TTL", "1000000").body("kept for days");
    store_answer(proxy, upstream, reported, Question::order("own-ttl"), scenario).await;
}

/// A key for each way in which a route may find and compare it.
async fn store_by_each_rule(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    let raw = Question::post("raw", "/raw?page=1").key("raw").field("X-Version", "2").body("\u{1}bytes");
    store_answer(proxy, upstream, receipt(), raw.clone(), scenario).await;
    scenario.ask("another query", Question { target: "/raw?page=2".to_owned(), ..raw.clone() });
    scenario.ask("another version", raw.field("X-Version", "3"));
    let values = Question::post("values", "/values").json(r#"{"order":{"id":"in-body","amount":1,"note":"x"}}"#);
    store_answer(proxy, upstream, receipt(), values.clone(), scenario).await;
    scenario.ask("another note", values.clone().json(r#"{"order":{"id":"in-body","amount":1.0,"note":"y"}}"#));
    scenario.ask("another selected amount", values.json(r#"{"order":{"id":"in-body","amount":2}}"#));
    let tenant = Question::post("tenant", "/tenants/a/payments").field("X-Tenant", "a").field("X-User", "ann");
    let tenant = tenant.field("X-Request-Id", "0B1E4C5C-92A4-4F0E-8A3B-3F1D2C4B5A69");
    store_answer(proxy, upstream, receipt(), tenant.clone(), scenario).await;
    scenario.ask(
        "a lenient spelling of the path",
        Question { target: "/tenants/a//payments".to_owned(), ..tenant.clone() },
    );
    scenario.ask("no user", tenant.without("X-User"));
    store_answer(
        proxy,
        upstream,
        Answer::status(200).padded(100),
        Question::post("large", "/small").key("large"),
        scenario,
    )
    .await;
    store_answer(proxy, upstream, receipt(), Question::post("limited", "/limited").key("limited"), scenario).await;
    scenario.ask("a key beyond the limit", Question::post("limited", "/limited").key("beyond"));
    store_answer(proxy, upstream, receipt(), Question::post("short", "/short").key("short"), scenario).await;
    Operator::of(proxy).id_when("short", "expired").await;
}

/// Accepted requests in each state.
async fn accept_requests(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    let operator = Operator::of(proxy);
    for (key, path, answer, state) in [
        ("delivered", "/jobs", receipt(), "completed"),
        ("delivery-lost", "/jobs", Answer::close(), "unknown"),
        ("given-up", "/once", Answer::status(503), "dead"),
        ("waiting", "/slow", Answer::status(503), "queued"),
    ] {
        accept(proxy, upstream, answer, Question::post(key, path).key(key), scenario).await;
        operator.id_when(key, state).await;
    }
}

/// Sends a request that must be accepted, waits until the service has got its first attempt, and asks for both answers.
async fn accept(proxy: &Proxy, upstream: &Upstream, answer: Answer, question: Question, scenario: &mut Scenario) {
    let executed = upstream.executed().len();
    let question = question.json(r#"{"job":1}"#);
    upstream.then(answer);
    let accepted = question.send(proxy).await;
    assert_eq!(accepted.oncegate_status(), Some("queued"));
    upstream.wait_for_executed(executed + 1).await;
    scenario.retry(&question);
    let operation = accepted.field("location").unwrap().to_owned();
    let asked = Question { method: "GET".to_owned(), target: operation, ..question.without("Content-Type").body("") };
    scenario.ask("the operation", asked);
}

/// Keys without a stored outcome.
async fn lose_outcomes(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    let operator = Operator::of(proxy);
    for (key, answer, state) in [
        ("broken", Answer::close(), "unknown"),
        ("timeout", Answer::never(), "unknown"),
        ("status-500", Answer::status(500), "unknown"),
        ("says-unknown", Answer::status(201).field("Oncegate-Decision", "unknown"), "unknown"),
        ("released", Answer::status(503), "retryable"),
    ] {
        let question = Question::order(key);
        upstream.then(answer);
        question.send(proxy).await;
        operator.id_when(key, state).await;
        scenario.ask(&format!("another request under {key}"), question.clone().json("{}"));
        scenario.retry(&question);
    }
    // Reports a recovery point and is released: the next attempt gets it.
    let (hold, question) = (Hold::new(), Question::order("half-way"));
    let attempt = begin(proxy, upstream, Answer::status(503).hold(&hold), &question).await;
    let reached = json!({ "name": "charge_created" });
    report(proxy, &attempt.reservation, "PUT", "recovery-point", &reached).await;
    hold.release();
    attempt.response.await.unwrap().unwrap();
    operator.id_when("half-way", "retryable").await;
    scenario.retry(&question);
}

/// Keys with a history of attempts and decisions.
async fn decide(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    let operator = Operator::of(proxy);
    for (key, decision) in [("resolved", completed(200, "by hand")), ("not-executed", not_executed(true))] {
        let question = Question::order(key);
        upstream.then(Answer::status(503)).then(Answer::close());
        for _ in 0..2 {
            question.send(proxy).await;
        }
        let id = operator.id_when(key, "unknown").await;
        assert_eq!(operator.resolve(&id, decision).await.0, 200);
        scenario.retry(&question);
    }
    let purged = Question::order("purged");
    purged.send(proxy).await;
    let purge = format!("/api/v1/keys/{}?accept_risk=true", operator.id_when("purged", "completed").await);
    assert_eq!(operator.delete(&purge).await.0, 200);
    scenario.ask("purged anew", purged);
}

/// Attempts that run when the proxy is killed: one is lost, and the service has said of the
/// other that it was not executed.
async fn leave_in_flight(proxy: &Proxy, upstream: &Upstream, scenario: &mut Scenario) {
    for (key, settled) in [("cut-off", "unknown"), ("cut-off-and-not-executed", "retryable")] {
        let question = Question::order(key);
        let attempt = begin(proxy, upstream, Answer::never(), &question).await;
        if settled == "retryable" {
            report(proxy, &attempt.reservation, "POST", "not-executed", &json!({})).await;
        }
        scenario.settles(key, settled);
        scenario.retry(&question);
    }
    proxy.kill9().await;
}

/// An attempt at the service.
struct RunningAttempt {
    reservation: String,
    response: tokio::task::JoinHandle<std::io::Result<Response>>,
}

async fn begin(proxy: &Proxy, upstream: &Upstream, answer: Answer, question: &Question) -> RunningAttempt {
    let executed = upstream.executed().len();
    upstream.then(answer);
    let response = question.request(proxy).spawn();
    upstream.wait_for_executed(executed + 1).await;
    RunningAttempt { reservation: upstream.last().field("oncegate-reservation").unwrap().to_owned(), response }
}

async fn report(proxy: &Proxy, reservation: &str, method: &str, what: &str, body: &Value) {
    let path = format!("/app/v1/reservations/{reservation}/{what}");
    let request = Client { address: proxy.admin }.request(method, &path).host(&proxy.admin.to_string());
    let answer = request.json(&body.to_string()).send().await;
    assert!(answer.status < 300, "{answer:?}");
}
