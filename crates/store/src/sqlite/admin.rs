//! The operators' calls.

use std::sync::Arc;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::admin::{
    COUNTED_MAX, CurrentRow, DecisionResult, DecisionResults, KeyCounts, KeyPage, OperatorAction, RowCounts,
    SCAN_ROWS_MAX, Target,
};
use crate::columns::{self, columns};
use crate::row::RowReader;
use crate::statement::shared;
use crate::{ApplyOperatorDecisionParams, CountInstancesBehindParams, ListKeysParams};
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::StateKind;

impl SqliteTransaction<'_> {
    pub fn list_keys(&self, params: ListKeysParams) -> SqliteResult<KeyPage> {
        let mut page = KeyPage::default();
        let statement = params.statement(sql!("list_keys_by_lookup"));
        self.query(statement, &columns::key_list(&params), |row| page.add(row, &params.filter, params.limit))?;
        Ok(page)
    }

    pub fn apply_operator_decision(&self, params: ApplyOperatorDecisionParams) -> SqliteResult<DecisionResults> {
        self.in_savepoint(|| {
            let mut decided = DecisionResults::default();
            for target in &params.targets {
                let (verdict, state) = self.decide_target(&params, target)?;
                decided.verdicts.push(verdict);
                if state == Some(StateKind::Queued) {
                    decided.queued.push(target.id);
                }
            }
            if params.decision.change.withdraws_response() && decided.verdicts.contains(&DecisionResult::Done) {
                decided.purges = self.query_one(sql!("increment_purge_count"), &vec![], |row| row.read("value"))?;
            }
            Ok(decided)
        })
    }

    /// Decides about one key. Returns the result, and the key's new state where it was changed.
    fn decide_target(
        &self,
        params: &ApplyOperatorDecisionParams,
        target: &Target,
    ) -> SqliteResult<(DecisionResult, Option<StateKind>)> {
        let ApplyOperatorDecisionParams { decision, as_of, .. } = params;
        if !decision.is_allowed(target) {
            return Ok((DecisionResult::Unfit, None));
        }
        let mut columns = columns::decision(params, target);
        if matches!(decision.change, OperatorAction::Propose(_)) && self.execute(sql!("propose"), &columns)? > 0 {
            return Ok((DecisionResult::Done, None));
        }
        let state = if matches!(decision.change, OperatorAction::Propose(_)) {
            None
        } else if matches!(decision.change, OperatorAction::Purge) {
            let is_purged = self.execute(sql!("purge"), &columns)? > 0;
            if is_purged {
                self.execute(sql!("forget_key_of_events"), &columns)?;
            }
            is_purged.then_some(None)
        } else if matches!(decision.change, OperatorAction::Redact) {
            let redacting = columns! { ..columns::decision(params, target), ..columns::redacted() };
            let state = self.query_one(sql!("redact"), &redacting, |row| row.read("state").map(Some))?;
            if state.is_some() {
                self.execute(sql!("forget_key_of_events"), &columns)?;
            }
            state
        } else {
            columns.extend(columns::decided(params, target));
            columns.extend(columns! { as_of: as_of.map_or(self.now, |as_of| self.no_later_than(as_of)) });
            let read = |row: &rusqlite::Row<'_>| row.read("state").map(Some);
            self.query_one(sql!("apply_operator_decision"), &columns, read)?
        };
        let Some(after) = state else {
            // Only one thread writes, and no answer is lost: the outcome is never in doubt.
            let read = |row: &rusqlite::Row<'_>| CurrentRow::read(row, target.id);
            let current = self.query_one(&shared::CURRENT_ROW, &columns, read)?.ok_or(CorruptRow("the current row"))?;
            return Ok((current.verdict(target, decision, false), None));
        };
        match after {
            Some(StateKind::Queued | StateKind::Unknown) => {
                self.execute(sql!("reset_retry_budget"), &columns)?;
            }
            _ => self.delete_request(&target.id)?,
        }
        columns.extend(columns! { before: target.state, after: after.map_or("none", StateKind::name) });
        self.audit(&columns)?;
        Ok((DecisionResult::Done, after))
    }

    pub fn count_instances_behind(&self, params: CountInstancesBehindParams) -> SqliteResult<u64> {
        let purges = i64::try_from(params.purges).unwrap_or(i64::MAX);
        let columns = columns! { service: &*params.service, purges: purges };
        Ok(self.query_one(&shared::COUNT_INSTANCES_BEHIND, &columns, |row| row.read("behind"))?.unwrap_or(0))
    }

    pub fn count_keys(&self, service: Arc<str>) -> SqliteResult<KeyCounts> {
        let (limit, scan_limit) = (i64::from(COUNTED_MAX), i64::from(SCAN_ROWS_MAX));
        let columns = columns! { service: &*service, limit: limit, scan_limit: scan_limit };
        let mut counts = RowCounts::default();
        self.query(&shared::COUNT_UNSETTLED_KEYS, &columns, |row| counts.add_unsettled(row))?;
        self.query(&shared::COUNT_SETTLED_KEYS, &columns, |row| counts.add_settled(row))?;
        Ok(counts.into())
    }
}
