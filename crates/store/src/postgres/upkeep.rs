//! Upkeep: leases, salts, sweeping, reaping, inquiries and the like. It selects ids without locks, and then acts on
//! each by a function whose conditions repeat what made it eligible; the reaper acts on many at once.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::Parameter;
use super::durability::wait_on;
use super::failure::{PgFailure, PgResult};
use super::horizons::RowWriter;
use super::lookups::{MOMENT, at_moment};
use super::rows::one;
use super::{PgTry, functions};
use crate::columns::{self, columns};
use crate::params::*;
use crate::results::*;
use crate::row::{FromRow, RowReader, add_to_page, inquiry, millis, since_1970_ms};
use crate::statement::{shared, statements};
use oncegate_domain::ids::{InstanceId, RecordId, Token};
use oncegate_domain::inquiry::{Inquiry, InquiryFinding, SettledKeyPage};
use oncegate_domain::response::CorruptRow;

statements! { "sql/":
    ADD_WEEKLY_COUNTS = "add_weekly_counts";
    CRASHED_KEYS = "crashed_keys";
    DELETE_OLD_INSTANCES = "delete_old_instances";
    // A statement that upkeep repeats has an index of its own. See docs/decisions/0014-index-what-upkeep-asks.md.
    DUE_INQUIRIES = "due_inquiries";
    EXPIRED_KEYS = "expired_keys";
    FIND_SALT = "find_salt";
    FOLD_CALLERS = "fold_callers";
    INSERT_SALT = "insert_salt";
    RELEASE_LEASE = "release_lease";
    REPLACE_SALT = "replace_salt";
}

impl PgTry<'_> {
    pub async fn renew_lease(self, renewal: Arc<LeaseRenewal>) -> PgResult<RenewResult> {
        let row = self.call(&functions::RENEW_LEASE, columns::lease_renewal(&renewal)).await?;
        Ok(RenewResult::read(one(row.as_slice())?)?)
    }

    pub async fn release_lease(self, instance: Arc<InstanceId>) -> PgResult<()> {
        self.write(&RELEASE_LEASE, columns! { instance: *instance }).await.map(drop)
    }

    pub async fn sweep(self, params: Arc<SweepParams>) -> PgResult<Vec<SweptKey>> {
        let (expiry_ms, as_of) = (millis(params.expiry), params.as_of);
        let columns = columns! { expiry_ms: expiry_ms, as_of: as_of, limit: i64::from(params.limit) };
        let rows = self.run(&CRASHED_KEYS, columns).await?;
        let read = |row: &Row| Ok::<_, CorruptRow>((row.read::<Token>("token")?, SweptKey::read(row)?));
        let crashed = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let marked = self.call_each(&functions::MARK_CRASHED, &crashed, |(token, key)| {
            columns! { id: &key.id, token: token, instance: key.instance, expiry_ms: expiry_ms, as_of: as_of }
        });
        Ok(marked.await?.into_iter().map(|((_, key), _)| key.clone()).collect())
    }

    pub async fn list_in_flight(self, params: Arc<ListInFlightParams>) -> PgResult<Vec<ReservedAttempt>> {
        let columns = columns! { instance: params.instance, older_than_ms: millis(params.older_than) };
        let values = super::client::parameters(shared::LIST_IN_FLIGHT.parameters(&columns));
        let sql = shared::LIST_IN_FLIGHT.for_postgres();
        let (_, rows) = self.on_connection(async |client| at_moment(client, sql, &values).await).await?;
        rows.iter().map(|row| Ok(ReservedAttempt::read(row)?)).collect()
    }

    pub async fn reap(self, params: Arc<ReapParams>) -> PgResult<ReapedRows> {
        let ReapParams { limit, scope } = &*params;
        self.run(&DELETE_OLD_INSTANCES, columns! { as_of: scope.as_of }).await?;
        let columns = columns! { as_of: scope.as_of, settled_since: scope.settled_since, limit: i64::from(*limit) };
        let rows = self.run(&EXPIRED_KEYS, columns).await?;
        let mut ids: Vec<RecordId> = Vec::new();
        for row in &rows {
            if row.read("fits")? {
                ids.push(row.read("id")?);
            }
        }
        if ids.is_empty() {
            return Ok(ReapedRows::default());
        }
        let call = functions::REAP.call_named(["id", "as_of", "settled_since"]);
        let mut reaped = ReapedRows::default();
        let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
        let mut parts = vec![&ids[..]];
        while let Some(part) = parts.pop() {
            let parameters: [Parameter<'_>; 3] = [
                (/* id */ &part, Type::BYTEA_ARRAY),
                (/* as_of */ &since_1970_ms(scope.as_of), Type::INT8),
                (/* settled_since */ &since_1970_ms(scope.settled_since), Type::INT8),
            ];
            match self.on_connection(async |client| client.query_typed(&call, &parameters).await).await {
                Ok(rows) => {
                    let part = ReapedRows::read(one(&rows)?)?;
                    reaped.deleted += part.deleted;
                    reaped.responses_dropped += part.responses_dropped;
                }
                // Another transaction has locked one of them: the others go without it.
                Err(PgFailure::Held(_)) => {
                    parts.extend(part.chunks(part.len().div_ceil(2)).filter(|half| half.len() < part.len()))
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(reaped)
    }

    pub async fn ping(self) -> PgResult<()> {
        self.on_connection(async |client| client.query_typed(MOMENT, &[]).await).await.map(drop)
    }

    pub async fn find_salt(self, service: Arc<Arc<str>>) -> PgResult<Option<Vec<u8>>> {
        let read = self.on_connection(async |client| {
            loop {
                let rows = client.run(&FIND_SALT, &columns! { service: &**service }).await?;
                let writer = rows.first().map(RowWriter::read).transpose();
                // All ids are made with it: with another one after a failover, each key would be executed again. A row
                // that does not decode fails below.
                if wait_on(client, writer.ok().flatten().flatten()).await? {
                    return Ok(rows);
                }
            }
        });
        Ok(read.await?.first().map(|row| row.read("value")).transpose()?)
    }

    pub async fn replace_salt(self, params: Arc<ReplaceSaltParams>) -> PgResult<bool> {
        let ReplaceSaltParams { service, from, to } = &*params;
        let statement = if from.is_none() { &INSERT_SALT } else { &REPLACE_SALT };
        let columns = columns! { service: &**service, from: from.as_deref(), to: &to[..] };
        Ok(!self.write(statement, columns).await?.is_empty())
    }

    pub async fn remember_route_identities(self, params: Arc<RememberRouteIdentitiesParams>) -> PgResult<Option<i64>> {
        let RememberRouteIdentitiesParams { service, from, finds } = &*params;
        let columns = columns! { service: &**service, generation: *from, finds: finds.as_str() };
        let rows = self.write(&shared::REMEMBER_ROUTE_IDENTITIES, columns).await?;
        Ok(rows.first().map(|row| row.read("generation")).transpose()?)
    }

    pub async fn add_weekly_counts(self, params: Arc<AddWeeklyCountsParams>) -> PgResult<()> {
        self.write_briefly(&ADD_WEEKLY_COUNTS, columns::weekly_counts(&params)).await.map(drop)
    }

    pub async fn tend_weekly_counts(self, params: Arc<TendWeeklyCountsParams>) -> PgResult<()> {
        for statement in [&shared::DELETE_OLD_WEEKS, &shared::DELETE_OLD_BATCHES, &FOLD_CALLERS] {
            self.write_briefly(statement, columns::tended_counts(&params)).await?;
        }
        Ok(())
    }

    pub async fn forget_caller(self, params: Arc<ForgetCallerParams>) -> PgResult<()> {
        self.write(&shared::FORGET_CALLER, columns::forgotten_caller(&params)).await.map(drop)
    }

    pub async fn claim_inquiries(self, params: Arc<ClaimInquiriesParams>) -> PgResult<Vec<Inquiry>> {
        let mut due = Vec::new();
        for schedule in &params.schedules {
            let columns = columns! {
                service: &*params.service,
                route: &*schedule.route,
                quiet_after_ms: millis(schedule.quiet_after),
                as_of: params.as_of,
                limit: i64::from(params.limit),
            };
            for row in self.run(&DUE_INQUIRIES, columns).await? {
                due.push((schedule, row.read::<RecordId>("id")?, row.read::<Token>("token")?));
            }
        }
        due.truncate(params.limit as usize);
        let claimed = self.call_each(&functions::CLAIM_INQUIRY, &due, |(schedule, id, token)| {
            columns! {
                id: id,
                token: token,
                as_of: params.as_of,
                quiet_after_ms: millis(schedule.quiet_after),
                pause_first_ms: millis(schedule.pause_first),
                pause_cap_ms: millis(schedule.pause_cap),
            }
        });
        claimed.await?.iter().map(|(_, row)| Ok(inquiry(row)?)).collect()
    }

    pub async fn apply_inquiry_finding(self, finding: Arc<InquiryFinding>) -> PgResult<bool> {
        Ok(self.call(&functions::APPLY_INQUIRY_FINDING, columns::finding(&finding)).await?.is_some())
    }

    pub async fn list_settled_keys(self, params: Arc<ListSettledKeysParams>) -> PgResult<SettledKeyPage> {
        let rows = self.run(&shared::LIST_SETTLED_KEYS, columns::settled_keys(&params)).await?;
        let mut page = SettledKeyPage::default();
        for (row, read) in rows.iter().zip(1..) {
            add_to_page(&mut page, row, read, &params.routes, params.limit)?;
        }
        Ok(page)
    }
}
