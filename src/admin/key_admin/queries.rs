//! Requests that change nothing.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::KeyAdminSnapshot;
use super::dto::{AuditLog, FingerprintSummary, KeyDetails, KeyList, KeyStats, NextPage, ResponseSummary};
use super::params::{self, AuditQuery, ListQuery};
use super::problem::ApiProblem;
use crate::domain::execution_risk::{ActionKind, ActionRisk};
use crate::domain::record::Record;
use crate::domain::state::KeyState;
use crate::store::admin::{InstanceEntry, KeyEntry, KeyFilter};
use crate::store::{ListAuditEntriesParams, ListInstancesParams, StoreError};

/// The time after which a list with few keys, and a place to go on from, is returned.
const SEARCH_MAX: Duration = Duration::from_secs(1);

/// The number of audit entries that come with a key, at most.
const AUDIT_ENTRIES_MAX: u32 = 100;

/// The number of digits of a fingerprint that are shown.
const FINGERPRINT_DIGITS: usize = 12;

/// The number of instances that are listed: more than one service runs.
const INSTANCES_MAX: u32 = 100;

impl KeyAdminSnapshot<'_> {
    /// Lists keys that fit a filter.
    ///
    /// # Errors
    /// [`ApiProblem`], where the store fails.
    pub async fn list_keys(&self, query: ListQuery) -> Result<KeyList, ApiProblem> {
        let ListQuery { filter, mut after, limit } = query;
        let order = filter.order();
        let begun = Instant::now();
        let mut keys = Vec::new();
        loop {
            let left = limit - u32::try_from(keys.len()).unwrap_or(limit);
            let page = self.store.list_keys(self.key_page(filter.clone(), after, left)).await?;
            keys.extend(page.entries);
            after = page.next;
            if after.is_none() || keys.len() >= limit as usize || begun.elapsed() >= SEARCH_MAX {
                return Ok(KeyList { keys, next: after.map(|cursor| NextPage { cursor, order }) });
            }
        }
    }

    /// Returns all that operators may know of the key with this id, or with an id that begins so.
    ///
    /// # Errors
    /// [`ApiProblem`], where there is no such key, there are several, or the store fails.
    pub async fn show_key(&self, id: &str) -> Result<KeyDetails, ApiProblem> {
        let entry = self.find_entry(id).await?;
        let quiet_at = self.route_times(&entry.route).retry_rule.map(|rule| entry.deadline + rule.quiet_after);
        let (record, corrupt) = match self.store.find(entry.id).await {
            Ok(record) => (record, None),
            Err(StoreError::Corrupt(row)) => (None, Some(ResponseSummary::Corrupt(row))),
            Err(error) => return Err(error.into()),
        };
        let fingerprint = record.as_ref().map(|record| FingerprintSummary {
            hash: record.fingerprint.to_string().chars().take(FINGERPRINT_DIGITS).collect(),
            recipe: record.recipe.to_stored().to_owned(),
        });
        let recovery_point = record.as_ref().and_then(|record| record.recovery_point.clone());
        let response = record.filter(|record| record.token == entry.token).and_then(summarize_response);
        let response = corrupt.or(response);
        let (service, id) = (self.service(), Some(entry.id));
        let params = ListAuditEntriesParams { service, id, before: None, limit: AUDIT_ENTRIES_MAX };
        let audit = self.store.list_audit_entries(params).await?;
        let is_quiet = self.is_quiet(&entry);
        let counts = |risk: &ActionRisk| !(*risk == ActionRisk::AttemptRunning && is_quiet);
        let risk = |action| Some((action, self.risk(&entry, action).filter(counts)?));
        let risks = ActionKind::ALL.into_iter().filter_map(risk).collect();
        Ok(KeyDetails { entry, risks, is_quiet, quiet_at, recovery_point, fingerprint, response, audit })
    }

    /// Returns the one key that an id, or the beginning of one, names.
    pub(super) async fn find_entry(&self, id: &str) -> Result<KeyEntry, ApiProblem> {
        let filter = KeyFilter { ids: params::parse_id_prefix(id)?, ..KeyFilter::default() };
        let mut page = self.store.list_keys(self.key_page(filter, None, 2)).await?;
        match (page.entries.pop(), page.entries.pop()) {
            (Some(entry), None) => Ok(entry),
            (None, _) => Err(ApiProblem::no_such_key()),
            (Some(_), Some(_)) => Err(ApiProblem::bad("id", "is the beginning of several ids: write more of it")),
        }
    }

    /// Counts keys by route and state.
    ///
    /// # Errors
    /// [`ApiProblem`], where the store fails.
    pub async fn count_keys(&self) -> Result<KeyStats, ApiProblem> {
        let counts = self.store.count_keys(self.service()).await?;
        let without_route = counts.list_without_route(|name| self.config.has_route(name));
        Ok(KeyStats { service: self.service(), counts, without_route, instance: None })
    }

    /// Lists the instances of the service, the one that has renewed its lease last before the others.
    ///
    /// # Errors
    /// [`ApiProblem`], where the store fails.
    pub async fn list_instances(&self) -> Result<Vec<InstanceEntry>, ApiProblem> {
        let params = ListInstancesParams { service: self.service(), limit: INSTANCES_MAX };
        Ok(self.store.list_instances(params).await?)
    }

    /// Lists entries of the audit log, the latest first.
    ///
    /// # Errors
    /// [`ApiProblem`], where the store fails.
    pub async fn list_audit(&self, query: AuditQuery) -> Result<AuditLog, ApiProblem> {
        let AuditQuery { id, before, limit } = query;
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
        status: response.status,
        headers: names(&response.headers),
        trailers: names(&response.trailers),
        body_bytes: response.body.as_ref().map(bytes::Bytes::len),
    })
}
