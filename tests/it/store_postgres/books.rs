//! What operators decide while the database is in other hands, or its answers get lost.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use oncegate::domain::attempt::Ending;
use oncegate::domain::record::Ask;
use oncegate::store::books::{Case, Change, Decision, Filter, IdRange, Verdict};
use oncegate::store::{self, Settings, Store};

use crate::harness::link::Link;
use crate::harness::postgres::{self, Cluster};
use crate::harness::world::{DAY, World, ask, fresh, response, settlement};
use crate::store_postgres::faults::{COMMITTING, KILL, commits_wait_for};
use crate::store_postgres::{eventually, number};

async fn unknown(world: &World, key: &str) -> Ask {
    let ask = ask(key);
    world.reserve(&ask).await;
    world.settle(settlement(&ask, Ending::Unknown)).await;
    ask
}

async fn case(store: &Arc<dyn Store>, ask: &Ask) -> Case {
    let filter = Filter { ids: IdRange::one(ask.id), ..Filter::default() };
    let entry = store.books().page("shop".into(), filter, None, 2).await.unwrap().entries.remove(0);
    Case { id: entry.id, token: entry.token, state: entry.state, ttl: DAY, remember: None, quiet_after: DAY }
}

fn at_risk(change: Change, actor: &str) -> Arc<Decision> {
    Arc::new(Decision { change, actor: actor.into(), note: None, accept_risk: true })
}

#[tokio::test]
async fn a_row_that_somebody_holds_is_told_and_the_others_are_decided() {
    let world = World::postgres().await;
    let keys = [unknown(&world, "held").await, unknown(&world, "free").await];
    let cases = vec![case(world.store(), &keys[0]).await, case(world.store(), &keys[1]).await];
    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let hold = "select 1 from oncegate.keys where id = $1 for update";
    client.query(hold, &[&keys[0].id.as_bytes().as_slice()]).await.unwrap();
    for (change, expected) in [
        (Change::NotExecuted, [Verdict::Held, Verdict::Done]),
        (Change::Purge, [Verdict::Held, Verdict::Changed(oncegate::domain::phase::Phase::Retryable)]),
    ] {
        let decided = world.store().books().decide("shop".into(), at_risk(change, "alice"), cases.clone()).await;
        assert_eq!(decided.unwrap().verdicts, expected);
    }
    client.batch_execute("rollback").await.unwrap();
    let decided = world.store().books().decide("shop".into(), at_risk(Change::Purge, "alice"), cases).await.unwrap();
    assert_eq!((decided.verdicts[0], decided.purges), (Verdict::Done, Some(1)));
}

#[tokio::test]
async fn what_was_decided_while_its_answer_was_lost_is_known_by_its_line_in_the_log() {
    let world = World::postgres().await;
    let link = Link::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let changes = [Change::NotExecuted, Change::Complete(response(b"by hand")), Change::Purge];
    for (number, change) in changes.into_iter().enumerate() {
        let key = unknown(&world, &format!("k-{number}")).await;
        let cases = vec![case(&store, &key).await];
        let purged = matches!(change, Change::Purge);
        link.lose_answers(1);
        let decided = store.books().decide("shop".into(), at_risk(change, "alice"), cases.clone()).await.unwrap();
        assert_eq!(link.to_be_lost(), 0);
        assert_eq!((&decided.verdicts[..], decided.purges), (&[Verdict::Done][..], purged.then_some(1)));
        let notes = world.store().books().audit("shop".into(), Some(key.id), None, 10).await.unwrap();
        assert_eq!(notes.len(), 1, "once");
    }
    // Somebody else's line is not taken for ours.
    let key = unknown(&world, "theirs").await;
    let cases = vec![case(&store, &key).await];
    let theirs = world.store().books().decide("shop".into(), at_risk(Change::NotExecuted, "bob"), cases.clone()).await;
    assert_eq!(theirs.unwrap().verdicts, [Verdict::Done]);
    link.lose_answers(1);
    let ours = store.books().decide("shop".into(), at_risk(Change::NotExecuted, "alice"), cases).await.unwrap();
    assert!(matches!(ours.verdicts[0], Verdict::Changed(_)), "{ours:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_was_cut_off_counts_once_it_is_where_it_was_to_be() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = Settings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let key = ask("k");
    fresh(store.reserve(key.clone()).await.unwrap());
    store.settle(settlement(&key, Ending::Unknown)).await.unwrap();
    let cases = vec![case(&store, &key).await];
    let client = database.client().await;

    // Its session is ended while the commit waits for a standby that does not come: from then on it can be seen.
    commits_wait_for("nobody", &cluster, &client).await;
    let deciding = store.books().decide("shop".into(), at_risk(Change::NotExecuted, "alice"), cases);
    let told = Cell::new(false);
    let decided = async {
        let decided = deciding.await.unwrap();
        told.set(true);
        decided
    };
    let story = async {
        eventually(async || number(&client, COMMITTING).await == 1).await;
        client.batch_execute(KILL).await.unwrap();
        let taken = "select count(*) from oncegate.keys where state = 'retryable'";
        eventually(async || number(&client, taken).await == 1).await;
        // But it is not told until the standby must have it.
        eventually(async || told.get() || number(&client, COMMITTING).await == 1).await;
        assert!(!told.get());
        commits_wait_for("", &cluster, &client).await;
    };
    let (decided, ()) = join(decided, story).await;
    assert_eq!(decided.verdicts, [Verdict::Done]);
}
