//! A key that was stored before a rule of its route became narrower.

use super::identity::RequestIdentity;
use crate::gate::worker::{Gate, log_and_refuse};
use oncegate_domain::execution_risk::{RecordSummary, RetryRule};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::Route;

impl Gate {
    /// Looks up the key of a request that breaks a rule of its route which a reload or a start may have made narrower. A retry of a
    /// key that was made under the wider rule gets its answer. Returns the refusal that a new request gets.
    ///
    /// The lookup reads, and reserves nothing: a request within the rules costs more, so that a caller gains nothing by breaking
    /// them. A body over the limit is read for keys with such a record alone, and counts in `limits.held_bodies` like any other.
    ///
    /// # Errors
    /// The refusal, if the key has no record or one that the next attempt may take over. [`Refusal::StoreUnavailable`] without the
    /// store: a client that took the refusal for the answer might send the operation with a new key.
    pub(super) async fn check_stored(
        &self,
        identity: &RequestIdentity,
        refusal: Refusal,
        route: &Route,
        is_provisional: bool,
    ) -> Result<Refusal, Refusal> {
        let id = identity.record_id();
        let record = match self.instance.in_flight.find(&id) {
            Some(record) => Some(record),
            // The store has no record by this id, and may have one of the key.
            None if is_provisional => return Err(Refusal::StoreUnavailable),
            None => self.instance.find_record(id).await.map_err(log_and_refuse)?,
        };
        let Some(record) = record else { return Err(refusal) };
        let record = self.instance.store_clock.certain(record, self.instance.attempt_time_limit(route));
        let rule = RetryRule { on_unknown: route.options.on_unknown, quiet_after: route.quiet_after };
        let summary = RecordSummary::from(&record);
        // The caller of an accepted request is answered while it waits for its delivery.
        let is_answered = summary.is_accepted && !summary.past_ttl;
        if is_answered || !summary.may_be_executed(&rule) { Ok(refusal) } else { Err(refusal) }
    }
}
