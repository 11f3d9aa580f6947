//! The services' side of the store: their reports about their own attempts, beside their responses.

use std::sync::Arc;

use super::StoreFuture;
use crate::domain::ids::RecordId;
use crate::domain::service_report::{ReportResult, ReservationHandle, ReservedKey, RouteRetention, ServiceReport};
use crate::domain::state::StateKind;

/// The operations that services' reports need of a store.
///
/// A response that a service gives outside of its answer is a [settlement](super::Store::settle) like any other.
pub trait ServiceReports: Send + Sync {
    /// Returns the key of a reservation, if the reservation is its newest attempt's.
    fn find_reservation(&self, service: Arc<str>, handle: ReservationHandle) -> StoreFuture<'_, Option<ReservedKey>>;

    /// Records a service's report about its own attempt, as long as no later attempt has begun and the key is not
    /// completed.
    ///
    /// "Not executed" is applied at once where nobody waits for the attempt any more. While the attempt is in flight
    /// the report is stored, and applies once the attempt has ended without a response, see [`Self::apply_deferred`]: a
    /// proxy still waits for the answer to that attempt, perhaps on another instance, and two attempts of a key never
    /// run at the same time.
    fn record_report(&self, report: ServiceReport) -> StoreFuture<'_, ReportResult>;

    /// Makes keys retryable whose service reported "not executed" while the attempt ran, and whose attempt has ended
    /// since without a response; at most `limit` keys. Returns their ids.
    fn apply_deferred(&self, limit: u32) -> StoreFuture<'_, Vec<RecordId>>;

    /// Stores the retention rules of a service's routes, for services that complete their keys in the database itself.
    /// A store that only the proxy writes to ignores it.
    fn store_route_retention(&self, service: Arc<str>, terms: Vec<RouteRetention>) -> StoreFuture<'_, ()>;
}

/// The result for a row in this state; `held` where another transaction has locked it.
pub(super) fn report_result(state: &str, held: bool) -> ReportResult {
    match StateKind::parse(state) {
        Some(StateKind::Completed) => ReportResult::Completed,
        Some(StateKind::Expired) => ReportResult::Gone,
        _ if held => ReportResult::Held,
        Some(StateKind::InFlight) => ReportResult::Noted,
        _ => ReportResult::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_for_a_locked_row_waits_unless_the_keys_response_stands() {
        for (state, free, held) in [
            ("completed", ReportResult::Completed, ReportResult::Completed),
            ("expired", ReportResult::Gone, ReportResult::Gone),
            ("in_flight", ReportResult::Noted, ReportResult::Held),
            ("unknown", ReportResult::Taken, ReportResult::Held),
        ] {
            assert_eq!((report_result(state, false), report_result(state, true)), (free, held), "{state}");
        }
    }
}
