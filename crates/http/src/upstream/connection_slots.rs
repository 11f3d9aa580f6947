//! The number of connections to each upstream, over all workers and routes.
//!
//! A service has so many workers. Clients that never end their requests must not take all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use scopeguard::defer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connector::MemoryNetwork;
use oncegate_settings::UpstreamTarget;

#[derive(Debug)]
pub struct UpstreamSlots {
    connections_max: usize,
    targets: Mutex<HashMap<Arc<UpstreamTarget>, Arc<ConnectionSlots>>>,
    /// The simulated network; `None` for the machine's own.
    network: Option<Arc<dyn MemoryNetwork>>,
}

/// The slots for connections to one upstream. The waiting requests are served in the order in which they came.
#[derive(Debug)]
pub struct ConnectionSlots {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// The places of unguarded requests.
    unguarded: Arc<Semaphore>,
}

/// The part of the connections that is for guarded requests alone. Responses that clients take slowly, or never, last
/// for minutes where they stream through, and no key limits them.
// See docs/decisions/0026-keep-loads-apart.md.
const GUARDED_SHARE: usize = 8;

impl UpstreamSlots {
    pub fn new(connections_max: usize) -> Self {
        Self { connections_max, targets: Mutex::default(), network: None }
    }

    /// The same slots, for connections over HTTP/1.1 through a simulated network.
    pub fn in_network(self, network: Arc<dyn MemoryNetwork>) -> Self {
        Self { network: Some(network), ..self }
    }

    pub(super) fn network(&self) -> Option<Arc<dyn MemoryNetwork>> {
        self.network.clone()
    }

    pub fn of(&self, target: &Arc<UpstreamTarget>) -> Arc<ConnectionSlots> {
        let mut targets = self.targets.lock();
        let slots = targets.entry(Arc::clone(target)).or_insert_with(|| {
            let all = self.connections_max.min(Semaphore::MAX_PERMITS);
            let unguarded = Arc::new(Semaphore::new(all - all / GUARDED_SHARE));
            Arc::new(ConnectionSlots { free: Arc::new(Semaphore::new(all)), waiting: AtomicUsize::new(0), unguarded })
        });
        Arc::clone(slots)
    }
}

impl ConnectionSlots {
    pub(super) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    pub(super) async fn take(&self) -> OwnedSemaphorePermit {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        defer! { self.waiting.fetch_sub(1, Ordering::Relaxed); }
        Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Waits for a place among the unguarded requests, which leave an eighth of the connections to guarded ones. `None`
    /// if there is none in this time.
    pub(super) async fn take_unguarded_place(&self, wait_max: Duration) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.unguarded).try_acquire_owned() {
            return Some(place);
        }
        let place = timeout(wait_max, Arc::clone(&self.unguarded).acquire_owned()).await.ok()?;
        Some(place.expect("the semaphore is never closed"))
    }

    /// Whether requests wait for a slot, on any worker. Idle connections are closed for them.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}
