//! The statements of what is accepted now and sent later.

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::statements::{blob, find, optional_text, text};
use super::writer::Failure;
use crate::domain::attempt::Token;
use crate::domain::job::{Enqueued, Order, PickUp, PickedUp, Terms};
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::store::Seen;
use crate::store::deliveries::{Grave, RawJob, on_unknown};
use crate::store::row::millis;

const BURIED: &str = include_str!("sql/buried.sql");
const BURY: &str = include_str!("sql/bury.sql");
const DUE: &str = include_str!("sql/due.sql");
const ENQUEUE: &str = include_str!("sql/enqueue.sql");
const ENQUEUE_OVER: &str = include_str!("sql/enqueue_over.sql");
const FORGIVE: &str = include_str!("sql/forgive.sql");
const OUTBOX: &str = include_str!("sql/outbox.sql");
const SHRED: &str = include_str!("sql/shred.sql");
const TAKE: &str = include_str!("sql/take.sql");

/// Several writing statements, of which none without the others, and whatever else is in the transaction stays.
pub(super) fn together<T>(db: &Connection, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Failure> {
    db.execute_batch("savepoint together")?;
    let done = work(db);
    let ended = match &done {
        Ok(_) => db.execute_batch("release together"),
        // Where SQLite has taken all of it back there is nothing to do.
        Err(_) if db.is_autocommit() => Ok(()),
        Err(_) => db.execute_batch("rollback to together; release together"),
    };
    // The first failure is the one to tell.
    let done = done?;
    ended?;
    Ok(done)
}

pub(super) fn enqueue(db: &Connection, now: i64, order: &Order, from: Option<Seen>) -> Result<Enqueued, Failure> {
    let Order { ask, sealed } = order;
    let accepted = together(db, |db| {
        let mut accepted = match from {
            None => 0,
            Some(from) => db.prepare_cached(ENQUEUE_OVER)?.execute(named_params! {
                ":id": ask.id.as_bytes(),
                ":path": ask.path.as_deref(),
                ":route": &*ask.route,
                ":recipe": ask.recipe.to_stored(),
                ":fingerprint": ask.fingerprint.as_bytes(),
                ":instance": ask.instance.get(),
                ":token": ask.token.as_bytes(),
                ":seen_token": from.token.as_bytes(),
                ":seen_state": from.state,
                ":past_ttl": from.past_ttl,
                ":now": now,
            })?,
        };
        if accepted == 0 {
            accepted = db.prepare_cached(ENQUEUE)?.execute(named_params! {
                ":id": ask.id.as_bytes(),
                ":service": &*ask.service,
                ":scope": ask.scope.as_bytes(),
                ":space": &ask.space[..],
                ":key": ask.key.as_bytes(),
                ":path": ask.path.as_deref(),
                ":route": &*ask.route,
                ":recipe": ask.recipe.to_stored(),
                ":fingerprint": ask.fingerprint.as_bytes(),
                ":instance": ask.instance.get(),
                ":token": ask.token.as_bytes(),
                ":now": now,
            })?;
        }
        if accepted == 1 {
            db.prepare_cached(OUTBOX)?.execute(named_params! {
                ":id": ask.id.as_bytes(),
                ":secret": sealed.secret,
                ":sealed": &sealed.bytes[..],
                ":now": now,
            })?;
        }
        Ok(accepted == 1)
    })?;
    if accepted {
        return Ok(Enqueued::Accepted);
    }
    // Nobody else writes: what was in the way is still there, or the file contradicts itself.
    let found = find(db, now, ask.id)?.ok_or(Corrupt("the index of keys"))?;
    Ok(Enqueued::Taken(found.record))
}

/// Route by route, until there are as many as wanted.
pub(super) fn pick_up(db: &Connection, now: i64, order: &PickUp) -> Result<PickedUp, Failure> {
    together(db, |db| {
        for id in &order.delivered {
            shred(db, *id)?;
        }
        for id in &order.unsent {
            db.prepare_cached(FORGIVE)?.execute(named_params! { ":id": id.as_bytes() })?;
        }
        let mut picked = PickedUp::default();
        let mut tokens = order.tokens.iter();
        for terms in &order.terms {
            for due in due(db, now, order, terms, tokens.len() + order.busy.len())? {
                // A new token would fence its end.
                if order.busy.iter().any(|busy| busy.as_bytes()[..] == due.id[..]) {
                    continue;
                }
                if let Some(note) = due.note {
                    let id = due.id;
                    if put(db, now, &id, &due.token, &due.state, &note)? {
                        picked.dead.push(Grave { id, route: terms.route.to_string(), note }.decode()?);
                    }
                    continue;
                }
                let Some(token) = tokens.next() else { break };
                let mut statement = db.prepare_cached(TAKE)?;
                let mut rows = statement.query(named_params! {
                    ":id": due.id,
                    ":token": token.as_bytes(),
                    ":instance": order.instance.get(),
                    ":time_limit_ms": millis(terms.time_limit),
                    ":now": now,
                })?;
                let Some(row) = rows.next()? else { continue };
                match raw(row, token, due.spent, due.give_up_in_ms)
                    .and_then(|raw| Ok(raw.decode(&order.service, order)?))
                {
                    Ok(job) => picked.jobs.push(job),
                    // One that cannot be read was never sent, and is released as a stray; the others are delivered.
                    Err(Failure::Corrupt(corrupt)) => {
                        tracing::error!(%corrupt, "an accepted key's row cannot be read; it is not delivered");
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(picked)
    })
}

struct Due {
    id: Vec<u8>,
    token: Vec<u8>,
    state: String,
    spent: i64,
    give_up_in_ms: i64,
    note: Option<String>,
}

fn due(db: &Connection, now: i64, order: &PickUp, terms: &Terms, limit: usize) -> Result<Vec<Due>, Failure> {
    let mut statement = db.prepare_cached(DUE)?;
    let mut rows = statement.query(named_params! {
        ":service": &*order.service,
        ":route": &*terms.route,
        ":on_unknown": on_unknown(terms.on_unknown),
        ":quiet_after_ms": millis(terms.quiet_after),
        ":max_attempts": terms.retry.max_attempts,
        ":give_up_after_ms": millis(terms.retry.give_up_after),
        ":limit": limit as i64,
        ":now": now,
    })?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        due.push(Due {
            id: row.get("id")?,
            token: row.get("token")?,
            state: row.get("state")?,
            spent: row.get::<_, Option<i64>>("spent")?.unwrap_or_default(),
            give_up_in_ms: row.get::<_, Option<i64>>("give_up_in_ms")?.unwrap_or_default(),
            note: row.get("note")?,
        });
    }
    Ok(due)
}

fn raw<'a>(row: &'a Row<'_>, token: &'a Token, spent: i64, give_up_in_ms: i64) -> Result<RawJob<'a>, Failure> {
    Ok(RawJob {
        id: blob(row, "id")?.ok_or(Corrupt("id"))?,
        token: token.as_bytes(),
        scope: blob(row, "scope")?.ok_or(Corrupt("scope"))?,
        space: blob(row, "space")?.ok_or(Corrupt("space"))?,
        key: blob(row, "key")?.ok_or(Corrupt("key"))?,
        path: blob(row, "path")?,
        route: text(row, "route")?,
        recipe: text(row, "recipe")?,
        fingerprint: blob(row, "fingerprint")?.ok_or(Corrupt("fingerprint"))?,
        attempt: row.get("attempt")?,
        recovery_point: optional_text(row, "recovery_point")?,
        accepted_at_ms: row.get("accepted_at")?,
        spent,
        give_up_in_ms,
        secret: text(row, "secret")?,
        sealed: blob(row, "sealed")?.ok_or(Corrupt("its request"))?,
    })
}

pub(super) fn bury(
    db: &Connection,
    now: i64,
    id: RecordId,
    token: Token,
    states: &[&str],
    note: &str,
) -> Result<bool, Failure> {
    together(db, |db| {
        for state in states {
            if put(db, now, id.as_bytes(), token.as_bytes(), state, note)? {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

fn put(db: &Connection, now: i64, id: &[u8], token: &[u8], state: &str, note: &str) -> Result<bool, Failure> {
    let parameters = named_params! { ":id": id, ":token": token, ":state": state, ":now": now };
    let service: Option<String> = db.prepare_cached(BURY)?.query_row(parameters, |row| row.get(0)).optional()?;
    let Some(service) = service else { return Ok(false) };
    db.prepare_cached(BURIED)?.execute(named_params! {
        ":now": now,
        ":service": service,
        ":id": id,
        ":state": state,
        ":note": note,
    })?;
    Ok(true)
}

/// Its request is needed no more, if its key is completed or gone.
pub(super) fn shred(db: &Connection, id: RecordId) -> Result<(), Failure> {
    db.prepare_cached(SHRED)?.execute(named_params! { ":id": id.as_bytes() })?;
    Ok(())
}
