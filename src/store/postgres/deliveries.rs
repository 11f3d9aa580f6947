//! The statements for asynchronous deliveries.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::batcher::BatchStatement;
use super::client::{Parameter, PgClient};
use super::connect::PgPool;
use super::failure::PgFailure;
use super::statements::{OVERHEAD_BYTES, column, holder_bytes, path_bytes};
use super::upkeep::{column as unreadable, query};
use crate::domain::delivery::{EnqueueRequest, PickUpRequest, PickUpResult};
use crate::domain::ids::RecordId;
use crate::store::batch::ByteSize;
use crate::store::deliveries::{GivenUpRow, RawDeliveryJob, on_unknown};
use crate::store::row::{millis, since_1970_ms};
use crate::store::{ExpectedRecord, GiveUpParams};

const GIVE_UP: &str = durable!("give_up");
const ENQUEUE: &str = durable!("enqueue");
const ENQUEUE_OVER: &str = durable!("enqueue_over");
const PICK_UP: &str = durable!("pick_up");

/// Accepts a key that has no record, with its request. The answer is whether it was accepted.
pub(super) struct EnqueueStatement(pub Arc<EnqueueRequest>);

impl ByteSize for EnqueueStatement {
    fn bytes(&self) -> usize {
        let EnqueueRequest { reserve_request, sealed } = &*self.0;
        OVERHEAD_BYTES + reserve_request.key.as_bytes().len() + path_bytes(reserve_request) + sealed.bytes.len()
    }
}

impl BatchStatement for EnqueueStatement {
    type Answer = bool;

    // Rows are returned by id, so of two requests for one record both would look accepted.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.reserve_request.id
    }

    async fn run(client: &PgClient, requests: &[&Self]) -> Result<Vec<bool>, Error> {
        let recipes = column(requests, |q| q.0.reserve_request.recipe.to_stored());
        let parameters: [Parameter<'_>; 14] = [
            (/* id */ &column(requests, |q| q.0.reserve_request.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(requests, |q| &*q.0.reserve_request.service), Type::TEXT_ARRAY),
            (
                /* scope */ &column(requests, |q| q.0.reserve_request.scope.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (
                /* space */ &column(requests, |q| q.0.reserve_request.space.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (/* key */ &column(requests, |q| q.0.reserve_request.key.as_bytes()), Type::BYTEA_ARRAY),
            (/* route */ &column(requests, |q| &*q.0.reserve_request.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (
                /* fingerprint */ &column(requests, |q| q.0.reserve_request.fingerprint.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (/* instance */ &column(requests, |q| q.0.reserve_request.instance.get()), Type::INT8_ARRAY),
            (
                /* token */ &column(requests, |q| q.0.reserve_request.token.as_bytes().as_slice()),
                Type::BYTEA_ARRAY,
            ),
            (/* path */ &column(requests, |q| q.0.reserve_request.path.as_deref()), Type::BYTEA_ARRAY),
            (/* secret */ &column(requests, |q| &*q.0.sealed.secret), Type::TEXT_ARRAY),
            (/* sealed */ &column(requests, |q| &q.0.sealed.bytes[..]), Type::BYTEA_ARRAY),
            (/* holder */ &column(requests, |q| holder_bytes(&q.0.reserve_request)), Type::BYTEA_ARRAY),
        ];
        let mut accepted = HashSet::new();
        for row in client.query_typed(ENQUEUE, &parameters).await? {
            accepted.insert(row.try_get::<_, Vec<u8>>("id")?);
        }
        Ok(requests.iter().map(|q| accepted.contains(q.0.reserve_request.id.as_bytes().as_slice())).collect())
    }
}

/// Accepts a key that has a record, if the record is still as it was seen.
pub(super) async fn enqueue_over(
    pool: &PgPool,
    order: &EnqueueRequest,
    from: ExpectedRecord,
    deadline: Instant,
) -> Result<bool, PgFailure> {
    let EnqueueRequest { reserve_request, sealed } = order;
    let parameters: [Parameter<'_>; 12] = [
        (/* id */ &reserve_request.id.as_bytes().as_slice(), Type::BYTEA),
        (/* path */ &reserve_request.path.as_deref(), Type::BYTEA),
        (/* route */ &&*reserve_request.route, Type::TEXT),
        (/* recipe */ &reserve_request.recipe.to_stored(), Type::TEXT),
        (/* fingerprint */ &reserve_request.fingerprint.as_bytes().as_slice(), Type::BYTEA),
        (/* instance */ &reserve_request.instance.get(), Type::INT8),
        (/* token */ &reserve_request.token.as_bytes().as_slice(), Type::BYTEA),
        (/* seen_token */ &from.token.as_bytes().as_slice(), Type::BYTEA),
        (/* seen_state */ &from.state.name(), Type::TEXT),
        (/* past_ttl_at */ &from.past_ttl_at.map(since_1970_ms), Type::INT8),
        (/* secret */ &sealed.secret, Type::TEXT),
        (/* sealed */ &&sealed.bytes[..], Type::BYTEA),
    ];
    Ok(!query(pool, deadline, ENQUEUE_OVER, &parameters).await?.is_empty())
}

pub(super) async fn pick_up(
    pool: &PgPool,
    order: &PickUpRequest,
    deadline: Instant,
) -> Result<PickUpResult, PgFailure> {
    let PickUpRequest { service, instance, tokens, policies: terms, delivered, busy, unsent, as_of } = order;
    let routes: Vec<&str> = terms.iter().map(|terms| &*terms.route).collect();
    let policies: Vec<&str> = terms.iter().map(|terms| on_unknown(terms.on_unknown)).collect();
    let quiet: Vec<i64> = terms.iter().map(|terms| millis(terms.quiet_after)).collect();
    let limits: Vec<i64> = terms.iter().map(|terms| millis(terms.time_limit)).collect();
    let most: Vec<i32> = terms.iter().map(|terms| terms.retry.max_attempts.cast_signed()).collect();
    let give_up: Vec<i64> = terms.iter().map(|terms| millis(terms.retry.give_up_after)).collect();
    let slots: Vec<i64> = terms.iter().map(|terms| terms.slots as i64).collect();
    let (unsent_ids, unsent_tokens): (Vec<&[u8]>, Vec<&[u8]>) =
        unsent.iter().map(|(id, token)| (id.as_bytes().as_slice(), token.as_bytes().as_slice())).unzip();
    let parameters: [Parameter<'_>; 16] = [
        (/* service */ &&**service, Type::TEXT),
        (/* route */ &routes, Type::TEXT_ARRAY),
        (/* on_unknown */ &policies, Type::TEXT_ARRAY),
        (/* quiet_after_ms */ &quiet, Type::INT8_ARRAY),
        (/* time_limit_ms */ &limits, Type::INT8_ARRAY),
        (/* max_attempts */ &most, Type::INT4_ARRAY),
        (/* give_up_after_ms */ &give_up, Type::INT8_ARRAY),
        (/* limit */ &(order.rows_max() as i64), Type::INT8),
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
        (/* unsent_id */ &unsent_ids, Type::BYTEA_ARRAY),
        (/* unsent_token */ &unsent_tokens, Type::BYTEA_ARRAY),
        (/* slots */ &slots, Type::INT8_ARRAY),
        (/* as_of_ms */ &since_1970_ms(*as_of), Type::INT8),
    ];
    let mut picked = PickUpResult::default();
    for row in query(pool, deadline, PICK_UP, &parameters).await? {
        match row.try_get::<_, Option<String>>("note").map_err(unreadable)? {
            Some(note) => {
                let route = row.try_get("route").map_err(unreadable)?;
                let id = row.try_get("id").map_err(unreadable)?;
                picked.given_up.push(GivenUpRow { id, route, note }.decode()?);
            }
            // A row that cannot be read is not sent, and its attempt is released as an orphan; the others are
            // delivered.
            None => match read_raw_job(&row).map_err(|_| corrupt_row()).and_then(|raw| raw.decode(service, order)) {
                Ok(job) => picked.jobs.push(job),
                Err(corrupt) => tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered"),
            },
        }
    }
    Ok(picked)
}

fn corrupt_row() -> crate::domain::response::CorruptRow {
    crate::domain::response::CorruptRow("a column's type")
}

fn read_raw_job(row: &Row) -> Result<RawDeliveryJob<'_>, Error> {
    Ok(RawDeliveryJob {
        id: row.try_get("id")?,
        token: row.try_get("token")?,
        taken_from: row.try_get("taken_from")?,
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

pub(super) async fn give_up(pool: &PgPool, params: Arc<GiveUpParams>, deadline: Instant) -> Result<bool, PgFailure> {
    let GiveUpParams { id, token, states, note } = &*params;
    let states: Vec<_> = states.iter().map(|state| state.name()).collect();
    let parameters: [Parameter<'_>; 4] = [
        (/* id */ &id.as_bytes().as_slice(), Type::BYTEA),
        (/* token */ &token.as_bytes().as_slice(), Type::BYTEA),
        (/* state */ &states, Type::TEXT_ARRAY),
        (/* note */ note, Type::TEXT),
    ];
    Ok(!query(pool, deadline, GIVE_UP, &parameters).await?.is_empty())
}
