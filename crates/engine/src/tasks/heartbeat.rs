//! Renews this instance's lease, and compares the store's clock with boot time and its salt with the one in use. Stores
//! again which routes have events, where a failover may have taken it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use futures_util::future::try_join_all;

use super::{PassResult, Task};
use crate::instance::boot_time::BootInstant;
use crate::instance::instance_salt::InstanceSalt;
use crate::instance::store_clock::ClockReading;
use crate::instance::{Instance, clock_limits, event_routes};
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::stored_salt::SaltError;
use oncegate_settings::Config;
use oncegate_store::salts::{self, SaltCheck};
use oncegate_store::{LeaseRenewal, Store, StoreError};

/// For this long after a configuration was stored, each heartbeat restores what an unnoticed failover may have taken
/// back. A standby that takes over usually lacks less.
const RESTORE_FOR: Duration = Duration::from_secs(60);

/// Renews the lease. All attempts of this instance depend on its one row: the cost does not grow with their number.
pub struct Heartbeat {
    instance: Arc<Instance>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
    /// The configuration of the last heartbeat, and when it was first seen.
    seen: Option<(Arc<Config>, BootInstant)>,
    /// Whether the salt in the store cannot be read, so that it is logged once.
    is_salt_unreadable: bool,
    /// Whether the store has lost the salt, and not been seen with it since.
    was_salt_lost: bool,
}

impl Heartbeat {
    /// Creates the task; each renewal judges the store's clock by the newest configuration of `live`.
    pub fn new(instance: Arc<Instance>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { instance, live, seen: None, is_salt_unreadable: false, was_salt_lost: false }
    }

    /// Whether a failover may have taken back which routes have events: while the lease is suspended, as by a known
    /// failover, and for some time after they were stored, as one may go unnoticed. Not for ever: another instance's
    /// newer configuration may have less.
    fn may_lack_routes(&mut self, live: &Arc<Config>, now: BootInstant) -> bool {
        let is_same = |seen: &&(Arc<Config>, BootInstant)| Arc::ptr_eq(&seen.0, live);
        let since = self.seen.as_ref().filter(is_same).map_or(now, |(_, since)| *since);
        self.seen = Some((Arc::clone(live), since));
        now.since(since) < RESTORE_FOR || !self.instance.instance_lease.may_start()
    }

    /// Whether this process may start anything more, after a look at the salts in the store. Under two salts a key has
    /// two records, and would be executed twice.
    fn may_go_on(&mut self, salts: &[SaltCheck]) -> bool {
        let Instance { instance_lease, salt_replaced, is_salt_doubtful, .. } = &*self.instance;
        // One that is wrong for one service is wrong for the process.
        let Some(salt) = salts.iter().max_by_key(|salt| severity(salt)) else { return true };
        match salt {
            SaltCheck::Other if !salt_replaced.is_cancelled() => {
                tracing::error!("{}; it ends, and uses the other one when it is started again", SaltError::Changed);
                salt_replaced.cancel();
            }
            SaltCheck::Unreadable(error) if !self.is_salt_unreadable && self.was_salt_lost => tracing::error!(
                "the store had lost the salt of the scopes, and another process has stored one that this process cannot read: \
                 {error}. It starts nothing until it can"
            ),
            SaltCheck::Unreadable(error) if !self.is_salt_unreadable => tracing::warn!(
                "this process goes on with the salt that it has read at its start, and cannot read the one in the store: {error}. \
                 They are the same if another instance has a `secret` that this one has not"
            ),
            SaltCheck::Lost => self.was_salt_lost = true,
            SaltCheck::Same => self.was_salt_lost = false,
            SaltCheck::Other | SaltCheck::Unreadable(_) => {}
        }
        self.is_salt_unreadable = matches!(salt, SaltCheck::Unreadable(_));
        let is_doubtful = self.is_salt_unreadable && self.was_salt_lost;
        is_salt_doubtful.store(is_doubtful, Ordering::Release);
        let may_go_on = !salt_replaced.is_cancelled() && !is_doubtful;
        if !may_go_on {
            instance_lease.suspend();
        }
        may_go_on
    }
}

impl Task for Heartbeat {
    const NAME: &'static str = "heartbeat";

    async fn run_once(&mut self) -> Result<PassResult, StoreError> {
        let instance = Arc::clone(&self.instance);
        let Instance { store, instance_lease, store_clock, cache, config, salts, .. } = &*instance;
        let live = Arc::clone(&self.live.borrow());
        let in_use: Vec<_> = live.service_names().map(|service| (service, salts.of(service))).collect();
        let started = BootInstant::now();
        let renewal = LeaseRenewal {
            instance: instance_lease.id(),
            services: live.joined_service_names(),
            expiry: instance_lease.expiry(),
            purges_seen: Some(cache.purge_count()),
            hold_ttls_until: store_clock.hold_to_store(),
        };
        let check = async {
            let has_changed = store.check_primaries().await.has_changed;
            if has_changed {
                // At once, and not after the renewal. The new primary may have neither this lease nor what was reserved
                // under it, and the renewal may have gone to the former one.
                instance_lease.suspend();
            }
            has_changed
        };
        let renew = async { (store.renew_lease(renewal).await, BootInstant::now()) };
        let check_salts = check_salts(store, &live.secrets, &in_use);
        let (has_changed, (renewed, ended), salts_found) = tokio::join!(check, renew, check_salts);
        if has_changed {
            return Ok(PassResult::Full);
        }
        let missed = |_: &StoreError| instance_lease.record_missed_renewal();
        let renewed = renewed.inspect_err(missed)?;
        let mut salts_found = salts_found.inspect_err(missed)?;
        if salts_found.contains(&SaltCheck::Lost) && !instance_lease.may_start() {
            // A lease that was suspended, as by a failover, comes back only under salts that others have too.
            self.was_salt_lost = true;
            restore_salts(store, &live.secrets, &in_use, &mut salts_found).await.inspect_err(missed)?;
        }
        if !self.may_go_on(&salts_found) {
            return Ok(PassResult::Idle);
        }
        if self.may_lack_routes(&live, started) && !live.events.is_empty() {
            // What starts from here on must have its events.
            event_routes::restore_routes(store, &live).await.inspect_err(missed)?;
        }
        store_clock.set_limits(clock_limits(&config.store, &live.routes));
        // Before the lease lets attempts start: what the jump seems to have ended must not be believed.
        let has_jumped = observe_clock(&instance, &ClockReading { started, ended, store_time: renewed.now });
        store_clock.note_stored_hold(renewed.ttls_held_until);
        // The cache drops purged records before the next heartbeat reports the purge as seen, and before the lease lets
        // the cache answer again: a lease that comes back would otherwise let it replay records that were purged
        // meanwhile.
        let has_new_purge = cache.observe_purge_count(renewed.purges);
        instance_lease.record_renewal(started);
        // A lease that holds is renewed first: another salt could have been stored unnoticed until here as well.
        if salts_found.contains(&SaltCheck::Lost) {
            restore_salts(store, &live.secrets, &in_use, &mut salts_found).await?;
            if !self.may_go_on(&salts_found) {
                return Ok(PassResult::Idle);
            }
        }
        // At once: a purge waits until all instances have reported it, and an instance that starts must know of the
        // jump.
        Ok(if has_new_purge || has_jumped { PassResult::Full } else { PassResult::Idle })
    }
}

/// The order in which the salts of several services count.
fn severity(salt: &SaltCheck) -> usize {
    match salt {
        SaltCheck::Same => 0,
        SaltCheck::Lost => 1,
        SaltCheck::Unreadable(_) => 2,
        SaltCheck::Other => 3,
    }
}

/// The services with the salts that this process uses.
type SaltsInUse<'a> = [(&'a Arc<str>, Arc<InstanceSalt>)];

/// Compares each of them. One that this process does not know yet is used by nobody here.
async fn check_salts(store: &Store, secrets: &Secrets, in_use: &SaltsInUse<'_>) -> Result<Vec<SaltCheck>, StoreError> {
    let check = async |(service, salt): &(&Arc<str>, Arc<InstanceSalt>)| match salt.stored() {
        Some(salt) => salts::check(store, service, secrets, salt).await,
        None => Ok(SaltCheck::Same),
    };
    try_join_all(in_use.iter().map(check)).await
}

/// Stores again each salt that the store has lost.
async fn restore_salts(
    store: &Store,
    secrets: &Secrets,
    in_use: &SaltsInUse<'_>,
    found: &mut [SaltCheck],
) -> Result<(), StoreError> {
    for ((service, salt), found) in in_use.iter().zip(found).filter(|(_, found)| **found == SaltCheck::Lost) {
        if let Some(salt) = salt.stored() {
            *found = salts::restore(store, service, secrets, salt).await?;
        }
    }
    Ok(())
}

/// Compares the store's clock with boot time. Returns whether it has jumped.
fn observe_clock(instance: &Instance, reading: &ClockReading) -> bool {
    let Some(jump) = instance.store_clock.observe(reading) else { return false };
    instance.observability.metrics.clock_jumps.count(jump.direction);
    tracing::warn!(
        direction = jump.direction.name(),
        by_ms = jump.signed_millis(),
        "the store's clock has jumped: leases, quiet times and TTLs that it has ended are not believed for a while"
    );
    true
}
