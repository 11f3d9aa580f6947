//! The calls of probing the service about keys.

use rusqlite::Row;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::domain::probe::{Probe, ProbeFinding, SettledKeyPage};
use crate::domain::state::StateKind;
use crate::machine::random_u32;
use crate::store::columns::{self, columns};
use crate::store::probes::probe;
use crate::store::row::{RowReader, millis};
use crate::store::statement::{Statement, shared};
use crate::store::{ClaimProbesParams, ListSettledKeysParams};

impl SqliteTransaction<'_> {
    /// Route by route, until there are as many as wanted.
    pub fn claim_probes(&self, params: ClaimProbesParams) -> SqliteResult<Vec<Probe>> {
        let mut probes = Vec::new();
        for schedule in &params.schedules {
            let columns = columns! {
                service: &*params.service,
                route: &*schedule.route,
                quiet_after_ms: millis(schedule.quiet_after),
                pause_first_ms: millis(schedule.pause_first),
                pause_cap_ms: millis(schedule.pause_cap),
                limit: i64::from(params.limit) - probes.len() as i64,
                as_of: self.no_later_than(params.as_of),
                spread: i64::from(random_u32().unwrap_or_default()),
            };
            probes.extend(self.query(sql!("claim_probes"), &columns, |row| probe(row))?);
        }
        Ok(probes)
    }

    pub fn apply_probe_finding(&self, finding: ProbeFinding) -> SqliteResult<bool> {
        self.in_savepoint(|| {
            let mut columns = columns::finding(&finding);
            let read = |row: &Row<'_>| Ok((row.read::<String>("service")?, row.read::<StateKind>("state")?));
            let Some((service, after)) = self.query_one(sql!("apply_probe_finding"), &columns, read)? else {
                return Ok(false);
            };
            if after != StateKind::Unknown {
                let before = StateKind::Unknown;
                columns.extend(columns! { service: service, actor: "reconciler", before: before, after: after });
                self.audit(&columns)?;
            }
            if after == StateKind::Completed {
                self.delete_request(&finding.id)?;
            }
            Ok(true)
        })
    }

    pub fn list_settled_keys(&self, params: ListSettledKeysParams) -> SqliteResult<SettledKeyPage> {
        let (mut page, mut read) = (SettledKeyPage::default(), 0);
        self.query(&shared::LIST_SETTLED_KEYS, &columns::settled_keys(&params), |row| {
            read += 1;
            page.add(row, read, &params)
        })?;
        Ok(page)
    }
}
