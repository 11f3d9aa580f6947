//! The schema in PostgreSQL: its migrations, and applying them.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::client::Parameter;
use super::connect;
use super::failure::{open_error, without_detail};
use super::indexes;
use super::server::PgServer;
use crate::config::PostgresUrl;
use crate::jitter::jittered;
use crate::seeded_bug::SeededBug;
use crate::store::migrate::{AppliedMigration, Index, Migration, MigrationStep, check_none_missing, missing_steps};
use crate::store::{OpenError, StoreSettings};

const APPLIED_MIGRATIONS: &str = include_str!("sql/applied_migrations.sql");
const SERVER_PROPERTIES: &str = include_str!("sql/server_properties.sql");

const STEPS: &[MigrationStep] = &[
    MigrationStep::new(1, "0001_keys", include_str!("../../../migrations/postgres/0001_keys.sql")),
    MigrationStep::new(2, "0002_operators", include_str!("../../../migrations/postgres/0002_operators.sql")).with(&[
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
    MigrationStep::new(3, "0003_purges", include_str!("../../../migrations/postgres/0003_purges.sql")),
    MigrationStep::new(4, "0004_outbox", include_str!("../../../migrations/postgres/0004_outbox.sql")).with(&[Index {
        name: "keys_queued",
        file: "0004_outbox.keys_queued",
        sql: include_str!("../../../migrations/postgres/0004_outbox.keys_queued.sql"),
    }]),
    MigrationStep::new(5, "0005_service", include_str!("../../../migrations/postgres/0005_service.sql")),
    MigrationStep::new(6, "0006_statements", include_str!("../../../migrations/postgres/0006_statements.sql")),
    MigrationStep::new(
        7,
        "0007_unknown_deliveries",
        include_str!("../../../migrations/postgres/0007_unknown_deliveries.sql"),
    )
    .with(&[Index {
        name: "keys_unknown_deliveries",
        file: "0007_unknown_deliveries.keys_unknown_deliveries",
        sql: include_str!("../../../migrations/postgres/0007_unknown_deliveries.keys_unknown_deliveries.sql"),
    }]),
    MigrationStep::new(8, "0008_forget", include_str!("../../../migrations/postgres/0008_forget.sql")),
    MigrationStep::new(9, "0009_audit", include_str!("../../../migrations/postgres/0009_audit.sql")),
    MigrationStep::new(10, "0010_causes", include_str!("../../../migrations/postgres/0010_causes.sql")),
    MigrationStep::new(11, "0011_salts", include_str!("../../../migrations/postgres/0011_salts.sql")),
    MigrationStep::new(12, "0012_live_keys", include_str!("../../../migrations/postgres/0012_live_keys.sql")).with(&[
        Index {
            name: "keys_holder",
            file: "0012_live_keys.keys_holder",
            sql: include_str!("../../../migrations/postgres/0012_live_keys.keys_holder.sql"),
        },
    ]),
    MigrationStep::new(13, "0013_single_rows", include_str!("../../../migrations/postgres/0013_single_rows.sql")),
    MigrationStep::new(
        14,
        "0014_encrypted_routes",
        include_str!("../../../migrations/postgres/0014_encrypted_routes.sql"),
    ),
];

/// See [`crate::store::schema()`].
pub(crate) fn newest_step() -> &'static str {
    STEPS.last().expect("there is a first step").name
}

/// The oldest supported server, as `server_version_num`. `ON CONFLICT` and the other features used are older; earlier
/// servers get no fixes any more.
const VERSION_MIN: i32 = 130_000;

/// Admits one migration at a time. The lock ends with its transaction, so pooled sessions do no harm. The number is
/// random and means nothing.
const LOCK_MIGRATIONS: &str = "set local lock_timeout = '60s'; select pg_advisory_xact_lock(7308327820391471206)";

/// Limits the wait for a table lock: every request of the table waits behind it. 300 ms are below the time limits of
/// requests, and above the time of any statement of ours.
const LIMIT_LOCK_WAIT: &str = "set local lock_timeout = '300ms'";

/// The longest pause between two tries to lock a table. Waiting requests run meanwhile.
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// The time after which a step is not tried again: some transaction holds its table's lock for longer.
const LOCK_TRIES_MAX: Duration = Duration::from_secs(60);

/// Migrates the schema, or refuses it.
pub(crate) async fn prepare(server: &PgServer, settings: &StoreSettings) -> Result<(), OpenError> {
    let mut client = connect::connect_once(server).await?;
    let has = applied(&client).await?;
    let missing = missing_steps(STEPS, &has)?;
    if settings.migrate {
        apply(server, &mut client, missing).await?;
    } else {
        check_none_missing(missing)?;
        warn_of_missing_indexes(&client).await?;
    }
    server.remember_identity(&client).await;
    Ok(())
}

/// Warns of missing indexes. Without them everything is correct, and some of it slow. Refusing them would keep every
/// proxy from starting while somebody builds them by hand.
async fn warn_of_missing_indexes(client: &Client) -> Result<(), OpenError> {
    for step in STEPS {
        for (index, _) in indexes::find_defects(client, step.indexes).await? {
            tracing::warn!(index = index.name, "the store lacks an index; `oncegate migrate` builds it");
        }
    }
    Ok(())
}

/// See [`crate::store::migrate()`].
pub(crate) async fn migrate(url: &PostgresUrl, settings: &StoreSettings) -> Result<Vec<String>, OpenError> {
    let server = PgServer::open(url, settings.timeout).await?;
    let mut client = connect::connect_once(&server).await?;
    let has = applied(&client).await?;
    apply(&server, &mut client, missing_steps(STEPS, &has)?).await
}

/// See [`crate::store::pending()`].
pub(crate) async fn pending(url: &PostgresUrl, settings: &StoreSettings) -> Result<Vec<Migration>, OpenError> {
    let client = connect::connect_once(&PgServer::open(url, settings.timeout).await?).await?;
    let has = applied(&client).await?;
    let missing = missing_steps(STEPS, &has)?;
    let mut scripts = Vec::new();
    for step in STEPS {
        if is_among(missing, step) {
            scripts.push(script(step));
        }
        scripts.extend(indexes::find_defects(&client, step.indexes).await?.iter().map(indexes::script));
    }
    Ok(scripts)
}

fn is_among(missing: &[MigrationStep], step: &MigrationStep) -> bool {
    missing.iter().any(|missing| missing.version == step.version)
}

fn script(step: &MigrationStep) -> Migration {
    step.script(&format!(
        "insert into oncegate.migrations (version, name, sha256) values ({}, '{}', '\\x{}');",
        step.version,
        step.name,
        step.sha256_hex()
    ))
}

/// Returns the migrations that the database has. Refuses unsuitable servers.
async fn applied(client: &Client) -> Result<Vec<AppliedMigration>, OpenError> {
    let missing = open_error;
    let server = client.query_typed_one(SERVER_PROPERTIES, &[]).await.map_err(missing)?;
    let version: i32 = server.try_get("version").map_err(missing)?;
    if version < VERSION_MIN {
        return Err(OpenError::Missing("PostgreSQL 13 or newer is needed".into()));
    }
    if server.try_get("standby").map_err(missing)? {
        return Err(OpenError::Missing("the server is a standby, which may return old records".into()));
    }
    let isolation: String = server.try_get("isolation").map_err(missing)?;
    if isolation != "read committed" {
        return Err(OpenError::Missing(
            format!("the role's default_transaction_isolation is {isolation}; it must be read committed").into(),
        ));
    }
    if server.try_get::<_, &str>("notices").map_err(missing)? == "error" {
        return Err(OpenError::Missing(
            "the role's client_min_messages is error; it must be warning or lower, as only a warning says that a commit \
             is not durable"
                .into(),
        ));
    }
    if !server.try_get::<_, bool>("migrated").map_err(missing)? {
        return Ok(Vec::new());
    }
    let rows = client.query_typed(APPLIED_MIGRATIONS, &[]).await.map_err(missing)?;
    let step = |row: &tokio_postgres::Row| {
        Ok(AppliedMigration { version: row.try_get(0)?, name: row.try_get(1)?, sha256: row.try_get(2)? })
    };
    rows.iter().map(step).collect::<Result<_, _>>().map_err(missing)
}

/// Applies the missing migrations one after the other, and builds all missing indexes, those of earlier migrations too,
/// as a build may have been interrupted. A migration waits for the indexes of those before it, because its table lock
/// would wait for their builds and block every request meanwhile.
async fn apply(server: &PgServer, client: &mut Client, missing: &[MigrationStep]) -> Result<Vec<String>, OpenError> {
    let mut done = Vec::new();
    for step in STEPS {
        if is_among(missing, step) && apply_step(client, step).await? {
            tracing::info!(migration = step.name, "applied a migration to the store");
            done.push(step.name.to_owned());
        }
        done.extend(indexes::build_missing(server, client, step.indexes).await?);
    }
    Ok(done)
}

/// The result of one try to apply a migration.
enum StepResult {
    Applied,
    /// Another instance has applied it meanwhile.
    AppliedElsewhere,
    /// A transaction holds its table's lock; nothing was changed.
    Locked(tokio_postgres::Error),
}

/// Applies a migration, unless another instance has just done so; returns whether it was applied here. Tries again while
/// a transaction holds the table, with pauses in which all others run.
async fn apply_step(client: &mut Client, step: &MigrationStep) -> Result<bool, OpenError> {
    let started = Instant::now();
    loop {
        match try_step(client, step).await? {
            StepResult::Applied => return Ok(true),
            StepResult::AppliedElsewhere => return Ok(false),
            StepResult::Locked(source) if started.elapsed() >= LOCK_TRIES_MAX => {
                return Err(OpenError::Migration { name: step.name.to_owned(), source: without_detail(source) });
            }
            StepResult::Locked(_) => {
                tracing::info!(migration = step.name, "an open transaction holds the migration's table; trying again");
                sleep(jittered(LOCK_PAUSE)).await;
            }
        }
    }
}

/// Tries to apply a migration in a transaction of its own.
async fn try_step(client: &mut Client, step: &MigrationStep) -> Result<StepResult, OpenError> {
    let failed = |source| OpenError::Migration { name: step.name.to_owned(), source: without_detail(source) };
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.batch_execute(LOCK_MIGRATIONS).await.map_err(failed)?;
    // Checked under the lock, so that no other instance can apply it.
    if applied(transaction.client()).await?.iter().any(|applied| applied.version == step.version) {
        return Ok(StepResult::AppliedElsewhere);
    }
    transaction.batch_execute(LIMIT_LOCK_WAIT).await.map_err(failed)?;
    let sql = match SeededBug::CommitNotDurable.is_active() {
        // The functions of one row are written in another way than the statements of many.
        true => {
            let of_many = step.sql.replace("when 'off' then 'on'", "when 'on' then 'off'");
            of_many.replace("('synchronous_commit', 'on', true)", "('synchronous_commit', 'off', true)").into()
        }
        false => Cow::Borrowed(step.sql),
    };
    match transaction.batch_execute(&sql).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            transaction.rollback().await.map_err(failed)?;
            return Ok(StepResult::Locked(error));
        }
        done => done.map_err(failed)?,
    }
    let parameters: [Parameter<'_>; 3] = [
        (/* version */ &step.version, Type::INT4),
        (/* name */ &step.name, Type::TEXT),
        (/* sha256 */ &step.sha256().to_vec(), Type::BYTEA),
    ];
    let record = "insert into oncegate.migrations (version, name, sha256) values ($1, $2, $3)";
    transaction.query_typed(record, &parameters).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(StepResult::Applied)
}
