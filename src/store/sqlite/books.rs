//! The operators' side in SQLite: pieces of work for the one thread that has the file.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::deliveries::shred;
use super::statements::blob;
use super::writer::Failure;
use super::{Sqlite, Urgency};
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::store::Pending;
use crate::store::books::{
    Bookmark, Books, COUNTED_MAX, Case, Change, Decided, Decision, Entry, Filter, Note, Order, Page, RawCount,
    RawEntry, RawLook, RawNote, STRETCH, Tally, Verdict,
};
use crate::store::row::millis;

const AMEND: &str = include_str!("sql/amend.sql");
const BEHIND: &str = include_str!("sql/behind.sql");
const ENTRIES: &str = include_str!("sql/entries.sql");
const ENTRIES_BY_AGE: &str = include_str!("sql/entries_by_age.sql");
const ENTRIES_RUNNING: &str = include_str!("sql/entries_running.sql");
const LOOK: &str = include_str!("sql/look.sql");
const NOTE: &str = include_str!("sql/note.sql");
const NOTES: &str = include_str!("sql/notes.sql");
const PURGE: &str = include_str!("sql/purge.sql");
const PURGED: &str = include_str!("sql/purged.sql");
const RENEW_REQUEST: &str = include_str!("sql/renew_request.sql");
const TALLY_SETTLED: &str = include_str!("sql/tally_settled.sql");
const TALLY_UNSETTLED: &str = include_str!("sql/tally_unsettled.sql");

impl Books for Sqlite {
    fn page(&self, service: Arc<str>, filter: Filter, after: Option<Bookmark>, limit: u32) -> Pending<'_, Page> {
        self.call(Urgency::Ordinary, 0, move |db, now| page(db, now, &service, &filter, after, limit))
    }

    fn decide(&self, service: Arc<str>, decision: Arc<Decision>, cases: Vec<Case>) -> Pending<'_, Decided> {
        self.call(Urgency::Ordinary, 0, move |db, now| {
            let mut taken_back = true;
            db.execute_batch("savepoint decision")?;
            let decided = decide(db, now, &service, &decision, &cases);
            if decided.is_ok() {
                db.execute_batch("release decision")?;
                taken_back = false;
            }
            // Whatever else is in this transaction stays; where SQLite has taken all of it back there is nothing to do.
            if taken_back && !db.is_autocommit() {
                db.execute_batch("rollback to decision; release decision")?;
            }
            decided
        })
    }

    fn audit(
        &self,
        service: Arc<str>,
        of: Option<RecordId>,
        before: Option<i64>,
        limit: u32,
    ) -> Pending<'_, Vec<Note>> {
        self.call(Urgency::Ordinary, 0, move |db, _| {
            let id = of.as_ref().map(|id| id.as_bytes().as_slice());
            let mut statement = db.prepare_cached(NOTES)?;
            let parameters =
                named_params! { ":service": &*service, ":id": id, ":before": before, ":limit": i64::from(limit) };
            let mut rows = statement.query(parameters)?;
            let mut notes = Vec::new();
            while let Some(row) = rows.next()? {
                notes.push(note(row)?);
            }
            Ok(notes)
        })
    }

    fn tally(&self, service: Arc<str>) -> Pending<'_, Tally> {
        self.call(Urgency::Ordinary, 0, move |db, _| tally(db, &service))
    }

    fn behind(&self, service: Arc<str>, purges: u64) -> Pending<'_, u64> {
        let purges = i64::try_from(purges).unwrap_or(i64::MAX);
        self.call(Urgency::Ordinary, 0, move |db, now| {
            let parameters = named_params! { ":service": &*service, ":purges": purges, ":now": now };
            let behind: i64 = db.prepare_cached(BEHIND)?.query_row(parameters, |row| row.get(0))?;
            Ok(behind.unsigned_abs())
        })
    }
}

fn page(
    db: &Connection,
    now: i64,
    service: &str,
    filter: &Filter,
    after: Option<Bookmark>,
    limit: u32,
) -> Result<Page, Failure> {
    let order = filter.order();
    let from = after.map_or_else(Vec::new, |mark| mark.next_id());
    let mut statement = db.prepare_cached(match order {
        Order::Age => ENTRIES_BY_AGE,
        Order::Id => ENTRIES,
        Order::Running => ENTRIES_RUNNING,
    })?;
    let state = filter.state.map(Phase::name);
    let (scope_low, scope_high) = (filter.scope.as_ref().map(|s| &s.low), filter.scope.as_ref().map(|s| &s.high));
    let older_than_ms = filter.older_than.map(millis);
    let at_most = i64::from(limit);
    let mut parameters: Vec<(&str, &dyn rusqlite::ToSql)> = vec![
        (":service", &service),
        (":from", &from),
        (":low", &filter.ids.low),
        (":high", &filter.ids.high),
        (":state", &state),
        (":scope_low", &scope_low),
        (":scope_high", &scope_high),
        (":route", &filter.route),
        (":key", &filter.key),
        (":older_than_ms", &older_than_ms),
        (":limit", &at_most),
        (":now", &now),
    ];
    let (ticks, stretch) = (after.map_or(0, |mark| mark.ticks), i64::from(STRETCH));
    match order {
        Order::Age => parameters.push((":ticks", &ticks)),
        Order::Id => parameters.push((":stretch", &stretch)),
        Order::Running => {}
    }
    let mut rows = statement.query(&*parameters)?;
    let (mut entries, mut end) = (Vec::new(), (0, None));
    while let Some(row) = rows.next()? {
        if order == Order::Id {
            end = end_of_stretch(row)?;
        }
        if blob(row, "id")?.is_some() {
            entries.push(entry(row)?);
        }
    }
    Ok(match order {
        Order::Id => Page::of_stretch(entries, limit, end.0, end.1),
        Order::Age | Order::Running => Page::of_index(entries, limit, order),
    })
}

fn decide(db: &Connection, now: i64, service: &str, decision: &Decision, cases: &[Case]) -> Result<Decided, Failure> {
    let mut decided = Decided::default();
    for case in cases {
        let (verdict, state) = decide_one(db, now, service, decision, case)?;
        decided.verdicts.push(verdict);
        if state == Some(Phase::Queued) {
            decided.queued.push(case.id);
        }
    }
    if decision.change.takes_back() && decided.verdicts.contains(&Verdict::Done) {
        let purges: Option<i64> = db.prepare_cached(PURGED)?.query_row([], |row| row.get(0)).optional()?;
        decided.purges = purges.map(i64::unsigned_abs);
    }
    Ok(decided)
}

/// What became of it, and the state that it has now where it was changed.
fn decide_one(
    db: &Connection,
    now: i64,
    service: &str,
    decision: &Decision,
    case: &Case,
) -> Result<(Verdict, Option<Phase>), Failure> {
    if !decision.is_for(case.state) {
        return Ok((Verdict::Unfit, None));
    }
    let changed: Option<String> = match &decision.change {
        Change::Purge => match db.prepare_cached(PURGE)?.execute(named_params! {
            ":id": case.id.as_bytes(),
            ":service": service,
            ":token": case.token.as_bytes(),
            ":seen_state": case.state.name(),
        })? {
            0 => None,
            _ => Some("none".to_owned()),
        },
        change => {
            let response = match change {
                Change::Complete(response) => Some(response),
                _ => None,
            };
            let forgets = !matches!(change, Change::Requeue);
            let parameters = named_params! {
                ":action": change.action(),
                ":id": case.id.as_bytes(),
                ":service": service,
                ":token": case.token.as_bytes(),
                ":seen_state": case.state.name(),
                ":state": change.leads_to_name(),
                ":ttl_ms": forgets.then(|| millis(case.ttl)),
                ":remember_ms": response.and(case.remember).map(millis),
                ":quiet_after_ms": decision.wants_quiet().then(|| millis(case.quiet_after)),
                ":status": response.map(|response| response.status.as_u16()),
                ":fields": response.map(|response| response.encode_fields()),
                ":body": response.and_then(|response| response.body.as_deref()),
                ":now": now,
            };
            db.prepare_cached(AMEND)?.query_row(parameters, |row| row.get("state")).optional()?
        }
    };
    let Some(after) = changed else {
        // Only one thread writes, and nobody's answer gets lost: there is no doubt.
        return Ok((look(db, now, service, case, decision)?, None));
    };
    match &*after {
        "queued" | "unknown" => {
            let renewed = named_params! { ":id": case.id.as_bytes(), ":now": now };
            db.prepare_cached(RENEW_REQUEST)?.execute(renewed)?;
        }
        _ => shred(db, case.id)?,
    }
    db.prepare_cached(NOTE)?.execute(named_params! {
        ":now": now,
        ":service": service,
        ":actor": decision.actor,
        ":action": decision.change.action(),
        ":id": case.id.as_bytes(),
        ":before": case.state.name(),
        ":after": after,
        ":note": decision.noted(),
    })?;
    Ok((Verdict::Done, Phase::parse(&after)))
}

fn look(db: &Connection, now: i64, service: &str, case: &Case, decision: &Decision) -> Result<Verdict, Failure> {
    let parameters = named_params! { ":id": case.id.as_bytes(), ":service": service, ":now": now };
    let raw = db.prepare_cached(LOOK)?.query_row(parameters, |row| {
        Ok(RawLook {
            id: row.get("id")?,
            token: row.get("token")?,
            state: row.get("state")?,
            deadline_in_ms: row.get("deadline_in_ms")?,
            actor: row.get("actor")?,
            action: row.get("action")?,
            after: row.get("after")?,
        })
    })?;
    Ok(raw.decode()?.verdict(case, decision, false))
}

fn tally(db: &Connection, service: &str) -> Result<Tally, Failure> {
    let mut statement = db.prepare_cached(TALLY_UNSETTLED)?;
    let mut rows = statement.query(named_params! { ":service": service, ":limit": i64::from(COUNTED_MAX) })?;
    let mut unsettled = Vec::new();
    while let Some(row) = rows.next()? {
        unsettled.push(count(row)?);
    }
    let mut statement = db.prepare_cached(TALLY_SETTLED)?;
    let mut rows = statement.query(named_params! { ":service": service, ":stretch": i64::from(STRETCH) })?;
    let (mut settled, mut end) = (Vec::new(), (0, None));
    while let Some(row) = rows.next()? {
        end = end_of_stretch(row)?;
        if row.get::<_, Option<String>>("route")?.is_some() {
            settled.push(count(row)?);
        }
    }
    Ok(Tally::of(unsettled, settled, end.0.unsigned_abs(), end.1))
}

/// How many rows a stretch has, and its last one.
fn end_of_stretch(row: &Row<'_>) -> Result<(i64, Option<RecordId>), Failure> {
    Ok((row.get("scanned")?, blob(row, "last")?.and_then(RecordId::from_stored)))
}

fn count(row: &Row<'_>) -> Result<RawCount, Failure> {
    let state = Phase::parse(&row.get::<_, String>("state")?).ok_or(Corrupt("state"))?;
    Ok(RawCount { route: row.get("route")?, state, rows: row.get::<_, i64>("rows")?.unsigned_abs() })
}

fn note(row: &Row<'_>) -> Result<Note, Failure> {
    let raw = RawNote {
        seq: row.get("seq")?,
        at_ms: row.get("at_ms")?,
        actor: row.get("actor")?,
        action: row.get("action")?,
        id: row.get("id")?,
        before: row.get("before")?,
        after: row.get("after")?,
        note: row.get("note")?,
    };
    Ok(raw.decode()?)
}

fn entry(row: &Row<'_>) -> Result<Entry, Failure> {
    let raw = RawEntry {
        id: row.get("id")?,
        token: row.get("token")?,
        state: row.get("state")?,
        attempt: row.get("attempt")?,
        instance: row.get("instance")?,
        scope: row.get("scope")?,
        space: row.get("space")?,
        key: row.get("key")?,
        route: row.get("route")?,
        created_ms: row.get("created_ms")?,
        reserved_ms: row.get("reserved_ms")?,
        deadline_ms: row.get("deadline_ms")?,
        settled_ms: row.get("settled_ms")?,
        expires_ms: row.get("expires_ms")?,
        status: row.get("status")?,
        body_bytes: row.get("body_bytes")?,
        probes: row.get("probes")?,
        absences: row.get("absences")?,
        probe_ms: row.get("probe_ms")?,
        now_ms: row.get("now_ms")?,
        ticks: row.get("ticks")?,
    };
    Ok(raw.decode()?)
}
