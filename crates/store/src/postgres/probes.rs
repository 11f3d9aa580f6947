//! The calls for probing the service about unknown keys.

use std::sync::Arc;

use super::failure::PgResult;
use super::{PgCall, functions};
use crate::columns::{self, columns};
use crate::row::add_to_page;
use crate::row::{RowReader, millis, probe};
use crate::statement::{shared, statements};
use crate::{ClaimProbesParams, ListSettledKeysParams};
use oncegate_domain::ids::{RecordId, Token};
use oncegate_domain::probe::{Probe, ProbeFinding, SettledKeyPage};

statements! { "sql/":
    // A statement that upkeep repeats has an index of its own. See docs/decisions/0014-index-what-upkeep-asks.md.
    DUE_PROBES = "due_probes";
}

impl PgCall<'_> {
    pub async fn claim_probes(self, params: Arc<ClaimProbesParams>) -> PgResult<Vec<Probe>> {
        let mut due = Vec::new();
        for schedule in &params.schedules {
            let columns = columns! {
                service: &*params.service,
                route: &*schedule.route,
                quiet_after_ms: millis(schedule.quiet_after),
                as_of: params.as_of,
                limit: i64::from(params.limit),
            };
            for row in self.run(&DUE_PROBES, columns).await? {
                due.push((schedule, row.read::<RecordId>("id")?, row.read::<Token>("token")?));
            }
        }
        due.truncate(params.limit as usize);
        let claimed = self.call_each(&functions::CLAIM_PROBE, &due, |(schedule, id, token)| {
            columns! {
                id: id,
                token: token,
                as_of: params.as_of,
                quiet_after_ms: millis(schedule.quiet_after),
                pause_first_ms: millis(schedule.pause_first),
                pause_cap_ms: millis(schedule.pause_cap),
            }
        });
        claimed.await?.iter().map(|(_, row)| Ok(probe(row)?)).collect()
    }

    pub async fn apply_probe_finding(self, finding: Arc<ProbeFinding>) -> PgResult<bool> {
        Ok(self.call(&functions::APPLY_PROBE_FINDING, columns::finding(&finding)).await?.is_some())
    }

    pub async fn list_settled_keys(self, params: Arc<ListSettledKeysParams>) -> PgResult<SettledKeyPage> {
        let rows = self.run_bounded(&shared::LIST_SETTLED_KEYS, columns::settled_keys(&params)).await?;
        let mut page = SettledKeyPage::default();
        for (row, read) in rows.iter().zip(1..) {
            add_to_page(&mut page, row, read, &params.routes, params.limit)?;
        }
        Ok(page)
    }
}
