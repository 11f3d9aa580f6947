//! Reading the rows of probes, for both stores.

use super::ListSettledKeysParams;
use super::row::{RowReader, probe_subject};
use crate::domain::probe::{Probe, ProbeVerdict, SettledKey, SettledKeyPage};
use crate::domain::response::CorruptRow;

/// The name of a verdict in the audit log.
pub fn action(verdict: &ProbeVerdict) -> &'static str {
    match verdict {
        ProbeVerdict::Dead => "give_up",
        ProbeVerdict::Completed { .. } | ProbeVerdict::Open { .. } | ProbeVerdict::Retryable { .. } => "resolve",
    }
}

/// Reads a probe that was claimed.
pub fn probe(row: &impl RowReader) -> Result<Probe, CorruptRow> {
    Ok(Probe { subject: probe_subject(row)?, number: row.read("probes")?, absences: row.read("absences")? })
}

impl SettledKeyPage {
    /// Adds a row to the page, if the key fits. `read` is the number of rows so far, with it.
    pub(super) fn add(
        &mut self,
        row: &impl RowReader,
        read: usize,
        params: &ListSettledKeysParams,
    ) -> Result<(), CorruptRow> {
        if row.read("fits")? {
            let subject = probe_subject(row)?;
            if params.routes.iter().any(|route| **route == *subject.route) {
                self.keys.push(SettledKey { subject, state: row.read("state")?, status: row.read("status")? });
            }
        }
        if read == params.limit as usize {
            self.next = Some(row.read("id")?);
        }
        Ok(())
    }
}
