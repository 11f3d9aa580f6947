//! A store that was restored from a backup, as docs/backup-and-failover.md describes: what it
//! knows, and what it has forgotten.

use crate::crash::becomes_unknown;
use harness::{Answer, Store, World, on_both_stores};

on_both_stores!(a_restored_backup_answers_its_keys_and_has_forgotten_later_ones);
async fn a_restored_backup_answers_its_keys_and_has_forgotten_later_ones(store: Store) {
    let mut world = World::with(store, |setup| setup.short_leases()).await;
    let before = world.pay("before").send().await;
    world.upstream.then(Answer::never());
    let _running = world.pay("running").spawn();
    world.upstream.wait_for_executed(2).await;
    world.proxy.kill9().await;
    let backup = world.store.restored_backup().await;
    world.proxy = world.setup.start().await;
    assert_eq!(world.pay("after").send().await.oncegate_status(), Some("executed"));

    // Its files stay until its proxy has ended.
    let _lost = std::mem::replace(&mut world.store, backup);
    world.restart_as(|setup| setup.short_leases()).await;
    assert_eq!(world.pay("before").send().await.comparable(), before.replayed());
    assert_eq!(world.pay("before").body("else").send().await.outcome(), (422, "key-reused".to_owned()));
    becomes_unknown(&world.pay("running")).await;
    assert_eq!(["before", "running"].map(|key| world.upstream.executed_for(key)), [1, 1]);
    // This is what a restore costs.
    assert_eq!(world.pay("after").send().await.oncegate_status(), Some("executed"));
    assert_eq!(world.upstream.executed_for("after"), 2);
}
