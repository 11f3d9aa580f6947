//! `oncegate conform`: its verdicts about clients that hold and clients that do not, over real sockets.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::{JoinSet, spawn_blocking};

use harness::{Answer, Client, Store, World, find_program, route, skip};

/// A client that does all right. The words in capitals are replaced.
const CLIENT: &str = r#"
for n in 1 2 3 4; do
  if answer=$(curl -sS -w '\n%{http_code} %header{retry-after}' -H "Idempotency-Key: KEY" \
      -H 'Authorization: Bearer alice' -H 'Content-Type: application/json' -d "{\"amount\": BODY}" "$CONFORM_URL/pay" 2>/dev/null); then
    last=$(printf '%s' "$answer" | tail -n 1)
    case "${last%% *} $answer" in
      2*) exit 0;;
      422*) ON_REUSED;;
      409*outcome-unknown*) ON_UNKNOWN;;
      *) ON_REFUSAL;;
    esac
  fi
done
exit ENDS_WITH
"#;

/// One way to be wrong: replacements, and the checks that must be broken.
type Mistake = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const MISTAKES: [Mistake; 8] = [
    ("right", &[], &[]),
    ("new-key", &[("KEY", "NAME-$CONFORM_OPERATION-$n")], &["in-flight", "same-key", "unknown"]),
    ("changed-body", &[("BODY", "$CONFORM_OPERATION, \\\"try\\\": $n")], &["same-bytes"]),
    ("one-key", &[("KEY", "NAME")], &["own-key"]),
    ("hasty", &[("ON_REFUSAL", ":")], &["retry-after"]),
    ("key-after-422", &[("KEY", "NAME-$CONFORM_OPERATION$more"), ("ON_REUSED", "more=2")], &["reused", "same-key"]),
    ("optimist", &[("ON_UNKNOWN", "exit 0"), ("ON_REUSED", "exit 0")], &["reused", "unknown"]),
    ("no-retry", &[("1 2 3 4", "1"), ("ENDS_WITH", "1"), ("ON_REFUSAL", "exit 0")], &["in-flight"]),
];

/// The rest of the replacements: those of the right client.
const RIGHT: [(&str, &str); 6] = [
    ("KEY", "NAME-$CONFORM_OPERATION"),
    ("BODY", "$CONFORM_OPERATION"),
    ("ON_REFUSAL", "sleep ${last#* }"),
    ("ON_UNKNOWN", "sleep 1"),
    ("ON_REUSED", "exit 1"),
    ("ENDS_WITH", "1"),
];

fn script((name, replacements, _): &Mistake) -> String {
    let all = replacements.iter().chain(&RIGHT);
    let replaced = all.fold(CLIENT.to_owned(), |script, (word, text)| script.replace(word, text));
    replaced.replace("NAME", name)
}

fn conform(service: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["conform", &format!("http://{service}"), "--retry-after", "1s", "--delay", "100ms", "--json"]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The names of the broken checks of a report.
fn broken(report: &Value) -> BTreeSet<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["verdict"] == "broken").map(|check| check["check"].as_str().unwrap()).collect()
}

/// The class of the documents in the real urllib3, with its number of further tries.
#[tokio::test]
async fn the_retries_of_the_documents_end_at_a_refusal_that_no_time_changes_and_wait_for_one_that_does() {
    let has_urllib3 = Command::new("python3").args(["-c", "import urllib3"]).stderr(Stdio::null()).status();
    if !has_urllib3.is_ok_and(|status| status.success()) {
        return skip(format_args!("urllib3 is not installed"));
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/clients.md")).unwrap();
    let class = page.split("```python\n").find(|block| block.contains("class OncegateRetry")).unwrap();
    let script = class.split("```").next().unwrap().to_owned() + SEND_WITH_URLLIB3;
    // The first answer is lost, and the retry gets 409.
    let soon = "on_unknown = \"retry-when-quiet\"\nreconcile = { after = \"0s\" }\nupstream_timeout = \"500ms\"";
    let asked_in_103_s = "reconcile = { url = \"http://127.0.0.1:9/{id}\" }";
    for (lines, expected, executions) in
        [("", "409 unknown 1", 1), (asked_in_103_s, "409 unknown 1", 1), (soon, "201 executed", 2)]
    {
        let world = World::with(Store::sqlite(), |setup| {
            setup.short_leases().store("timeout = \"1s\"").route(&route("pay", lines))
        });
        let world = world.await;
        world.upstream.then(Answer::close());
        let mut command = Command::new("python3");
        command.args(["-c", &script, &format!("http://{}/pay", world.proxy.listen)]);
        let output = spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(expected) && world.upstream.calls() == executions, "{lines}: {said}");
    }
}

const SEND_WITH_URLLIB3: &str = r#"
import sys
fields = {"Idempotency-Key": "k-1", "Authorization": "Bearer alice"}
answer = urllib3.PoolManager(retries=retries).request("POST", sys.argv[1], body=b"x", headers=fields)
print(answer.status, answer.headers["Oncegate-Status"], len(answer.retries.history))
"#;

#[tokio::test]
async fn each_mistake_of_a_client_breaks_its_checks_and_no_other_one() {
    if find_program(&["curl"]).is_none() {
        return skip(format_args!("curl is not installed"));
    }
    let world = World::guarding(Store::sqlite(), "").await;
    let folder = tempfile::tempdir().unwrap();
    let mut running = JoinSet::new();
    for mistake in MISTAKES {
        let badge = folder.path().join(mistake.0);
        let arguments = ["--seed", "11", "--badge", badge.to_str().unwrap(), "--", "sh", "-c", &script(&mistake)];
        let mut command = conform(world.proxy.listen, &arguments);
        running.spawn(async move { (mistake, spawn_blocking(move || command.output()).await.unwrap().unwrap()) });
    }
    let mut executions = 0;
    while let Some(ended) = running.join_next().await {
        let ((name, _, expected), output) = ended.unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{name}: {err}"));
        assert_eq!(broken(&report), expected.iter().copied().collect(), "{name}: {report:#}");
        let verdict = if expected.is_empty() { "holds" } else { "broken" };
        assert_eq!(
            (&report["verdict"], output.status.code()),
            (&verdict.into(), Some(i32::from(verdict != "holds"))),
            "{name}"
        );
        assert_eq!(report["operations"].as_array().unwrap().len(), 8, "{name}");
        let badge = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(badge.starts_with("<svg ") && badge.contains(&format!("idempotent client: {verdict}")), "{badge}");
        let counted = report["executions"].as_u64().unwrap();
        match name {
            "right" => assert_eq!((counted, &report["keys"]), (8, &8.into()), "{report:#}"),
            "new-key" => assert!(counted > 8, "{report:#}"),
            _ => {}
        }
        executions += counted;
    }
    assert_eq!(world.upstream.calls() as u64, executions, "the service and the links count otherwise");
}

/// A link without a command, which ends with SIGTERM.
struct RunningLink(Child, SocketAddr);

impl RunningLink {
    async fn start(service: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = conform(service, arguments);
        spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            let address = line.trim().rsplit("http://").next().unwrap().parse().unwrap();
            Self(child, address)
        })
        .await
        .unwrap()
    }

    async fn end(mut self) -> Value {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        let read = move || {
            let mut out = String::new();
            self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
            self.0.wait().unwrap();
            out
        };
        serde_json::from_str(&spawn_blocking(read).await.unwrap()).unwrap()
    }
}

/// Eight operations of a client that changes its key for each of at most five tries.
async fn send_with_new_keys(to: SocketAddr, body: impl Fn(usize, usize) -> String) {
    for operation in 0..8 {
        for attempt in 0..5 {
            let key = format!("k-{operation}-{attempt}");
            let request = Client { address: to }.post("/pay").key(&key).field("x-order", &format!("order-{operation}"));
            if request.json(&body(operation, attempt)).try_send().await.is_ok_and(|response| response.status == 201) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn without_a_command_retries_with_new_keys_are_told_by_a_marker_or_by_likeness() {
    let world = World::guarding(Store::sqlite(), "").await;
    let equal = |operation: usize, _: usize| format!(r#"{{"amount":{operation}}}"#);
    let marked = |operation: usize, attempt: usize| format!(r#"{{"order":"o-{operation}","try":{attempt}}}"#);
    let changed = |operation: usize, attempt: usize| format!(r#"{{"amount":{operation},"try":{attempt}}}"#);
    type BodyMaker<'a> = &'a dyn Fn(usize, usize) -> String;
    let new_keys = &["in-flight", "reused", "same-key", "unknown"][..];
    let cases: [(&[&str], BodyMaker<'_>, usize, bool); 4] = [
        (&[], &equal, 8, false),
        (&["--operation-field", "X-Order"], &changed, 8, true),
        (&["--operation-body", "/order"], &marked, 8, true),
        // Another key and another body: nothing says that it is a retry. Each try is an operation.
        (&[], &changed, 0, false),
    ];
    for (arguments, body, operations, is_changed) in cases {
        let link = RunningLink::start(world.proxy.listen, arguments).await;
        let calls = world.upstream.calls();
        send_with_new_keys(link.1, body).await;
        let report = link.end().await;
        let found = broken(&report);
        let seen = report["operations"].as_array().unwrap().len();
        match operations {
            0 => assert!(seen > 8 && !found.contains("same-key"), "{report:#}"),
            _ => {
                assert_eq!(seen, operations, "{report:#}");
                assert!(
                    new_keys.iter().filter(|check| **check != "reused").all(|check| found.contains(check)),
                    "{report:#}"
                );
                assert_eq!(found.contains("same-bytes"), is_changed, "{report:#}");
            }
        }
        assert_eq!(report["executions"], world.upstream.calls() - calls, "{report:#}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_there_a_path_and_another_machine_are_errors() {
    for (url, code, text) in [
        ("http://127.0.0.1:1", 69, "127.0.0.1:1: "),
        ("http://127.0.0.1:1/pay", 2, "the URL has a path"),
        ("http://shop.example", 2, "say --yes"),
        ("ftp://shop.example", 2, "the URL "),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.args(["conform", url]).stdin(Stdio::null());
        let output = spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{url}: {err}");
        assert!(err.contains(text), "{url}: {err}");
    }
}
