//! `oncegate report`: what it has, and that nothing of a request, a caller or a secret is in it.

use serde_json::{Value, json};

use harness::operator::{Operator, completed, oncegate};
use harness::{Answer, Store, World, on_both_stores};

/// Each secret has it, and nothing else.
const MARKER: &str = "CANARY";
const TOKEN: &str = "CANARY-token-of-the-operators";

/// The sections that each report has, with what they say on this machine.
const ALWAYS: [&str; 6] =
    ["\n## Versions\n", "- SQLite 3.", "/items/{id}", "authorization", "warning: ", "\n## Instance\n"];

/// The plans of the store, which name the indexes.
const PLANS: [&str; 5] =
    ["plan of list_keys\n", "list_keys_by_lookup\n", "keys_created", "keys_unsettled", "keys_expiring"];

/// Makes requests of all kinds that leave something in statistics, logs and the store, with a marker in each part.
async fn fill(world: &World) {
    let pay = |key: &str| {
        let request = world.post(&format!("/items/{MARKER}-path?q={MARKER}-query")).key(&format!("{MARKER}-key-{key}"));
        request.field("Authorization", &format!("Bearer {MARKER}-caller")).body(format!("{MARKER}-body"))
    };
    let answer = Answer::status(201).field("X-Receipt", &format!("{MARKER}-field")).body(format!("{MARKER}-response"));
    world.upstream.answer_all(answer);
    for key in ["1", "1", "same-body"] {
        assert_eq!(pay(key).send().await.status, 201);
    }
    assert_eq!(pay("1").body(format!("{MARKER}-other-body")).send().await.status, 422);
    world.post(&format!("/{MARKER}-unguarded")).key(&format!("{MARKER}-unguarded-key")).body("x").send().await;
    world.upstream.then(Answer::close());
    assert_eq!(pay("unknown").send().await.status, 502);
    let operator = Operator::of(&world.proxy);
    let admin = async |method: &str, path: &str, body: &str| {
        let request = operator.request(method, path).field("Authorization", &format!("Bearer {TOKEN}"));
        serde_json::from_slice::<Value>(&request.json(body).send().await.body).unwrap()
    };
    let unknown = admin("GET", "/api/v1/keys?state=unknown", "").await;
    let path = format!("/api/v1/keys/{}/resolve", unknown["keys"][0]["id"].as_str().unwrap());
    let decided = admin("POST", &path, &completed(200, &format!("{MARKER}-decided")).to_string()).await;
    assert_eq!(decided["after"], "completed", "{decided}");
    let stats = admin("GET", "/api/v1/stats", "").await;
    for list in ["unguarded", "same_bodies"] {
        assert!(!stats[list].as_array().unwrap().is_empty(), "{list}: {stats}");
    }
}

on_both_stores!(a_report_has_counts_metrics_and_plans_and_nothing_of_a_request_a_caller_or_a_secret);
async fn a_report_has_counts_metrics_and_plans_and_nothing_of_a_request_a_caller_or_a_secret(store: Store) {
    let url = match &store {
        // The database asks for no password here, so any password works.
        Store::Postgres(_) => store.url().replacen('@', &format!(":{MARKER}-password@"), 1),
        Store::Sqlite(_) => store.url(),
    };
    let items = format!(
        "name = \"items\"\npath = \"/items/{{id}}\"\nmethods = [\"POST\"]\nindex = [\"query:q\"]\nsame_body = \"warn\"\n\
         scope = [\"authorization\"]\nset_headers = {{ X-Api-Key = \"{MARKER}-credential\" }}"
    );
    let secret = format!("secret = \"{MARKER}-secret-of-the-scopes\"");
    let world = World::with(store, |setup| {
        setup.through(&url).top(&secret).admin(&format!("token = \"{TOKEN}\"")).route(&items)
    })
    .await;
    fill(&world).await;
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    let log = file.with_file_name("oncegate.log");
    let line = |message: &str, field: &str| json!({ "timestamp": "2026-11-27T10:00:00.000001Z", "level": "INFO", "message": message, field: MARKER });
    let planted = [
        line("request", "route").to_string(),
        line("request", MARKER).to_string(),
        line(MARKER, "status").to_string(),
        format!("2026-11-27T10:00:00.000001Z  INFO request path=\"{MARKER}\" cause={MARKER} status={MARKER}"),
        format!("{MARKER} is no line of Oncegate's"),
    ];
    std::fs::write(&log, format!("{}\n{}\n", world.proxy.output(), planted.join("\n"))).unwrap();
    let report = async |more: &[&str]| {
        let output = oncegate("report", &file, &[&["--log", log.to_str().unwrap()], more].concat()).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert_eq!(output.out.lines().find(|line| line.contains(MARKER)), None);
        assert!(!output.err.contains(MARKER), "{output:?}");
        for part in ALWAYS {
            assert!(output.out.contains(part), "{part}: {}", output.out);
        }
        let logged = [
            "INFO request attempt=1 route=items status=201",
            "WARN the outcome is unknown attempt=1 cause=broken route=items",
            "route 1",
            "path ",
            "message ",
            "whole lines 1",
        ];
        for part in logged {
            assert!(output.out.contains(part), "{part}: {}", output.out);
        }
        output.out
    };

    let running = report(&["--admin", &admin]).await;
    for part in [
        "\"ready\":true",
        "\noncegate_requests_total{",
        "It is serving, and runs 0 attempts.",
        "items                   completed   3\n",
    ] {
        assert!(running.contains(part), "{part}: {running}");
    }
    match &world.store {
        Store::Postgres(_) => {
            let database = ["\nserver_version | ", "\nkeys | ", "\nsynchronous_commit | ", "\nkeys | keys_pkey | "];
            for part in database.iter().chain(&PLANS) {
                assert!(running.contains(part), "{part}: {running}");
            }
        }
        Store::Sqlite(_) => assert!(running.contains("A file, which the instance above has open"), "{running}"),
    }

    assert_eq!(world.proxy.stop().await, Some(0));
    let stopped = report(&[]).await;
    assert!(stopped.contains("No instance answers"), "{stopped}");
    for part in PLANS {
        assert!(stopped.contains(part), "{part}: {stopped}");
    }
    assert_eq!(world.store.states().await, ["completed"; 3]);
}

#[tokio::test]
async fn a_report_without_the_secrets_asks_no_store_and_one_into_a_file_that_is_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [file, store, output] = ["oncegate.toml", "missing.db", "report.md"].map(|name| folder.path().join(name));
    let text = "upstream = 'http://127.0.0.1:1'\n[admin]\nlisten = '127.0.0.1:2'\n[store]\nurl = 'sqlite:missing.db'\n";
    let written = output.to_str().unwrap();
    for (secret, said) in
        [("secret = '${file:absent}'", "The store was not asked: a secret"), ("", "The store was not asked;")]
    {
        std::fs::write(&file, format!("{secret}\n{text}")).unwrap();
        let first = oncegate("report", &file, &["--output", written]).await;
        assert_eq!((first.code, &*first.out), (0, ""), "{first:?}");
        let report = std::fs::read_to_string(&output).unwrap();
        assert!(report.contains(said) && report.contains("No instance answers"), "{report}");
        let second = oncegate("report", &file, &["--output", written]).await;
        assert!(second.code == 1 && second.err.contains("exists"), "{second:?}");
        assert_eq!(std::fs::read_to_string(&output).unwrap(), report);
        std::fs::remove_file(&output).unwrap();
    }
    assert!(!store.exists(), "a report creates no store");
}
