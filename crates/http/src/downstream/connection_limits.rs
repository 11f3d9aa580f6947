//! The limits on clients' connections: in all, and of one peer address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::protocol::refusal::ReachedLimit;
use oncegate_domain::peer_network::peer_network;
use oncegate_telemetry::metrics::Gauge;

#[derive(Debug)]
pub struct ConnectionLimits {
    connections_max: usize,
    /// 0 for no limit.
    per_peer_max: usize,
    /// The metric of them counts.
    open: Gauge,
    /// The open connections of each peer; empty without a limit.
    by_peer: Mutex<HashMap<IpAddr, usize>>,
}

/// The right to one open connection, until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    peer: IpAddr,
}

impl ConnectionLimits {
    /// Limits of which nothing is used. `per_peer_max` is 0 for no limit; `open` is the metric, at zero.
    pub fn new(connections_max: usize, per_peer_max: usize, open: Gauge) -> Arc<Self> {
        Arc::new(Self { connections_max, per_peer_max, open, by_peer: Mutex::default() })
    }

    /// Counts a connection of this peer. The error is the limit that is reached: the connection does not count then.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<ConnectionPermit, ReachedLimit> {
        let peer = peer_network(peer);
        if self.open.inc().unsigned_abs() >= self.connections_max as u64 {
            self.open.dec();
            return Err(ReachedLimit::Connections);
        }
        if self.per_peer_max > 0 {
            let mut by_peer = self.by_peer.lock();
            let open = by_peer.entry(peer).or_default();
            if *open >= self.per_peer_max {
                self.open.dec();
                return Err(ReachedLimit::ConnectionsPerPeer);
            }
            *open += 1;
        }
        Ok(ConnectionPermit { limits: Arc::clone(self), peer })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.open.dec();
        if self.limits.per_peer_max > 0 {
            let mut by_peer = self.limits.by_peer.lock();
            match by_peer.get_mut(&self.peer) {
                Some(open) if *open > 1 => *open -= 1,
                _ => drop(by_peer.remove(&self.peer)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_are_limited_in_all_and_for_each_peer() {
        let limits = ConnectionLimits::new(3, 2, Gauge::default());
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(address);
        let kept = [limits.admit(a).unwrap(), limits.admit(a).unwrap()];
        assert_eq!(limits.admit(a).unwrap_err(), ReachedLimit::ConnectionsPerPeer);
        let last = limits.admit(b).unwrap();
        assert_eq!(limits.admit(b).unwrap_err(), ReachedLimit::Connections);
        drop(kept);
        assert!(limits.admit(a).is_ok() && limits.admit(b).is_ok());
        drop(last);
        assert_eq!((limits.open.get(), limits.by_peer.lock().len()), (0, 0));
    }
}
