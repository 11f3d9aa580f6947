//! `oncegate reconcile`: a report of the differences between store and service.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::ReconcileWorld;
use harness::{Answer, Store};

async fn oncegate(file: PathBuf, arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.arg("reconcile").arg("-c").arg(file).args(arguments).output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn read_output(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn reconcile_compares_store_and_service_while_proxies_run() {
    // No reconciler inquires during this test.
    let reconciled = ReconcileWorld::open(Store::postgres().await, "max_attempts = 10").await;
    let world = &reconciled.world;
    let file = || world.proxy.file();
    assert_eq!(read_output(&oncegate(file(), &[]).await).0, Some(0), "nothing to compare");

    world.upstream.then(Answer::status(201)).then(Answer::status(500));
    assert_eq!(world.pay("paid-key-1").send().await.status, 201);
    assert_eq!(world.pay("released-1").send().await.status, 500);
    for _ in 0..2 {
        // In either order.
        reconciled.lookup.then(Answer::status(404));
    }
    let (code, out, err) = read_output(&oncegate(file(), &[]).await);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("pay  paid-key-1  store: completed 201; service: 404 (not executed)"), "{out}");
    assert!(out.ends_with("1 agree, 1 disagree, 0 unanswered\n"), "{out}");
    assert!(err.contains("store and service disagree about 1 of 2 keys"), "{err}");

    reconciled.lookup.answer_all(Answer::status(201));
    let (code, out, _) = read_output(&oncegate(file(), &["--json", "--route", "pay", "--since", "1h"]).await);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &document["agree"], &document["unanswered"]), (Some(1), &1.into(), &Value::Array(vec![])));
    let wrong = &document["disagree"][0];
    assert_eq!((&wrong["key"], &wrong["state"]), (&"released-1".into(), &"retryable".into()));
    assert_eq!((&wrong["service"], &wrong["route"]), (&"201".into(), &"pay".into()));

    reconciled.lookup.answer_all(Answer::status(200));
    let (_, out, _) = read_output(&oncegate(file(), &[]).await);
    assert!(out.contains("store: completed 201; service: 200 (executed)"), "{out}");
    assert!(out.contains("store: released; service: 200 (executed)"), "{out}");

    reconciled.lookup.answer_all(Answer::status(503));
    let (code, out, err) = read_output(&oncegate(file(), &[]).await);
    assert_eq!(code, Some(1), "a key that could not be compared does not agree");
    assert!(out.ends_with("0 agree, 0 disagree, 2 unanswered\n"), "{out}");
    assert!(err.contains("the service does not say what became of 2 of 2 keys"), "{err}");

    reconciled.lookup.answer_all(Answer::status(404));
    let (_, out, _) = read_output(&oncegate(file(), &["--since", "0s"]).await);
    assert!(out.starts_with("0 agree"), "older keys are left out: {out}");
    // The report has changed nothing.
    assert_eq!(world.pay("paid-key-1").send().await.oncegate_status(), Some("replayed"));
    assert_eq!(world.store.states().await, ["completed", "retryable"]);
    let (code, _, err) = read_output(&oncegate(file(), &["--route", "nobody"]).await);
    assert!(code == Some(1) && err.contains("no route is named `nobody`"), "{err}");
}

#[tokio::test]
async fn reconcile_reports_an_unknown_key_with_the_services_answer() {
    let reconciled = ReconcileWorld::open(Store::sqlite(), "max_attempts = 10").await;
    reconciled.lose("unknown-1", Answer::close()).await;
    let file = reconciled.world.proxy.file();
    let (code, _, err) = read_output(&oncegate(file.clone(), &[]).await);
    assert_eq!(code, Some(69), "the embedded store is the running proxy's alone: {err}");
    assert!(err.contains("stop the proxy that has the embedded store first"), "{err}");
    reconciled.world.proxy.kill9().await;
    reconciled.lookup.then(Answer::status(404)).then(Answer::status(200));
    for line in ["store: unknown; service: 404 (not executed)", "store: unknown; service: 200 (executed)"] {
        let (code, out, _) = read_output(&oncegate(file.clone(), &[]).await);
        assert!(code == Some(1) && out.contains(line), "{out}");
    }
    assert_eq!(reconciled.world.store.states().await, ["unknown"], "it changes nothing");
}

#[tokio::test]
async fn a_comparison_creates_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let (file, missing) = (folder.path().join("oncegate.toml"), folder.path().join("missing.db"));
    let lines = format!(
        "upstream = 'http://127.0.0.1:1'\n[store]\nurl = 'sqlite:{}'\n[[routes]]\nname = 'pay'\npath = '/pay'\n\
         reconcile = {{ url = 'http://127.0.0.1:1/{{key}}' }}",
        missing.display()
    );
    std::fs::write(&file, lines).unwrap();
    let (code, _, err) = read_output(&oncegate(file, &[]).await);
    assert!(code == Some(69) && err.contains("there is no such file"), "{err}");
    assert!(!missing.exists());
}
