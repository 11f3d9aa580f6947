//! The connections, divided by kind of work, so that no kind can starve another.
//!
//! The heartbeat and the sweep are never behind anything else: a lease that is renewed late loses attempts, and a sweep
//! that comes late leaves the keys of dead instances in flight. Attempts end on connections that no flood of
//! reservations can take. `docs/sizing.md` has the table of the shares; the test below compares it with [`Shares`].

use std::num::NonZero;
use std::thread;

use super::connect::PgPool;
use super::server::PgServer;
use super::worker_connection::{WorkerConnection, WorkerConnections};
use crate::OpenError;
use crate::call_spec::Pool;
use oncegate_settings::STORE_CONNECTIONS_MIN;

/// The fewest connections with which large replays have one of their own.
const REPLAY_FROM: usize = 7;

/// The fewest connections with which operators' reads have one of their own.
const ADMIN_READS_FROM: usize = 9;

/// The connections beyond which each worker has one of its own, up to a quarter of all: a machine of many cores has
/// many workers, and those without one use the others' lanes.
const WORKERS_FROM: usize = 8;

/// The fewest connections that end attempts: one may be busy with large replays, or with reports that wait for a lock.
// See docs/decisions/0013-divide-connections-by-duty.md.
const SETTLE_MIN: usize = 2;

pub(super) struct PgPools {
    /// Reservations, look-ups and pick-ups.
    pub begin: PgPool,
    /// Settlements, services' reports and all else that running attempts need.
    pub settle: PgPool,
    /// Large responses alone, so that none delays a reservation.
    pub replay: PgPool,
    /// The heartbeat, its look-up of the salt, and pings: they wait for no lock that other statements of this process
    /// take.
    pub lease: PgPool,
    pub sweep: PgPool,
    /// Reaping, inquiries, operators' decisions and the like.
    pub upkeep: PgPool,
    /// Counts, key lists and pages. Their statements end with their callers, see `call`.
    pub admin_reads: PgPool,
    /// Reservations, look-ups and settlements of requests beside which no other waits.
    pub workers: WorkerConnections,
}

/// The number of connections for each kind of work. The lease, the sweep and upkeep always have one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    begin: usize,
    settle: usize,
    /// Otherwise large replays share those of settlements, one at a time.
    has_replay: bool,
    /// Otherwise operators' reads share the one of upkeep.
    has_admin_reads: bool,
    workers: usize,
}

impl Shares {
    fn from_total(max_connections: usize, workers: usize) -> Self {
        let total = max_connections.max(STORE_CONNECTIONS_MIN);
        let workers = workers.min(total.saturating_sub(WORKERS_FROM)).min(total / 4);
        let total = total - workers;
        let (has_replay, has_admin_reads) = (total >= REPLAY_FROM, total >= ADMIN_READS_FROM);
        let rest = total - 3 - usize::from(has_replay) - usize::from(has_admin_reads);
        let settle = (rest / 3).max(SETTLE_MIN);
        Self { begin: rest - settle, settle, has_replay, has_admin_reads, workers }
    }
}

impl PgPools {
    pub fn new(server: &PgServer, max_connections: usize) -> Result<Self, OpenError> {
        let shares = Shares::from_total(max_connections, thread::available_parallelism().map_or(1, NonZero::get));
        let pool = |size| PgPool::new(server, size);
        // A middlebox may have forgotten the connection and still accept what is sent: no answer will come, and a lease
        // cannot wait. After twice a call's time limit without an answer it gets another connection. Renewals wait for
        // no locks, so they leave no server processes behind.
        let lease = pool(1)?.with_given_up_max(server.timeout());
        let (settle, upkeep) = (pool(shares.settle)?, pool(1)?);
        // Only one large look-up runs at once, so that settlements have a connection of their own here too.
        let replay = if shares.has_replay { pool(1)? } else { settle.clone() };
        let admin_reads = if shares.has_admin_reads { pool(1)? } else { upkeep.clone() };
        let workers = (0..shares.workers).map(|_| WorkerConnection::new(server)).collect::<Result<_, _>>()?;
        Ok(Self { begin: pool(shares.begin)?, settle, replay, lease, sweep: pool(1)?, upkeep, admin_reads, workers })
    }

    pub fn of(&self, pool: Pool) -> &PgPool {
        match pool {
            Pool::AdminReads => &self.admin_reads,
            Pool::Begin => &self.begin,
            Pool::Lease => &self.lease,
            Pool::Settle => &self.settle,
            Pool::Sweep => &self.sweep,
            Pool::Upkeep => &self.upkeep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZING: &str = include_str!("../../../../docs/sizing.md");

    /// The row of the documented table.
    fn row(total: usize) -> String {
        let Shares { begin, settle, has_replay, has_admin_reads, workers } = Shares::from_total(total, 4);
        let replay = if has_replay { "1" } else { "with settlements" };
        let admin_reads = if has_admin_reads { "1" } else { "with upkeep" };
        format!("| {total} | {begin} | {settle} | {replay} | 1 | 1 | 1 | {admin_reads} | {workers} |")
    }

    #[test]
    fn the_documented_table_has_the_shares() {
        let documented = |line: &&str| line.starts_with("| ") && line.split('|').count() == 11;
        let documented: Vec<_> = SIZING.lines().filter(documented).skip(1).collect();
        let expected: Vec<_> = [6, 8, 10, 16, 32].map(row).into();
        assert_eq!(documented, expected, "docs/sizing.md, in the section about connections");
    }

    #[test]
    fn the_shares_add_up_to_the_limit() {
        for total in STORE_CONNECTIONS_MIN..=1000 {
            for cores in [1, 2, 64] {
                let Shares { begin, settle, has_replay, has_admin_reads, workers } = Shares::from_total(total, cores);
                let sum = begin + settle + 3 + usize::from(has_replay) + usize::from(has_admin_reads) + workers;
                assert_eq!(sum, total);
                assert!(begin >= 1 && settle >= SETTLE_MIN, "{total}");
                assert!(workers <= cores, "{total}");
            }
        }
        assert_eq!(Shares::from_total(1, 2), Shares::from_total(STORE_CONNECTIONS_MIN, 2));
    }
}
