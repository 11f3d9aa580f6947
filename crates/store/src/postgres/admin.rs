//! The operators' side in PostgreSQL: decisions on the connection of upkeep, reads on one that they share with no
//! writes.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::durability::read_durably;
use super::failure::PgResult;
use super::rows::one;
use super::{PgTry, functions};
use crate::admin::{
    COUNTED_MAX, CurrentRow, DecisionResult, DecisionResults, KeyCounts, KeyPage, OperatorAction, RowCounts,
    SCAN_ROWS_MAX, Target,
};
use crate::columns::{self, Columns, columns};
use crate::row::RowReader;
use crate::statement::{shared, statements};
use crate::{ApplyOperatorDecisionParams, CountInstancesBehindParams, ListKeysParams};
use oncegate_domain::ids::RecordId;
use oncegate_domain::state::StateKind;

statements! { "sql/":
    LIST_KEYS_BY_LOOKUP = "list_keys_by_lookup";
}

impl PgTry<'_> {
    pub async fn list_keys(self, params: Arc<ListKeysParams>) -> PgResult<KeyPage> {
        let rows = self.run(params.statement(&LIST_KEYS_BY_LOOKUP), columns::key_list(&params)).await?;
        let mut page = KeyPage::default();
        rows.iter().try_for_each(|row| page.add(row, &params.filter, params.limit))?;
        Ok(page)
    }

    pub async fn count_keys(self, service: Arc<Arc<str>>) -> PgResult<KeyCounts> {
        let columns = columns! { service: &**service, limit: i64::from(COUNTED_MAX) };
        let unsettled = self.run(&shared::COUNT_UNSETTLED_KEYS, columns).await?;
        let columns = columns! { service: &**service, scan_limit: i64::from(SCAN_ROWS_MAX) };
        let settled = self.run(&shared::COUNT_SETTLED_KEYS, columns).await?;
        let mut counts = RowCounts::default();
        unsettled.iter().try_for_each(|row| counts.add_unsettled(row))?;
        settled.iter().try_for_each(|row| counts.add_settled(row))?;
        Ok(counts.into())
    }

    pub async fn count_instances_behind(self, params: Arc<CountInstancesBehindParams>) -> PgResult<u64> {
        let purges = i64::try_from(params.purges).unwrap_or(i64::MAX);
        let columns = columns! { service: &*params.service, purges: purges };
        Ok(one(&self.run(&shared::COUNT_INSTANCES_BEHIND, columns).await?)?.read("behind")?)
    }

    pub async fn apply_operator_decision(self, params: Arc<ApplyOperatorDecisionParams>) -> PgResult<DecisionResults> {
        let ApplyOperatorDecisionParams { decision, targets, as_of, .. } = &*params;
        let allowed: Vec<&Target> = targets.iter().filter(|target| decision.is_allowed(target)).collect();
        let decided = match decision.change {
            OperatorAction::Propose(_) => {
                self.call_each(&functions::PROPOSE, &allowed, |target| columns::decision(&params, target)).await
            }
            OperatorAction::Redact => {
                self.call_each(&functions::REDACT, &allowed, |target| {
                    columns! { ..columns::decision(&params, target), ..columns::redacted() }
                })
                .await
            }
            _ => {
                self.call_each(&functions::DECIDE, &allowed, |target| {
                    columns! { as_of: *as_of, ..columns::decision(&params, target), ..columns::decided(&params, target) }
                })
                .await
            }
        };
        let mut results = DecisionResults::default();
        let mut done: Vec<RecordId> = Vec::new();
        for (target, row) in decided? {
            done.push(target.id);
            results.purges = row.read::<Option<u64>>("purges")?.or(results.purges);
            if row.read("queued")? {
                results.queued.push(target.id);
            }
        }
        let missed: Vec<RecordId> = allowed.iter().map(|target| target.id).filter(|id| !done.contains(id)).collect();
        let current_rows = self.find_current_rows(&params, &missed).await?;
        let verdict = |target: &Target| match current_rows.iter().find(|row| row.id == target.id) {
            _ if !decision.is_allowed(target) => DecisionResult::Unfit,
            _ if done.contains(&target.id) => DecisionResult::Done,
            Some(row) => row.verdict(target, decision, self.in_doubt),
            None => DecisionResult::Gone,
        };
        results.verdicts = targets.iter().map(verdict).collect();
        if results.purges.is_none()
            && decision.change.withdraws_response()
            && results.verdicts.contains(&DecisionResult::Done)
        {
            // The answer of the try that withdrew them was lost. The count then was at most the count now.
            let rows = self.run(&shared::PURGE_COUNT, Columns::new()).await?;
            results.purges = rows.first().map(|row| row.read("purges")).transpose()?;
        }
        let found_queued = |row: &&CurrentRow| row.current.is_some_and(|(_, state)| state == StateKind::Queued);
        results.queued.extend(current_rows.iter().filter(found_queued).map(|row| row.id));
        Ok(results)
    }

    /// Reads what the rows are instead, and returns it once it is as durable as a decision.
    async fn find_current_rows(
        self,
        params: &ApplyOperatorDecisionParams,
        ids: &[RecordId],
    ) -> PgResult<Vec<CurrentRow>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let read = self.on_connection(async |client| {
            let read = async |id: &RecordId| {
                Ok((*id, client.run(&shared::CURRENT_ROW, &columns! { id: id, service: &*params.service }).await?))
            };
            read_durably(client, ids, try_join_all(ids.iter().map(read))).await
        });
        read.await?.iter().map(|(id, rows)| Ok(CurrentRow::read(one(rows)?, *id)?)).collect()
    }
}
