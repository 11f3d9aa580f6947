//! The log line of each request, and a log that never delays a request.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Metrics;
use harness::client::Client;
use harness::{Answer, Proxy, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Waits for this many request lines, and returns them.
async fn lines(world: &World, count: usize) -> Vec<Value> {
    let about_requests = || {
        let lines = world.proxy.logged().into_iter().filter(|line| line["message"] == "request");
        Some(lines.collect::<Vec<_>>()).filter(|lines| lines.len() >= count)
    };
    let lines = eventually(TEST_TIMEOUT, async || about_requests()).await;
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

#[tokio::test]
async fn each_guarded_request_has_one_log_line_with_its_outcome() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    world.pay("a-rather-long-key").field("traceparent", TRACEPARENT).send().await;
    world.pay("a-rather-long-key").send().await;
    world.upstream.then(Answer::status(500));
    world.pay("\"a \\\"quoted\\\" one\"").send().await;
    world.pay("\"a \\\"quoted\\\" one\"").send().await;
    world.post("/pay").body("no key").send().await;
    let lines = lines(&world, 5).await;
    let expected = [
        ("executed", 201, json!(1), json!("a-rather…")),
        ("replayed", 201, Value::Null, json!("a-rather…")),
        ("released", 500, json!(1), json!("a \"quote…")),
        ("executed", 201, json!(2), json!("a \"quote…")),
        ("rejected", 400, Value::Null, Value::Null),
    ];
    for (line, (oncegate_status, status, attempt, key)) in lines.iter().zip(expected) {
        assert_eq!((&line["level"], &line["route"], &line["method"]), (&json!("INFO"), &json!("pay"), &json!("POST")));
        assert_eq!((&line["oncegate_status"], &line["status"]), (&json!(oncegate_status), &json!(status)), "{line}");
        assert_eq!((&line["attempt"], &line["key"]), (&attempt, &key), "{line}");
        let total = line["total_ms"].as_f64().unwrap();
        let parts = ["store_ms", "upstream_ms"].map(|part| line[part].as_f64());
        match oncegate_status {
            "executed" | "released" => {
                assert!(parts.iter().all(|part| part.is_some_and(|part| part <= total)), "{line}")
            }
            _ => assert_eq!(parts[1], None, "{line}"),
        }
    }
    assert_eq!((&lines[0]["refusal"], &lines[4]["refusal"]), (&Value::Null, &json!("key-missing")));
    assert_eq!(lines[0]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(lines[1]["trace_id"], Value::Null);
    let sent = world.upstream.executed();
    assert_eq!(sent[0].field("traceparent"), Some(TRACEPARENT), "without a collector it goes on as it came");
}

#[tokio::test]
async fn the_line_of_a_refused_request_says_why_in_each_form_of_the_answer() {
    let world = World::guarding(Store::sqlite(), "key = { required = true }").await;
    world.pay("bad\u{e9}").send().await;
    world.post("/pay").field("content-type", "application/grpc").body("").send().await;
    let found: Vec<_> = lines(&world, 2).await.iter().map(|line| line["refusal"].clone()).collect();
    assert_eq!(found, ["key-invalid", "key-missing"]);
}

#[tokio::test]
async fn an_unguarded_request_is_logged_at_debug_without_its_path() {
    let world = World::guarding(Store::sqlite(), "").await;
    world.get("/somewhere/secret?token=secret").send().await;
    let line = lines(&world, 1).await.remove(0);
    assert_eq!((&line["level"], &line["method"], &line["status"]), (&json!("DEBUG"), &json!("GET"), &json!(201)));
    assert!(!line.to_string().contains("secret"), "{line}");
}

#[tokio::test]
async fn unguarded_keys_are_counted_and_logged_once_a_minute_for_each_method_and_template() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", "key = { from = \"header:X-Order\" }"))
            .route(&route("off", "mode = \"off\""))
            .route(&route("watched", "mode = \"observe\""))
    })
    .await;
    let client = world.proxy.client();
    for number in 0..3 {
        client.post(&format!("/carts/{number}?token=s3cret")).key("k-s3cret").send().await;
    }
    for field in ["X-Idempotency-Key", "x-order"] {
        client.request("PUT", "/carts").field(field, "k-s3cret").send().await;
    }
    world.post("/off").key("k-s3cret").send().await;
    // Its route looks elsewhere for the key and requires none.
    world.post("/pay").field("Authorization", "Bearer a").key("k-s3cret").send().await;
    // Left out, as some services read `_` for `-`.
    for path in ["/baskets", "/pay"] {
        let request = world.post(path).field("Authorization", "Bearer a").field("Idempotency_Key", "k-s3cret");
        assert_eq!(request.send().await.status, 201);
        assert_eq!(world.upstream.last().field("idempotency_key"), None);
    }
    world.post("/baskets").field("X_Order", "k-s3cret").send().await;
    // None of these is an unguarded key: it is guarded, observed, missing or empty, or nothing changes.
    world.post("/pay").field("Authorization", "Bearer a").field("X-Order", "k-1").send().await;
    world.post("/watched").field("Authorization", "Bearer a").key("k-1").send().await;
    world.post("/carts").send().await;
    world.post("/carts").key("").send().await;
    world.post("/carts").field("Idempotency_Key", "").field("Idempotency_Keys", "k-1").send().await;
    client.get("/carts").key("k-1").send().await;
    let metrics = Metrics::of(&world.proxy).await;
    for (method, count) in [("POST", 8.0), ("PUT", 2.0), ("DELETE", 0.0)] {
        assert_eq!(metrics.get(&format!("oncegate_unguarded_keys_total{{method=\"{method}\"}}")), count, "{method}");
    }
    let words = "nothing guards a request that carries a key";
    world.proxy.wait_for_logs(words, 5).await;
    let is_about_keys = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains(words));
    let lines: Vec<_> = world.proxy.logged().into_iter().filter(is_about_keys).collect();
    let told = |line: &Value| ["method", "path", "field"].map(|name| line[name].as_str().unwrap().to_owned()).join(" ");
    let expected = [
        "POST /carts/{id} idempotency-key",
        "PUT /carts x-idempotency-key",
        "POST /off idempotency-key",
        "POST /pay idempotency-key",
        "POST /baskets idempotency_key",
    ];
    assert_eq!(lines.iter().map(told).collect::<Vec<_>>(), expected);
    let is_explained = |line: &Value| line["message"].as_str().unwrap().contains("has `_` for `-`");
    assert_eq!(lines.iter().map(is_explained).collect::<Vec<_>>(), [false, false, false, false, true]);
    assert!(lines.iter().all(|line| line["level"] == "WARN" && !line.to_string().contains("s3cret")), "{lines:?}");
}

#[tokio::test]
async fn request_lines_can_be_text_or_disabled() {
    for (filter, wanted) in [("info", true), ("info,oncegate::requests=warn", false)] {
        let upstream = Upstream::start().await;
        let text = Proxy::on("memory:").upstream(upstream.address).text();
        let text =
            text.replace("log = \"debug\"\nformat = \"json\"", &format!("log = \"{filter}\"\nformat = \"text\""));
        let (child, mut output, listen, _) = bare(&text);
        Client { address: listen }.post("/pay").key("k\"-1").body("x").send().await;
        // A process that is told to stop writes its last lines.
        kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        drop(child);
        let line = rest.lines().find(|line| line.contains("request") && line.contains("oncegate_status"));
        assert_eq!(line.is_some(), wanted, "{filter}: {rest}");
        for part in ["INFO", "route=\"default\"", "oncegate_status=\"executed\"", "status=201", "key=\"k\\\"-1\""] {
            assert!(line.is_none_or(|line| line.contains(part)), "{part}: {rest}");
        }
    }
}

/// A process whose standard error the test reads itself, or does not read.
struct Bare(std::process::Child);

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Stderr = BufReader<std::process::ChildStderr>;

/// Starts one with a text log, and reads its addresses.
fn bare(text: &str) -> (Bare, Stderr, SocketAddr, SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.arg("run").arg("-c").arg(&file).env_remove("ONCEGATE_LOG").current_dir(folder.path());
    let mut child = Bare(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(child.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    let address = |name: &str| {
        let after = line.split(&format!("{name}=")).nth(1).unwrap();
        after.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (listen, admin) = (address("listen"), address("admin"));
    (child, output, listen, admin)
}

#[tokio::test]
async fn a_blocked_log_reader_delays_no_request_and_lost_lines_are_counted_and_logged() {
    let upstream = Upstream::start().await;
    let text = Proxy::on("memory:").upstream(upstream.address).text();
    let text =
        text.replace("log = \"debug\"\nformat = \"json\"", "log = \"trace,h2=trace,hyper=trace\"\nformat = \"text\"");
    let (_child, output, listen, admin) = bare(&text);
    let probe = Client { address: admin };
    let mut number = 0;
    let dropped = async || {
        // Side by side: a line for each request fills the pipe and the queue of lines only after thousands.
        let paid = (0..50).map(|_| {
            number += 1;
            let key = format!("{}{number}", "k".repeat(200));
            async move { Client { address: listen }.post("/pay").key(&key).body("x").send().await }
        });
        for answer in join_all(paid).await {
            assert_eq!(answer.oncegate_status(), Some("executed"));
        }
        let metrics = probe.get("/metrics").host("prometheus").send().await.text();
        let line =
            metrics.lines().find(|line| line.starts_with("oncegate_log_lines_dropped_total{")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().ok().filter(|dropped| *dropped > 0)
    };
    eventually(TEST_TIMEOUT * 6, dropped).await;
    // A reader that resumes gets the number of lost lines.
    let (tell, oncegate_status) = mpsc::channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if line.contains("log lines were dropped") {
                let _ = tell.send(line);
            }
        }
    });
    let line = tokio::task::spawn_blocking(move || oncegate_status.recv_timeout(TEST_TIMEOUT)).await.unwrap().unwrap();
    assert!(line.contains("WARN"), "{line}");
}

#[tokio::test]
async fn the_last_log_lines_are_written_before_exit() {
    let world = World::start(Store::sqlite()).await;
    world.pay("k-1").send().await;
    assert_eq!(Metrics::of(&world.proxy).await.get("oncegate_log_lines_dropped_total"), 0.0);
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(world.proxy.logged().last().unwrap()["message"], "stopped");
}

#[tokio::test]
async fn a_delivery_has_no_client_that_could_be_gone() {
    let lines = "delivery = \"async\"";
    let world = World::with(Store::sqlite(), |setup| {
        setup.top("secret = \"a secret of some length\"").route(&route("pay", lines))
    })
    .await;
    assert_eq!(world.pay("k-1").send().await.status, 202);
    let delivery =
        async || world.proxy.logged().into_iter().find(|line| line["message"] == "request" && line["attempt"] == 1);
    let line = eventually(TEST_TIMEOUT, delivery).await;
    assert_eq!((&line["client_gone"], &line["oncegate_status"]), (&Value::Null, &json!("executed")), "{line}");
}
