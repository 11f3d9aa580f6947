//! Decoding the rows of deliveries, for both stores.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::row;
use crate::domain::attempt::{AttemptLease, ReplacedRecord, ReserveRequest};
use crate::domain::delivery::{DeliveryJob, GivenUpKey, PickUpRequest};
use crate::domain::fingerprint::{Fingerprint, Recipe};
use crate::domain::ids::{RecordId, Token};
use crate::domain::key::Key;
use crate::domain::response::CorruptRow;
use crate::domain::response_policy::OnUnknown;
use crate::domain::retry::DeliveryAttempt;
use crate::domain::scope::Scope;
use crate::domain::sealed::SealedBytes;
use crate::domain::space::SpaceHash;

/// The policy's name in the statements.
pub fn on_unknown(policy: OnUnknown) -> &'static str {
    match policy {
        OnUnknown::Hold => "hold",
        OnUnknown::Retry => "retry",
        OnUnknown::RetryWhenQuiet => "retry-when-quiet",
    }
}

/// The row of a delivery that became an attempt; nothing of it is validated yet.
pub struct RawDeliveryJob<'a> {
    /// The record's id, see [`ReserveRequest`], as for most fields below.
    pub id: &'a [u8],
    /// The attempt's token.
    pub token: &'a [u8],
    /// The token before it.
    pub taken_from: &'a [u8],
    /// The caller's scope.
    pub scope: &'a [u8],
    /// The space within which the key is unique.
    pub space: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The path, where it is stored.
    pub path: Option<&'a [u8]>,
    /// The route's name.
    pub route: &'a str,
    /// The fingerprint's recipe.
    pub recipe: &'a str,
    /// The fingerprint of the accepted request.
    pub fingerprint: &'a [u8],
    /// The attempt's number.
    pub attempt: i64,
    /// The recovery point of earlier attempts.
    pub recovery_point: Option<&'a str>,
    /// When the key was accepted, in milliseconds since 1970.
    pub accepted_at_ms: i64,
    /// The number of earlier tries.
    pub spent: i64,
    /// The time left for further tries, in milliseconds.
    pub give_up_in_ms: i64,
    /// The name of the secret that opens the request.
    pub secret: &'a str,
    /// The sealed request.
    pub sealed: &'a [u8],
}

impl RawDeliveryJob<'_> {
    /// Decodes the row of a delivery that was picked up by this order.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self, service: &Arc<str>, order: &PickUpRequest) -> Result<DeliveryJob, CorruptRow> {
        let route = order.policies.iter().find(|terms| *terms.route == *self.route).ok_or(CorruptRow("route"))?;
        let reserve_request = ReserveRequest {
            id: RecordId::from_stored(self.id).ok_or(CorruptRow("id"))?,
            service: Arc::clone(service),
            scope: Scope::from_stored(self.scope).ok_or(CorruptRow("scope"))?,
            space: SpaceHash::from_stored(self.space),
            key: Key::from_stored(self.key).ok_or(CorruptRow("key"))?,
            path: self.path.map(Bytes::copy_from_slice),
            route: Arc::clone(&route.route),
            recipe: Recipe::from_stored(self.recipe).ok_or(CorruptRow(row::UNKNOWN_RECIPE))?,
            fingerprint: Fingerprint::from_stored(self.fingerprint).ok_or(CorruptRow("fingerprint"))?,
            instance: order.instance,
            token: Token::from_stored(self.token).ok_or(CorruptRow("token"))?,
            time_limit: route.time_limit,
            holder: None,
        };
        let delivery = DeliveryAttempt {
            accepted_at: row::time(self.accepted_at_ms)?,
            number: row::count(self.spent)?.saturating_add(1),
            give_up_in: Duration::from_millis(self.give_up_in_ms.max(0).cast_unsigned()),
        };
        let sealed = SealedBytes { secret: self.secret.to_owned(), bytes: Bytes::copy_from_slice(self.sealed) };
        let attempt = row::attempt(self.attempt)?;
        let recovery_point = row::recovery_point(self.recovery_point)?;
        Ok(DeliveryJob {
            lease: AttemptLease {
                reserve_request: Arc::new(reserve_request),
                attempt,
                // Only queued and unknown keys are picked up.
                taken_from: Some(ReplacedRecord {
                    token: Token::from_stored(self.taken_from).ok_or(CorruptRow("token"))?,
                    was_completed: false,
                }),
                recovery_point,
                delivery: Some(delivery),
            },
            sealed,
        })
    }
}

/// The row of a key that was given up.
pub struct GivenUpRow {
    /// The record's id, see [`GivenUpKey`].
    pub id: Vec<u8>,
    /// The route's name.
    pub route: String,
    /// The reason.
    pub note: String,
}

impl GivenUpRow {
    /// Decodes the row.
    ///
    /// # Errors
    /// [`CorruptRow`] names the part that does not decode.
    pub fn decode(self) -> Result<GivenUpKey, CorruptRow> {
        let id = RecordId::from_stored(&self.id).ok_or(CorruptRow("id"))?;
        Ok(GivenUpKey { id, route: self.route.into(), note: self.note })
    }
}
