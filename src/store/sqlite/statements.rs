//! The statements, inside a transaction that somebody else begins and commits.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::writer::Failure;
use crate::domain::attempt::{Ending, InstanceId, Lease, Settlement, Token};
use crate::domain::record::{Ask, RecordId, Reservation};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::Corrupt;
use crate::store::row::{self, Found, Terms, accepted_ms, millis, state_after};
use crate::store::{Renewal, Renewed, Rule, Seen, Settled, Swept};

const EXPIRE: &str = include_str!("sql/expire.sql");
const FIND: &str = include_str!("sql/find.sql");
const ORPHANS: &str = include_str!("sql/orphans.sql");
const REAP: &str = include_str!("sql/reap.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const RESERVE: &str = include_str!("sql/reserve.sql");
const RESTORE: &str = include_str!("sql/restore.sql");
const RETIRE: &str = include_str!("sql/retire.sql");
const RULE: &str = include_str!("sql/rule.sql");
const RULES: &str = include_str!("sql/rules.sql");
const SETTLE: &str = include_str!("sql/settle.sql");
const SHRED_ORPHANS: &str = include_str!("sql/shred_orphans.sql");
const SHRED_REAPED: &str = include_str!("sql/shred_reaped.sql");
const STANDING: &str = include_str!("sql/standing.sql");
const SWEEP: &str = include_str!("sql/sweep.sql");
const TAKE_OVER: &str = include_str!("sql/take_over.sql");

pub(super) fn reserve(db: &Connection, now: i64, ask: &Arc<Ask>) -> Result<Reservation, Failure> {
    let reserved = db.prepare_cached(RESERVE)?.execute(named_params! {
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
        ":time_limit_ms": millis(ask.time_limit),
        ":now": now,
    })?;
    if reserved == 1 {
        return Ok(fresh(ask, 1, None));
    }
    // Nobody else writes: what was in the way is still there, or the file contradicts itself.
    let found = find(db, now, ask.id)?.ok_or(Corrupt("the index of keys"))?;
    Ok(Reservation::Taken(found.record))
}

pub(super) fn take_over(db: &Connection, now: i64, ask: &Arc<Ask>, from: Seen) -> Result<Reservation, Failure> {
    let parameters = named_params! {
        ":id": ask.id.as_bytes(),
        ":path": ask.path.as_deref(),
        ":route": &*ask.route,
        ":recipe": ask.recipe.to_stored(),
        ":fingerprint": ask.fingerprint.as_bytes(),
        ":instance": ask.instance.get(),
        ":token": ask.token.as_bytes(),
        ":time_limit_ms": millis(ask.time_limit),
        ":seen_token": from.token.as_bytes(),
        ":seen_state": from.state,
        ":past_ttl": from.past_ttl,
        ":now": now,
    };
    let taken: Option<(i64, Option<String>)> =
        db.prepare_cached(TAKE_OVER)?.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some((attempt, reached)) = taken {
        return Ok(fresh(ask, row::attempt(attempt)?, row::recovery_point(reached.as_deref())?));
    }
    match find(db, now, ask.id)? {
        Some(found) => Ok(Reservation::Taken(found.record)),
        None => reserve(db, now, ask),
    }
}

pub(super) fn settle(db: &Connection, now: i64, settlement: &Settlement) -> Result<Settled, Failure> {
    let terms = Terms::of(&settlement.ending);
    let parameters = named_params! {
        ":id": settlement.id.as_bytes(),
        ":token": settlement.token.as_bytes(),
        ":state": state_after(&settlement.ending),
        ":ttl_ms": terms.ttl_ms,
        ":due_ms": settlement.again.map(millis),
        ":remember_ms": terms.remember_ms,
        ":status": terms.status,
        ":fields": terms.fields,
        ":body": terms.body,
        ":now": now,
    };
    let expires_at_ms: Option<Option<i64>> =
        db.prepare_cached(SETTLE)?.query_row(parameters, |row| row.get(0)).optional()?;
    if let Some(expires_at_ms) = expires_at_ms {
        return Ok(Settled::Done { expires_at: expires_at_ms.map(row::time).transpose()? });
    }
    match (find(db, now, settlement.id)?, settlement.to_restore()) {
        (None, Some(lost)) => restore(db, now, lost, &settlement.ending),
        (found, _) => Ok(Settled::Fenced(found.map(|found| found.record))),
    }
}

/// The whole row of an ended attempt. Nobody else writes, so nobody can be faster.
fn restore(db: &Connection, now: i64, lost: &Lease, ending: &Ending) -> Result<Settled, Failure> {
    let (ask, terms) = (&lost.ask, Terms::of(ending));
    let parameters = named_params! {
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
        ":time_limit_ms": millis(ask.time_limit),
        ":attempt": lost.attempt,
        ":accepted_at": accepted_ms(lost),
        ":state": state_after(ending),
        ":ttl_ms": terms.ttl_ms,
        ":remember_ms": terms.remember_ms,
        ":status": terms.status,
        ":fields": terms.fields,
        ":body": terms.body,
        ":now": now,
    };
    let expires_at_ms: Option<i64> = db.prepare_cached(RESTORE)?.query_row(parameters, |row| row.get(0))?;
    Ok(Settled::Done { expires_at: expires_at_ms.map(row::time).transpose()? })
}

pub(super) fn find(db: &Connection, now: i64, id: RecordId) -> Result<Option<Found>, Failure> {
    let mut statement = db.prepare_cached(FIND)?;
    let mut rows = statement.query(named_params! { ":id": id.as_bytes(), ":now": now })?;
    match rows.next()? {
        Some(row) => Ok(Some(read(row)?.decode()?)),
        None => Ok(None),
    }
}

fn read<'a>(row: &'a Row<'_>) -> Result<row::Row<'a>, Failure> {
    Ok(row::Row {
        id: blob(row, "id")?.ok_or(Corrupt("id"))?,
        attempt: row.get("attempt")?,
        token: blob(row, "token")?.ok_or(Corrupt("token"))?,
        recipe: text(row, "recipe")?,
        fingerprint: blob(row, "fingerprint")?.ok_or(Corrupt("fingerprint"))?,
        state: text(row, "state")?,
        running_ms: row.get("running_ms")?,
        deadline_in_ms: row.get("deadline_in_ms")?,
        past_ttl: row.get("past_ttl")?,
        late: row.get("late")?,
        recovery_point: optional_text(row, "recovery_point")?,
        expires_at_ms: row.get("expires_at_ms")?,
        accepted_at_ms: row.get("accepted_at_ms")?,
        status: row.get("status")?,
        fields: blob(row, "fields")?,
        body: blob(row, "body")?.map(bytes::Bytes::copy_from_slice),
    })
}

pub(super) fn blob<'a>(row: &'a Row<'_>, column: &str) -> Result<Option<&'a [u8]>, Failure> {
    row.get_ref(column)?.as_blob_or_null().map_err(|_| Corrupt("a column's type").into())
}

pub(super) fn optional_text<'a>(row: &'a Row<'_>, column: &str) -> Result<Option<&'a str>, Failure> {
    row.get_ref(column)?.as_str_or_null().map_err(|_| Corrupt("a column's type").into())
}

pub(super) fn text<'a>(row: &'a Row<'_>, column: &str) -> Result<&'a str, Failure> {
    row.get_ref(column)?.as_str().map_err(|_| Corrupt("a column's type").into())
}

pub(super) fn renew(db: &Connection, now: i64, renewal: &Renewal) -> Result<Renewed, Failure> {
    let parameters = named_params! {
        ":instance": renewal.instance.get(),
        ":service": &*renewal.service,
        ":expiry_ms": millis(renewal.expiry),
        ":purges_seen": renewal.purges_seen.map(|seen| i64::try_from(seen).unwrap_or(i64::MAX)),
        ":now": now,
    };
    let purges: i64 = db.prepare_cached(RENEW)?.query_row(parameters, |row| row.get(0))?;
    Ok(Renewed { now: row::time(now)?, purges: purges.unsigned_abs() })
}

pub(super) fn retire(db: &Connection, instance: InstanceId) -> Result<(), Failure> {
    db.prepare_cached(RETIRE)?.execute(named_params! { ":instance": instance.get() })?;
    Ok(())
}

pub(super) fn sweep(db: &Connection, now: i64, expiry_ms: i64, limit: u32) -> Result<Vec<Swept>, Failure> {
    let mut statement = db.prepare_cached(SWEEP)?;
    let rows = statement.query(named_params! { ":expiry_ms": expiry_ms, ":limit": limit, ":now": now })?;
    swept(rows)
}

/// Whoever has just opened the file is alone with it: nothing of what is in flight is running, and no lease is held.
pub(super) fn orphans(db: &Connection, now: i64) -> Result<Vec<Swept>, Failure> {
    let transaction = db.unchecked_transaction()?;
    db.execute("delete from instances", [])?;
    let orphans = swept(db.prepare(ORPHANS)?.query(named_params! { ":now": now })?)?;
    transaction.commit()?;
    Ok(orphans)
}

fn swept(mut rows: rusqlite::Rows<'_>) -> Result<Vec<Swept>, Failure> {
    let mut swept = Vec::new();
    while let Some(row) = rows.next()? {
        swept.push(Swept {
            id: blob(row, "id")?.and_then(RecordId::from_stored).ok_or(Corrupt("id"))?,
            route: row.get("route")?,
            attempt: row::attempt(row.get("attempt")?)?,
            instance: InstanceId::from_stored(row.get("instance")?),
        });
    }
    Ok(swept)
}

pub(super) fn standing(
    db: &Connection,
    now: i64,
    instance: InstanceId,
    older_than_ms: i64,
) -> Result<Vec<(RecordId, Token)>, Failure> {
    let mut statement = db.prepare_cached(STANDING)?;
    let parameters = named_params! { ":instance": instance.get(), ":older_than_ms": older_than_ms, ":now": now };
    let mut rows = statement.query(parameters)?;
    let mut standing = Vec::new();
    while let Some(row) = rows.next()? {
        let id = blob(row, "id")?.and_then(RecordId::from_stored).ok_or(Corrupt("id"))?;
        let token = blob(row, "token")?.and_then(Token::from_stored).ok_or(Corrupt("token"))?;
        standing.push((id, token));
    }
    Ok(standing)
}

pub(super) fn reap(db: &Connection, now: i64, limit: u32) -> Result<u64, Failure> {
    db.prepare_cached(SHRED_REAPED)?.execute(named_params! { ":limit": limit, ":now": now })?;
    db.prepare_cached(SHRED_ORPHANS)?.execute(named_params! { ":limit": limit })?;
    db.prepare_cached(EXPIRE)?.execute(named_params! { ":limit": limit, ":now": now })?;
    let reaped = db.prepare_cached(REAP)?.execute(named_params! { ":limit": limit, ":now": now })?;
    Ok(reaped as u64)
}

pub(super) fn rules(db: &Connection, service: &str, rules: &[Rule]) -> Result<Vec<Rule>, Failure> {
    let mut changed = Vec::new();
    for Rule { route, finds } in rules {
        let named = named_params! { ":service": service, ":route": &**route };
        let before: Option<String> = db.prepare_cached(RULE)?.query_row(named, |row| row.get(0)).optional()?;
        if before.as_ref() == Some(finds) {
            continue;
        }
        let written = named_params! { ":service": service, ":route": &**route, ":finds": finds };
        db.prepare_cached(RULES)?.execute(written)?;
        changed.extend(before.map(|finds| Rule { route: Arc::clone(route), finds }));
    }
    Ok(changed)
}

fn fresh(ask: &Arc<Ask>, attempt: u32, recovery_point: Option<RecoveryPoint>) -> Reservation {
    Reservation::Fresh(Lease { ask: Arc::clone(ask), attempt, recovery_point, delivery: None })
}
