//! A store whose responses are encrypted on their way in and decrypted on their way out.
//!
//! It wraps the store of either kind. Keys, states and statuses stay readable: statements and operators need them.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::config;
use crate::domain::attempt::{AttemptOutcome, ReserveRequest, ReserveResult, Settlement};
use crate::domain::delivery::{EnqueueRequest, EnqueueResult, PickUpRequest, PickUpResult};
use crate::domain::fingerprint::Secrets;
use crate::domain::ids::{InstanceId, RecordId, Token};
use crate::domain::key_holder::KeyHolder;
use crate::domain::probe::{Probe, ProbeFinding, ProbeSchedule, ProbeVerdict, SettledKeyPage};
use crate::domain::record::Record;
use crate::domain::response::{CorruptRow, StoredResponse};
use crate::domain::scope::Scope;
use crate::domain::sealed_response;
use crate::domain::state::{KeyState, StateKind};
use crate::machine::fill_random;

use super::admin::{
    AuditEntry, Cursor, DecisionResults, InstanceEntry, KeyCounts, KeyFilter, KeyPage, OperatorAction,
    OperatorDecision, Target,
};
use super::{
    AdminStore, ExpectedRecord, LeaseRenewal, PrimaryCheck, ReapScope, ReapedRows, RelocateFuture, RenewResult,
    ReservedAttempt, RouteIdentity, SaltStore, ServiceReports, SettleResult, Store, StoreFuture, StoreLocation,
    SweptKey,
};

/// The secrets, and whether new responses are encrypted. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    secrets: Secrets,
    encrypts: bool,
}

/// A store with encrypted responses.
pub struct EncryptedStore {
    store: Arc<dyn Store>,
    encryption: RwLock<Encryption>,
}

impl From<&config::Config> for Encryption {
    fn from(config: &config::Config) -> Self {
        Self { secrets: config.secrets.clone(), encrypts: config.store.encrypt }
    }
}

impl Encryption {
    /// The response as it is stored, where it is encrypted.
    fn seal(&self, id: &RecordId, token: &Token, response: &StoredResponse) -> Option<StoredResponse> {
        let secret = self.secrets.current().filter(|_| self.encrypts)?;
        let mut salt = [0; 32];
        fill_random(&mut salt).expect("the operating system has random numbers");
        Some(sealed_response::seal(secret, id, token, salt, response))
    }

    fn open(&self, mut record: Record) -> Result<Record, CorruptRow> {
        if let KeyState::Completed(completed) = &mut record.state
            && let Some(opened) = sealed_response::open(&self.secrets, &record.id, &record.token, &completed.response)?
        {
            completed.response = Arc::new(opened);
        }
        Ok(record)
    }
}

impl EncryptedStore {
    /// Wraps a store.
    pub fn new(store: Arc<dyn Store>, encryption: Encryption) -> Arc<Self> {
        Arc::new(Self { store, encryption: RwLock::new(encryption) })
    }

    /// Uses other secrets from now on.
    pub fn reload(&self, encryption: Encryption) {
        *self.encryption.write().unwrap_or_else(PoisonError::into_inner) = encryption;
    }

    fn encryption(&self) -> Encryption {
        self.encryption.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open_result(&self, result: ReserveResult) -> Result<ReserveResult, CorruptRow> {
        Ok(match result {
            ReserveResult::Taken(record) => ReserveResult::Taken(self.encryption().open(record)?),
            fresh @ ReserveResult::Fresh(_) => fresh,
        })
    }
}

impl Store for EncryptedStore {
    fn reserve(&self, reserve_request: ReserveRequest) -> StoreFuture<'_, ReserveResult> {
        Box::pin(async move { Ok(self.open_result(self.store.reserve(reserve_request).await?)?) })
    }

    fn take_over(&self, reserve_request: ReserveRequest, from: ExpectedRecord) -> StoreFuture<'_, ReserveResult> {
        Box::pin(async move { Ok(self.open_result(self.store.take_over(reserve_request, from).await?)?) })
    }

    fn settle(&self, mut settlement: Settlement) -> StoreFuture<'_, SettleResult> {
        Box::pin(async move {
            let encryption = self.encryption();
            if let AttemptOutcome::Completed { response, .. } = &mut settlement.outcome
                && let Some(sealed) = encryption.seal(&settlement.id, &settlement.token, response)
            {
                *response = Arc::new(sealed);
            }
            Ok(match self.store.settle(settlement).await? {
                SettleResult::Fenced(Some(record)) => SettleResult::Fenced(Some(encryption.open(record)?)),
                result @ (SettleResult::Done { .. } | SettleResult::Fenced(None)) => result,
            })
        })
    }

    fn find(&self, id: RecordId) -> StoreFuture<'_, Option<Record>> {
        Box::pin(async move {
            let found = self.store.find(id).await?;
            Ok(found.map(|record| self.encryption().open(record)).transpose()?)
        })
    }

    fn count_live_keys(&self, holder: KeyHolder, limit: u32) -> StoreFuture<'_, u32> {
        self.store.count_live_keys(holder, limit)
    }

    fn move_live_keys(&self, id: RecordId, scope: Scope, holder: KeyHolder) -> StoreFuture<'_, u32> {
        self.store.move_live_keys(id, scope, holder)
    }

    fn renew_lease(&self, renewal: LeaseRenewal) -> StoreFuture<'_, RenewResult> {
        self.store.renew_lease(renewal)
    }

    fn check_primaries(&self) -> Pin<Box<dyn Future<Output = PrimaryCheck> + Send + '_>> {
        self.store.check_primaries()
    }

    fn has_changed_primary(&self) -> bool {
        self.store.has_changed_primary()
    }

    fn relocate<'a>(&'a self, location: &'a StoreLocation) -> RelocateFuture<'a> {
        self.store.relocate(location)
    }

    fn release_lease(&self, instance: InstanceId) -> StoreFuture<'_, ()> {
        self.store.release_lease(instance)
    }

    fn sweep(&self, expiry: Duration, limit: u32, as_of: SystemTime) -> StoreFuture<'_, Vec<SweptKey>> {
        self.store.sweep(expiry, limit, as_of)
    }

    fn list_in_flight(&self, instance: InstanceId, older_than: Duration) -> StoreFuture<'_, Vec<ReservedAttempt>> {
        self.store.list_in_flight(instance, older_than)
    }

    fn extend_deadline(&self, id: RecordId, token: Token, time_limit: Duration) -> StoreFuture<'_, bool> {
        self.store.extend_deadline(id, token, time_limit)
    }

    fn reap(&self, limit: u32, scope: ReapScope) -> StoreFuture<'_, ReapedRows> {
        self.store.reap(limit, scope)
    }

    fn claim_probes(
        &self,
        service: &Arc<str>,
        schedules: Vec<ProbeSchedule>,
        limit: u32,
        as_of: SystemTime,
    ) -> StoreFuture<'_, Vec<Probe>> {
        self.store.claim_probes(service, schedules, limit, as_of)
    }

    fn apply_probe_finding(&self, mut finding: ProbeFinding) -> StoreFuture<'_, bool> {
        if let ProbeVerdict::Completed { response, .. } = &mut finding.verdict
            && let Some(sealed) = self.encryption().seal(&finding.id, &finding.token, response)
        {
            *response = Arc::new(sealed);
        }
        self.store.apply_probe_finding(finding)
    }

    fn list_settled_keys(
        &self,
        service: &Arc<str>,
        routes: Vec<Arc<str>>,
        since: Duration,
        after: Option<RecordId>,
        limit: u32,
    ) -> StoreFuture<'_, SettledKeyPage> {
        self.store.list_settled_keys(service, routes, since, after, limit)
    }

    fn enqueue(&self, order: EnqueueRequest, from: Option<ExpectedRecord>) -> StoreFuture<'_, EnqueueResult> {
        Box::pin(async move {
            Ok(match self.store.enqueue(order, from).await? {
                EnqueueResult::Taken(record) => EnqueueResult::Taken(self.encryption().open(record)?),
                EnqueueResult::Accepted => EnqueueResult::Accepted,
            })
        })
    }

    fn pick_up(&self, order: PickUpRequest) -> StoreFuture<'_, PickUpResult> {
        self.store.pick_up(order)
    }

    fn give_up(&self, id: RecordId, token: Token, states: &'static [StateKind], note: String) -> StoreFuture<'_, bool> {
        self.store.give_up(id, token, states, note)
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store.failed()
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.store.ping()
    }

    fn remember_route_identities(
        &self,
        service: Arc<str>,
        rules: Vec<RouteIdentity>,
    ) -> StoreFuture<'_, Vec<RouteIdentity>> {
        self.store.remember_route_identities(service, rules)
    }

    fn salts(&self) -> &dyn SaltStore {
        self.store.salts()
    }

    fn service_reports(&self) -> &dyn ServiceReports {
        self.store.service_reports()
    }

    fn admin(&self) -> &dyn AdminStore {
        self
    }
}

impl AdminStore for EncryptedStore {
    fn list_keys(
        &self,
        service: Arc<str>,
        filter: KeyFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> StoreFuture<'_, KeyPage> {
        self.store.admin().list_keys(service, filter, after, limit)
    }

    fn apply_operator_decision(
        &self,
        service: Arc<str>,
        decision: Arc<OperatorDecision>,
        targets: Vec<Target>,
        as_of: Option<SystemTime>,
    ) -> StoreFuture<'_, DecisionResults> {
        let encryption = self.encryption();
        let response = match &decision.change {
            OperatorAction::Complete(response) if encryption.encrypts => response.clone(),
            _ => return self.store.admin().apply_operator_decision(service, decision, targets, as_of),
        };
        Box::pin(async move {
            // Each key has a text of its own, so each needs a call.
            let mut all = DecisionResults::default();
            for target in targets {
                let sealed = encryption.seal(&target.id, &target.token, &response);
                let decision = OperatorDecision {
                    change: OperatorAction::Complete(sealed.map_or_else(|| Arc::clone(&response), Arc::new)),
                    actor: decision.actor.clone(),
                    note: decision.note.clone(),
                    accept_risk: decision.accept_risk,
                };
                let (service, decision) = (Arc::clone(&service), Arc::new(decision));
                let one = self.store.admin().apply_operator_decision(service, decision, vec![target], as_of).await?;
                all.verdicts.extend(one.verdicts);
                all.queued.extend(one.queued);
                all.purges = one.purges.or(all.purges);
            }
            Ok(all)
        })
    }

    fn list_audit_entries(
        &self,
        service: Arc<str>,
        of: Option<RecordId>,
        before: Option<i64>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        self.store.admin().list_audit_entries(service, of, before, limit)
    }

    fn count_keys(&self, service: Arc<str>) -> StoreFuture<'_, KeyCounts> {
        self.store.admin().count_keys(service)
    }

    fn count_instances_behind(&self, service: Arc<str>, purges: u64) -> StoreFuture<'_, u64> {
        self.store.admin().count_instances_behind(service, purges)
    }

    fn list_instances(&self, service: Arc<str>, limit: u32) -> StoreFuture<'_, Vec<InstanceEntry>> {
        self.store.admin().list_instances(service, limit)
    }
}
