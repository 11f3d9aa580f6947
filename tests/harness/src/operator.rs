//! An operator at the admin listener or at a shell.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::client::{Client, Request};
use super::openapi::check_answer;
use super::{Answer, Proxy, Store, TEST_TIMEOUT, World, eventually};

/// An operator of one instance.
#[derive(Clone, Copy)]
pub struct Operator {
    address: std::net::SocketAddr,
    /// The service that it means, where the instance has several.
    service: Option<&'static str>,
}

impl Operator {
    pub fn of(proxy: &Proxy) -> Self {
        Self { address: proxy.admin, service: None }
    }

    pub fn of_service(self, service: &'static str) -> Self {
        Self { service: Some(service), ..self }
    }

    pub fn request(self, method: &str, path: &str) -> Request {
        let request = Client { address: self.address }.request(method, path).host(&self.address.to_string());
        let request = request.anonymous().field("X-Oncegate-Actor", "alice");
        self.service.iter().fold(request, |request, service| request.field("X-Oncegate-Service", service))
    }

    pub async fn get(self, path: &str) -> (u16, Value) {
        answer(("GET", path), self.request("GET", path)).await
    }

    pub async fn post(self, path: &str, body: Value) -> (u16, Value) {
        answer(("POST", path), self.request("POST", path).json(&body.to_string())).await
    }

    pub async fn delete(self, path: &str) -> (u16, Value) {
        answer(("DELETE", path), self.request("DELETE", path)).await
    }

    /// The keys that match.
    pub async fn keys(self, query: &str) -> Vec<Value> {
        let (status, page) = self.get(&format!("/api/v1/keys?{query}")).await;
        assert_eq!((status, &page["next_cursor"]), (200, &Value::Null), "{page}");
        page["keys"].as_array().unwrap().clone()
    }

    /// The id of the only key with that name.
    pub async fn id(self, key: &str) -> String {
        let keys = self.keys(&format!("key={key}")).await;
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys[0]["id"].as_str().unwrap().to_owned()
    }

    /// Waits until the key has this state, and returns its id.
    pub async fn id_when(self, key: &str, state: &str) -> String {
        let there = async || self.keys(&format!("key={key}&state={state}")).await.pop();
        eventually(TEST_TIMEOUT, there).await["id"].as_str().unwrap().to_owned()
    }

    pub async fn resolve(self, id: &str, body: Value) -> (u16, Value) {
        self.post(&format!("/api/v1/keys/{id}/resolve"), body).await
    }

    /// The audit log, oldest first: actor, action, state before, state after.
    pub async fn audit(self) -> Vec<[String; 4]> {
        let (status, log) = self.get("/api/v1/audit").await;
        assert_eq!(status, 200);
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
        let line = |entry: &Value| ["actor", "action", "before", "after"].map(|name| text(entry, name));
        log["entries"].as_array().unwrap().iter().rev().map(line).collect()
    }
}

async fn answer((method, path): (&str, &str), request: Request) -> (u16, Value) {
    let response = request.send().await;
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    let kind = response.field("content-type").unwrap();
    assert_eq!(kind == "application/problem+json", response.status >= 400, "{kind} {body}");
    check_answer(method, path, response.status, &body);
    (response.status, body)
}

/// The body of a decision that completes a key with this response.
pub fn completed(status: u16, body: &str) -> Value {
    json!({ "outcome": "completed", "status": status, "headers": { "Content-Type": "text/plain" }, "body": body })
}

/// The body of a decision that a key was not executed.
pub fn not_executed(accept_risk: bool) -> Value {
    json!({ "outcome": "not_executed", "accept_risk": accept_risk })
}

/// A command's output and exit code.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `oncegate keys …` without a terminal.
pub async fn keys(file: &Path, arguments: &[&str]) -> CommandOutput {
    oncegate("keys", file, arguments).await
}

/// Runs another command in the same way.
pub async fn oncegate(command: &str, file: &Path, arguments: &[&str]) -> CommandOutput {
    let name = command;
    let mut command = Command::new(crate::program());
    command.arg(name).args(arguments).arg("-c").arg(file).env_clear().env("USER", "bob").stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    CommandOutput {
        code: output.status.code().expect("no signal ended it"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Makes a key unknown: the service closes the connection of its attempt.
pub async fn unknown(world: &World, key: &str) -> String {
    world.upstream.then(Answer::close());
    assert_eq!(world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    Operator::of(&world.proxy).id_when(key, "unknown").await
}

/// Makes a key dead by an SQL statement.
pub async fn dead(world: &mut World, key: &str) -> String {
    let id = unknown(world, key).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let bytes = key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let spelt = match &world.store {
        Store::Postgres(_) => format!("'\\x{bytes}'"),
        Store::Sqlite(_) => format!("x'{bytes}'"),
    };
    world.store.tamper(&format!("update keys set state = 'dead' where key = {spelt}")).await;
    world.proxy = world.setup.start().await;
    id
}
