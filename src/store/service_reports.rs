//! Reading the rows of services' reports, for both stores.

use super::FindReservationParams;
use super::row::RowReader;
use crate::domain::ids::Token;
use crate::domain::response::CorruptRow;
use crate::domain::service_report::{ReportResult, ReservedKey};
use crate::domain::state::StateKind;

/// Reads the key of a reservation; `None` where it is another service's or another attempt's.
pub(super) fn read_reserved_key(
    row: &impl RowReader,
    params: &FindReservationParams,
) -> Result<Option<ReservedKey>, CorruptRow> {
    let (token, service): (Token, String) = (row.read("token")?, row.read("service")?);
    let is_its = *service == *params.service && token.is_same(&params.handle.token);
    Ok(if is_its { Some(ReservedKey { route: row.read("route")?, state: row.read("state")? }) } else { None })
}

/// The result for a row in this state.
pub(super) fn report_result(state: StateKind) -> ReportResult {
    match state {
        StateKind::Completed => ReportResult::Completed,
        StateKind::Expired => ReportResult::Gone,
        StateKind::InFlight => ReportResult::Noted,
        StateKind::Dead | StateKind::Queued | StateKind::Retryable | StateKind::Unknown => ReportResult::Taken,
    }
}
