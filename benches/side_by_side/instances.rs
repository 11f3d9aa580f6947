//! Two instances on one PostgreSQL: not slower than one, and never in each other's way.

use crate::contestants::oncegate;
use crate::load;
use crate::request::Load;
use crate::sheet::Target::{AtLeast, AtMost};
use crate::sheet::{Column, Sheet};
use crate::stage::{Stage, migrated};

const CONNECTIONS: usize = 128;
const ONE: &str = "first attempts, one instance";
const TWO: &str = "first attempts, two instances";
const SAME: &str = "the same keys at two instances";

pub async fn run(stage: &Stage, sheet: &mut Sheet) -> Result<(), String> {
    let database = migrated(&stage.cluster).await;
    let two = [(); 2].map(|()| oncegate(stage.upstream, |_| database.url.clone()));
    let both = two.each_ref().map(|process| process.addresses[0]);
    for round in 0..stage.options.rounds() {
        eprintln!("instances: round {} of {}", round + 1, stage.options.rounds());
        stage.first_attempts(&both[..1], CONNECTIONS, sheet, ONE)?;
        stage.first_attempts(&both, CONNECTIONS, sheet, TWO)?;
        let same = load::closed(&both, Load::Contended, CONNECTIONS, stage.options.length())?;
        sheet.add_round(SAME, CONNECTIONS, &same);
    }
    sheet.compare((TWO, ONE), CONNECTIONS, Column::Rate, AtLeast(1.0));
    sheet.judge("deadlocks, in all parts".to_owned(), vec![deadlocks(stage, &database).await], AtMost(0.0));
    Ok(())
}

/// Of the whole server since its start. What the last second held may come in late, so the sessions are ended before.
async fn deadlocks(stage: &Stage, database: &crate::postgres::Database) -> f64 {
    let client = database.client().await;
    let count = "select sum(deadlocks)::float8 from pg_stat_database";
    // A process tells its figures at most once a second.
    tokio::time::sleep(stage.options.length().max(std::time::Duration::from_secs(2))).await;
    client.query_one(count, &[]).await.unwrap().get(0)
}
