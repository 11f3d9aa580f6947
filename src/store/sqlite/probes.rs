//! The statements for probing the service about unknown keys.

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::deliveries::delete_request;
use super::statements::{blob, in_savepoint, no_later_than, text};
use super::writer::SqliteFailure;
use crate::domain::ids::RecordId;
use crate::domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use crate::domain::response::CorruptRow;
use crate::machine::random_u32;
use crate::store::row::{SubjectColumns, VerdictColumns, count, millis};
use crate::store::{ClaimProbesParams, ListSettledKeysParams};

const CLAIM_PROBES: &str = include_str!("sql/claim_probes.sql");
const LIST_SETTLED_KEYS: &str = include_str!("sql/list_settled_keys.sql");
const APPLY_PROBE_FINDING: &str = include_str!("sql/apply_probe_finding.sql");
const AUDIT_RESOLUTION: &str = include_str!("sql/audit_resolution.sql");

/// Route by route, until there are as many as wanted.
pub(super) fn claim_probes(
    db: &Connection,
    now: i64,
    ClaimProbesParams { service, schedules, limit, as_of }: &ClaimProbesParams,
) -> Result<Vec<Probe>, SqliteFailure> {
    let mut probes = Vec::new();
    for schedule in schedules {
        let left = i64::from(*limit) - probes.len() as i64;
        let mut statement = db.prepare_cached(CLAIM_PROBES)?;
        let mut rows = statement.query(named_params! {
            ":service": &**service,
            ":route": &*schedule.route,
            ":quiet_after_ms": millis(schedule.quiet_after),
            ":pause_first_ms": millis(schedule.pause_first),
            ":pause_cap_ms": millis(schedule.pause_cap),
            ":limit": left,
            ":as_of": no_later_than(now, *as_of),
            ":now": now,
            ":spread": i64::from(random_u32().unwrap_or_default()),
        })?;
        while let Some(row) = rows.next()? {
            let (number, absences) = (count(row.get("probes")?)?, count(row.get("absences")?)?);
            probes.push(Probe { subject: read_subject(row)?.decode()?, number, absences });
        }
    }
    Ok(probes)
}

pub(super) fn resolve(db: &Connection, now: i64, finding: &ProbeFinding) -> Result<bool, SqliteFailure> {
    in_savepoint(db, |db| resolve_with_audit(db, now, finding))
}

fn resolve_with_audit(db: &Connection, now: i64, finding: &ProbeFinding) -> Result<bool, SqliteFailure> {
    let VerdictColumns { state, action, absences, ttl_ms, remember_ms, response } = (&finding.verdict).into();
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
    let resolved: Option<(String, String)> = db
        .prepare_cached(APPLY_PROBE_FINDING)?
        .query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((service, state)) = resolved.as_ref().filter(|_| state != "unknown") {
        db.prepare_cached(AUDIT_RESOLUTION)?.execute(named_params! {
            ":now": now,
            ":service": service,
            ":action": action,
            ":id": finding.id.as_bytes(),
            ":state": state,
            ":note": finding.note,
        })?;
    }
    if state == "completed" && resolved.is_some() {
        delete_request(db, finding.id)?;
    }
    Ok(resolved.is_some())
}

pub(super) fn list_settled_keys(
    db: &Connection,
    now: i64,
    ListSettledKeysParams { service, routes, since, after, limit }: &ListSettledKeysParams,
) -> Result<SettledKeyPage, SqliteFailure> {
    let mut statement = db.prepare_cached(LIST_SETTLED_KEYS)?;
    let mut rows = statement.query(named_params! {
        ":service": &**service,
        ":since_ms": millis(*since),
        ":after": after.as_ref().map_or(&[][..], |id| id.as_bytes().as_slice()),
        ":limit": limit,
        ":now": now,
    })?;
    let (mut page, mut read, mut last) = (SettledKeyPage::default(), 0, None);
    while let Some(row) = rows.next()? {
        read += 1;
        let about = read_subject(row)?;
        last = RecordId::from_stored(about.id);
        if row.get::<_, bool>("wanted")? && routes.iter().any(|route| **route == *about.route) {
            page.keys.push(about.settled(text(row, "state")?, row.get("status")?)?);
        }
    }
    if read == *limit {
        page.next = Some(last.ok_or(CorruptRow("id"))?);
    }
    Ok(page)
}

fn read_subject<'a>(row: &'a Row<'_>) -> Result<SubjectColumns<'a>, SqliteFailure> {
    Ok(SubjectColumns {
        id: blob(row, "id")?.ok_or(CorruptRow("id"))?,
        token: blob(row, "token")?.ok_or(CorruptRow("token"))?,
        scope: blob(row, "scope")?.ok_or(CorruptRow("scope"))?,
        key: blob(row, "key")?.ok_or(CorruptRow("key"))?,
        route: text(row, "route")?,
        path: blob(row, "path")?,
    })
}
