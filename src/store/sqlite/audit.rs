//! Writing the audit log.

use rusqlite::Connection;

use super::run::execute;
use super::writer::SqliteFailure;
use crate::domain::ids::RecordId;
use crate::domain::state::StateKind;
use crate::store::columns::columns;
use crate::store::statement::statements;

statements! { "sql/":
    INSERT_AUDIT_ENTRY = "insert_audit_entry";
}

/// A new entry. [`AuditEntry`](crate::store::admin::AuditEntry) describes its parts.
pub(super) struct AuditLine<'a> {
    pub service: &'a str,
    pub actor: &'a str,
    pub action: &'a str,
    pub id: &'a RecordId,
    pub before: StateKind,
    pub after: &'a str,
    pub note: Option<&'a str>,
}

pub(super) fn insert(db: &Connection, now: i64, line: &AuditLine<'_>) -> Result<(), SqliteFailure> {
    let columns = columns! {
        now: now,
        service: line.service,
        actor: line.actor,
        action: line.action,
        id: line.id,
        before: line.before,
        after: line.after,
        note: line.note,
    };
    execute(db, &INSERT_AUDIT_ENTRY, &columns).map(drop)
}
