//! Rows of deliveries as they come from the stores, understood.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::row;
use crate::domain::attempt::{Lease, Token};
use crate::domain::fingerprint::{Fingerprint, Recipe};
use crate::domain::job::{Dead, Delivery, Job, PickUp};
use crate::domain::key::Key;
use crate::domain::policy::OnUnknown;
use crate::domain::record::{Ask, RecordId};
use crate::domain::response::Corrupt;
use crate::domain::scope::Scope;
use crate::domain::sealed::Sealed;

/// As the statements have it.
pub fn on_unknown(policy: OnUnknown) -> &'static str {
    match policy {
        OnUnknown::Hold => "hold",
        OnUnknown::Retry => "retry",
        OnUnknown::RetryWhenQuiet => "retry-when-quiet",
    }
}

/// A row that became an attempt; nothing of it is believed yet.
pub struct RawJob<'a> {
    /// See [`Ask`]; so are most below.
    pub id: &'a [u8],
    /// The attempt's token.
    pub token: &'a [u8],
    /// Who called.
    pub scope: &'a [u8],
    /// Within what the key is unique.
    pub space: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The path, where it was kept.
    pub path: Option<&'a [u8]>,
    /// The route's name.
    pub route: &'a str,
    /// How the fingerprint was made.
    pub recipe: &'a str,
    /// What the key was accepted for.
    pub fingerprint: &'a [u8],
    /// The attempt's number.
    pub attempt: i64,
    /// How far those before it have come.
    pub recovery_point: Option<&'a str>,
    /// When it was accepted.
    pub accepted_at_ms: i64,
    /// How many tries there were before.
    pub spent: i64,
    /// How long it may still be tried.
    pub give_up_in_ms: i64,
    /// Which secret opens the request.
    pub secret: &'a str,
    /// The request.
    pub sealed: &'a [u8],
}

impl RawJob<'_> {
    /// The delivery that the row stands for, picked up by this order.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self, service: &Arc<str>, order: &PickUp) -> Result<Job, Corrupt> {
        let route = order.terms.iter().find(|terms| *terms.route == *self.route).ok_or(Corrupt("route"))?;
        let ask = Ask {
            id: RecordId::from_stored(self.id).ok_or(Corrupt("id"))?,
            service: Arc::clone(service),
            scope: Scope::from_stored(self.scope).ok_or(Corrupt("scope"))?,
            space: Bytes::copy_from_slice(self.space),
            key: Key::from_stored(self.key).ok_or(Corrupt("key"))?,
            path: self.path.map(Bytes::copy_from_slice),
            route: Arc::clone(&route.route),
            recipe: Recipe::from_stored(self.recipe).ok_or(Corrupt("recipe"))?,
            fingerprint: Fingerprint::from_stored(self.fingerprint).ok_or(Corrupt("fingerprint"))?,
            instance: order.instance,
            token: Token::from_stored(self.token).ok_or(Corrupt("token"))?,
            time_limit: route.time_limit,
        };
        let delivery = Delivery {
            accepted_at: row::time(self.accepted_at_ms)?,
            number: row::count(self.spent)?.saturating_add(1),
            give_up_in: Duration::from_millis(self.give_up_in_ms.max(0).cast_unsigned()),
        };
        let sealed = Sealed { secret: self.secret.to_owned(), bytes: Bytes::copy_from_slice(self.sealed) };
        let attempt = row::attempt(self.attempt)?;
        let recovery_point = row::recovery_point(self.recovery_point)?;
        Ok(Job { lease: Lease { ask: Arc::new(ask), attempt, recovery_point, delivery: Some(delivery) }, sealed })
    }
}

/// A row that was given up.
pub struct Grave {
    /// See [`Dead`]; so are the two below.
    pub id: Vec<u8>,
    /// The route's name.
    pub route: String,
    /// Why.
    pub note: String,
}

impl Grave {
    /// What the row stands for.
    ///
    /// # Errors
    /// [`Corrupt`] says which part does not decode.
    pub fn decode(self) -> Result<Dead, Corrupt> {
        let id = RecordId::from_stored(&self.id).ok_or(Corrupt("id"))?;
        Ok(Dead { id, route: self.route.into(), note: self.note })
    }
}
