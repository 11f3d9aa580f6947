//! Arm: go upstream although the store cannot reserve, where the route says so. Nothing guards such a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Response;

use super::admit::Guarded;
use super::refuse::Refusal;
use super::underway::{Entry, Standing};
use super::{Gate, Stamp, refusal_of, refuse};
use crate::body::Body;
use crate::config::StoreDown;
use crate::domain::attempt::Lease;
use crate::store::StoreError;
use crate::store::breaker::was_not_asked;
use crate::telemetry::logs::causes;

/// Why there is no reservation.
pub(super) enum Lacking {
    /// The store was asked for one, or could not be.
    Failed(StoreError),
    /// This instance has lost its lease, and what the store was asked instead, if it answered at all, names no record.
    Lease(Option<StoreError>),
}

impl Lacking {
    fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Lease(error) => error.as_ref(),
        }
    }

    /// What the store may know of an attempt that is made all the same.
    fn standing(&self) -> Standing {
        match self {
            Self::Failed(error) if !was_not_asked(error) => Standing::InDoubt,
            Self::Failed(_) | Self::Lease(_) => Standing::Absent,
        }
    }

    fn refusal(self) -> Refusal {
        match self {
            Self::Failed(error) | Self::Lease(Some(error)) => refusal_of(error),
            Self::Lease(None) => Refusal::StoreUnavailable,
        }
    }
}

impl Gate {
    /// The store cannot reserve: refuses, or forwards unguarded.
    ///
    /// A reservation that failed may have been committed. Its token stays among those underway, so that it is not taken
    /// for one of which nothing was sent, and what the attempt comes to is settled under it: a retry that finds it there
    /// later is not another execution.
    pub(super) async fn without_reservation(
        &self,
        guarded: Guarded,
        lacking: Lacking,
        entry: Entry,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        let is_corrupt = matches!(lacking.error(), Some(StoreError::Corrupt(_)));
        // Who is leaving begins nothing; another instance may have a store.
        let is_leaving = self.shared.draining.is_cancelled();
        if guarded.route().store_down == StoreDown::Reject || is_corrupt || is_leaving {
            return Err(lacking.refusal());
        }
        self.shared.bypassed.fetch_add(1, Ordering::Relaxed);
        // Each one, as whoever clears up after an outage needs them all: a retry of it is another execution.
        tracing::warn!(record = %guarded.ask.id, route = %guarded.route().name, key = guarded.ask.key.prefix(),
            cause = lacking.error().and_then(|error| causes(error)), "the store cannot reserve; the request is forwarded unguarded");
        let stamp = stamp.clone().bypassed();
        let lease = Lease { ask: Arc::new(guarded.ask.clone()), attempt: 1 };
        let sent = self.send(guarded, lease, entry.standing_as(lacking.standing()), &stamp).await;
        Ok(sent.unwrap_or_else(|refusal| refuse(refusal, &self.live().config, &stamp)))
    }
}
