//! The limits of a route on the new keys of its callers. `claim` asks them before it takes a key that may be new.

use super::admit::GuardedRequest;
use crate::instance::Instance;
use crate::instance::key_limits::NewKeyAllowance;
use crate::instance::live_keys::{KeyRoom, LiveKeyAllowance};
use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::key_holder::KeyHolder;
use oncegate_domain::scope::Scope;
use oncegate_http::protocol::refusal::RetryAfter;
use oncegate_settings::Route;
use oncegate_store::{CountLiveKeysParams, MoveLiveKeysParams};

/// A key that may be new: it has taken its part of the route's limits.
#[derive(Debug, Default)]
pub(super) struct NewKeyPermit {
    rate: Option<NewKeyAllowance>,
    room: Option<LiveKeyAllowance>,
    /// The party that the key counts for, if it is new.
    holder: Option<KeyHolder>,
}

impl NewKeyPermit {
    /// The request to reserve the key, with the party that it counts for.
    pub(super) fn mark(&self, reserve_request: &ReserveRequest) -> ReserveRequest {
        ReserveRequest { holder: self.holder, ..reserve_request.clone() }
    }

    /// Gives back what the key has taken: it was not new.
    pub(super) fn give_back(self) {
        if let Some(rate) = self.rate {
            rate.give_back();
        }
        if let Some(room) = self.room {
            room.give_back();
        }
    }
}

impl GuardedRequest {
    /// Takes a new key's part of the route's limits.
    ///
    /// # Errors
    /// The time after which the caller may use a new key.
    pub(super) async fn use_new_key(&self, instance: &Instance) -> Result<NewKeyPermit, RetryAfter> {
        let mut permit = NewKeyPermit::default();
        if !self.route().limits_new_keys() {
            return Ok(permit);
        }
        if let Some(rate) = self.route().options.limits.new_keys_per_second {
            let (route, scope) = (&self.reserve_request.route, &self.reserve_request.scope);
            let used = instance.key_limits.try_use(route, rate, scope, self.client_address);
            permit.rate = Some(used.map_err(RetryAfter::new)?);
        }
        if let Some(limit) = self.route().options.limits.live_keys {
            // Boxed because it is rare: the futures of all requests would have to hold room for it.
            match Box::pin(self.take_room(instance, limit)).await {
                Some((holder, room)) => (permit.holder, permit.room) = (Some(holder), Some(room)),
                None => {
                    permit.give_back();
                    // The reaper makes room.
                    return Err(RetryAfter::new(instance.config.store.reap_every));
                }
            }
        }
        Ok(permit)
    }

    /// Takes room for a live key of the caller, or of its address while no service has accepted the caller.
    async fn take_room(&self, instance: &Instance, limit: u32) -> Option<(KeyHolder, LiveKeyAllowance)> {
        let (salt, space_name) = (self.active.salt.current().salt, self.route().space_name());
        let (service, scope) = (&self.reserve_request.service, &self.reserve_request.scope);
        let caller = KeyHolder::of_caller(salt, service, space_name, scope);
        let holder = match self.client_address {
            Some(address) if !is_accepted(instance, caller, scope).await => {
                KeyHolder::of_address(salt, service, space_name, address)
            }
            Some(_) | None => caller,
        };
        Some((holder, take_room_of(instance, holder, limit).await?))
    }
}

/// Notes that a service has answered a caller's attempt with a 2xx. Until now the caller's keys have counted for the
/// address that they came from, and from now on they count for the caller, who would otherwise have room for as many
/// again. `is_stored`: the store has the attempt's outcome.
pub(super) async fn accept_caller(instance: &Instance, route: &Route, request: &ReserveRequest, is_stored: bool) {
    if route.options.limits.live_keys.is_some() && is_stored {
        // An observed request names no service of the file.
        let salt = instance.salts.of(&route.service.name);
        let caller = KeyHolder::of_caller(salt.current().salt, &request.service, route.space_name(), &request.scope);
        // A later attempt of a key does not know for whom the key counts.
        if request.holder != Some(caller) {
            let params = MoveLiveKeysParams { id: request.id, scope: request.scope, holder: caller };
            match instance.store.move_live_keys(params).await {
                Ok(moved) => instance.live_keys.note_moved(caller, moved),
                Err(error) => {
                    tracing::warn!(%error, "an accepted caller's first keys count for their address until they are deleted");
                }
            }
        }
    }
    // Only now: a new key that counts for the caller must find those.
    instance.key_limits.note_accepted(&request.scope);
}

/// Whether a service has accepted a caller: here, or on another instance or before a start. Only accepted callers have
/// keys that count for themselves.
async fn is_accepted(instance: &Instance, caller: KeyHolder, scope: &Scope) -> bool {
    if instance.key_limits.is_accepted(scope) {
        return true;
    }
    let counting = instance.store.count_live_keys(CountLiveKeysParams { holder: caller, limit: 1 });
    let is_accepted = counting.await.is_ok_and(|owned| owned > 0);
    if is_accepted {
        instance.key_limits.note_accepted(scope);
    }
    is_accepted
}

/// Takes room for a live key, and asks the store for the count where it is needed.
async fn take_room_of(instance: &Instance, holder: KeyHolder, limit: u32) -> Option<LiveKeyAllowance> {
    match instance.live_keys.try_take(holder, limit) {
        KeyRoom::Free(allowance) => Some(allowance),
        KeyRoom::Full => None,
        KeyRoom::Unknown(look) => match instance.store.count_live_keys(CountLiveKeysParams { holder, limit }).await {
            Ok(counted) => look.note_count(counted),
            // A limit must not make an outage: the reservation itself shows whether the store works.
            Err(error) => {
                tracing::warn!(%error, "a caller's live keys could not be counted; its new key is allowed");
                Some(look.note_failure())
            }
        },
    }
}
