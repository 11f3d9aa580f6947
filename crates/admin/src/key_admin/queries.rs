//! Requests that change nothing. Each fails where the store does.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tokio::time::Instant;

use super::dto::{AuditLog, FingerprintSummary, KeyDetails, KeyList, KeyStats, ResponseSummary, Saved};
use super::params;
use super::problem::ApiProblem;
use super::timeline::timeline;
use super::{KeyAdmin, find_route};
use oncegate_domain::execution_risk::{ActionKind, ActionRisk};
use oncegate_domain::record::Record;
use oncegate_domain::rfc3339;
use oncegate_domain::state::{KeyState, StateKind};
use oncegate_store::admin::{InstanceEntry, KeyEntry, KeyFilter};
use oncegate_store::{ListAuditEntriesParams, ListInstancesParams, ListKeysParams, StoreError};

/// The time after which a list with few keys, and a place to go on from, is returned.
const SEARCH_MAX: Duration = Duration::from_secs(1);

const AUDIT_ENTRIES_MAX: u32 = 100;

const FINGERPRINT_DIGITS: usize = 12;

/// The number of instances that are listed: more than one service runs.
const INSTANCES_MAX: u32 = 100;

impl KeyAdmin<'_> {
    /// Lists keys that fit a filter, from the place that an earlier list has named; an empty `cursor` is the beginning.
    pub async fn list_keys(&self, filter: KeyFilter, cursor: &str, limit: u32) -> Result<KeyList, ApiProblem> {
        let order = filter.order();
        let mut after = params::parse_cursor(cursor, order)?;
        let begun = Instant::now();
        let mut keys = Vec::new();
        loop {
            let left = limit - u32::try_from(keys.len()).unwrap_or(limit);
            let params = ListKeysParams { service: self.service(), filter: filter.clone(), after, limit: left };
            let page = self.store.list_keys(params).await?;
            keys.extend(page.entries);
            after = page.next;
            if after.is_none() || keys.len() >= limit as usize || begun.elapsed() >= SEARCH_MAX {
                return Ok(KeyList { keys, next: after.map(|after| params::format_cursor(after, order)) });
            }
        }
    }

    /// Returns all that operators may know of the key with this id, or with an id that begins so.
    pub async fn show_key(&self, id: &str) -> Result<KeyDetails, ApiProblem> {
        let mut entry = self.find_entry(id).await?;
        let quiet_at = self.quiet_at(&entry);
        let (record, corrupt) = match self.store.find(entry.id).await {
            Ok(record) => (record, None),
            Err(StoreError::Corrupt(row)) => (None, Some(ResponseSummary::Corrupt { corrupt: row.to_string() })),
            Err(error) => return Err(error.into()),
        };
        let fingerprint = record.as_ref().map(|record| FingerprintSummary {
            hash: record.fingerprint.to_string().chars().take(FINGERPRINT_DIGITS).collect(),
            recipe: record.recipe.to_stored().to_owned(),
        });
        let recovery_point = record.as_ref().and_then(|record| record.recovery_point.as_ref().map(ToString::to_string));
        let response = record.filter(|record| record.token == entry.token).and_then(summarize_response);
        let response = corrupt.or(response);
        let (service, id) = (self.service(), Some(entry.id));
        let params = ListAuditEntriesParams { service, id, before: None, limit: AUDIT_ENTRIES_MAX };
        let audit = self.store.list_audit_entries(params).await?;
        let proposal = self.read_proposal(audit.first(), &entry);
        let is_quiet = quiet_at.is_some_and(|at| at <= entry.now);
        let counts = |risk: &ActionRisk| !(*risk == ActionRisk::AttemptRunning && is_quiet);
        let risk = |action| Some((action, self.risk(&entry, action).filter(counts)?));
        let risks = ActionKind::ALL.into_iter().filter_map(risk).collect();
        let route = find_route(&self.config, &self.service, &entry.route);
        let next_try_at = entry.due_at.filter(|_| matches!(entry.state, StateKind::Queued | StateKind::Unknown));
        let window = route.and_then(|route| route.repeat_within()).filter(|_| next_try_at.is_some());
        let repeats_until = window.map(|window| kept_since(&entry) + window);
        let vendor_key =
            route.filter(|_| !entry.is_redacted()).and_then(|route| route.vendor_key(&entry.key, &entry.id));
        let vendor_key = vendor_key.map(|(_, value)| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let (path, timeline) = (entry.path.take(), timeline(&entry, &audit));
        let client_address = entry.client_address.take();
        Ok(KeyDetails {
            entry,
            path,
            client_address,
            vendor_key,
            next_try_at,
            repeats_until,
            risks,
            is_quiet,
            quiet_at,
            proposal,
            recovery_point,
            fingerprint,
            response,
            timeline,
            audit,
        })
    }

    /// Returns the one key that an id, or the beginning of one, names.
    pub async fn find_entry(&self, id: &str) -> Result<KeyEntry, ApiProblem> {
        let filter = KeyFilter { ids: params::parse_id_prefix(id)?, ..KeyFilter::default() };
        let params = ListKeysParams { service: self.service(), filter, after: None, limit: 2 };
        let mut page = self.store.list_keys(params).await?;
        match (page.entries.pop(), page.entries.pop()) {
            (Some(entry), None) => Ok(entry),
            (None, _) => Err(ApiProblem::no_such_key()),
            (Some(_), Some(_)) => Err(ApiProblem::bad("id", "is the beginning of several ids: write more of it")),
        }
    }

    pub async fn count_keys(&self) -> Result<KeyStats, ApiProblem> {
        let counts = self.store.count_keys(self.service()).await?;
        let without_route = counts.list_without_route(|name| self.config.is_of_service(name, &self.service));
        Ok(KeyStats { service: self.service(), counts, without_route, traffic: self.traffic.clone() })
    }

    /// Returns the counts of the last weeks, and those of the callers of the week that begins on that Monday, or of the
    /// one that has begun where `week` is empty. What this instance has counted is among them.
    pub async fn show_saved(&self, week: &str) -> Result<Saved, ApiProblem> {
        let not_a_monday = || ApiProblem::bad("week", "is not a Monday, such as 2026-11-23");
        let week = (!week.is_empty()).then(|| parse_monday(week).ok_or_else(not_a_monday)).transpose()?;
        self.write_weekly_counts().await?;
        let (weeks, callers) =
            (self.store.list_weeks(&self.service), self.store.list_callers_of_week(&self.service, week));
        let (weeks, callers) = tokio::try_join!(weeks, callers)?;
        Ok(Saved { weeks, callers })
    }

    pub(super) async fn write_weekly_counts(&self) -> Result<(), ApiProblem> {
        match self.instance {
            Some(instance) => Ok(instance.write_weekly_counts().await?),
            None => Ok(()),
        }
    }

    /// Lists the instances of the service, the one that has renewed its lease last before the others.
    pub async fn list_instances(&self) -> Result<Vec<InstanceEntry>, ApiProblem> {
        let params = ListInstancesParams { service: self.service(), limit: INSTANCES_MAX };
        Ok(self.store.list_instances(params).await?)
    }

    /// Lists entries of the audit log, the latest first: about the key with this id, or the one key with an id that
    /// begins so, or about all keys where it is empty; from the place that an earlier log has named, or from the latest
    /// where `cursor` is empty.
    pub async fn list_audit(&self, id: &str, cursor: &str, limit: u32) -> Result<AuditLog, ApiProblem> {
        let id = match id.len() {
            0 => None,
            64 => Some(params::parse_id(id)?),
            // The beginning of an id names a key that is there.
            _ => Some(self.find_entry(id).await?.id),
        };
        let before = (!cursor.is_empty()).then(|| cursor.parse()).transpose();
        let before = before.map_err(|_| ApiProblem::bad("cursor", "is not from the audit log"))?;
        let params = ListAuditEntriesParams { service: self.service(), id, before, limit };
        let entries = self.store.list_audit_entries(params).await?;
        let is_full = entries.len() >= limit as usize;
        let next = entries.last().filter(|_| is_full).map(|entry| entry.seq.to_string());
        Ok(AuditLog { entries, next })
    }
}

fn summarize_response(record: Record) -> Option<ResponseSummary> {
    let KeyState::Completed(completed) = record.state else { return None };
    let response = completed.response;
    let names = |fields: &HeaderMap| fields.keys().map(|name| name.as_str().to_owned()).collect();
    Some(ResponseSummary::Stored {
        status: response.status.as_u16(),
        headers: names(&response.headers),
        trailers: names(&response.trailers),
        body_kept: response.body.is_some(),
        body_bytes: response.body.as_ref().map(bytes::Bytes::len),
    })
}

/// The beginning of a Monday in UTC. 1 January 1970 was a Thursday.
fn parse_monday(text: &str) -> Option<SystemTime> {
    let at = rfc3339::parse_written(text)?;
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    (seconds % 86_400 == 0 && (seconds / 86_400) % 7 == 4).then_some(at)
}

/// The reservation of the attempt whose request is kept for repetitions: since then each outcome was unknown. Only the
/// last 20 attempts are there.
fn kept_since(entry: &KeyEntry) -> SystemTime {
    let known = entry.earlier.iter().rposition(|earlier| earlier.state != StateKind::Unknown);
    known.map_or(entry.created_at, |last| entry.earlier.get(last + 1).map_or(entry.reserved_at, |at| at.reserved_at))
}
