//! The proofs of durable commits, and the writers of rows: the comparison that [`super::durability`] rests on.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_postgres::Row;

use crate::row::RowReader;
use oncegate_domain::response::CorruptRow;

/// The most servers whose proofs are kept: more nodes than a cluster has, and a new one for each failover.
const SERVERS_MAX: usize = 256;

/// The transaction that wrote a row, on a server whose commits wait for standbys.
#[derive(Clone, Debug)]
pub(super) struct RowWriter {
    server: String,
    id: i64,
}

impl RowWriter {
    /// Reads the columns `standbys`, `horizon` and `writer`. `None` where commits wait for no standby: a commit is
    /// visible only once it is on the disk.
    pub fn read(row: &Row) -> Result<Option<Self>, CorruptRow> {
        let Some(proof) = Proof::read(row)? else { return Ok(None) };
        Ok(Some(Self { server: proof.server, id: full_id(proof.horizon, row.read("writer")?) }))
    }
}

/// The full id of a visible row's writer. The row has its lower half, and is within 2³¹ transactions of the horizon; if
/// it is older, it is taken for younger at worst.
fn full_id(horizon: i64, lower_half: u32) -> i64 {
    let horizon_half = u32::try_from(horizon & i64::from(u32::MAX)).unwrap_or_default();
    horizon + i64::from(lower_half.wrapping_sub(horizon_half).cast_signed())
}

/// The proof that a durable commit gives.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    /// The server since its start, with the standbys that its commits wait for, and how.
    server: String,
    horizon: i64,
}

impl Proof {
    /// Whether the commit stands in the log of the server that the row was read from.
    pub fn is_of_server_of(&self, writer: &RowWriter) -> bool {
        self.server == writer.server
    }

    /// Reads the columns `standbys` and `horizon`. `None` where commits wait for no standby.
    pub fn read(row: &Row) -> Result<Option<Self>, CorruptRow> {
        let server: Option<String> = row.read("standbys")?;
        server.map(|server| Ok(Self { server, horizon: row.read("horizon")? })).transpose()
    }
}

#[derive(Debug, Default)]
pub(super) struct Horizons(Mutex<HashMap<String, i64>>);

impl Horizons {
    pub fn add(&self, proof: Proof) {
        let mut horizons = self.0.lock();
        if horizons.len() >= SERVERS_MAX && !horizons.contains_key(&proof.server) {
            horizons.clear();
        }
        let horizon = horizons.entry(proof.server).or_insert(proof.horizon);
        *horizon = proof.horizon.max(*horizon);
    }

    pub fn include(&self, writer: &RowWriter) -> bool {
        let horizons = self.0.lock();
        horizons.get(&writer.server).is_some_and(|horizon| writer.id < *horizon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_on_another_server_proves_nothing() {
        let writer = RowWriter { server: "1 on a".into(), id: 7 };
        for (server, proves) in [("1 on a", true), ("2 on a", false), ("1 on b", false), ("1 remote_write a", false)] {
            let proof = Proof { server: server.into(), horizon: 7 };
            assert_eq!(proof.is_of_server_of(&writer), proves, "{server}");
        }
    }

    #[test]
    fn a_writer_is_below_a_horizon_only_if_it_ended_before() {
        const EPOCH: i64 = 1 << 32;
        let horizons = Horizons::default();
        horizons.add(Proof { server: "1 a".into(), horizon: EPOCH + 100 });
        horizons.add(Proof { server: "1 a".into(), horizon: EPOCH + 50 });
        for (server, seen_at, lower_half, is_proven) in [
            ("1 a", EPOCH + 200, 99, true),
            ("1 a", EPOCH + 200, 100, false),
            ("1 a", EPOCH + 200, 250, false),
            ("2 a", EPOCH + 200, 99, false),
            ("1 b", EPOCH + 200, 99, false),
            // Written before the ids began anew.
            ("1 a", EPOCH + 200, u32::MAX, true),
            // Written long after the proof: only the lower half is smaller.
            ("1 a", EPOCH + (1 << 31) + 200, (1 << 31) + 150, false),
            ("1 a", 2 * EPOCH + 200, 99, false),
            // Older than half of all ids, as a frozen row may be.
            ("1 a", EPOCH + 200, (1 << 31) + 100, false),
        ] {
            let writer = RowWriter { server: server.into(), id: full_id(seen_at, lower_half) };
            assert_eq!(horizons.include(&writer), is_proven, "{server} {seen_at} {lower_half}");
        }
    }
}
