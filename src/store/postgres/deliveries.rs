//! The statements of what is accepted now and sent later.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::connect::Pool;
use super::failure::Failure;
use super::lanes::Statement;
use super::statements::{OVERHEAD_BYTES, column, path_bytes};
use super::upkeep::{Parameter, column as unreadable, query};
use crate::domain::attempt::Token;
use crate::domain::job::{Order, PickUp, PickedUp};
use crate::domain::record::RecordId;
use crate::store::Seen;
use crate::store::batch::Weighed;
use crate::store::deliveries::{Grave, RawJob, on_unknown};
use crate::store::row::millis;

const BURY: &str = include_str!("sql/bury.sql");
const ENQUEUE: &str = include_str!("sql/enqueue.sql");
const ENQUEUE_OVER: &str = include_str!("sql/enqueue_over.sql");
const PICK_UP: &str = include_str!("sql/pick_up.sql");

/// Accepts a key that has no record, with its request. Answers whether it did.
pub(super) struct Enqueue(pub Arc<Order>);

impl Weighed for Enqueue {
    fn bytes(&self) -> usize {
        let Order { ask, sealed } = &*self.0;
        OVERHEAD_BYTES + ask.space.len() + ask.key.as_bytes().len() + path_bytes(ask) + sealed.bytes.len()
    }
}

impl Statement for Enqueue {
    type Answer = bool;

    // Each is told for itself whether it was the one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.ask.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<bool>, Error> {
        let recipes = column(questions, |q| q.0.ask.recipe.to_stored());
        let parameters: [(&(dyn ToSql + Sync), Type); 13] = [
            (/* id */ &column(questions, |q| q.0.ask.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(questions, |q| &*q.0.ask.service), Type::TEXT_ARRAY),
            (/* scope */ &column(questions, |q| q.0.ask.scope.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* space */ &column(questions, |q| &q.0.ask.space[..]), Type::BYTEA_ARRAY),
            (/* key */ &column(questions, |q| q.0.ask.key.as_bytes()), Type::BYTEA_ARRAY),
            (/* route */ &column(questions, |q| &*q.0.ask.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (
                /* fingerprint */ &column(questions, |q| q.0.ask.fingerprint.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (/* instance */ &column(questions, |q| q.0.ask.instance.get()), Type::INT8_ARRAY),
            (/* token */ &column(questions, |q| q.0.ask.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* path */ &column(questions, |q| q.0.ask.path.as_deref()), Type::BYTEA_ARRAY),
            (/* secret */ &column(questions, |q| &*q.0.sealed.secret), Type::TEXT_ARRAY),
            (/* sealed */ &column(questions, |q| &q.0.sealed.bytes[..]), Type::BYTEA_ARRAY),
        ];
        let mut accepted = HashSet::new();
        for row in client.query_typed(ENQUEUE, &parameters).await? {
            accepted.insert(row.try_get::<_, Vec<u8>>("id")?);
        }
        Ok(questions.iter().map(|q| accepted.contains(q.0.ask.id.as_bytes().as_slice())).collect())
    }
}

/// The same for a key that is still as it was seen.
pub(super) async fn enqueue_over(pool: &Pool, order: &Order, from: Seen, deadline: Instant) -> Result<bool, Failure> {
    let Order { ask, sealed } = order;
    let parameters: [Parameter<'_>; 12] = [
        (/* id */ &ask.id.as_bytes().as_slice(), Type::BYTEA),
        (/* path */ &ask.path.as_deref(), Type::BYTEA),
        (/* route */ &&*ask.route, Type::TEXT),
        (/* recipe */ &ask.recipe.to_stored(), Type::TEXT),
        (/* fingerprint */ &ask.fingerprint.as_bytes().as_slice(), Type::BYTEA),
        (/* instance */ &ask.instance.get(), Type::INT8),
        (/* token */ &ask.token.as_bytes().as_slice(), Type::BYTEA),
        (/* seen_token */ &from.token.as_bytes().as_slice(), Type::BYTEA),
        (/* seen_state */ &from.state, Type::TEXT),
        (/* past_ttl */ &from.past_ttl, Type::BOOL),
        (/* secret */ &sealed.secret, Type::TEXT),
        (/* sealed */ &&sealed.bytes[..], Type::BYTEA),
    ];
    Ok(!query(pool, deadline, ENQUEUE_OVER, &parameters).await?.is_empty())
}

pub(super) async fn pick_up(pool: &Pool, order: &PickUp, deadline: Instant) -> Result<PickedUp, Failure> {
    let PickUp { service, instance, tokens, terms, delivered, busy, unsent } = order;
    let routes: Vec<&str> = terms.iter().map(|terms| &*terms.route).collect();
    let policies: Vec<&str> = terms.iter().map(|terms| on_unknown(terms.on_unknown)).collect();
    let quiet: Vec<i64> = terms.iter().map(|terms| millis(terms.quiet_after)).collect();
    let limits: Vec<i64> = terms.iter().map(|terms| millis(terms.time_limit)).collect();
    let most: Vec<i32> = terms.iter().map(|terms| terms.retry.max_attempts.cast_signed()).collect();
    let give_up: Vec<i64> = terms.iter().map(|terms| millis(terms.retry.give_up_after)).collect();
    let parameters: [Parameter<'_>; 13] = [
        (/* service */ &&**service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* on_unknown */ &policies, Type::TEXT_ARRAY),
        (/* quiet_after_ms */ &quiet, Type::INT8_ARRAY),
        (/* time_limit_ms */ &limits, Type::INT8_ARRAY),
        (/* max_attempts */ &most, Type::INT4_ARRAY),
        (/* give_up_after_ms */ &give_up, Type::INT8_ARRAY),
        (/* limit */ &(tokens.len() as i64), Type::INT8),
        (
            /* token */ &tokens.iter().map(|token| token.as_bytes().as_slice()).collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        (/* instance */ &instance.get(), Type::INT8),
        (
            /* delivered */ &delivered.iter().map(|id| id.as_bytes().as_slice()).collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        (/* busy */ &busy.iter().map(|id| id.as_bytes().as_slice()).collect::<Vec<_>>(), Type::BYTEA_ARRAY),
        (/* unsent */ &unsent.iter().map(|id| id.as_bytes().as_slice()).collect::<Vec<_>>(), Type::BYTEA_ARRAY),
    ];
    let mut picked = PickedUp::default();
    for row in query(pool, deadline, PICK_UP, &parameters).await? {
        match row.try_get::<_, Option<String>>("note").map_err(unreadable)? {
            Some(note) => {
                let route = row.try_get("route").map_err(unreadable)?;
                let id = row.try_get("id").map_err(unreadable)?;
                picked.dead.push(Grave { id, route, note }.decode()?);
            }
            // One that cannot be read was never sent, and is released as a stray; the others are delivered.
            None => match raw(&row).map_err(|_| unreadable_row()).and_then(|raw| raw.decode(service, order)) {
                Ok(job) => picked.jobs.push(job),
                Err(corrupt) => tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered"),
            },
        }
    }
    Ok(picked)
}

fn unreadable_row() -> crate::domain::response::Corrupt {
    crate::domain::response::Corrupt("a column's type")
}

fn raw(row: &Row) -> Result<RawJob<'_>, Error> {
    Ok(RawJob {
        id: row.try_get("id")?,
        token: row.try_get("token")?,
        scope: row.try_get("scope")?,
        space: row.try_get("space")?,
        key: row.try_get("key")?,
        path: row.try_get("path")?,
        route: row.try_get("route")?,
        recipe: row.try_get("recipe")?,
        fingerprint: row.try_get("fingerprint")?,
        attempt: row.try_get::<_, i32>("attempt")?.into(),
        recovery_point: row.try_get("recovery_point")?,
        accepted_at_ms: row.try_get("accepted_at_ms")?,
        spent: row.try_get::<_, i32>("spent")?.into(),
        give_up_in_ms: row.try_get("give_up_in_ms")?,
        secret: row.try_get("secret")?,
        sealed: row.try_get("sealed")?,
    })
}

pub(super) async fn bury(
    pool: &Pool,
    id: RecordId,
    token: Token,
    states: &[&str],
    note: &str,
    deadline: Instant,
) -> Result<bool, Failure> {
    let parameters: [Parameter<'_>; 4] = [
        (/* id */ &id.as_bytes().as_slice(), Type::BYTEA),
        (/* token */ &token.as_bytes().as_slice(), Type::BYTEA),
        (/* state */ &states, Type::TEXT_ARRAY),
        (/* note */ &note, Type::TEXT),
    ];
    Ok(!query(pool, deadline, BURY, &parameters).await?.is_empty())
}
