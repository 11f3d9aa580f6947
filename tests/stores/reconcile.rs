//! Unknown outcomes, and a service that answers inquiries about them.

use std::time::Duration;

use harness::proxy::Setup;
use harness::{Answer, Proxy, Response, Store, Upstream, World, route};

mod inquiries;
mod report;
mod two_proxies;

/// The reconcile URL's path and query.
const QUESTION: &str = "lookup?key={key}&route={route}&path={path}";

/// The first interval between inquiries.
const EVERY: &str = "500ms";

/// The time from its reservation until an attempt is quiet here: the store's time and a second to send it, the
/// upstream's time, and a lease.
const QUIET: Duration = Duration::from_millis(1_000 + 1_000 + 500 + 1_000);

/// A world whose reconcile URL is a second service, which tests tell what to answer.
struct ReconcileWorld {
    world: World,
    lookup: Upstream,
}

impl ReconcileWorld {
    /// With one route, `POST /pay`.
    async fn open(store: Store, options: &str) -> Self {
        Self::with(store, options, "").await
    }

    /// With more lines about the route.
    async fn with(store: Store, options: &str, lines: &str) -> Self {
        let lookup = Upstream::start().await;
        let reconcile = reconcile(&lookup, options);
        let world =
            World::with(store, |setup| hasty(setup).route(&route("pay", &format!("{reconcile}\n{lines}")))).await;
        Self { world, lookup }
    }

    /// Makes a key unknown: the service breaks off.
    async fn lose(&self, key: &str, how: Answer) {
        self.world.upstream.then(how);
        assert_eq!(self.world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    }

    /// Waits until a retry's answer is no longer `outcome-unknown`.
    async fn clears_up(&self, key: &str) -> Response {
        harness::eventually(harness::TEST_TIMEOUT, async || {
            Some(self.world.pay(key).send().await).filter(|answer| answer.outcome().1 != "outcome-unknown")
        })
        .await
    }
}

fn reconcile(lookup: &Upstream, options: &str) -> String {
    let url = format!("http://{}/{QUESTION}", lookup.address);
    format!("reconcile = {{ url = \"{url}\", after = \"0s\", every = \"{EVERY}\", {options} }}")
}

/// Short timeouts, so that an attempt is soon quiet.
fn hasty(setup: Setup) -> Setup {
    setup.short_leases().store("timeout = \"1s\"").defaults("upstream_timeout = \"500ms\"")
}

/// Starts another proxy with the same setup and store.
async fn beside(world: &World) -> Proxy {
    world.setup.start().await
}
