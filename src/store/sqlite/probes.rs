//! The statements for probing the service about unknown keys.

use rusqlite::Connection;

use super::audit::{self, AuditLine};
use super::deliveries::delete_request;
use super::run::{in_savepoint, query, query_one};
use super::statements::no_later_than;
use super::writer::SqliteFailure;
use crate::domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use crate::domain::state::StateKind;
use crate::machine::random_u32;
use crate::store::columns::{self, columns};
use crate::store::probes::{action, probe};
use crate::store::row::{RowReader, millis};
use crate::store::statement::{shared, statements};
use crate::store::{ClaimProbesParams, ListSettledKeysParams};

statements! { "sql/":
    APPLY_PROBE_FINDING = "apply_probe_finding";
    CLAIM_PROBES = "claim_probes";
}

/// Route by route, until there are as many as wanted.
pub(super) fn claim_probes(
    db: &Connection,
    now: i64,
    ClaimProbesParams { service, schedules, limit, as_of }: &ClaimProbesParams,
) -> Result<Vec<Probe>, SqliteFailure> {
    let mut probes = Vec::new();
    for schedule in schedules {
        let columns = columns! {
            service: &**service,
            route: &*schedule.route,
            quiet_after_ms: millis(schedule.quiet_after),
            pause_first_ms: millis(schedule.pause_first),
            pause_cap_ms: millis(schedule.pause_cap),
            limit: i64::from(*limit) - probes.len() as i64,
            as_of: no_later_than(now, *as_of),
            now: now,
            spread: i64::from(random_u32().unwrap_or_default()),
        };
        probes.extend(query(db, &CLAIM_PROBES, &columns, |row| probe(row))?);
    }
    Ok(probes)
}

pub(super) fn apply_probe_finding(db: &Connection, now: i64, finding: &ProbeFinding) -> Result<bool, SqliteFailure> {
    in_savepoint(db, |db| {
        let mut columns = columns::finding(finding);
        columns.extend(columns! { now: now });
        let read = |row: &rusqlite::Row<'_>| Ok((row.read::<String>("service")?, row.read::<StateKind>("state")?));
        let Some((service, state)) = query_one(db, &APPLY_PROBE_FINDING, &columns, read)? else { return Ok(false) };
        if state != StateKind::Unknown {
            let line = AuditLine {
                service: &service,
                actor: "reconciler",
                action: action(&finding.verdict),
                id: &finding.id,
                before: StateKind::Unknown,
                after: state.name(),
                note: Some(&finding.note),
            };
            audit::insert(db, now, &line)?;
        }
        if state == StateKind::Completed {
            delete_request(db, finding.id)?;
        }
        Ok(true)
    })
}

pub(super) fn list_settled_keys(
    db: &Connection,
    now: i64,
    params: &ListSettledKeysParams,
) -> Result<SettledKeyPage, SqliteFailure> {
    let mut columns = columns::settled_keys(params);
    columns.extend(columns! { now: now });
    let (mut page, mut read) = (SettledKeyPage::default(), 0);
    query(db, &shared::LIST_SETTLED_KEYS, &columns, |row| {
        read += 1;
        page.add(row, read, params)
    })?;
    Ok(page)
}
