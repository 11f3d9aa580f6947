//! `oncegate reconcile`: where store and service disagree.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::Desk;
use crate::harness::{Answer, Store};

async fn oncegate(file: PathBuf, arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.arg("reconcile").arg("-c").arg(file).args(arguments).output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn what_store_and_service_say_is_compared_while_proxies_run() {
    // Nobody else asks while this is looked at.
    let desk = Desk::open(Store::postgres().await, "max_attempts = 10").await;
    let world = &desk.world;
    let file = || world.proxy.file();
    assert_eq!(told(&oncegate(file(), &[]).await).0, Some(0), "nothing to compare");

    world.upstream.then(Answer::status(201)).then(Answer::status(500));
    assert_eq!(world.pay("paid-key-1").send().await.status, 201);
    assert_eq!(world.pay("released-1").send().await.status, 500);
    for _ in 0..2 {
        // Whichever is asked about first.
        desk.lookup.then(Answer::status(404));
    }
    let (code, out, err) = told(&oncegate(file(), &[]).await);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("pay  paid-key…  completed 201 here, 404 there: not executed"), "{out}");
    assert!(out.ends_with("1 agree, 1 disagree, 0 unanswered\n"), "{out}");
    assert!(err.contains("store and service disagree about 1 of 2 keys"), "{err}");

    desk.lookup.answers(Answer::status(201));
    let (code, out, _) = told(&oncegate(file(), &["--json", "--route", "pay", "--since", "1h"]).await);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &document["agree"], &document["unanswered"]), (Some(1), &1.into(), &Value::Array(vec![])));
    let wrong = &document["disagree"][0];
    assert_eq!((&wrong["key"], &wrong["state"]), (&"released-1".into(), &"retryable".into()));
    assert_eq!((&wrong["service"], &wrong["route"]), (&"201".into(), &"pay".into()));

    desk.lookup.answers(Answer::status(200));
    let (_, out, _) = told(&oncegate(file(), &[]).await);
    assert!(out.contains("completed 201 here, 200 there: executed"), "{out}");
    assert!(out.contains("released here, 200 there: executed"), "{out}");

    desk.lookup.answers(Answer::status(503));
    let (code, out, err) = told(&oncegate(file(), &[]).await);
    assert_eq!(code, Some(1), "what could not be compared does not agree");
    assert!(out.ends_with("0 agree, 0 disagree, 2 unanswered\n"), "{out}");
    assert!(err.contains("the service does not say what became of 2 of 2 keys"), "{err}");

    desk.lookup.answers(Answer::status(404));
    let (_, out, _) = told(&oncegate(file(), &["--since", "0s"]).await);
    assert!(out.starts_with("0 agree"), "all that is older is left out: {out}");
    // Nothing has changed by all this.
    assert_eq!(world.pay("paid-key-1").send().await.told(), Some("replayed"));
    assert_eq!(world.store.states().await, ["completed", "retryable"]);
    let (code, _, err) = told(&oncegate(file(), &["--route", "nobody"]).await);
    assert!(code == Some(1) && err.contains("no route is named `nobody`"), "{err}");
}

#[tokio::test]
async fn an_unknown_key_is_told_with_what_the_service_says() {
    let desk = Desk::open(Store::sqlite(), "max_attempts = 10").await;
    desk.lose("unknown-1", Answer::close()).await;
    let file = desk.world.proxy.file();
    let (code, _, err) = told(&oncegate(file.clone(), &[]).await);
    assert_eq!(code, Some(69), "the embedded store is the running proxy's alone: {err}");
    assert!(err.contains("stop the proxy that has the embedded store first"), "{err}");
    desk.world.proxy.kill9().await;
    desk.lookup.then(Answer::status(404)).then(Answer::status(200));
    for said in ["unknown here, 404 there: not executed", "unknown here, 200 there: executed"] {
        let (code, out, _) = told(&oncegate(file.clone(), &[]).await);
        assert!(code == Some(1) && out.contains(said), "{out}");
    }
    assert_eq!(desk.world.store.states().await, ["unknown"], "it changes nothing");
}
