//! The calls of requests, upkeep and inquiries.

use std::sync::Arc;

use rusqlite::Row;

use super::transaction::{SqliteResult, SqliteTransaction, sql};
use crate::columns::{self, columns};
use crate::params::*;
use crate::results::*;
use crate::row::add_to_page;
use crate::row::{FoundRecord, FromRow, RowReader, fresh, inquiry, millis};
use crate::statement::shared;
use oncegate_domain::attempt::{ReserveRequest, ReserveResult, Settlement};
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::inquiry::{Inquiry, InquiryFinding, SettledKeyPage};
use oncegate_domain::record::Record;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::state::StateKind;
use oncegate_machine::random_u32;

impl SqliteTransaction<'_> {
    pub fn reserve(&self, request: ReserveRequest) -> SqliteResult<ReserveResult> {
        let columns = columns! { time_limit_ms: millis(request.time_limit), ..columns::reservation(&request) };
        if self.execute(sql!("reserve"), &columns)? == 1 {
            drop(columns);
            return Ok(fresh(Arc::new(request), 1, None));
        }
        Ok(ReserveResult::Taken(self.find_taken(request.id)?))
    }

    pub fn take_over(&self, TakeOverParams { request, from }: TakeOverParams) -> SqliteResult<ReserveResult> {
        let columns = columns! {
            time_limit_ms: millis(request.time_limit),
            ..columns::next_attempt(&request),
            ..columns::seen(Some(&from)),
        };
        let read = |row: &Row<'_>| Ok((row.read("attempt")?, row.read("recovery_point")?));
        let taken = self.query_one(sql!("take_over"), &columns, read)?;
        drop(columns);
        let result = match taken {
            Some((attempt, reached)) => fresh(Arc::new(request), attempt, reached),
            None => match self.find(request.id)? {
                Some(record) => return Ok(ReserveResult::Taken(record)),
                None => self.reserve(request)?,
            },
        };
        Ok(result.taken_over_from((&from).into()))
    }

    pub fn settle(&self, settlement: Settlement) -> SqliteResult<SettleResult> {
        let due_ms = settlement.retry_in.map(millis);
        let columns = columns! {
            id: &settlement.id,
            token: &settlement.token,
            due_ms: due_ms,
            ..columns::outcome(&settlement.outcome),
        };
        if settlement.outcome.forgets_key() && self.execute(sql!("forget"), &columns)? == 1 {
            return Ok(SettleResult::Done { expires_at: None });
        }
        if let Some(expires_at) = self.query_one(sql!("settle"), &columns, |row| row.read("expires_at"))? {
            return Ok(SettleResult::Done { expires_at });
        }
        let found = self.find(settlement.id)?;
        match settlement.lease_to_restore() {
            // Over the row that its lost takeover had replaced. Nobody else writes, so no other row can be in the way.
            Some(lost) if settlement.is_lost_from(found.as_ref()) => {
                let columns = columns::restored(lost, &settlement);
                let expires_at = self.query_one(sql!("restore"), &columns, |row| row.read("expires_at"))?;
                Ok(SettleResult::Done { expires_at: expires_at.ok_or(CorruptRow("the index of keys"))? })
            }
            _ => Ok(SettleResult::Fenced(found)),
        }
    }

    pub fn count_live_keys(&self, params: CountLiveKeysParams) -> SqliteResult<u32> {
        let columns = columns! { holder: &params.holder, limit: i64::from(params.limit) };
        Ok(self.query_one(sql!("count_live_keys"), &columns, |row| row.read("count"))?.unwrap_or(0))
    }

    pub fn move_live_keys(&self, params: MoveLiveKeysParams) -> SqliteResult<u32> {
        let columns = columns! { id: &params.id, scope: &params.scope, holder: &params.holder };
        Ok(u32::try_from(self.execute(sql!("move_live_keys"), &columns)?).unwrap_or(u32::MAX))
    }

    pub fn find(&self, id: RecordId) -> SqliteResult<Option<Record>> {
        self.query_one(sql!("find"), &columns! { id: &id }, |row| Ok(FoundRecord::read(row, self.now)?.record))
    }

    /// Finds the record of a key that is taken. Nobody else writes: it still exists, or the file is inconsistent.
    pub fn find_taken(&self, id: RecordId) -> SqliteResult<Record> {
        Ok(self.find(id)?.ok_or(CorruptRow("the index of keys"))?)
    }

    pub fn renew_lease(&self, renewal: LeaseRenewal) -> SqliteResult<RenewResult> {
        let columns = columns::lease_renewal(&renewal);
        if renewal.hold_ttls_until.is_some() {
            self.execute(sql!("hold_ttls"), &columns)?;
        }
        let renewed = self.query_one(sql!("renew_lease"), &columns, |row| RenewResult::read(row))?;
        Ok(renewed.ok_or(CorruptRow("the lease"))?)
    }

    pub fn release_lease(&self, instance: InstanceId) -> SqliteResult<()> {
        self.execute(sql!("release_lease"), &columns! { id: instance }).map(drop)
    }

    pub fn sweep(&self, params: SweepParams) -> SqliteResult<Vec<SweptKey>> {
        let columns = columns! {
            expiry_ms: millis(params.expiry),
            limit: i64::from(params.limit),
            as_of: self.no_later_than(params.as_of),
            estimate: params.as_of,
        };
        self.query(sql!("sweep"), &columns, |row| SweptKey::read(row))
    }

    /// Makes all keys in flight unknown, and ends all leases. To be called at opening: this process alone has the file,
    /// so no attempt is running.
    pub fn mark_interrupted_unknown(&self) -> SqliteResult<Vec<SweptKey>> {
        self.db.execute("delete from instances", [])?;
        self.query(sql!("mark_interrupted_unknown"), &vec![], |row| SweptKey::read(row))
    }

    pub fn list_in_flight(&self, params: ListInFlightParams) -> SqliteResult<Vec<ReservedAttempt>> {
        let columns = columns! { instance: params.instance, older_than_ms: millis(params.older_than) };
        self.query(&shared::LIST_IN_FLIGHT, &columns, |row| ReservedAttempt::read(row))
    }

    pub fn extend_deadline(
        &self,
        ExtendDeadlineParams { id, token, time_limit }: ExtendDeadlineParams,
    ) -> SqliteResult<bool> {
        let columns = columns! { id: &id, token: &token, time_limit_ms: millis(time_limit) };
        Ok(self.execute(sql!("extend_deadline"), &columns)? == 1)
    }

    pub fn reap(&self, ReapParams { limit, scope }: ReapParams) -> SqliteResult<ReapedRows> {
        let columns = columns! {
            limit: i64::from(limit),
            as_of: self.no_later_than(scope.as_of),
            settled_since: scope.settled_since,
        };
        self.execute(sql!("delete_expired_requests"), &columns)?;
        Ok(ReapedRows {
            responses_dropped: self.execute(sql!("expire_responses"), &columns)? as u64,
            deleted: self.execute(sql!("reap"), &columns)? as u64,
        })
    }

    pub fn add_weekly_counts(&self, params: AddWeeklyCountsParams) -> SqliteResult<()> {
        let columns = columns::weekly_counts(&params);
        self.in_savepoint(|| match self.execute(sql!("note_weekly_batch"), &columns)? {
            0 => Ok(()),
            _ => self.execute(sql!("add_weekly_counts"), &columns).map(drop),
        })
    }

    pub fn tend_weekly_counts(&self, params: TendWeeklyCountsParams) -> SqliteResult<()> {
        let (columns, folding) =
            (columns::tended_counts(&params), [sql!("fold_callers"), sql!("delete_folded_callers")]);
        self.in_savepoint(|| {
            for statement in [&shared::DELETE_OLD_WEEKS, &shared::DELETE_OLD_BATCHES].into_iter().chain(folding) {
                self.execute(statement, &columns)?;
            }
            Ok(())
        })
    }

    pub fn forget_caller(&self, params: ForgetCallerParams) -> SqliteResult<()> {
        self.execute(&shared::FORGET_CALLER, &columns::forgotten_caller(&params)).map(drop)
    }

    /// Route by route, until there are as many as wanted.
    pub fn claim_inquiries(&self, params: ClaimInquiriesParams) -> SqliteResult<Vec<Inquiry>> {
        let mut inquiries = Vec::new();
        for schedule in &params.schedules {
            let columns = columns! {
                service: &*params.service,
                route: &*schedule.route,
                quiet_after_ms: millis(schedule.quiet_after),
                pause_first_ms: millis(schedule.pause_first),
                pause_cap_ms: millis(schedule.pause_cap),
                limit: i64::from(params.limit) - inquiries.len() as i64,
                as_of: self.no_later_than(params.as_of),
                spread: i64::from(random_u32().unwrap_or_default()),
            };
            inquiries.extend(self.query(sql!("claim_inquiries"), &columns, |row| inquiry(row))?);
        }
        Ok(inquiries)
    }

    pub fn apply_inquiry_finding(&self, finding: InquiryFinding) -> SqliteResult<bool> {
        self.in_savepoint(|| {
            let mut columns = columns::finding(&finding);
            let read = |row: &Row<'_>| Ok((row.read::<String>("service")?, row.read::<StateKind>("state")?));
            let Some((service, after)) = self.query_one(sql!("apply_inquiry_finding"), &columns, read)? else {
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
            add_to_page(&mut page, row, read, &params.routes, params.limit)
        })?;
        Ok(page)
    }

    /// An answer proves that the writer neither hangs nor has failed; the heartbeat tests writing often enough.
    pub fn ping(&self) -> SqliteResult<()> {
        Ok(())
    }

    pub fn remember_route_identities(&self, params: RememberRouteIdentitiesParams) -> SqliteResult<Option<i64>> {
        let RememberRouteIdentitiesParams { service, from, finds } = &params;
        let columns = columns! { service: &**service, generation: *from, finds: finds.as_str() };
        self.query_one(&shared::REMEMBER_ROUTE_IDENTITIES, &columns, |row| row.read("generation"))
    }

    pub fn find_salt(&self, service: Arc<str>) -> SqliteResult<Option<Vec<u8>>> {
        self.query_one(sql!("find_salt"), &columns! { service: &*service }, |row| row.read("value"))
    }

    /// Overwrites the salt's earlier form in the file: no free space may show a salt that was in clear. The file itself
    /// changes with the next checkpoint, when the store is closed at the latest.
    pub fn replace_salt(&self, ReplaceSaltParams { service, from, to }: ReplaceSaltParams) -> SqliteResult<bool> {
        let secure_delete = |setting| self.db.query_row(&format!("pragma secure_delete = {setting}"), [], |_| Ok(()));
        secure_delete("on")?;
        let replaced = self.execute(sql!("replace_salt"), &columns! { service: &*service, from: from, to: to });
        secure_delete("off")?;
        Ok(replaced? > 0)
    }
}
