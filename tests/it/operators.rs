//! What operators see and decide, over the admin listener and from a shell.

mod decisions;
mod looking;
mod shell;

use crate::harness::operator::Operator;
use crate::harness::{Answer, World};

/// A key whose attempt the service broke off.
pub async fn unknown(world: &World, key: &str) -> String {
    world.upstream.then(Answer::close());
    assert_eq!(world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    Operator::of(&world.proxy).id_when(key, "unknown").await
}

/// A key that was given up, by a hand in the tables.
pub async fn dead(world: &mut World, key: &str) -> String {
    let id = unknown(world, key).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let bytes = key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let spelt = match &world.store {
        crate::harness::Store::Postgres(_) => format!("'\\x{bytes}'"),
        crate::harness::Store::Sqlite(_) => format!("x'{bytes}'"),
    };
    // "keys" is the table, and the column is not.
    world.store.tamper(&format!("update keys set state = 'dead' where key = {spelt}")).await;
    world.proxy = world.setup.start().await;
    id
}
