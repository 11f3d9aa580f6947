//! The operators' side in PostgreSQL: single statements over the connection for upkeep.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::failure::Failure;
use super::statements::CATCH_UP;
use super::upkeep::{Parameter, column, query};
use super::{Patience, Postgres, persist};
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::store::Pending;
use crate::store::books::{
    Bookmark, Books, COUNTED_MAX, Case, Change, Decided, Decision, Entry, Filter, Look, Note, Order, Page, RawCount,
    RawEntry, RawLook, RawNote, STRETCH, Tally, Verdict,
};
use crate::store::row::millis;

const AMEND: &str = include_str!("sql/amend.sql");
const BEHIND: &str = include_str!("sql/behind.sql");
const ENTRIES: &str = include_str!("sql/entries.sql");
const ENTRIES_BY_AGE: &str = include_str!("sql/entries_by_age.sql");
const ENTRIES_RUNNING: &str = include_str!("sql/entries_running.sql");
const LOOK: &str = include_str!("sql/look.sql");
const NOTES: &str = include_str!("sql/notes.sql");
const PURGE: &str = include_str!("sql/purge.sql");
const PURGES: &str = include_str!("sql/purges.sql");
const TALLY_SETTLED: &str = include_str!("sql/tally_settled.sql");
const TALLY_UNSETTLED: &str = include_str!("sql/tally_unsettled.sql");

impl Books for Postgres {
    fn page(&self, service: Arc<str>, filter: Filter, after: Option<Bookmark>, limit: u32) -> Pending<'_, Page> {
        let deadline = self.deadline();
        let filter = Arc::new(filter);
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            self.page_once(Arc::clone(&service), Arc::clone(&filter), after, limit, deadline)
        }))
    }

    fn decide(&self, service: Arc<str>, decision: Arc<Decision>, cases: Vec<Case>) -> Pending<'_, Decided> {
        let deadline = self.deadline();
        let cases = Arc::new(cases);
        Box::pin(persist(deadline, Patience::InDoubt, move |doubt| {
            self.decide_once(Arc::clone(&service), Arc::clone(&decision), Arc::clone(&cases), doubt, deadline)
        }))
    }

    fn audit(
        &self,
        service: Arc<str>,
        of: Option<RecordId>,
        before: Option<i64>,
        limit: u32,
    ) -> Pending<'_, Vec<Note>> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            let service = Arc::clone(&service);
            async move {
                let id = of.as_ref().map(|id| id.as_bytes().as_slice());
                let parameters: [Parameter<'_>; 4] = [
                    (/* service */ &&*service, Type::TEXT),
                    (/* id */ &id, Type::BYTEA),
                    (/* before */ &before, Type::INT8),
                    (/* limit */ &i64::from(limit), Type::INT8),
                ];
                query(&self.upkeep, deadline, NOTES, &parameters).await?.iter().map(note).collect()
            }
        }))
    }

    fn tally(&self, service: Arc<str>) -> Pending<'_, Tally> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| self.tally_once(Arc::clone(&service), deadline)))
    }

    fn behind(&self, service: Arc<str>, purges: u64) -> Pending<'_, u64> {
        let deadline = self.deadline();
        let purges = i64::try_from(purges).unwrap_or(i64::MAX);
        Box::pin(persist(deadline, Patience::InDoubt, move |_| {
            let service = Arc::clone(&service);
            async move {
                let parameters: [Parameter<'_>; 2] =
                    [(/* service */ &&*service, Type::TEXT), (/* purges */ &purges, Type::INT8)];
                let rows = query(&self.upkeep, deadline, BEHIND, &parameters).await?;
                let behind = rows.first().map(|row| row.try_get::<_, i64>("behind").map_err(column)).transpose()?;
                Ok(behind.unwrap_or(0).unsigned_abs())
            }
        }))
    }
}

impl Postgres {
    async fn page_once(
        &self,
        service: Arc<str>,
        filter: Arc<Filter>,
        after: Option<Bookmark>,
        limit: u32,
        deadline: Instant,
    ) -> Result<Page, Failure> {
        let service = &*service;
        let from = after.map_or_else(Vec::new, |mark| mark.next_id());
        let (low, high) = (&filter.ids.low, &filter.ids.high);
        let (scope_low, scope_high) = (filter.scope.as_ref().map(|s| &s.low), filter.scope.as_ref().map(|s| &s.high));
        let state = filter.state.map(Phase::name);
        let older_than_ms = filter.older_than.map(millis);
        let ticks = after.map_or(0, |mark| mark.ticks);
        let (stretch, at_most) = (i64::from(STRETCH), i64::from(limit));
        let mut parameters: Vec<Parameter<'_>> = vec![
            (/* service */ &service, Type::TEXT),
            (/* from */ &from, Type::BYTEA),
            (/* low */ low, Type::BYTEA),
            (/* high */ high, Type::BYTEA),
            (/* state */ &state, Type::TEXT),
            (/* scope_low */ &scope_low, Type::BYTEA),
            (/* scope_high */ &scope_high, Type::BYTEA),
            (/* route */ &filter.route, Type::TEXT),
            (/* key */ &filter.key, Type::BYTEA),
            (/* older_than_ms */ &older_than_ms, Type::INT8),
        ];
        let order = filter.order();
        let sql = match order {
            Order::Age => ENTRIES_BY_AGE,
            Order::Id => ENTRIES,
            Order::Running => ENTRIES_RUNNING,
        };
        match order {
            Order::Age => parameters.push((/* ticks */ &ticks, Type::INT8)),
            Order::Id => parameters.push((/* stretch */ &stretch, Type::INT8)),
            Order::Running => {}
        }
        parameters.push((/* limit */ &at_most, Type::INT8));
        let rows = query(&self.upkeep, deadline, sql, &parameters).await?;
        if order != Order::Id {
            let entries = rows.iter().map(entry).collect::<Result<_, _>>()?;
            return Ok(Page::of_index(entries, limit, order));
        }
        let (scanned, last) = end_of_stretch(&rows)?;
        let there = |row: &&Row| row.try_get::<_, Option<&[u8]>>("id").is_ok_and(|id| id.is_some());
        let entries = rows.iter().filter(there).map(entry).collect::<Result<_, _>>()?;
        Ok(Page::of_stretch(entries, limit, scanned, last))
    }

    async fn decide_once(
        &self,
        service: Arc<str>,
        decision: Arc<Decision>,
        cases: Arc<Vec<Case>>,
        doubt: bool,
        deadline: Instant,
    ) -> Result<Decided, Failure> {
        let fit: Vec<&Case> = cases.iter().filter(|case| decision.is_for(case.state)).collect();
        let Done { ids: done, mut queued, mut purges } = match decision.change {
            Change::Purge => self.purge(&service, &decision, &fit, deadline).await?,
            _ => self.amend(&service, &decision, &fit, deadline).await?,
        };
        let missed: Vec<&Case> = fit.into_iter().filter(|case| !done.contains(&case.id)).collect();
        let looks = self.look(&service, &missed, doubt, deadline).await?;
        let verdict = |case: &Case| match looks.iter().find(|look| look.id == case.id) {
            _ if !decision.is_for(case.state) => Verdict::Unfit,
            _ if done.contains(&case.id) => Verdict::Done,
            Some(look) => look.verdict(case, &decision, doubt),
            None => Verdict::Gone,
        };
        let verdicts: Vec<_> = cases.iter().map(verdict).collect();
        if purges.is_none() && decision.change.takes_back() && verdicts.contains(&Verdict::Done) {
            // The try that took them back lost its answer: whatever the count was, it is no more than it is now.
            purges = self.purges(deadline).await?;
        }
        let found_queued = |look: &&Look| look.stands.is_some_and(|(_, state)| state == Phase::Queued);
        queued.extend(looks.iter().filter(found_queued).map(|look| look.id));
        Ok(Decided { verdicts, queued, purges })
    }

    async fn amend(
        &self,
        service: &str,
        decision: &Decision,
        cases: &[&Case],
        deadline: Instant,
    ) -> Result<Done, Failure> {
        if cases.is_empty() {
            return Ok(Done::default());
        }
        let (ids, tokens, states) = seen(cases);
        let response = match &decision.change {
            Change::Complete(response) => Some(response),
            Change::NotExecuted | Change::Purge | Change::Release | Change::Requeue => None,
        };
        let state = decision.change.leads_to_name();
        let forgets = !matches!(decision.change, Change::Requeue);
        let ttls: Vec<_> = cases.iter().map(|case| forgets.then(|| millis(case.ttl))).collect();
        let remember: Vec<_> = cases.iter().map(|case| response.and(case.remember).map(millis)).collect();
        let quiet: Vec<_> = cases.iter().map(|case| decision.wants_quiet().then(|| millis(case.quiet_after))).collect();
        let status = response.map(|response| response.status.as_u16().cast_signed());
        let fields = response.map(|response| response.encode_fields());
        let body = response.and_then(|response| response.body.as_deref());
        let noted = decision.noted();
        let parameters: [Parameter<'_>; 14] = [
            (/* id */ &ids, Type::BYTEA_ARRAY),
            (/* token */ &tokens, Type::BYTEA_ARRAY),
            (/* seen_state */ &states, Type::TEXT_ARRAY),
            (/* ttl_ms */ &ttls, Type::INT8_ARRAY),
            (/* remember_ms */ &remember, Type::INT8_ARRAY),
            (/* quiet_after_ms */ &quiet, Type::INT8_ARRAY),
            (/* service */ &service, Type::TEXT),
            (/* state */ &state, Type::TEXT),
            (/* status */ &status, Type::INT2),
            (/* fields */ &fields, Type::BYTEA),
            (/* body */ &body, Type::BYTEA),
            (/* actor */ &decision.actor, Type::TEXT),
            (/* action */ &decision.change.action(), Type::TEXT),
            (/* note */ &noted, Type::TEXT),
        ];
        let rows = query(&self.upkeep, deadline, AMEND, &parameters).await?;
        let is_queued = |row: &&Row| row.try_get::<_, bool>("queued").unwrap_or_default();
        let queued = rows.iter().filter(is_queued).map(id).collect::<Result<_, _>>()?;
        Ok(Done { queued, ..done(&rows)? })
    }

    async fn purge(
        &self,
        service: &str,
        decision: &Decision,
        cases: &[&Case],
        deadline: Instant,
    ) -> Result<Done, Failure> {
        if cases.is_empty() {
            return Ok(Done::default());
        }
        let (ids, tokens, states) = seen(cases);
        let noted = decision.noted();
        let parameters: [Parameter<'_>; 7] = [
            (/* id */ &ids, Type::BYTEA_ARRAY),
            (/* token */ &tokens, Type::BYTEA_ARRAY),
            (/* seen_state */ &states, Type::TEXT_ARRAY),
            (/* service */ &service, Type::TEXT),
            (/* actor */ &decision.actor, Type::TEXT),
            (/* action */ &decision.change.action(), Type::TEXT),
            (/* note */ &noted, Type::TEXT),
        ];
        done(&query(&self.upkeep, deadline, PURGE, &parameters).await?)
    }

    async fn purges(&self, deadline: Instant) -> Result<Option<u64>, Failure> {
        let rows = query(&self.upkeep, deadline, PURGES, &[]).await?;
        let purges = rows.first().map(|row| row.try_get::<_, i64>("value").map_err(column)).transpose()?;
        Ok(purges.map(i64::unsigned_abs))
    }

    /// `doubt`: an earlier try of this very decision may have been made, and what is seen of it is told.
    async fn look(&self, service: &str, cases: &[&Case], doubt: bool, deadline: Instant) -> Result<Vec<Look>, Failure> {
        if cases.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, ..) = seen(cases);
        let parameters: [Parameter<'_>; 2] = [(/* id */ &ids, Type::BYTEA_ARRAY), (/* service */ &service, Type::TEXT)];
        let raw = |row: &Row| {
            Ok::<_, tokio_postgres::Error>(RawLook {
                id: row.try_get("id")?,
                token: row.try_get("token")?,
                state: row.try_get("state")?,
                deadline_in_ms: row.try_get("deadline_in_ms")?,
                actor: row.try_get("actor")?,
                action: row.try_get("action")?,
                after: row.try_get("after")?,
            })
        };
        let rows = query(&self.upkeep, deadline, LOOK, &parameters).await?;
        if doubt {
            query(&self.upkeep, deadline, CATCH_UP, &[]).await?;
        }
        rows.iter().map(|row| Ok(raw(row).map_err(column)?.decode()?)).collect()
    }

    async fn tally_once(&self, service: Arc<str>, deadline: Instant) -> Result<Tally, Failure> {
        let (counted, stretch) = (i64::from(COUNTED_MAX), i64::from(STRETCH));
        let parameters: [Parameter<'_>; 2] =
            [(/* service */ &&*service, Type::TEXT), (/* limit */ &counted, Type::INT8)];
        let unsettled = query(&self.upkeep, deadline, TALLY_UNSETTLED, &parameters).await?;
        let parameters: [Parameter<'_>; 2] =
            [(/* service */ &&*service, Type::TEXT), (/* stretch */ &stretch, Type::INT8)];
        let settled = query(&self.upkeep, deadline, TALLY_SETTLED, &parameters).await?;
        let (sampled, last) = end_of_stretch(&settled)?;
        let there = |row: &&Row| row.try_get::<_, Option<&str>>("route").is_ok_and(|route| route.is_some());
        let unsettled = unsettled.iter().map(count).collect::<Result<_, _>>()?;
        let settled = settled.iter().filter(there).map(count).collect::<Result<_, _>>()?;
        Ok(Tally::of(unsettled, settled, sampled.unsigned_abs(), last))
    }
}

type Seen<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>, Vec<&'static str>);

fn seen<'a>(cases: &[&'a Case]) -> Seen<'a> {
    (
        cases.iter().map(|case| case.id.as_bytes().as_slice()).collect(),
        cases.iter().map(|case| case.token.as_bytes().as_slice()).collect(),
        cases.iter().map(|case| case.state.name()).collect(),
    )
}

/// Which keys were changed, those of them that are queued now, and the count of purges where it has grown.
#[derive(Default)]
struct Done {
    ids: Vec<RecordId>,
    queued: Vec<RecordId>,
    purges: Option<u64>,
}

fn done(rows: &[Row]) -> Result<Done, Failure> {
    let purges: Option<Option<i64>> = rows.first().map(|row| row.try_get("purges").map_err(column)).transpose()?;
    let ids = rows.iter().map(id).collect::<Result<_, _>>()?;
    Ok(Done { ids, queued: Vec::new(), purges: purges.flatten().map(i64::unsigned_abs) })
}

fn id(row: &Row) -> Result<RecordId, Failure> {
    Ok(RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(Corrupt("id"))?)
}

/// How many rows a stretch has, and its last one.
fn end_of_stretch(rows: &[Row]) -> Result<(i64, Option<RecordId>), Failure> {
    let Some(row) = rows.first() else { return Ok((0, None)) };
    let last: Option<&[u8]> = row.try_get("last").map_err(column)?;
    Ok((row.try_get("scanned").map_err(column)?, last.and_then(RecordId::from_stored)))
}

fn count(row: &Row) -> Result<RawCount, Failure> {
    Ok(RawCount {
        route: row.try_get("route").map_err(column)?,
        state: Phase::parse(row.try_get("state").map_err(column)?).ok_or(Corrupt("state"))?,
        rows: row.try_get::<_, i64>("rows").map_err(column)?.unsigned_abs(),
    })
}

fn note(row: &Row) -> Result<Note, Failure> {
    let raw = || {
        Ok::<_, tokio_postgres::Error>(RawNote {
            seq: row.try_get("seq")?,
            at_ms: row.try_get("at_ms")?,
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            id: row.try_get("id")?,
            before: row.try_get("before")?,
            after: row.try_get("after")?,
            note: row.try_get("note")?,
        })
    };
    Ok(raw().map_err(column)?.decode()?)
}

fn entry(row: &Row) -> Result<Entry, Failure> {
    let raw = || {
        Ok::<_, tokio_postgres::Error>(RawEntry {
            id: row.try_get("id")?,
            token: row.try_get("token")?,
            state: row.try_get("state")?,
            attempt: row.try_get::<_, i32>("attempt")?.into(),
            instance: row.try_get("instance")?,
            scope: row.try_get("scope")?,
            space: row.try_get("space")?,
            key: row.try_get("key")?,
            route: row.try_get("route")?,
            created_ms: row.try_get("created_ms")?,
            reserved_ms: row.try_get("reserved_ms")?,
            deadline_ms: row.try_get("deadline_ms")?,
            settled_ms: row.try_get("settled_ms")?,
            expires_ms: row.try_get("expires_ms")?,
            status: row.try_get::<_, Option<i16>>("status")?.map(i64::from),
            body_bytes: row.try_get("body_bytes")?,
            probes: row.try_get::<_, Option<i32>>("probes")?.map(i64::from),
            absences: row.try_get::<_, Option<i32>>("absences")?.map(i64::from),
            probe_ms: row.try_get("probe_ms")?,
            now_ms: row.try_get("now_ms")?,
            ticks: row.try_get("ticks")?,
        })
    };
    Ok(raw().map_err(column)?.decode()?)
}
