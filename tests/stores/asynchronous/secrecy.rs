//! Queued requests cannot be read without the secret, and a tampered one is never sent.

use super::*;
use harness::operator::Operator;
use harness::{Hold, on_both_stores};

/// Occurs in the body, a field and the query, and nowhere else.
const CANARY: &str = "canary-4f1d8e";

async fn canary(world: &World) -> String {
    let pay = world.post(&format!("/pay?note={CANARY}")).key("k-1").field("X-Note", CANARY);
    operation_path(&pay.json(&format!("{{\"card\":\"{CANARY}\"}}")).send().await)
}

/// Waits until the delivery was tried once and waits for its next attempt.
async fn has_been_tried(world: &World, operation_path: &str) {
    let tried = |reply: &Value| reply["attempts"] == 1 && reply["state"] == "queued";
    eventually(TEST_TIMEOUT, async || Some(operation(&world.proxy, operation_path).await).filter(tried)).await;
}

/// Whether these bytes occur anywhere in the store.
async fn holds(store: &Store, words: &str) -> bool {
    match store {
        Store::Sqlite(folder) => std::fs::read_dir(folder.path()).unwrap().any(|file| {
            memchr::memmem::find(&std::fs::read(file.unwrap().path()).unwrap(), words.as_bytes()).is_some()
        }),
        Store::Postgres(database) => {
            let client = database.client().await;
            let mut found = false;
            for table in ["keys", "outbox"] {
                let hex: String = words.bytes().map(|byte| format!("{byte:02x}")).collect();
                let sql = format!(
                    "select count(*) from oncegate.{table} as t where t::text like '%{hex}%' or t::text like '%{words}%'"
                );
                found |= client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) > 0;
            }
            found
        }
    }
}

on_both_stores!(nothing_of_a_queued_request_can_be_read_in_the_store);
async fn nothing_of_a_queued_request_can_be_read_in_the_store(store: Store) {
    let mut world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble());
    let operation_path = canary(&world).await;
    has_been_tried(&world, &operation_path).await;
    assert!(holds(&world.store, "k-1").await, "the search finds the key, which is not sealed");
    assert!(!holds(&world.store, CANARY).await);
    // A delivered request is deleted.
    world.proxy.kill9().await;
    world.store.tamper("update keys set due_at = accepted_at where state = 'queued'").await;
    world.proxy = world.setup.start().await;
    world.operation_when(&operation_path, "completed").await;
    let last = world.upstream.last();
    assert!(last.target.contains(CANARY) && String::from_utf8(last.body.clone()).unwrap().contains(CANARY));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(requests(&world.store).await, 0);
}

/// The number of requests in the outbox. No process may have the embedded store open at that moment.
async fn requests(store: &Store) -> i64 {
    match store {
        Store::Postgres(database) => {
            database.client().await.query_one("select count(*) from oncegate.outbox", &[]).await.unwrap().get(0)
        }
        Store::Sqlite(_) => {
            let db = rusqlite::Connection::open(store.sqlite_file()).unwrap();
            db.query_row("select count(*) from outbox", [], |row| row.get(0)).unwrap()
        }
    }
}

/// A request that waits for an hour, and a change in the tables before the next proxy starts.
async fn after_a_hand_in_the_tables(store: Store, sqlite: &str, postgres: &str) -> (World, String) {
    let mut world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble());
    let operation_path = canary(&world).await;
    has_been_tried(&world, &operation_path).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let now = "update keys set due_at = accepted_at where state = 'queued'";
    match &world.store {
        Store::Sqlite(_) => world.store.tamper(&format!("{now}; {sqlite}")).await,
        Store::Postgres(database) => {
            let sql = format!("{}; {postgres}", now.replace("keys", "oncegate.keys"));
            database.client().await.batch_execute(&sql).await.unwrap();
        }
    }
    world.proxy = world.setup.start().await;
    (world, operation_path)
}

on_both_stores!(a_tampered_request_is_logged_and_never_sent);
async fn a_tampered_request_is_logged_and_never_sent(store: Store) {
    let (world, operation_path) = after_a_hand_in_the_tables(
        store,
        "update outbox set sealed = zeroblob(length(sealed))",
        "update oncegate.outbox set sealed = set_byte(sealed, 40, get_byte(sealed, 40) # 1)",
    )
    .await;
    world.operation_when(&operation_path, "dead").await;
    world.proxy.wait_for_log("cannot be opened").await;
    assert_eq!(world.upstream.calls(), 1);
    let (_, log) = Operator::of(&world.proxy).get("/api/v1/audit").await;
    assert_eq!(log["entries"][0]["note"], "its request cannot be opened: it has been changed, or is of another key");
}

on_both_stores!(a_missing_request_is_logged_and_never_sent);
async fn a_missing_request_is_logged_and_never_sent(store: Store) {
    let (world, operation_path) =
        after_a_hand_in_the_tables(store, "delete from outbox", "delete from oncegate.outbox").await;
    assert_eq!(world.operation_when(&operation_path, "dead").await["attempts"], 1);
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(one_keys_request_is_never_sent_for_another);
async fn one_keys_request_is_never_sent_for_another(store: Store) {
    let mut world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble()).then(trouble());
    let operation_paths = [world.accepts("k-1").await, world.accepts("k-2").await];
    world.upstream.wait_for_executed(2).await;
    for operation_path in &operation_paths {
        world.operation_when(operation_path, "queued").await;
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    match &world.store {
        Store::Sqlite(_) => {
            world.store.tamper("update keys set due_at = accepted_at where state = 'queued'").await;
            let db = rusqlite::Connection::open(world.store.sqlite_file()).unwrap();
            let copy = "create table o2 as select * from outbox;
                        update outbox set sealed = (select o.sealed from o2 as o where o.id <> outbox.id); drop table o2";
            db.execute_batch(copy).unwrap();
        }
        Store::Postgres(database) => {
            let client = database.client().await;
            let due = "update oncegate.keys set due_at = accepted_at where state = 'queued'";
            client.batch_execute(due).await.unwrap();
            let swap = "update oncegate.outbox as a
                           set sealed = (select b.sealed from oncegate.outbox as b where b.id <> a.id)";
            client.batch_execute(swap).await.unwrap();
        }
    }
    world.proxy = world.setup.start().await;
    for operation_path in &operation_paths {
        world.operation_when(operation_path, "dead").await;
    }
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_previous_secret_opens_its_requests_and_an_unknown_one_leaves_them_to_other_instances);
async fn a_previous_secret_opens_its_requests_and_an_unknown_one_leaves_them_to_other_instances(store: Store) {
    let mut world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.answer_all(trouble());
    let first = world.accepts("k-1").await;
    world.upstream.wait_for_executed(1).await;
    let new = |setup: Setup, previous: &str| {
        let retry = "retry = { base = \"50ms\", cap = \"200ms\" }";
        setup
            .top(&format!("secret = \"another secret of ours\"\nprevious_secrets = [{previous}]"))
            .route(&route("pay", &format!("delivery = \"async\"\n{retry}")))
    };
    world.restart_as(|setup| new(setup, &format!("\"{SECRET}\""))).await;
    world.upstream.answer_all(Answer::status(201).hold(&hold));
    hold.release();
    world.operation_when(&first, "completed").await;
    world.upstream.answer_all(trouble());
    let before = world.upstream.calls();
    let second = world.accepts("k-2").await;
    world.operation_when(&second, "queued").await;
    world.upstream.wait_for_executed(before + 1).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let calls = world.upstream.calls();
    // An instance that does not have the secret yet leaves the delivery to others, however often it finds it.
    let tried = calls - before;
    let retry =
        format!("retry = {{ max_attempts = {}, base = \"50ms\", cap = \"200ms\", give_up_after = \"1h\" }}", tried + 1);
    let setup = std::mem::replace(
        &mut world.setup,
        later(Proxy::on(&world.store.url()).upstream(world.upstream.address), &retry),
    );
    world.proxy = world.setup.start().await;
    let operator = Operator::of(&world.proxy);
    let passed_on = async || {
        let key = operator.keys("key=k-2").await.pop()?;
        key["attempts"].as_u64().filter(|attempt| *attempt >= (tried + 2) as u64)
    };
    eventually(2 * TEST_TIMEOUT, passed_on).await;
    let left = world.proxy.logged().iter().filter(|line| line["message"].as_str().is_some_and(left_to_others)).count();
    assert_eq!((world.upstream.calls(), left), (calls, 1), "it is not sent, and logged once");
    assert!(operator.audit().await.is_empty(), "nor given up");
    assert_eq!(world.proxy.stop().await, Some(0));
    world.setup = setup;
    world.upstream.answer_all(Answer::status(201));
    world.proxy = world.setup.start().await;
    world.operation_when(&second, "completed").await;
    assert_eq!(world.upstream.calls(), calls + 1);
}

fn left_to_others(message: &str) -> bool {
    message.contains("other instances may deliver it")
}
