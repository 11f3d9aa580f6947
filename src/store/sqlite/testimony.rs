//! What services say of their own attempts, in SQLite.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, named_params};

use super::statements::{blob, text};
use super::writer::Failure;
use super::{Sqlite, Urgency};
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::domain::testimony::{Heard, Terms, What, Word};
use crate::store::Pending;
use crate::store::row::millis;
use crate::store::testimony::{Testimony, heard};

const DENIED: &str = include_str!("sql/denied.sql");
const DENY: &str = include_str!("sql/deny.sql");
const FORGET_DENIALS: &str = include_str!("sql/forget_denials.sql");
const HEED: &str = include_str!("sql/heed.sql");
const NOTE_DENIAL: &str = include_str!("sql/note_denial.sql");
const REACH: &str = include_str!("sql/reach.sql");
const RESERVED: &str = include_str!("sql/reserved.sql");

impl Testimony for Sqlite {
    fn hear(&self, word: Word) -> Pending<'_, Heard> {
        self.call(Urgency::Ordinary, 0, move |db, now| whole(db, |db| hear(db, now, &word)))
    }

    fn heed(&self, limit: u32) -> Pending<'_, Vec<RecordId>> {
        self.call(Urgency::Ordinary, 0, move |db, now| whole(db, |db| heed(db, now, limit)))
    }

    // Nobody but the proxy writes to this file.
    fn leave_terms(&self, _: Arc<str>, _: Vec<Terms>) -> Pending<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Several writing statements, of which none without the others.
fn whole<T>(db: &Connection, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Failure> {
    db.execute_batch("savepoint testimony")?;
    let done = work(db);
    // Where SQLite has taken all of the transaction back there is nothing to do.
    let ended = match done {
        Ok(_) => db.execute_batch("release testimony"),
        Err(_) if db.is_autocommit() => Ok(()),
        Err(_) => db.execute_batch("rollback to testimony; release testimony"),
    };
    // The first failure is the one to tell.
    let done = done?;
    Ok(ended.map(|()| done)?)
}

fn hear(db: &Connection, now: i64, word: &Word) -> Result<Heard, Failure> {
    let Word { service, of, what } = word;
    let named = named_params! { ":id": of.id.as_bytes(), ":token": of.token.as_bytes(), ":service": &**service };
    let state: Option<String> = db.prepare_cached(RESERVED)?.query_row(named, |row| row.get(0)).optional()?;
    let Some(state) = state else { return Ok(Heard::Gone) };
    let heard = heard(&state, false);
    match what {
        What::NotExecuted(ttl) => {
            let ttl_ms = millis(*ttl);
            if heard == Heard::Noted {
                db.prepare_cached(NOTE_DENIAL)?.execute(named_params! {
                    ":id": of.id.as_bytes(), ":token": of.token.as_bytes(), ":ttl_ms": ttl_ms,
                })?;
            } else {
                deny(db, now, of.id.as_bytes(), of.token.as_bytes(), (service, &state), ttl_ms)?;
            }
            Ok(heard)
        }
        What::Reached(point) => {
            db.prepare_cached(REACH)?.execute(named_params! {
                ":id": of.id.as_bytes(), ":token": of.token.as_bytes(), ":service": &**service, ":name": point.as_str(),
            })?;
            // How far it has come is so at once.
            Ok(if heard == Heard::Noted { Heard::Taken } else { heard })
        }
    }
}

/// Changes what is unknown and nothing else, with its line in the audit.
fn deny(
    db: &Connection,
    now: i64,
    id: &[u8],
    token: &[u8],
    (service, before): (&str, &str),
    ttl_ms: i64,
) -> Result<(), Failure> {
    let denial = named_params! { ":id": id, ":token": token, ":service": service, ":ttl_ms": ttl_ms, ":now": now };
    let after: Option<String> = db.prepare_cached(DENY)?.query_row(denial, |row| row.get(0)).optional()?;
    if let Some(after) = after {
        let line = named_params! { ":now": now, ":service": service, ":id": id, ":before": before, ":after": after };
        db.prepare_cached(DENIED)?.execute(line)?;
    }
    Ok(())
}

fn heed(db: &Connection, now: i64, limit: u32) -> Result<Vec<RecordId>, Failure> {
    let mut found: Vec<([Vec<u8>; 2], [String; 2], i64)> = Vec::new();
    {
        let mut statement = db.prepare_cached(HEED)?;
        let mut rows = statement.query(named_params! { ":limit": limit })?;
        while let Some(row) = rows.next()? {
            let bytes = |column| Ok::<_, Failure>(blob(row, column)?.ok_or(Corrupt("a column's type"))?.to_vec());
            let texts = [text(row, "service")?.to_owned(), text(row, "state")?.to_owned()];
            found.push(([bytes("id")?, bytes("token")?], texts, row.get("ttl_ms")?));
        }
    }
    for ([id, token], [service, before], ttl_ms) in &found {
        deny(db, now, id, token, (service, before), *ttl_ms)?;
    }
    db.prepare_cached(FORGET_DENIALS)?.execute([])?;
    found.iter().map(|([id, _], ..)| Ok(RecordId::from_stored(id).ok_or(Corrupt("id"))?)).collect()
}
