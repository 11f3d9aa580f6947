//! The result of a service's report.

use crate::domain::service_report::ReportResult;
use crate::domain::state::StateKind;

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
