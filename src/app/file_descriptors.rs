//! The division of the process's file descriptors.
//!
//! A client that opens connections must not take the descriptors that the store, the upstreams and the admin listener
//! need: an admitted payment would fail, and probes would have the process restarted.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use oncegate_settings::LimitsConfig;

/// The descriptors for everything but clients, upstreams and PostgreSQL: listeners, logs, timers, the configuration and
/// the SQLite file (about 30), and some 30 connections to the admin listener.
const OWN: usize = 64;

/// The connections that the descriptors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionShares {
    /// The connections of clients.
    pub(super) clients: usize,
    /// The connections to each upstream.
    pub(super) each_upstream: usize,
}

/// Raises the process's limit as far as it may, and divides the descriptors.
pub(super) fn divide(limits: &LimitsConfig, store_connections: usize, upstreams: usize) -> ConnectionShares {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let mut available = current;
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        available = maximum;
    }
    let available = available.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let shares = share(available, limits, store_connections, upstreams);
    if shares.clients < limits.connections || shares.each_upstream < limits.upstream_connections {
        tracing::warn!(
            file_descriptors = available,
            clients = shares.clients,
            each_upstream = shares.each_upstream,
            "there are too few file descriptors for the connections in `[limits]`; these are allowed. Raise the limit \
             (ulimit -n, LimitNOFILE)"
        );
    }
    shares
}

/// Upstreams get what they want, but a third at most: most connections of clients are idle.
fn share(available: usize, limits: &LimitsConfig, store_connections: usize, upstreams: usize) -> ConnectionShares {
    let rest = available.saturating_sub(OWN).saturating_sub(store_connections);
    let wanted = limits.upstream_connections.saturating_mul(upstreams);
    let for_upstreams = wanted.min(rest / 3);
    ConnectionShares {
        clients: limits.connections.min(rest - for_upstreams).max(1),
        each_upstream: limits.upstream_connections.min(for_upstreams / upstreams.max(1)).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_the_store_the_upstreams_and_the_admin_listener() {
        let limits = LimitsConfig {
            connections: 8192,
            connections_per_peer: 0,
            held_bodies: 96 << 20,
            body_rate: 512,
            upstream_connections: 512,
        };
        for (available, upstreams, clients, each_upstream) in [
            (usize::MAX, 1, 8192, 512),
            (65_536, 10, 8192, 512),
            (1024, 1, 635, 317),
            (300, 1, 152, 76),
            (300, 4, 152, 19),
            (10, 1, 1, 1),
        ] {
            let shares = share(available, &limits, 8, upstreams);
            assert_eq!(shares, ConnectionShares { clients, each_upstream }, "{available} {upstreams}");
            assert!(available < 100 || clients + upstreams * each_upstream + 8 + OWN <= available);
        }
    }
}
