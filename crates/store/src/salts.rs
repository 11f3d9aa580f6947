//! Salts in a store: finding, drawing and sealing them.

use std::sync::Arc;

use super::encryption::random;
use super::{ReplaceSaltParams, Store, StoreError};
use oncegate_domain::fingerprint::Secrets;
use oncegate_domain::scope::Salt;
use oncegate_domain::stored_salt::{SaltError, StoredSalt};
use oncegate_telemetry::logs::format_chain;

/// The number of tries to store a salt. Each that fails has met the start of another instance, which stores once or
/// twice.
const ROUNDS_MAX: usize = 100;

/// The reason for which a service has no salt to work with.
#[derive(Debug, thiserror::Error)]
pub enum OpenSaltError {
    /// The stored one cannot be used.
    #[error(transparent)]
    Salt(#[from] SaltError),
    #[error("the salt of this service's scopes could not be read or stored: {}", format_chain(.0))]
    Store(StoreError),
}

impl From<StoreError> for OpenSaltError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Opens a service's salt, and stores it as these secrets demand. Draws one where the store has none and the process
/// uses none yet: of instances that start together, all use the one that was stored first. After an error nothing was
/// stored, as far as is known.
pub async fn open(
    store: &Store,
    service: &Arc<str>,
    secrets: &Secrets,
    in_use: Option<&Salt>,
) -> Result<Salt, OpenSaltError> {
    for _ in 0..ROUNDS_MAX {
        let found = store.find_salt(Arc::clone(service)).await?;
        let stored = found.as_deref().map(StoredSalt::decode).transpose()?;
        let salt = match (&stored, in_use) {
            (Some(stored), _) => stored.open(service, secrets)?,
            (None, Some(in_use)) => in_use.clone(),
            (None, None) => Salt::new(random()),
        };
        if in_use.is_some_and(|in_use| *in_use != salt) {
            return Err(SaltError::Changed.into());
        }
        let changed = match &stored {
            Some(stored) => stored.for_secrets(&salt, service, secrets, random()),
            None => Some(StoredSalt::new(&salt, service, secrets, random())),
        };
        let Some(changed) = changed else { return Ok(salt) };
        let params = ReplaceSaltParams { service: Arc::clone(service), from: found, to: changed.encode() };
        if store.replace_salt(params).await? {
            log_change(stored.as_ref(), &changed);
            return Ok(salt);
        }
    }
    Err(StoreError::Unavailable("other instances change it without end".into()).into())
}

/// Checks, by the salt, that the service's instances have used the current secret. A service without a salt has had no
/// instance.
pub async fn check_current(store: &Store, service: &Arc<str>, secrets: &Secrets) -> Result<(), OpenSaltError> {
    match store.find_salt(Arc::clone(service)).await? {
        Some(found) => Ok(StoredSalt::decode(&found)?.check_current(secrets)?),
        None => Ok(()),
    }
}

/// The result of comparing the store's salt with the one that this process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaltCheck {
    Same,
    /// The store has another salt.
    Other,
    /// The store has no salt: a failover has lost it.
    Lost,
    /// The store has a salt that this process cannot read. It is the same one if another instance has encrypted it
    /// under a secret that came later.
    Unreadable(SaltError),
}

/// Compares the salt in the store with the one that this process uses.
pub async fn check(
    store: &Store,
    service: &Arc<str>,
    secrets: &Secrets,
    in_use: &Salt,
) -> Result<SaltCheck, StoreError> {
    let Some(found) = store.find_salt(Arc::clone(service)).await? else { return Ok(SaltCheck::Lost) };
    Ok(match StoredSalt::decode(&found).and_then(|stored| stored.open(service, secrets)) {
        Ok(salt) if salt == *in_use => SaltCheck::Same,
        Ok(_) => SaltCheck::Other,
        Err(error) => SaltCheck::Unreadable(error),
    })
}

/// Stores the salt that this process uses where the store has lost it, unless another process was first.
pub async fn restore(
    store: &Store,
    service: &Arc<str>,
    secrets: &Secrets,
    in_use: &Salt,
) -> Result<SaltCheck, StoreError> {
    match open(store, service, secrets, Some(in_use)).await {
        Ok(_) => {
            tracing::warn!("the store had lost the salt of the scopes, as by a failover; it is stored again");
            Ok(SaltCheck::Same)
        }
        Err(OpenSaltError::Salt(SaltError::Changed)) => Ok(SaltCheck::Other),
        Err(OpenSaltError::Salt(error)) => Ok(SaltCheck::Unreadable(error)),
        Err(OpenSaltError::Store(error)) => Err(error),
    }
}

fn log_change(before: Option<&StoredSalt>, now: &StoredSalt) {
    let secrets = now.names().join(", ");
    match before {
        None => {}
        Some(StoredSalt::Clear(_)) => tracing::info!(
            %secrets,
            "encrypted the salt of the scopes under `secret`; from now on Oncegate does not start without this secret. Backups that \
             were made before have the salt in clear"
        ),
        Some(before @ StoredSalt::Sealed(_)) => {
            tracing::info!(%secrets, "the salt of the scopes is now encrypted under these secrets, the latest last");
            let kept = now.names();
            let dropped: Vec<_> = before.names().into_iter().filter(|name| !kept.contains(name)).collect();
            if !dropped.is_empty() {
                let dropped = dropped.join(", ");
                tracing::warn!(
                    %dropped,
                    "these secrets are not configured any more. If keys that were made under them still live, their retries cannot \
                     be compared and get 409 outcome-unknown: put the secrets back into `previous_secrets` until a ttl has passed"
                );
            }
        }
    }
}
