//! Arm: go upstream although the store cannot reserve, where the route says so. Nothing guards such a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Response;

use super::admit::Guarded;
use super::decide::decide;
use super::refuse::Refusal;
use super::underway::{Entry, Standing};
use super::{Gate, Stamp, refusal_of, refuse};
use crate::body::Body;
use crate::config::StoreDown;
use crate::domain::attempt::Lease;
use crate::store::StoreError;
use crate::telemetry::logs::causes;

/// Why there is no reservation.
pub(super) enum Lacking {
    /// The store was asked for one, or could not be.
    Failed(StoreError),
    /// This instance has lost its lease, and the store was asked for the record instead. It failed, or has answered that
    /// there is none.
    Lease(Option<StoreError>),
}

impl Lacking {
    /// Why the store could not be asked; `None` where it has said something, be it that somebody has the key or that this
    /// instance is to start nothing. That is no store that is away.
    fn outage(&self) -> Option<&StoreError> {
        match self {
            Self::Failed(error) | Self::Lease(Some(error)) => match error {
                StoreError::Corrupt(_) | StoreError::Taken(_) => None,
                StoreError::TimedOut | StoreError::Unavailable(_) => Some(error),
            },
            Self::Lease(None) => None,
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
    /// The store cannot reserve: refuses, or forwards unguarded what this instance does not know to be underway or done.
    ///
    /// A reservation that failed may have been committed. Its token stays among those underway, so that it is not taken
    /// for one of which nothing was sent. What the attempt comes to is told from there, and stored under its token as soon
    /// as there is a store, unless somebody else has the key by then: a retry is not another execution.
    pub(super) async fn without_reservation(
        &self,
        guarded: Box<Guarded>,
        lacking: Lacking,
        mut entry: Entry,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        // Who is leaving begins nothing; another instance may have a store.
        let is_leaving = self.shared.draining.is_cancelled();
        let may_bypass = guarded.route().store_down == StoreDown::Bypass && !guarded.is_patient;
        let Some(outage) = lacking.outage().filter(|_| may_bypass && !is_leaving) else {
            return Err(lacking.refusal());
        };
        let lease = Lease { ask: Arc::new(guarded.ask.clone()), attempt: 1, recovery_point: None, delivery: None };
        // A purge elsewhere may not have been heard of. That is nothing beside another execution.
        let decision = match self.shared.recalled(&lease.ask.id) {
            Some(record) => {
                let same = guarded.is_what(&record);
                Some(decide(record, same, &guarded.rules()))
            }
            None => self.begins(&guarded, &lease, &mut entry),
        };
        if let Some(decision) = decision {
            return self.tell(&guarded, decision, stamp).await;
        }
        self.shared.bypassed.fetch_add(1, Ordering::Relaxed);
        // Each one, as whoever clears up after an outage needs them all: a retry elsewhere is another execution.
        tracing::warn!(record = %guarded.ask.id, route = %guarded.route().name, key = guarded.ask.key.prefix(),
            cause = causes(outage), "the store cannot reserve; the request is forwarded unguarded");
        let stamp = stamp.clone().bypassed();
        let sent = self.send(guarded, lease, entry.standing_as(Standing::InDoubt), &stamp).await;
        Ok(sent.unwrap_or_else(|refusal| refuse(refusal, &self.live().config, &stamp)))
    }
}
