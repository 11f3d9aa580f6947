//! The schema in PostgreSQL: its migrations, and applying them.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connect;
use super::distribution::{self, Distribution};
use super::failure::{migration_error, open_error};
use super::server::PgServer;
use super::{events, functions, open_schemas};
use crate::migrate::{
    AppliedMigration, Migration, MigrationStep, POSTGRES_STEPS as STEPS, check_none_missing, missing_steps,
    newer_warning,
};
use crate::row::FromRow;
use crate::statement::shared;
use crate::{OpenError, RouteIdentities, StoreSettings};
use oncegate_machine::jitter::jittered;
use oncegate_settings::PostgresUrl;

const APPLIED_MIGRATIONS: &str = include_str!("sql/applied_migrations.sql");
const SERVER_PROPERTIES: &str = include_str!("sql/server_properties.sql");

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

pub(crate) async fn prepare(server: &PgServer, settings: &StoreSettings) -> Result<(), OpenError> {
    let mut client = connect::connect_once(server).await?;
    if settings.migrate {
        migrate(&mut client, settings).await?;
    } else {
        check_none_missing(&pending(&client, settings).await?)?;
    }
    if let Distribution::Nodes(nodes) = distribution::find(&client).await? {
        tracing::info!(nodes, "the keys are distributed over the nodes of a cluster");
        server.set_distributed();
    }
    for warning in warnings(&client).await? {
        tracing::warn!("{warning}");
    }
    server.remember_identity(&client).await;
    Ok(())
}

pub(crate) async fn connect_to(url: &PostgresUrl, settings: &StoreSettings) -> Result<Client, OpenError> {
    connect::connect_once(&PgServer::open(url, settings.timeout).await?).await
}

pub(crate) async fn warnings(client: &Client) -> Result<Vec<String>, OpenError> {
    let newer = newer_warning(STEPS, &applied(client).await?);
    Ok(newer.into_iter().chain(open_schemas::find_warnings(client).await?).collect())
}

pub(crate) async fn distribution(client: &Client) -> Result<Distribution, OpenError> {
    match applied(client).await?.is_empty() {
        true => Ok(Distribution::None),
        false => distribution::find(client).await,
    }
}

pub(crate) async fn remembered_route_identities(client: &Client) -> Result<Vec<RouteIdentities>, OpenError> {
    if applied(client).await?.is_empty() {
        return Ok(Vec::new());
    }
    let rows = client.query_typed(shared::LIST_ROUTE_IDENTITIES.for_postgres(), &[]).await.map_err(open_error)?;
    let read: Result<_, _> = rows.iter().map(RouteIdentities::read).collect();
    read.map_err(|corrupt| OpenError::Missing(corrupt.into()))
}

/// The migrations that the database lacks, then the functions, the distribution of the keys, and the triggers of
/// events.
pub(crate) async fn pending(client: &Client, settings: &StoreSettings) -> Result<Vec<Migration>, OpenError> {
    let has = applied(client).await?;
    let distribution = distribution::missing(client, settings, !has.is_empty()).await?;
    let mut pending: Vec<Migration> = missing_steps(STEPS, &has)?.iter().map(script).collect();
    pending.extend(functions::missing(client).await.map_err(open_error)?);
    pending.extend(distribution);
    pending.extend(events::missing(client, settings, !has.is_empty()).await?);
    Ok(pending)
}

fn script(step: &MigrationStep) -> Migration {
    step.script(&format!(
        "insert into oncegate.migrations (version, name, oldest_program, sha256) values ({}, '{}', {}, '\\x{}');",
        step.version,
        step.name,
        step.oldest_program,
        step.sha256_hex()
    ))
}

/// Returns the migrations that the database has. Refuses unsuitable servers.
async fn applied(client: &Client) -> Result<Vec<AppliedMigration>, OpenError> {
    let server = client.query_typed_one(SERVER_PROPERTIES, &[]).await.map_err(open_error)?;
    if let Some(refusal) = server.try_get::<_, Option<String>>("refusal").map_err(open_error)? {
        return Err(OpenError::Missing(refusal.into()));
    }
    if !server.try_get::<_, bool>("migrated").map_err(open_error)? {
        return Ok(Vec::new());
    }
    let rows = client.query_typed(APPLIED_MIGRATIONS, &[]).await.map_err(open_error)?;
    let step = |row: &tokio_postgres::Row| {
        let (version, name) = (row.try_get("version")?, row.try_get("name")?);
        let (sha256, oldest_program) = (row.try_get("sha256")?, row.try_get("oldest_program")?);
        Ok(AppliedMigration { version, name, sha256, oldest_program })
    };
    rows.iter().map(step).collect::<Result<_, _>>().map_err(open_error)
}

/// Applies what the database lacks, one after the other. Tries again while a transaction holds the table of a
/// migration, with pauses in which all others run.
pub(crate) async fn migrate(client: &mut Client, settings: &StoreSettings) -> Result<Vec<String>, OpenError> {
    let (mut done, mut started) = (Vec::new(), Instant::now());
    while let Some(next) = pending(client, settings).await?.into_iter().next() {
        let name = &*next.name;
        match try_next(client, settings, &next).await? {
            Ok(is_applied_here) => {
                if is_applied_here {
                    match name {
                        functions::NAME => {}
                        distribution::NAME => tracing::info!("distributed the keys over the nodes of the cluster"),
                        _ => tracing::info!(migration = name, "applied a migration to the store"),
                    }
                    done.push(next.name);
                }
                started = Instant::now();
            }
            Err(source) if started.elapsed() >= LOCK_TRIES_MAX => {
                return Err(OpenError::Migration { name: next.name, source: migration_error(source) });
            }
            Err(_) => {
                tracing::info!(migration = name, "an open transaction holds the migration's table; trying again");
                sleep(jittered(LOCK_PAUSE)).await;
            }
        }
    }
    Ok(done)
}

/// Tries to apply the next part in a transaction of its own. Returns whether it did, and no other instance meanwhile;
/// the inner error says that a transaction holds its table's lock, and nothing was changed.
async fn try_next(
    client: &mut Client,
    settings: &StoreSettings,
    next: &Migration,
) -> Result<Result<bool, tokio_postgres::Error>, OpenError> {
    let failed = |source| OpenError::Migration { name: next.name.clone(), source: migration_error(source) };
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.batch_execute(LOCK_MIGRATIONS).await.map_err(failed)?;
    // Checked under the lock, so that no other instance can apply it.
    if pending(transaction.client(), settings).await?.first() != Some(next) {
        return Ok(Ok(false));
    }
    // What waits for the lock of a table that requests use.
    let is_step = next.name == events::NAME || STEPS.iter().any(|step| step.name == next.name);
    if is_step {
        transaction.batch_execute(LIMIT_LOCK_WAIT).await.map_err(failed)?;
    }
    // Without its own transaction.
    let sql = next.sql.trim_start_matches("begin;\n").trim_end_matches("commit;\n");
    match transaction.batch_execute(sql).await {
        Err(error) if is_step && error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            transaction.rollback().await.map_err(failed)?;
            return Ok(Err(error));
        }
        done => done.map_err(failed)?,
    }
    transaction.commit().await.map_err(failed)?;
    Ok(Ok(true))
}
