//! Reading the rows of listings and of the audit log, for both stores.

use serde::Deserialize;

use super::{
    AuditEntry, CurrentRow, Cursor, EarlierAttempt, InstanceEntry, KeyEntry, KeyPage, ListOrder, SCAN_ROWS_MAX,
};
use crate::domain::ids::{InstanceId, RecordId};
use crate::domain::kept_path;
use crate::domain::response::CorruptRow;
use crate::domain::state::StateKind;
use crate::domain::unknown_cause::UnknownCause;
use crate::store::ListKeysParams;
use crate::store::row::{RowReader, cause, time};
use crate::store::statement::{Statement, shared};

impl ListKeysParams {
    /// The statement that lists the keys.
    pub(in crate::store) fn statement(&self) -> &'static Statement {
        match self.filter.order() {
            ListOrder::Age => &shared::LIST_KEYS_BY_AGE,
            ListOrder::Id => &shared::LIST_KEYS,
            ListOrder::Running => &shared::LIST_KEYS_IN_FLIGHT,
        }
    }
}

impl KeyPage {
    /// An empty page, and the end of the scan that it comes from: [`Self::add`] fills them.
    pub(in crate::store) fn empty() -> (Self, ScanEnd) {
        (Self { entries: Vec::new(), next: None }, ScanEnd { scanned: 0, last: None })
    }

    /// Adds a row of a listing.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub(in crate::store) fn add(
        &mut self,
        end: &mut ScanEnd,
        row: &impl RowReader,
        params: &ListKeysParams,
    ) -> Result<(), CorruptRow> {
        if params.filter.order() == ListOrder::Id {
            *end = ScanEnd { scanned: row.read("scanned")?, last: row.read("last")? };
            // A scan that finds nothing has a row for its end.
            if row.read::<Option<RecordId>>("id")?.is_none() {
                return Ok(());
            }
        }
        self.entries.push(KeyEntry::read(row)?);
        Ok(())
    }

    /// The position after all rows. A full page continues after its last entry, a full scan after its end; an index search finds
    /// all keys that fit, up to the limit.
    pub(in crate::store) fn finish(mut self, end: ScanEnd, params: &ListKeysParams) -> Self {
        let last = self.entries.last();
        let is_full = self.entries.len() >= params.limit as usize;
        self.next = match params.filter.order() {
            _ if is_full => last.map(|entry| Cursor { settled_ms: settled_ms(entry, params), id: entry.id }),
            ListOrder::Id if end.scanned >= i64::from(SCAN_ROWS_MAX) => end.last.map(|id| Cursor { settled_ms: 0, id }),
            ListOrder::Age | ListOrder::Id | ListOrder::Running => None,
        };
        self
    }
}

/// The end of a scan.
pub(in crate::store) struct ScanEnd {
    scanned: i64,
    last: Option<RecordId>,
}

fn settled_ms(entry: &KeyEntry, params: &ListKeysParams) -> i64 {
    match params.filter.order() {
        ListOrder::Age => entry.settled_at.map_or(0, crate::store::row::since_1970_ms),
        ListOrder::Id | ListOrder::Running => 0,
    }
}

impl KeyEntry {
    /// Reads a key: the columns of `key_columns.sql`.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub(in crate::store) fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
        let path: Option<Vec<u8>> = row.read("path")?;
        let earlier: Option<String> = row.read("earlier")?;
        Ok(Self {
            id: row.read("id")?,
            token: row.read("token")?,
            state: row.read("state")?,
            attempts: row.read("attempt")?,
            instance: row.read("instance")?,
            scope: row.read("scope")?,
            space: row.read("space")?,
            key: row.read("key")?,
            route: row.read("route")?,
            path: path.as_deref().map(kept_path::shown_path),
            created_at: row.read("created_at")?,
            reserved_at: row.read("reserved_at")?,
            deadline: row.read("deadline")?,
            settled_at: row.read("settled_at")?,
            expires_at: row.read("expires_at")?,
            remembered_for: row.read("remember_ms")?,
            is_due: row.read::<Option<i64>>("due_at")?.is_some(),
            status: row.read("status")?,
            body_bytes: row.read("body_bytes")?,
            probes: row.read::<Option<u32>>("probes")?.unwrap_or(0),
            absences: row.read::<Option<u32>>("absences")?.unwrap_or(0),
            probe_at: row.read("probe_at")?,
            accepted_at: row.read("accepted_at")?,
            cause: cause(row)?,
            earlier: earlier.as_deref().map(earlier_attempts).transpose()?.unwrap_or_default(),
            now: row.read("now")?,
        })
    }
}

/// An attempt in the column `earlier`.
#[derive(Deserialize)]
struct StoredAttempt {
    attempt: u32,
    instance: i64,
    state: String,
    cause: Option<String>,
    reserved_ms: i64,
    settled_ms: Option<i64>,
}

fn earlier_attempts(json: &str) -> Result<Vec<EarlierAttempt>, CorruptRow> {
    let stored: Vec<StoredAttempt> = serde_json::from_str(json).map_err(|_| CorruptRow("the earlier attempts"))?;
    let decode = |stored: StoredAttempt| {
        Ok(EarlierAttempt {
            number: stored.attempt,
            instance: InstanceId::from_stored(stored.instance),
            reserved_at: time(stored.reserved_ms)?,
            settled_at: stored.settled_ms.map(time).transpose()?,
            state: StateKind::parse(&stored.state).ok_or(CorruptRow("state"))?,
            cause: stored.cause.as_deref().and_then(UnknownCause::parse),
        })
    };
    stored.into_iter().map(decode).collect()
}

impl AuditEntry {
    /// Reads an entry.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub(in crate::store) fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
        Ok(Self {
            seq: row.read("seq")?,
            at: row.read("at")?,
            actor: row.read("actor")?,
            action: row.read("action")?,
            id: row.read("id")?,
            before: row.read("before")?,
            after: row.read("after")?,
            note: row.read("note")?,
        })
    }
}

impl CurrentRow {
    /// Reads the row of this key.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub(in crate::store) fn read(row: &impl RowReader, id: RecordId) -> Result<Self, CorruptRow> {
        let current = row.read::<Option<_>>("token")?.zip(row.read::<Option<_>>("state")?);
        let deadline_in_ms = match row.read::<Option<i64>>("deadline")? {
            Some(deadline) => deadline - row.read::<i64>("now")?,
            None => 0,
        };
        let (actor, action) = (row.read::<Option<_>>("actor")?, row.read::<Option<_>>("action")?);
        let last = actor.zip(action).zip(row.read::<Option<_>>("after")?);
        Ok(Self { id, current, deadline_in_ms, last: last.map(|((actor, action), after)| (actor, action, after)) })
    }
}

impl InstanceEntry {
    /// Reads an instance.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub(in crate::store) fn read(row: &impl RowReader) -> Result<Self, CorruptRow> {
        Ok(Self {
            id: row.read("id")?,
            started_at: row.read("started_at")?,
            renewed_at: row.read("renewed_at")?,
            lease_until: row.read("lease_until")?,
            now: row.read("now")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::admin::KeyFilter;

    #[test]
    fn a_scan_goes_on_after_its_end_where_it_was_full() {
        let id = RecordId::from_stored(&[7; 32]);
        let params = ListKeysParams { service: "shop".into(), filter: KeyFilter::default(), after: None, limit: 10 };
        let next = |scanned| {
            let (page, _) = KeyPage::empty();
            page.finish(ScanEnd { scanned, last: id }, &params).next.map(|cursor| cursor.id)
        };
        assert_eq!(next(i64::from(SCAN_ROWS_MAX)), id);
        assert_eq!(next(i64::from(SCAN_ROWS_MAX) - 1), None);
    }
}
