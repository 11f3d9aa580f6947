//! The typed results of requests about keys: `page` writes them for people, and as JSON they are what the API answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use super::four_eyes::KeyProposal;
use super::problem::ApiProblem;
use super::timeline::TimelineEvent;
use oncegate_domain::execution_risk::{ActionKind, ActionRisk};
use oncegate_domain::ids::{InstanceId, RecordId};
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_engine::instance::metrics::RenewedPart;
use oncegate_engine::instance::observability::UnguardedPath;
use oncegate_engine::instance::same_bodies::SameBodyPair;
use oncegate_store::admin::{AuditEntry, KeyCounts, KeyEntry, KeysWithoutRoute};
use oncegate_store::{CallerCount, WeekCount};

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeyList {
    pub keys: Vec<KeyEntry>,
    /// The `cursor` of the list that follows, for the same conditions; null at the end. A list may be empty and not the
    /// last.
    #[serde(rename = "next_cursor")]
    pub next: Option<String>,
}

/// All that operators may know of a key. Bodies and the values of header fields are left out: they belong to the
/// caller, and an operators' listener must not be a way around the scope that keeps callers' responses apart.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeyDetails {
    #[serde(flatten)]
    pub entry: KeyEntry,
    /// The path of the newest request, without its query and cut where it is long.
    pub path: Option<String>,
    /// The address that the newest request came from, where its route keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// The key as the vendor of its route gets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_key: Option<String>,
    /// When Oncegate sends its request again by itself: the next try of a delivery, or repetition at a vendor.
    #[serde(serialize_with = "rfc3339::serialize", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<rfc3339::Written>")]
    pub next_try_at: Option<SystemTime>,
    /// The time until which it repeats the request at a vendor.
    #[serde(serialize_with = "rfc3339::serialize", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<rfc3339::Written>")]
    pub repeats_until: Option<SystemTime>,
    /// The time from which nothing of its newest attempt can be running; null where the route is not configured here.
    #[serde(serialize_with = "rfc3339::serialize")]
    #[schemars(with = "Option<rfc3339::Written>")]
    pub quiet_at: Option<SystemTime>,
    /// Whether nothing of its newest attempt can be running any more, as far as this instance believes the store's
    /// clock.
    #[serde(rename = "quiet")]
    pub is_quiet: bool,
    /// The actions that have a risk now, each with its risk.
    #[serde(skip)]
    pub risks: Vec<(ActionKind, ActionRisk)>,
    /// The change that a person has proposed and another one may confirm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<KeyProposal>,
    /// The point that the service has reported last.
    pub recovery_point: Option<String>,
    /// Null where the record is gone, or does not decode.
    pub fingerprint: Option<FingerprintSummary>,
    pub response: Option<ResponseSummary>,
    /// The last attempts and all decisions, the oldest first.
    pub timeline: Vec<TimelineEvent>,
    /// The newest entries of the audit log about this key, the latest first.
    pub audit: Vec<AuditEntry>,
}

/// The beginning of a fingerprint. It tells two requests apart, and does not reveal a body to somebody who cannot guess
/// all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FingerprintSummary {
    pub hash: String,
    /// The version of the rules that the fingerprint was made by.
    pub recipe: String,
}

/// A stored response without its values: of fields only the names.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ResponseSummary {
    /// The row does not decode, for this reason.
    Corrupt { corrupt: String },
    Stored {
        status: u16,
        headers: Vec<String>,
        trailers: Vec<String>,
        /// `false` where the body was too large to keep.
        body_kept: bool,
        body_bytes: Option<usize>,
    },
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AuditLog {
    pub entries: Vec<AuditEntry>,
    /// The `cursor` of the entries that follow; null at the end.
    #[serde(rename = "next_cursor")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeyStats {
    pub service: Arc<str>,
    #[serde(flatten)]
    pub counts: KeyCounts,
    /// The unsettled keys of routes that are not configured.
    pub without_route: Vec<KeysWithoutRoute>,
    /// The traffic of the instance that answers; none on a store without an instance.
    #[serde(flatten)]
    pub traffic: Option<InstanceStats>,
}

/// Requests that were answered without an execution, and those that nothing guards: by week and route, and by the
/// callers of one week.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Saved {
    pub weeks: Vec<WeekCount>,
    pub callers: Vec<CallerCount>,
}

/// The traffic that one instance has seen.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct InstanceStats {
    pub instance: InstanceId,
    /// State-changing requests that no route guards, the most frequent first.
    pub unguarded: Vec<UnguardedPath>,
    /// The parts of scopes that services have renewed.
    #[serde(rename = "renewed_scope_parts")]
    pub renewed: Vec<RenewedPart>,
    /// The last equal requests of one caller under different keys, the newest first.
    pub same_bodies: Vec<SameBodyPair>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeyChange {
    pub id: RecordId,
    pub action: &'static str,
    /// The state before the change.
    pub before: StateKind,
    /// The state after the change; `none` where the key was forgotten.
    pub after: &'static str,
    /// Whether nothing has changed yet, and another person must confirm it.
    #[serde(skip)]
    pub is_proposal: bool,
    /// The number of living instances that may still remember what was changed. It is left out where the change takes
    /// nothing back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_behind: Option<u64>,
}

/// A change of several keys: counted, or carried out.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct BulkChange {
    /// `resolve`, `release`, `requeue`, `redact` or `purge`.
    pub action: &'static str,
    /// The answer that each retry gets after it.
    pub retries: String,
    /// The number of keys that the change is for.
    pub count: u64,
    /// The number of them in each state.
    pub by_state: BTreeMap<StateKind, u64>,
    /// The first keys that the change is for, as they were before it.
    #[serde(skip)]
    pub keys: Vec<KeyEntry>,
    /// The risks of the change, each once.
    #[serde(skip)]
    pub risks: BTreeSet<ActionRisk>,
    /// The number of keys that were changed.
    pub changed: u64,
    /// The first keys that were changed.
    #[serde(skip)]
    pub changed_keys: Vec<RecordId>,
    /// Whether the keys were only counted: the request has no `expect`.
    pub dry_run: bool,
    /// As for one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_behind: Option<u64>,
    /// The first keys that were not changed, each with the reason.
    pub refused: Vec<RefusedKey>,
    /// The number of all keys that were not changed.
    pub refused_count: u64,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RefusedKey {
    #[serde(flatten)]
    pub problem: ApiProblem,
    /// The key's id; as it was written where no key has it.
    pub id: String,
}
