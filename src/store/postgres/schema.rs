//! The schema in PostgreSQL: what it lacks, and taking the steps.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{self, Server};
use super::failure::without_detail;
use super::indexes;
use crate::domain::scope::Salt;
use crate::store::migrate::{Applied, Index, Migration, Step, none_missing, outstanding};
use crate::store::{OpenError, Settings};

const APPLIED: &str = include_str!("sql/applied.sql");
const SALT: &str = include_str!("sql/salt.sql");
const SALTED: &str = include_str!("sql/salted.sql");
const SERVER: &str = include_str!("sql/server.sql");

const STEPS: &[Step] = &[
    Step::new(1, "0001_keys", include_str!("../../../migrations/postgres/0001_keys.sql")),
    Step::new(2, "0002_operators", include_str!("../../../migrations/postgres/0002_operators.sql")).with(&[
        Index {
            name: "keys_unsettled",
            file: "0002_operators.keys_unsettled",
            sql: include_str!("../../../migrations/postgres/0002_operators.keys_unsettled.sql"),
        },
        Index {
            name: "keys_due",
            file: "0002_operators.keys_due",
            sql: include_str!("../../../migrations/postgres/0002_operators.keys_due.sql"),
        },
    ]),
    Step::new(3, "0003_purges", include_str!("../../../migrations/postgres/0003_purges.sql")),
    Step::new(4, "0004_outbox", include_str!("../../../migrations/postgres/0004_outbox.sql")).with(&[Index {
        name: "keys_queued",
        file: "0004_outbox.keys_queued",
        sql: include_str!("../../../migrations/postgres/0004_outbox.keys_queued.sql"),
    }]),
    Step::new(5, "0005_service", include_str!("../../../migrations/postgres/0005_service.sql")),
    Step::new(6, "0006_statements", include_str!("../../../migrations/postgres/0006_statements.sql")),
];

/// See [`crate::store::schema()`].
pub(crate) fn newest_step() -> &'static str {
    STEPS.last().expect("there is a first step").name
}

/// `ON CONFLICT` and the rest of what we use came before; older ones get no fixes any more.
const VERSION_MIN: i32 = 130_000;

/// Lets one migration at a time through. It is freed by the end of its transaction, so pooled sessions do no harm. The
/// number is drawn once and means nothing.
const ONE_AT_A_TIME: &str = "set local lock_timeout = '60s'; select pg_advisory_xact_lock(7308327820391471206)";

/// Rather fail than let every request queue up behind a table lock that does not come.
const DO_NOT_HOLD_UP: &str = "set local lock_timeout = '5s'";

/// Brings the schema up to date, or refuses it, and reads the salt.
pub(super) async fn prepare(server: &Server, settings: &Settings) -> Result<Salt, OpenError> {
    let mut client = connect::alone(server).await?;
    let has = applied(&client).await?;
    let missing = outstanding(STEPS, &has)?;
    if settings.migrate {
        apply(server, &mut client, missing).await?;
    } else {
        none_missing(missing)?;
        warn_of_missing_indexes(&client).await?;
    }
    salt(&client).await
}

/// Without them all is right, and some of it slow. To refuse would keep every proxy from starting for as long as somebody
/// builds them by hand.
async fn warn_of_missing_indexes(client: &Client) -> Result<(), OpenError> {
    for step in STEPS {
        for (index, _) in indexes::lacking(client, step.indexes).await? {
            tracing::warn!(index = index.name, "the store lacks an index; `oncegate migrate` builds it");
        }
    }
    Ok(())
}

/// See [`crate::store::migrate()`].
pub(crate) async fn migrate(url: &str, settings: &Settings) -> Result<Vec<String>, OpenError> {
    let server = connect::config(url, settings.timeout)?;
    let mut client = connect::alone(&server).await?;
    let has = applied(&client).await?;
    apply(&server, &mut client, outstanding(STEPS, &has)?).await
}

/// See [`crate::store::pending()`].
pub(crate) async fn pending(url: &str, settings: &Settings) -> Result<Vec<Migration>, OpenError> {
    let client = connect::alone(&connect::config(url, settings.timeout)?).await?;
    let has = applied(&client).await?;
    let missing = outstanding(STEPS, &has)?;
    let mut scripts = Vec::new();
    for step in STEPS {
        if is_among(missing, step) {
            scripts.push(script(step));
        }
        scripts.extend(indexes::lacking(&client, step.indexes).await?.iter().map(indexes::script));
    }
    Ok(scripts)
}

fn is_among(missing: &[Step], step: &Step) -> bool {
    missing.iter().any(|missing| missing.version == step.version)
}

fn script(step: &Step) -> Migration {
    step.script(&format!(
        "insert into oncegate.migrations (version, name, sha256) values ({}, '{}', '\\x{}');",
        step.version,
        step.name,
        step.sha256_hex()
    ))
}

/// The steps that the database has taken. Refuses servers that will not do.
async fn applied(client: &Client) -> Result<Vec<Applied>, OpenError> {
    let missing = |source| OpenError::Missing(without_detail(source));
    let server = client.query_typed_one(SERVER, &[]).await.map_err(missing)?;
    let version: i32 = server.try_get("version").map_err(missing)?;
    if version < VERSION_MIN {
        return Err(OpenError::Missing("PostgreSQL 13 or newer is needed".into()));
    }
    if server.try_get("standby").map_err(missing)? {
        return Err(OpenError::Missing("the server is a standby: it shows records as they were".into()));
    }
    let isolation: String = server.try_get("isolation").map_err(missing)?;
    if isolation != "read committed" {
        return Err(OpenError::Missing(
            format!("the role's default_transaction_isolation is {isolation}; it must be read committed").into(),
        ));
    }
    if !server.try_get::<_, bool>("migrated").map_err(missing)? {
        return Ok(Vec::new());
    }
    let rows = client.query_typed(APPLIED, &[]).await.map_err(missing)?;
    let step = |row: &tokio_postgres::Row| {
        Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, sha256: row.try_get(2)? })
    };
    rows.iter().map(step).collect::<Result<_, _>>().map_err(missing)
}

/// Takes the missing steps one after the other, and builds whatever indexes are not there, those of earlier steps too:
/// somebody may have been interrupted. A step waits for the indexes of those before it, because a lock on a table would
/// wait for them, and hold up every request meanwhile.
async fn apply(server: &Server, client: &mut Client, missing: &[Step]) -> Result<Vec<String>, OpenError> {
    let mut done = Vec::new();
    for step in STEPS {
        if is_among(missing, step) && take(client, step).await? {
            tracing::info!(migration = step.name, "applied a migration to the store");
            done.push(step.name.to_owned());
        }
        done.extend(indexes::complete(server, client, step.indexes).await?);
    }
    Ok(done)
}

/// Takes a step in a transaction of its own, unless another instance has just done so.
async fn take(client: &mut Client, step: &Step) -> Result<bool, OpenError> {
    let failed = |source| OpenError::Migration { name: step.name.to_owned(), source: without_detail(source) };
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.batch_execute(ONE_AT_A_TIME).await.map_err(failed)?;
    // Only now nobody else can be at it.
    if applied(transaction.client()).await?.iter().any(|applied| applied.version == step.version) {
        return Ok(false);
    }
    transaction.batch_execute(DO_NOT_HOLD_UP).await.map_err(failed)?;
    transaction.batch_execute(step.sql).await.map_err(failed)?;
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (/* version */ &step.version, Type::INT4),
        (/* name */ &step.name, Type::TEXT),
        (/* sha256 */ &step.sha256().to_vec(), Type::BYTEA),
    ];
    let record = "insert into oncegate.migrations (version, name, sha256) values ($1, $2, $3)";
    transaction.query_typed(record, &parameters).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(true)
}

/// The salt. Instances that start together all draw one, and agree on the one that was first.
async fn salt(client: &Client) -> Result<Salt, OpenError> {
    let missing = |source| OpenError::Missing(without_detail(source));
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|source| OpenError::Missing(Box::new(source)))?;
    client.query_typed(SALT, &[(/* value */ &drawn.as_slice(), Type::BYTEA)]).await.map_err(missing)?;
    let row = client.query_typed_one(SALTED, &[]).await.map_err(missing)?;
    let stored: Vec<u8> = row.try_get("value").map_err(missing)?;
    let salt: [u8; 32] =
        stored.try_into().map_err(|_| OpenError::SchemaForeign("the salt is not 32 bytes long".to_owned()))?;
    Ok(Salt::new(salt))
}
