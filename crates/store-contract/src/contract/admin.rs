//! The types of the operators' side: keys, counts, instances and the audit log.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::ids::InstanceId;
use oncegate_domain::kept_path;
use oncegate_domain::lookup::LookupHashes;
use oncegate_domain::scope::Scope;
use oncegate_domain::space::SpaceHash;
use oncegate_domain::state::StateKind;
use oncegate_store::admin::{DecisionResult, IdRange, KeyEntry, KeyFilter, OperatorAction};
use oncegate_store::{
    ApplyOperatorDecisionParams, LeaseRenewal, ListAuditEntriesParams, ListInstancesParams, StoreLocation,
};

use super::decisions::{SHOP, at_risk, audit_entries, entry, filter, list, target, unknown, verdict};
use crate::store_fixture::{
    DAY, StoreFixture, UNKNOWN, completion, new_reserve_request, new_reserve_request_in, renewal, response, settlement,
};

pub async fn a_list_matches_its_filter_and_its_pages_have_each_key_once(world: StoreFixture) {
    for i in 0..7 {
        unknown(&world, &format!("unknown-{i}")).await;
    }
    for i in 0..5 {
        let reserve_request = ReserveRequest {
            route: "refund".into(),
            ..new_reserve_request_in(SHOP, [8; 32], "POST /refund", &format!("done-{i}"))
        };
        world.reserve(&reserve_request).await;
        world.settle(completion(&reserve_request, b"body")).await;
    }
    let running = new_reserve_request("running");
    world.reserve(&running).await;
    for (filter, count) in [
        (KeyFilter::default(), 13),
        (filter(StateKind::Unknown), 7),
        (filter(StateKind::Completed), 5),
        (filter(StateKind::InFlight), 1),
        (filter(StateKind::Dead), 0),
        (KeyFilter { route: Some("refund".into()), ..KeyFilter::default() }, 5),
        (KeyFilter { scope: IdRange::from_hex_prefix("0808"), ..KeyFilter::default() }, 5),
        (KeyFilter { scope: IdRange::from_hex_prefix("09"), ..KeyFilter::default() }, 0),
        (KeyFilter { scope: IdRange::from_hex_prefix("07"), ..filter(StateKind::Unknown) }, 7),
        (KeyFilter { key: Some(b"done-3".to_vec()), ..KeyFilter::default() }, 1),
        (KeyFilter { key: Some(b"unknown-3".to_vec()), ..filter(StateKind::Unknown) }, 1),
        (KeyFilter { key: Some(b"done".to_vec()), ..KeyFilter::default() }, 0),
        (KeyFilter { older_than: Some(DAY), ..KeyFilter::default() }, 0),
        (KeyFilter { older_than: Some(Duration::ZERO), ..filter(StateKind::Unknown) }, 7),
    ] {
        for limit in [1, 2, 100] {
            let entries = list(&world, SHOP, &filter, limit).await;
            let ids: BTreeSet<_> = entries.iter().map(|entry| entry.id).collect();
            assert_eq!((entries.len(), ids.len()), (count, count), "{filter:?} {limit}");
        }
    }
    let oldest: Vec<_> = list(&world, SHOP, &filter(StateKind::Unknown), 3).await;
    assert!(oldest.windows(2).all(|pair| pair[0].settled_at <= pair[1].settled_at), "the oldest first");

    let done = list(&world, SHOP, &KeyFilter { key: Some(b"done-3".to_vec()), ..KeyFilter::default() }, 5).await;
    let KeyEntry { state, attempts, status, body_bytes, space, route, scope, expires_at, .. } = &done[0];
    assert_eq!((*state, *attempts, *status, *body_bytes), (StateKind::Completed, 1, Some(201), Some(4)));
    assert_eq!(
        (*space, &**route, *scope),
        (SpaceHash::from_text("POST /refund"), "refund", Scope::from_stored(&[8; 32]).unwrap())
    );
    assert!(expires_at.unwrap() > done[0].now && !done[0].lapsed);
}

pub async fn keys_are_listed_the_newest_first_by_time_path_and_value(mut world: StoreFixture) {
    let (one, other) = ([11; 16], [12; 16]);
    for number in 0..4_u8 {
        let key = format!("k-{number}");
        let lookups = LookupHashes::join([[number; 16], if number < 2 { one } else { other }]);
        let path = Some(kept_path::keep_path(&format!("/pay/{}/{number}", number / 2)));
        let request = ReserveRequest { path, lookups, trace_id: Some([9; 16]), ..new_reserve_request(&key) };
        world.reserve(&request).await;
        world.settle(completion(&request, b"once")).await;
        let (at, id) = (1_000 + u32::from(number / 2), world.bytes(&request.id.to_string()));
        world.execute_sql(&format!("update keys set created_at = {at} where id = {id}")).await.unwrap();
    }
    // The whole target, as it is kept where a reconciliation asks by it.
    world.execute_sql("update keys set path = substr(path, 2) where created_at = 1000").await.unwrap();
    let at = |ms| Some(UNIX_EPOCH + Duration::from_millis(ms));
    let all = KeyFilter::default();
    for (filter, keys) in [
        (all.clone(), "23 01"),
        (KeyFilter { created_from: at(1_001), ..all.clone() }, "23"),
        (KeyFilter { created_until: at(1_001), ..all.clone() }, "01"),
        (KeyFilter { path: Some("/pay/1".into()), ..all.clone() }, "23"),
        (KeyFilter { path: Some("/pay/0/1".into()), ..all.clone() }, "1"),
        (KeyFilter { path: Some("pay".into()), ..all.clone() }, ""),
        (KeyFilter { lookup: Some(other), ..all.clone() }, "23"),
        (KeyFilter { lookup: Some([0; 16]), ..all.clone() }, "0"),
        (KeyFilter { lookup: Some(one), path: Some("/pay/1".into()), ..all.clone() }, ""),
    ] {
        for limit in [1, 2, 10] {
            let listed = list(&world, SHOP, &filter, limit).await;
            assert!(listed.iter().all(|entry| entry.trace_id.as_deref() == Some("09".repeat(16).as_str())));
            // Those of one millisecond are in the order of their ids, which are hashes.
            let mut names: Vec<_> = listed.iter().map(|entry| (entry.created_at, entry.key[2])).collect();
            assert!(names.is_sorted_by_key(|(at, _)| Reverse(*at)), "{filter:?}");
            names.sort_by_key(|(at, name)| (Reverse(*at), *name));
            let names: Vec<u8> = names.into_iter().map(|(_, name)| name).collect();
            assert_eq!(String::from_utf8(names).unwrap(), keys.replace(' ', ""), "{filter:?} {limit}");
        }
    }
}

pub async fn other_services_keys_are_not_listed(world: StoreFixture) {
    let ours = unknown(&world, "k").await;
    for state in [None, Some(StateKind::Unknown)] {
        let filter = KeyFilter { state, ..KeyFilter::default() };
        assert_eq!(list(&world, SHOP, &filter, 10).await.len(), 1);
        assert_eq!(list(&world, "bank", &filter, 10).await.len(), 0);
    }
    let seen = target(&entry(&world, ours.id).await);
    for change in [OperatorAction::Complete(response(b"")), OperatorAction::NotExecuted, OperatorAction::Purge] {
        let admin_store = world.store();
        let decided = admin_store
            .apply_operator_decision(ApplyOperatorDecisionParams {
                service: "bank".into(),
                decision: at_risk(change),
                targets: vec![seen.clone()],
                as_of: None,
            })
            .await
            .unwrap();
        assert_eq!((&decided.verdicts[..], decided.purges), (&[DecisionResult::Gone][..], None));
    }
    assert_eq!(entry(&world, ours.id).await.state, StateKind::Unknown);
    assert_eq!(verdict(&world, &at_risk(OperatorAction::NotExecuted), ours.id).await, DecisionResult::Done);
    let admin_store = world.store();
    assert_eq!(
        admin_store
            .list_audit_entries(ListAuditEntriesParams { service: "bank".into(), id: None, before: None, limit: 10 })
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        admin_store
            .list_audit_entries(ListAuditEntriesParams {
                service: "bank".into(),
                id: Some(ours.id),
                before: None,
                limit: 10
            })
            .await
            .unwrap(),
        []
    );
    assert_eq!(admin_store.count_keys("bank".into()).await.unwrap().counts, []);
}

pub async fn keys_are_counted_by_route_and_state(world: StoreFixture) {
    for i in 0..3 {
        unknown(&world, &format!("unknown-{i}")).await;
        let done = ReserveRequest { route: "refund".into(), ..new_reserve_request(&format!("done-{i}")) };
        world.reserve(&done).await;
        world.settle(completion(&done, b"")).await;
    }
    world.reserve(&new_reserve_request("running")).await;
    let counts_of_keys = world.store().count_keys(SHOP.into()).await.unwrap();
    let counts: Vec<_> = counts_of_keys.counts.iter().map(|c| (&*c.route, c.state, c.keys, c.exact)).collect();
    let expected = [
        ("pay", StateKind::InFlight, 1, true),
        ("pay", StateKind::Unknown, 3, true),
        ("refund", StateKind::Completed, 3, true),
    ];
    assert_eq!(counts, expected);
    assert_eq!((counts_of_keys.sample.rows, counts_of_keys.sample.share), (7, 1.0));
}

pub async fn the_audit_log_lists_the_latest_first(world: StoreFixture) {
    let mut keys = Vec::new();
    for i in 0..5 {
        let key = unknown(&world, &format!("k-{i}")).await;
        assert_eq!(verdict(&world, &at_risk(OperatorAction::NotExecuted), key.id).await, DecisionResult::Done);
        keys.push(key.id);
    }
    let (mut reported, mut before) = (Vec::new(), None);
    loop {
        let notes = world
            .store()
            .list_audit_entries(ListAuditEntriesParams { service: SHOP.into(), id: None, before, limit: 2 })
            .await
            .unwrap();
        let Some(last) = notes.last() else { break };
        before = Some(last.seq);
        reported.extend(notes.iter().map(|note| note.id));
    }
    keys.reverse();
    assert_eq!(reported, keys);
    assert_eq!(audit_entries(&world, Some(keys[2])).await.len(), 1);
}

pub async fn the_audit_log_can_be_appended_to_and_not_changed(mut world: StoreFixture) {
    let reserve_request = new_reserve_request("k");
    world.reserve(&reserve_request).await;
    world.settle(settlement(&reserve_request, UNKNOWN)).await;
    let id = reserve_request.id;
    assert_eq!(verdict(&world, &at_risk(OperatorAction::NotExecuted), id).await, DecisionResult::Done);
    let written = world.audit().await;
    assert_eq!(written.len(), 1);
    for change in ["update audit set actor = 'nobody'", "delete from audit", "truncate audit"] {
        let refused = world.execute_sql(change).await.unwrap_err();
        let is_sqlite = matches!(world.settings.location, StoreLocation::Sqlite(_));
        // SQLite has no such statement.
        let no_truncate = is_sqlite && change.starts_with("truncate");
        assert!(no_truncate || refused.contains("cannot be changed or deleted"), "{change}: {refused}");
    }
    assert_eq!(world.audit().await, written);
}

pub async fn instances_of_a_service_are_listed_with_their_leases(world: StoreFixture) {
    let store = world.store();
    let [one, other, lapsed, elsewhere] = [11, 12, 13, 14].map(InstanceId::from_stored);
    store.renew_lease(renewal(one, DAY)).await.unwrap();
    store.renew_lease(LeaseRenewal { expiry: Duration::ZERO, ..renewal(lapsed, DAY) }).await.unwrap();
    store.renew_lease(LeaseRenewal { services: "bank".into(), ..renewal(elsewhere, DAY) }).await.unwrap();
    store.renew_lease(renewal(other, DAY)).await.unwrap();
    let renewed = store.renew_lease(renewal(one, DAY)).await.unwrap();
    let listed = store.list_instances(ListInstancesParams { service: SHOP.into(), limit: 10 }).await.unwrap();
    let own: Vec<_> = listed.iter().filter(|entry| [one, other, lapsed, elsewhere].contains(&entry.id)).collect();
    assert_eq!(own.len(), 3, "{listed:?}");
    assert!(listed.is_sorted_by(|earlier, later| earlier.renewed_at >= later.renewed_at), "{listed:?}");
    let entry = own.iter().find(|entry| entry.id == one).unwrap();
    assert_eq!((entry.renewed_at, entry.lease_until), (renewed.now, renewed.now + DAY));
    assert!(entry.started_at <= entry.renewed_at && entry.renewed_at <= entry.now, "{entry:?}");
    for entry in own {
        assert_eq!(entry.is_leased(), entry.id != lapsed, "{entry:?}");
    }
    assert_eq!(store.list_instances(ListInstancesParams { service: SHOP.into(), limit: 1 }).await.unwrap().len(), 1);
    assert_eq!(store.list_instances(ListInstancesParams { service: "nobody".into(), limit: 10 }).await.unwrap(), []);
}
