//! Requests and decisions of operators, over the admin listener and from a shell.

mod causes;
mod decisions;
mod queries;
mod risks;
mod shell;

use crate::harness::operator::Operator;
use crate::harness::{Answer, World};

/// Makes a key unknown: the service closes the connection of its attempt.
pub async fn unknown(world: &World, key: &str) -> String {
    world.upstream.then(Answer::close());
    assert_eq!(world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    Operator::of(&world.proxy).id_when(key, "unknown").await
}

/// Makes a key dead by an SQL statement.
pub async fn dead(world: &mut World, key: &str) -> String {
    let id = unknown(world, key).await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let bytes = key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let spelt = match &world.store {
        crate::harness::Store::Postgres(_) => format!("'\\x{bytes}'"),
        crate::harness::Store::Sqlite(_) => format!("x'{bytes}'"),
    };
    world.store.tamper(&format!("update keys set state = 'dead' where key = {spelt}")).await;
    world.proxy = world.setup.start().await;
    id
}
