//! Operators' decisions while another transaction holds locks, or answers are lost.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::ids::Token;
use oncegate_store::admin::{DecisionResult, IdRange, KeyFilter, OperatorAction, OperatorDecision, Target};
use oncegate_store::{
    self as store, ApplyOperatorDecisionParams, ListAuditEntriesParams, ListKeysParams, Store, StoreSettings,
};

use crate::store_postgres::faults::{COMMITTING, KILL, commits_wait_for};
use crate::store_postgres::{eventually, number};
use harness::database_link::DatabaseLink;
use harness::postgres::{self, Cluster};
use harness::store_fixture::UNKNOWN;
use harness::store_fixture::{DAY, StoreFixture, new_reserve_request, response, settlement, unwrap_lease};

async fn unknown(world: &StoreFixture, key: &str) -> ReserveRequest {
    let reserve_request = new_reserve_request(key);
    world.reserve(&reserve_request).await;
    world.settle(settlement(&reserve_request, UNKNOWN)).await;
    reserve_request
}

async fn target(store: &Arc<Store>, reserve_request: &ReserveRequest) -> Target {
    let filter =
        KeyFilter { ids: IdRange::from_hex_prefix(&reserve_request.id.to_string()).unwrap(), ..KeyFilter::default() };
    let entry = store
        .list_keys(ListKeysParams { service: "shop".into(), filter, after: None, limit: 2 })
        .await
        .unwrap()
        .entries
        .remove(0);
    Target {
        id: entry.id,
        token: entry.token,
        new_token: Token::from_random([9; 16]),
        state: entry.state,
        route: entry.route.as_str().into(),
        settled_at: entry.settled_at,
        is_by_hand: entry.is_by_hand,
        risk: None,
        ttl: DAY,
        remember: None,
        quiet_after: DAY,
        sealed_response: None,
    }
}

fn at_risk(change: OperatorAction, actor: &str) -> Arc<OperatorDecision> {
    Arc::new(OperatorDecision { change, actor: actor.into(), note: None, accept_risk: true, means_empty_body: false })
}

#[tokio::test]
async fn a_locked_row_is_reported_and_the_others_are_decided() {
    let world = StoreFixture::postgres().await;
    let keys = [unknown(&world, "held").await, unknown(&world, "free").await];
    let targets = vec![target(world.store(), &keys[0]).await, target(world.store(), &keys[1]).await];
    let client = world.database().client().await;
    client.batch_execute("begin").await.unwrap();
    let hold = "select 1 from oncegate.keys where id = $1 for update";
    client.query(hold, &[&keys[0].id.as_bytes().as_slice()]).await.unwrap();
    for (change, expected) in [
        (OperatorAction::NotExecuted, [DecisionResult::Held, DecisionResult::Done]),
        (
            OperatorAction::Purge,
            [DecisionResult::Held, DecisionResult::Changed(oncegate_domain::state::StateKind::Retryable)],
        ),
    ] {
        let decided = world
            .store()
            .apply_operator_decision(ApplyOperatorDecisionParams {
                service: "shop".into(),
                decision: at_risk(change, "alice"),
                targets: targets.clone(),
                as_of: None,
            })
            .await;
        assert_eq!(decided.unwrap().verdicts, expected);
    }
    client.batch_execute("rollback").await.unwrap();
    let decided = world
        .store()
        .apply_operator_decision(ApplyOperatorDecisionParams {
            service: "shop".into(),
            decision: at_risk(OperatorAction::Purge, "alice"),
            targets,
            as_of: None,
        })
        .await
        .unwrap();
    assert_eq!((decided.verdicts[0], decided.purges), (DecisionResult::Done, Some(1)));
}

#[tokio::test]
async fn a_decision_with_a_lost_reply_is_recognized_by_its_audit_entry() {
    let world = StoreFixture::postgres().await;
    let link = DatabaseLink::to(world.database()).await;
    let store = store::open(&postgres::settings(&link.url)).await.unwrap();
    let by_hand = OperatorAction::Complete(response(b"by hand"));
    let changes = [OperatorAction::NotExecuted, by_hand, OperatorAction::Purge, OperatorAction::Purge];
    let mut purges = 0;
    for (number, change) in changes.into_iter().enumerate() {
        let key = unknown(&world, &format!("k-{number}")).await;
        let targets = vec![target(&store, &key).await];
        let purged = matches!(change, OperatorAction::Purge);
        purges += u64::from(purged);
        link.lose_replies(1);
        let decided = store
            .apply_operator_decision(ApplyOperatorDecisionParams {
                service: "shop".into(),
                decision: at_risk(change, "alice"),
                targets: targets.clone(),
                as_of: None,
            })
            .await
            .unwrap();
        assert_eq!(link.replies_to_lose(), 0);
        assert_eq!((&decided.verdicts[..], decided.purges), (&[DecisionResult::Done][..], purged.then_some(purges)));
        assert!(decided.queued.is_empty(), "{decided:?}");
        let notes = world
            .store()
            .list_audit_entries(ListAuditEntriesParams {
                service: "shop".into(),
                id: Some(key.id),
                before: None,
                limit: 10,
            })
            .await
            .unwrap();
        assert_eq!(notes.len(), 1, "once");
    }
    // Another decision's audit entry is not taken for this one's.
    let key = unknown(&world, "theirs").await;
    let targets = vec![target(&store, &key).await];
    let theirs = world
        .store()
        .apply_operator_decision(ApplyOperatorDecisionParams {
            service: "shop".into(),
            decision: at_risk(OperatorAction::NotExecuted, "bob"),
            targets: targets.clone(),
            as_of: None,
        })
        .await;
    assert_eq!(theirs.unwrap().verdicts, [DecisionResult::Done]);
    link.lose_replies(1);
    let ours = store
        .apply_operator_decision(ApplyOperatorDecisionParams {
            service: "shop".into(),
            decision: at_risk(OperatorAction::NotExecuted, "alice"),
            targets,
            as_of: None,
        })
        .await
        .unwrap();
    assert!(matches!(ours.verdicts[0], DecisionResult::Changed(_)), "{ours:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_decision_counts_once_its_commit_is_durable() {
    let cluster = Cluster::start("");
    let database = cluster.empty_database().await;
    let settings = StoreSettings { timeout: Duration::from_secs(20), ..postgres::settings(&database.url) };
    let store = store::open(&settings).await.unwrap();
    let key = new_reserve_request("k");
    unwrap_lease(store.reserve(key.clone()).await.unwrap());
    store.settle(settlement(&key, UNKNOWN)).await.unwrap();
    let targets = vec![target(&store, &key).await];
    let client = database.client().await;

    // The session is ended while its commit waits for a standby that does not exist: from then on the commit is
    // visible.
    commits_wait_for("nobody", &cluster, &client).await;
    let deciding = store.apply_operator_decision(ApplyOperatorDecisionParams {
        service: "shop".into(),
        decision: at_risk(OperatorAction::NotExecuted, "alice"),
        targets,
        as_of: None,
    });
    let is_answered = Cell::new(false);
    let decided = async {
        let decided = deciding.await.unwrap();
        is_answered.set(true);
        decided
    };
    let story = async {
        eventually(async || number(&client, COMMITTING).await == 1).await;
        client.batch_execute(KILL).await.unwrap();
        let taken = "select count(*) from oncegate.keys where state = 'retryable'";
        eventually(async || number(&client, taken).await == 1).await;
        // But the result is not returned until the standby must have it.
        eventually(async || is_answered.get() || number(&client, COMMITTING).await == 1).await;
        assert!(!is_answered.get());
        commits_wait_for("", &cluster, &client).await;
    };
    let (decided, ()) = join(decided, story).await;
    assert_eq!(decided.verdicts, [DecisionResult::Done]);
}
