//! The batched statements: how questions become arrays, and rows become answers.
//!
//! Every column goes as an array, the constant ones too: a constant beside an array of ids made the planner compare each
//! with each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::lanes::Statement;
use crate::domain::attempt::Settlement;
use crate::domain::record::{Ask, RecordId};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::Corrupt;
use crate::store::Seen;
use crate::store::batch::Weighed;
use crate::store::row::{self, Found, Terms, accepted_ms, body_bytes, millis, state_after};

pub(super) const CATCH_UP: &str = include_str!("sql/catch_up.sql");
const FIND: &str = include_str!("sql/find.sql");
const RESERVE: &str = include_str!("sql/reserve.sql");
const RESTORE: &str = include_str!("sql/restore.sql");
const SETTLE: &str = include_str!("sql/settle.sql");
const SETTLE_AROUND: &str = include_str!("sql/settle_around.sql");
const TAKE_OVER: &str = include_str!("sql/take_over.sql");

/// What a row takes beside what clients send.
pub(super) const OVERHEAD_BYTES: usize = 256;

/// A column of one statement's input.
pub(super) fn column<'a, S, T: 'a>(questions: &[&'a S], value: impl Fn(&'a S) -> T) -> Vec<T> {
    questions.iter().map(|question| value(question)).collect()
}

/// The same, of what was made from the questions.
fn each<'a, S, T: 'a>(all: &'a [S], value: impl Fn(&'a S) -> T) -> Vec<T> {
    all.iter().map(value).collect()
}

pub(super) fn path_bytes(ask: &Ask) -> usize {
    ask.path.as_ref().map_or(0, Bytes::len)
}

/// Reserves a key that has no record. Answers whether it did.
pub(super) struct Reserve(pub Arc<Ask>);

impl Weighed for Reserve {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.0.space.len() + self.0.key.as_bytes().len() + path_bytes(&self.0)
    }
}

impl Statement for Reserve {
    type Answer = bool;

    // The second of two is told apart by its token.
    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<bool>, Error> {
        let recipes = column(questions, |q| q.0.recipe.to_stored());
        let parameters: [(&(dyn ToSql + Sync), Type); 12] = [
            (/* id */ &column(questions, |q| q.0.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &column(questions, |q| &*q.0.service), Type::TEXT_ARRAY),
            (/* scope */ &column(questions, |q| q.0.scope.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* space */ &column(questions, |q| &q.0.space[..]), Type::BYTEA_ARRAY),
            (/* key */ &column(questions, |q| q.0.key.as_bytes()), Type::BYTEA_ARRAY),
            (/* route */ &column(questions, |q| &*q.0.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (/* fingerprint */ &column(questions, |q| q.0.fingerprint.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* instance */ &column(questions, |q| q.0.instance.get()), Type::INT8_ARRAY),
            (/* token */ &column(questions, |q| q.0.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &column(questions, |q| millis(q.0.time_limit)), Type::INT8_ARRAY),
            (/* path */ &column(questions, |q| q.0.path.as_deref()), Type::BYTEA_ARRAY),
        ];
        let mut won = HashSet::new();
        for row in client.query_typed(RESERVE, &parameters).await? {
            won.insert(row.try_get::<_, Vec<u8>>("token")?);
        }
        // Taken out, so that of two questions with one token only one is told that it won.
        Ok(column(questions, |q| q.0.token).iter().map(|token| won.remove(token.as_bytes().as_slice())).collect())
    }
}

/// Starts the next attempt of a record that is still as it was seen. Answers the attempt's number, and how far those before
/// it have come, if it did.
pub(super) struct TakeOver(pub Arc<Ask>, pub Seen);

impl Weighed for TakeOver {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + path_bytes(&self.0)
    }
}

impl Statement for TakeOver {
    type Answer = Result<Option<(u32, Option<RecoveryPoint>)>, Corrupt>;

    // Several sources for one row: which of them the row gets would be anybody's guess.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let recipes = column(questions, |q| q.0.recipe.to_stored());
        let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
            (/* id */ &column(questions, |q| q.0.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* route */ &column(questions, |q| &*q.0.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (/* fingerprint */ &column(questions, |q| q.0.fingerprint.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* instance */ &column(questions, |q| q.0.instance.get()), Type::INT8_ARRAY),
            (/* token */ &column(questions, |q| q.0.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &column(questions, |q| millis(q.0.time_limit)), Type::INT8_ARRAY),
            (/* seen_token */ &column(questions, |q| q.1.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* seen_state */ &column(questions, |q| q.1.state), Type::TEXT_ARRAY),
            (/* past_ttl */ &column(questions, |q| q.1.past_ttl), Type::BOOL_ARRAY),
            (/* path */ &column(questions, |q| q.0.path.as_deref()), Type::BYTEA_ARRAY),
        ];
        let mut attempts = HashMap::new();
        for row in client.query_typed(TAKE_OVER, &parameters).await? {
            let recovery_point = row::recovery_point(row.try_get("recovery_point")?);
            attempts.insert(row.try_get::<_, Vec<u8>>("id")?, (row.try_get::<_, i32>("attempt")?, recovery_point));
        }
        let attempt = |q: &&Self| {
            let (number, recovery_point) = attempts.remove(q.0.id.as_bytes().as_slice())?;
            Some(row::attempt(number.into()).and_then(|number| Ok((number, recovery_point?))))
        };
        Ok(questions.iter().map(attempt).map(Option::transpose).collect())
    }
}

/// Looks a record up.
pub(super) struct Find {
    pub id: RecordId,
    /// Whether an earlier try of the same call may have written what is found. Then it is told only once it is as durable
    /// as if that try had been answered.
    pub doubt: bool,
}

impl Weighed for Find {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES
    }
}

impl Statement for Find {
    type Answer = Result<Option<Found>, Corrupt>;

    const DISTINCT: bool = false;

    fn id(&self) -> RecordId {
        self.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let mut ids = column(questions, |q| q.id.as_bytes().as_slice());
        ids.dedup(); // they are sorted
        let mut found = HashMap::new();
        for row in client.query_typed(FIND, &[(/* id */ &ids, Type::BYTEA_ARRAY)]).await? {
            found.insert(row.try_get::<_, Vec<u8>>("id")?, decode(&row));
        }
        if questions.iter().any(|q| q.doubt) {
            client.query_typed(CATCH_UP, &[]).await?;
        }
        Ok(questions.iter().map(|q| found.get(q.id.as_bytes().as_slice()).cloned().transpose()).collect())
    }
}

/// When the record will be forgotten, where it was written and where it ever is.
type Ended = Result<Option<Option<SystemTime>>, Corrupt>;

/// Ends an attempt. Answers when the record will be forgotten, or `None` where nothing was changed.
pub(super) struct Settle {
    pub settlement: Arc<Settlement>,
    /// Whether its row was held by somebody when it was last tried.
    pub held: bool,
}

impl Weighed for Settle {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + body_bytes(&self.settlement.ending)
    }
}

impl Statement for Settle {
    type Answer = Ended;

    // Several sources for one row: which of them the row gets would be anybody's guess.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.settlement.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let terms = column(questions, |q| Terms::of(&q.settlement.ending));
        let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
            (/* id */ &column(questions, |q| q.settlement.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* token */ &column(questions, |q| q.settlement.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* state */ &column(questions, |q| state_after(&q.settlement.ending)), Type::TEXT_ARRAY),
            (/* ttl_ms */ &each(&terms, |t| t.ttl_ms), Type::INT8_ARRAY),
            (/* status */ &each(&terms, |t| t.status), Type::INT2_ARRAY),
            (/* fields */ &each(&terms, |t| t.fields.as_deref()), Type::BYTEA_ARRAY),
            (/* body */ &each(&terms, |t| t.body), Type::BYTEA_ARRAY),
            (/* remember_ms */ &each(&terms, |t| t.remember_ms), Type::INT8_ARRAY),
            (/* due_ms */ &column(questions, |q| q.settlement.again.map(millis)), Type::INT8_ARRAY),
        ];
        let held = questions.iter().any(|q| q.held);
        let rows = match client.query_typed(if held { SETTLE_AROUND } else { SETTLE }, &parameters).await {
            // One of them is held, and all were taken back.
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) && !held => {
                client.query_typed(SETTLE_AROUND, &parameters).await?
            }
            rows => rows?,
        };
        expiries(&rows, questions.iter().map(|q| q.settlement.id))
    }
}

/// Writes the row of an attempt anew, whole and ended. Answers as [`Settle`] does; `None` where somebody has a row.
///
/// Asked only of settlements that have something [`to_restore`](Settlement::to_restore): the others are left out.
pub(super) struct Restore(pub Arc<Settlement>);

impl Weighed for Restore {
    fn bytes(&self) -> usize {
        let names = self.0.to_restore().map_or(0, |lost| lost.ask.space.len() + lost.ask.key.as_bytes().len());
        OVERHEAD_BYTES + names + body_bytes(&self.0.ending)
    }
}

impl Statement for Restore {
    type Answer = Ended;

    // Each is told for itself whether it was the one.
    const DISTINCT: bool = true;

    fn id(&self) -> RecordId {
        self.0.id
    }

    async fn run(client: &Client, questions: &[&Self]) -> Result<Vec<Self::Answer>, Error> {
        let lost: Vec<_> = questions.iter().filter_map(|q| Some((q.0.to_restore()?, &q.0.ending))).collect();
        let asks = each(&lost, |(lease, _)| &*lease.ask);
        let recipes = each(&asks, |ask| ask.recipe.to_stored());
        let terms = each(&lost, |(_, ending)| Terms::of(ending));
        let parameters: [(&(dyn ToSql + Sync), Type); 20] = [
            (/* id */ &each(&asks, |ask| ask.id.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* service */ &each(&asks, |ask| &*ask.service), Type::TEXT_ARRAY),
            (/* scope */ &each(&asks, |ask| ask.scope.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* space */ &each(&asks, |ask| &ask.space[..]), Type::BYTEA_ARRAY),
            (/* key */ &each(&asks, |ask| ask.key.as_bytes()), Type::BYTEA_ARRAY),
            (/* route */ &each(&asks, |ask| &*ask.route), Type::TEXT_ARRAY),
            (/* recipe */ &recipes, Type::TEXT_ARRAY),
            (/* fingerprint */ &each(&asks, |ask| ask.fingerprint.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* instance */ &each(&asks, |ask| ask.instance.get()), Type::INT8_ARRAY),
            (/* token */ &each(&asks, |ask| ask.token.as_bytes().as_slice()), Type::BYTEA_ARRAY),
            (/* time_limit_ms */ &each(&asks, |ask| millis(ask.time_limit)), Type::INT8_ARRAY),
            (/* attempt */ &each(&lost, |(lease, _)| i32::try_from(lease.attempt).ok()), Type::INT4_ARRAY),
            (/* state */ &each(&lost, |(_, ending)| state_after(ending)), Type::TEXT_ARRAY),
            (/* ttl_ms */ &each(&terms, |t| t.ttl_ms), Type::INT8_ARRAY),
            (/* status */ &each(&terms, |t| t.status), Type::INT2_ARRAY),
            (/* fields */ &each(&terms, |t| t.fields.as_deref()), Type::BYTEA_ARRAY),
            (/* body */ &each(&terms, |t| t.body), Type::BYTEA_ARRAY),
            (/* remember_ms */ &each(&terms, |t| t.remember_ms), Type::INT8_ARRAY),
            (/* path */ &each(&asks, |ask| ask.path.as_deref()), Type::BYTEA_ARRAY),
            (/* accepted_ms */ &each(&lost, |(lease, _)| accepted_ms(lease)), Type::INT8_ARRAY),
        ];
        let rows = client.query_typed(RESTORE, &parameters).await?;
        expiries(&rows, questions.iter().map(|q| q.0.id))
    }
}

/// When each record will be forgotten, `None` for those of which no row came back.
fn expiries(rows: &[Row], ids: impl Iterator<Item = RecordId>) -> Result<Vec<Ended>, Error> {
    let mut written = HashMap::new();
    for row in rows {
        written.insert(row.try_get::<_, Vec<u8>>("id")?, row.try_get::<_, Option<i64>>("expires_at_ms")?);
    }
    let expiry = |id: RecordId| Some(written.get(id.as_bytes().as_slice())?.map(row::time).transpose());
    Ok(ids.map(|id| expiry(id).transpose()).collect())
}

fn decode(row: &Row) -> Result<Found, Corrupt> {
    read(row).map_err(|_| Corrupt("a column's type"))?.decode()
}

fn read(row: &Row) -> Result<row::Row<'_>, Error> {
    Ok(row::Row {
        id: row.try_get("id")?,
        attempt: row.try_get::<_, i32>("attempt")?.into(),
        token: row.try_get("token")?,
        recipe: row.try_get("recipe")?,
        fingerprint: row.try_get("fingerprint")?,
        state: row.try_get("state")?,
        running_ms: row.try_get("running_ms")?,
        deadline_in_ms: row.try_get("deadline_in_ms")?,
        past_ttl: row.try_get("past_ttl")?,
        late: row.try_get("late")?,
        recovery_point: row.try_get("recovery_point")?,
        expires_at_ms: row.try_get("expires_at_ms")?,
        accepted_at_ms: row.try_get("accepted_at_ms")?,
        status: row.try_get::<_, Option<i16>>("status")?.map(i64::from),
        fields: row.try_get("fields")?,
        body: row.try_get::<_, Option<&[u8]>>("body")?.map(Bytes::copy_from_slice),
    })
}
