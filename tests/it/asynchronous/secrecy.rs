//! What is queued is read by nobody who has not the secret, and trusted by nobody once it was touched.

use super::*;
use crate::harness::operator::Operator;
use crate::harness::{Hold, on_both_stores};

/// Stands in the body, a field and the query, and nowhere else.
const CANARY: &str = "canary-4f1d8e";

async fn canary(world: &World) -> String {
    let pay = world.post(&format!("/pay?note={CANARY}")).key("k-1").field("X-Note", CANARY);
    place(&pay.json(&format!("{{\"card\":\"{CANARY}\"}}")).send().await)
}

/// Waits until it was tried once, and is to be tried again.
async fn has_been_tried(world: &World, place: &str) {
    let tried = |told: &Value| told["attempts"] == 1 && told["state"] == "queued";
    eventually(PATIENCE, async || Some(operation(&world.proxy, place).await).filter(tried)).await;
}

/// Whether these bytes stand anywhere in the store.
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
    let place = canary(&world).await;
    has_been_tried(&world, &place).await;
    assert!(holds(&world.store, "k-1").await, "the key is found where it stands: the search works");
    assert!(!holds(&world.store, CANARY).await);
    // And when it is delivered, the request goes.
    world.proxy.kill9().await;
    world.store.tamper("update keys set due_at = accepted_at where state = 'queued'").await;
    world.proxy = world.setup.start().await;
    world.operation_when(&place, "completed").await;
    let last = world.upstream.last();
    assert!(last.target.contains(CANARY) && String::from_utf8(last.body.clone()).unwrap().contains(CANARY));
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(requests(&world.store).await, 0);
}

/// How many requests are in the outbox; the embedded store must be nobody's at that moment.
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

/// A request that waits for an hour, and a hand in the tables before the next proxy starts.
async fn after_a_hand_in_the_tables(store: Store, sqlite: &str, postgres: &str) -> (World, String) {
    let mut world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble());
    let place = canary(&world).await;
    has_been_tried(&world, &place).await;
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
    (world, place)
}

on_both_stores!(a_request_that_was_touched_is_told_and_never_sent);
async fn a_request_that_was_touched_is_told_and_never_sent(store: Store) {
    let (world, place) = after_a_hand_in_the_tables(
        store,
        "update outbox set sealed = zeroblob(length(sealed))",
        "update oncegate.outbox set sealed = set_byte(sealed, 40, get_byte(sealed, 40) # 1)",
    )
    .await;
    world.operation_when(&place, "dead").await;
    world.proxy.logs("does not open").await;
    assert_eq!(world.upstream.calls(), 1);
    let (_, log) = Operator::of(&world.proxy).get("/api/v1/audit").await;
    assert_eq!(log["entries"][0]["note"], "its request does not open: it has been changed, or is of another key");
}

on_both_stores!(a_request_that_is_gone_is_told_and_never_made_up);
async fn a_request_that_is_gone_is_told_and_never_made_up(store: Store) {
    let (world, place) = after_a_hand_in_the_tables(store, "delete from outbox", "delete from oncegate.outbox").await;
    assert_eq!(world.operation_when(&place, "dead").await["attempts"], 1);
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(one_keys_request_is_never_sent_for_another);
async fn one_keys_request_is_never_sent_for_another(store: Store) {
    let mut world = world(store, "retry = { base = \"1h\", cap = \"1h\" }").await;
    world.upstream.then(trouble()).then(trouble());
    let places = [world.accepts("k-1").await, world.accepts("k-2").await];
    world.upstream.has_executed(2).await;
    for place in &places {
        world.operation_when(place, "queued").await;
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
    for place in &places {
        world.operation_when(place, "dead").await;
    }
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(an_earlier_secret_opens_what_was_queued_under_it_and_one_that_is_not_known_here_leaves_it_to_others);
async fn an_earlier_secret_opens_what_was_queued_under_it_and_one_that_is_not_known_here_leaves_it_to_others(
    store: Store,
) {
    let mut world = world(store, "").await;
    let hold = Hold::new();
    world.upstream.answers(trouble());
    let first = world.accepts("k-1").await;
    world.upstream.has_executed(1).await;
    let new = |setup: Setup, previous: &str| {
        let retry = "retry = { base = \"50ms\", cap = \"200ms\" }";
        setup
            .top(&format!("secret = \"another secret of ours\"\nprevious_secrets = [{previous}]"))
            .route(&route("pay", &format!("delivery = \"async\"\n{retry}")))
    };
    world.restart_as(|setup| new(setup, &format!("\"{SECRET}\""))).await;
    world.upstream.answers(Answer::status(201).hold(&hold));
    hold.release();
    world.operation_when(&first, "completed").await;
    world.upstream.answers(trouble());
    let before = world.upstream.calls();
    let second = world.accepts("k-2").await;
    world.operation_when(&second, "queued").await;
    world.upstream.has_executed(before + 1).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let calls = world.upstream.calls();
    // One that does not know it yet leaves it to others, however often it has come upon it.
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
        key["attempts"].as_u64().filter(|attempt| *attempt >= (tried + 3) as u64)
    };
    eventually(PATIENCE, passed_on).await;
    let told = world.proxy.logged().iter().filter(|line| line["message"].as_str().is_some_and(left_to_others)).count();
    assert_eq!((world.upstream.calls(), told), (calls, 1), "it is not sent, and told once");
    assert!(operator.audit().await.is_empty(), "nor given up");
    assert_eq!(world.proxy.stop().await, Some(0));
    world.setup = setup;
    world.upstream.answers(Answer::status(201));
    world.proxy = world.setup.start().await;
    world.operation_when(&second, "completed").await;
    assert_eq!(world.upstream.calls(), calls + 1);
}

fn left_to_others(said: &str) -> bool {
    said.contains("left to others")
}
