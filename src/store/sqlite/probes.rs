//! The statements of those who ask the service what became of attempts.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::deliveries::shred;
use super::statements::{blob, text};
use super::writer::Failure;
use crate::domain::probe::{Finding, Page, Probe, Schedule};
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::store::row::{About, Resolved, count, millis};

const CLAIM: &str = include_str!("sql/claim.sql");
const PAGE: &str = include_str!("sql/page.sql");
const RESOLVE: &str = include_str!("sql/resolve.sql");
const RESOLVED: &str = include_str!("sql/resolved.sql");

/// Route by route, until there are as many as wanted.
pub(super) fn claim(
    db: &Connection,
    now: i64,
    service: &str,
    schedules: &[Schedule],
    limit: u32,
) -> Result<Vec<Probe>, Failure> {
    let mut probes = Vec::new();
    for schedule in schedules {
        let left = i64::from(limit) - probes.len() as i64;
        let mut statement = db.prepare_cached(CLAIM)?;
        let mut rows = statement.query(named_params! {
            ":service": service,
            ":route": &*schedule.route,
            ":quiet_after_ms": millis(schedule.quiet_after),
            ":pause_first_ms": millis(schedule.pause_first),
            ":pause_cap_ms": millis(schedule.pause_cap),
            ":limit": left,
            ":now": now,
        })?;
        while let Some(row) = rows.next()? {
            let (number, absences) = (count(row.get("probes")?)?, count(row.get("absences")?)?);
            probes.push(Probe { subject: about(row)?.decode()?, number, absences });
        }
    }
    Ok(probes)
}

pub(super) fn resolve(db: &Connection, now: i64, finding: &Finding) -> Result<bool, Failure> {
    // Two writing statements, of which none without the other.
    db.execute_batch("savepoint resolve")?;
    let resolved = resolve_both(db, now, finding);
    let ended = db.execute_batch(match resolved {
        Ok(_) => "release resolve",
        Err(_) => "rollback to resolve; release resolve",
    });
    // The first failure is the one to tell.
    let taken = resolved?;
    Ok(ended.map(|()| taken)?)
}

fn resolve_both(db: &Connection, now: i64, finding: &Finding) -> Result<bool, Failure> {
    let Resolved { state, action, absences, ttl_ms, remember_ms, response } = (&finding.verdict).into();
    let parameters = named_params! {
        ":id": finding.id.as_bytes(),
        ":token": finding.token.as_bytes(),
        ":probe": finding.probe,
        ":state": state,
        ":absences": absences,
        ":ttl_ms": ttl_ms,
        ":remember_ms": remember_ms,
        ":status": response.map(|response| response.status.as_u16()),
        ":fields": response.map(|response| response.encode_fields()),
        ":body": response.and_then(|response| response.body.as_deref()),
        ":now": now,
    };
    let resolved: Option<(String, String)> =
        db.prepare_cached(RESOLVE)?.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some((service, state)) = resolved.as_ref().filter(|_| state != "unknown") {
        db.prepare_cached(RESOLVED)?.execute(named_params! {
            ":now": now,
            ":service": service,
            ":action": action,
            ":id": finding.id.as_bytes(),
            ":state": state,
            ":note": finding.note,
        })?;
    }
    if state == "completed" && resolved.is_some() {
        shred(db, finding.id)?;
    }
    Ok(resolved.is_some())
}

pub(super) fn page(
    db: &Connection,
    now: i64,
    service: &str,
    routes: &[Arc<str>],
    since_ms: i64,
    after: Option<RecordId>,
    limit: u32,
) -> Result<Page, Failure> {
    let mut statement = db.prepare_cached(PAGE)?;
    let mut rows = statement.query(named_params! {
        ":service": service,
        ":since_ms": since_ms,
        ":after": after.as_ref().map_or(&[][..], |id| id.as_bytes().as_slice()),
        ":limit": limit,
        ":now": now,
    })?;
    let (mut page, mut read, mut last) = (Page::default(), 0, None);
    while let Some(row) = rows.next()? {
        read += 1;
        let about = about(row)?;
        last = RecordId::from_stored(about.id);
        if row.get::<_, bool>("wanted")? && routes.iter().any(|route| **route == *about.route) {
            page.keys.push(about.settled(text(row, "state")?, row.get("status")?)?);
        }
    }
    if read == limit {
        page.next = Some(last.ok_or(Corrupt("id"))?);
    }
    Ok(page)
}

fn about<'a>(row: &'a Row<'_>) -> Result<About<'a>, Failure> {
    Ok(About {
        id: blob(row, "id")?.ok_or(Corrupt("id"))?,
        token: blob(row, "token")?.ok_or(Corrupt("token"))?,
        scope: blob(row, "scope")?.ok_or(Corrupt("scope"))?,
        key: blob(row, "key")?.ok_or(Corrupt("key"))?,
        route: text(row, "route")?,
        path: blob(row, "path")?,
    })
}
