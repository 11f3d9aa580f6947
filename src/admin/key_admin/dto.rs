//! The typed results of requests about keys: `page` writes them for people, and as JSON they are what the API answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde::Serialize;

use super::problem::ApiProblem;
use crate::domain::execution_risk::{ActionKind, ActionRisk};
use crate::domain::ids::{InstanceId, RecordId};
use crate::domain::recovery::RecoveryPoint;
use crate::domain::response::CorruptRow;
use crate::domain::state::StateKind;
use crate::instance::metrics::RenewedPart;
use crate::instance::observability::{RepeatingCaller, UnguardedPath};
use crate::store::admin::{AuditEntry, Cursor, KeyCounts, KeyEntry, KeysWithoutRoute, ListOrder};

/// The result of a request.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum AdminResponse {
    Audit(AuditLog),
    BulkChange(BulkChange),
    Change(KeyChange),
    Details(Box<KeyDetails>),
    List(KeyList),
    Stats(KeyStats),
}

/// Some of the keys that fit a filter.
#[derive(Clone, Debug, Serialize)]
pub struct KeyList {
    pub keys: Vec<KeyEntry>,
    /// The place where the listing goes on; `None` at its end. A list may be empty and not the last.
    #[serde(rename = "next_cursor")]
    pub next: Option<NextPage>,
}

/// The place where a listing goes on. A cursor is valid only in the order that it was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPage {
    pub cursor: Cursor,
    pub order: ListOrder,
}

/// All that operators may know of a key. Bodies and the values of header fields are left out: they belong to the caller,
/// and an operators' listener must not be a way around the scope that keeps callers' responses apart.
#[derive(Clone, Debug)]
pub struct KeyDetails {
    pub entry: KeyEntry,
    /// The time from which nothing of its newest attempt can be running; `None` where the route is not configured here.
    pub quiet_at: Option<SystemTime>,
    /// Whether nothing of its newest attempt can be running any more, as far as this instance believes the store's clock.
    pub is_quiet: bool,
    /// The actions that have a risk now, each with its risk.
    pub risks: Vec<(ActionKind, ActionRisk)>,
    pub recovery_point: Option<RecoveryPoint>,
    /// `None` where the record is gone, or does not decode.
    pub fingerprint: Option<FingerprintSummary>,
    pub response: Option<ResponseSummary>,
    /// The newest entries of the audit log about this key, the latest first.
    pub audit: Vec<AuditEntry>,
}

/// The beginning of a fingerprint. It tells two requests apart, and does not reveal a body to somebody who cannot guess
/// all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FingerprintSummary {
    pub hash: String,
    /// The version of the rules that the fingerprint was made by.
    pub recipe: String,
}

/// A stored response without its values.
#[derive(Clone, Debug)]
pub enum ResponseSummary {
    /// The row does not decode.
    Corrupt(CorruptRow),
    Stored {
        status: StatusCode,
        /// The names of its header fields.
        headers: Vec<String>,
        /// The names of its trailer fields.
        trailers: Vec<String>,
        /// The length of its body; `None` where the body was too large to keep.
        body_bytes: Option<usize>,
    },
}

/// Some of the audit log, the latest first.
#[derive(Clone, Debug, Serialize)]
pub struct AuditLog {
    pub entries: Vec<AuditEntry>,
    /// The place where the log goes on; `None` at its end.
    #[serde(rename = "next_cursor")]
    pub next: Option<String>,
}

/// The numbers of keys, and the traffic that one instance has seen.
#[derive(Clone, Debug, Serialize)]
pub struct KeyStats {
    pub service: Arc<str>,
    #[serde(flatten)]
    pub counts: KeyCounts,
    /// The unsettled keys of routes that are not configured.
    pub without_route: Vec<KeysWithoutRoute>,
    /// `None` where no instance answers.
    #[serde(flatten)]
    pub instance: Option<InstanceStats>,
}

/// The traffic that one instance has seen.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceStats {
    pub instance: InstanceId,
    /// The callers with most duplicates and mismatches of late, the worst first.
    pub callers: Vec<RepeatingCaller>,
    /// State-changing requests that no route guards, the most frequent first.
    pub unguarded: Vec<UnguardedPath>,
    /// The parts of scopes that services have renewed.
    #[serde(rename = "renewed_scope_parts")]
    pub renewed: Vec<RenewedPart>,
}

/// A change of one key that was carried out.
#[derive(Clone, Debug, Serialize)]
pub struct KeyChange {
    pub id: RecordId,
    /// `resolve`, `release`, `requeue` or `purge`.
    pub action: &'static str,
    pub before: StateKind,
    /// The state; `none` where the key was forgotten.
    pub after: &'static str,
    /// The number of living instances that may still remember the key; `None` where the change takes nothing back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_behind: Option<u64>,
}

/// A change of several keys: counted, or carried out.
#[derive(Clone, Debug, Serialize)]
pub struct BulkChange {
    /// `resolve`, `release`, `requeue` or `purge`.
    pub action: &'static str,
    /// The number of keys that the change is for.
    pub count: u64,
    /// The same by state.
    pub by_state: BTreeMap<StateKind, u64>,
    /// The risks of the change, each once.
    #[serde(skip)]
    pub risks: BTreeSet<ActionRisk>,
    /// The number of changed keys.
    pub changed: u64,
    /// Whether keys were only counted.
    pub dry_run: bool,
    /// As in [`KeyChange`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_behind: Option<u64>,
    /// The first keys that were not changed, each with the reason.
    pub refused: Vec<RefusedKey>,
    /// The number of all keys that were not changed.
    pub refused_count: u64,
}

/// A key that was not changed.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedKey {
    #[serde(flatten)]
    pub problem: ApiProblem,
    /// The key's id; as it was written where no key has it.
    pub id: String,
}
